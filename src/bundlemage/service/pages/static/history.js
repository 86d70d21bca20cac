// The history of a user as chips; for a new visitor, also a form that saves the visitor as a user.

import { api } from "./api.js";
import { busy, byId, count, h, plural, randomKey, titleOf } from "./dom.js";
import { emptyBox, problemBox, toast } from "./frame.js";
import { picture } from "./images.js";

const FEW = matchMedia("(max-width: 599px)").matches ? 4 : 10; // on a phone, the answer is below this
const FIRST = 6; // the number of users that are offered at the start

const HOW = { view: "viewed", cart: "in the cart", return: "returned", dislike: "disliked" };

/** Whether a user bought something of a history. What a visitor has counts as bought. */
export const isBought = (thing) => !thing.rejected && (thing.weight ?? 1) >= 1;

/** How a user took what was not bought, or was given back. */
const howTaken = (thing) =>
  HOW[thing.event] ?? thing.event ?? (thing.rejected ? "returned or disliked" : "not bought");

/**
 * `shopper()` returns the current {user, known, items, bundles}: `user` is an id or null; `known` is false
 * for a new visitor. `onDrop(kind, thing)` removes an item or a bundle from a visitor's history.
 * `onChoose(id)` shows a user.
 */
export function historyPanel({ place, shopper, mayKeep, onChoose, onDrop }) {
  const unfolded = new Set();

  function chip(thing, kind) {
    const drop = () => {
      onDrop(kind, thing);
      place.querySelector("button")?.focus();
    };
    return h(
      "li",
      { class: "chip" },
      kind === "bundles" ? h("span", { class: "chip-art" }, picture(thing)) : null,
      h("span", {}, titleOf(thing)),
      isBought(thing) ? null : h("span", { class: "fine" }, howTaken(thing)),
      shopper().user
        ? null
        : h(
            "button",
            {
              type: "button",
              class: "icon",
              "aria-label": `Take out ${titleOf(thing)}`,
              on: { click: drop },
            },
            "×",
          ),
    );
  }

  function chips(kind, name, history) {
    if (!history.length) return null;
    const things = [...history].reverse(); // the newest first, because it has just changed the answer
    const all = unfolded.has(kind);
    const unfold = () => {
      if (all) unfolded.delete(kind);
      else unfolded.add(kind);
      draw();
      byId(`unfold-${kind}`).focus();
    };
    const words = all ? "Show fewer" : `Show all ${count(things.length)}`;
    return h(
      "section",
      {},
      h("h3", {}, name, " ", h("span", { class: "count" }, count(things.length))),
      h(
        "ul",
        { class: "chips" },
        (all ? things : things.slice(0, FEW)).map((thing) => chip(thing, kind)),
      ),
      things.length > FEW
        ? h(
            "button",
            {
              type: "button",
              class: "link",
              id: `unfold-${kind}`,
              "aria-expanded": String(all),
              on: { click: unfold },
            },
            words,
          )
        : null,
    );
  }

  function firstUsers() {
    const list = h("ul", { class: "chips" });
    const box = h(
      "div",
      { class: "first" },
      h("p", { class: "fine" }, "Begin with one of these, or search:"),
      list,
    );
    const button = (user) =>
      h("button", { type: "button", class: "chip", on: { click: () => onChoose(user.id) } }, user.id);
    api.users("").then(
      ({ users }) => list.replaceChildren(...users.slice(0, FIRST).map((user) => h("li", {}, button(user)))),
      (error) => box.replaceChildren(problemBox(error, draw)),
    );
    return box;
  }

  function keepForm() {
    if (!mayKeep)
      return h(
        "p",
        { class: "fine note" },
        "To save this visitor as a user, log in with a write key. This key may only read.",
      );
    const typed = byId("keep-name")?.value ?? ""; // keep a name that is already typed
    const name = h("input", {
      id: "keep-name",
      maxlength: 200,
      autocomplete: "off",
      placeholder: "A name or id",
      value: typed,
    });
    const note = h("div", { class: "fine bad-text", role: "alert" });
    const button = h("button", { type: "submit" }, "Save");
    const refuse = (why) => {
      note.textContent = why;
      name.focus();
    };
    const keep = async () => {
      const id = name.value.trim();
      if (!id) return refuse("Enter a name first.");
      const taken = (await api.users(id)).users.some((user) => user.id === id);
      if (taken) return refuse(`There is a user ${id} already. Choose another name.`);
      const { items, bundles } = shopper();
      const all = [
        ...items.map((item) => ({ user_id: id, item_id: item.id })),
        ...bundles.map((bundle) => ({ user_id: id, bundle_id: bundle.id })),
      ];
      await api.record(all, randomKey());
      toast(`${id} is a user of the shop now, with ${plural(all.length, "purchase")}.`);
      await onChoose(id);
      return byId("heading").focus();
    };
    const submit = (event) => {
      event.preventDefault();
      busy(button, () => keep().catch((error) => note.replaceChildren(problemBox(error))));
    };
    return h(
      "form",
      { class: "keep", on: { submit }, novalidate: true },
      h(
        "div",
        { class: "field" },
        h("label", { for: "keep-name" }, "Save as a user"),
        h("div", { class: "row" }, name, button),
      ),
      note,
    );
  }

  function nothing({ user, known }) {
    if (user)
      return emptyBox("Nothing yet", "This user has bought nothing, so the best-selling bundles are shown.");
    if (known) return firstUsers();
    return h(
      "p",
      { class: "fine" },
      "Click a few items that the visitor has. Each click updates the recommendations.",
    );
  }

  function draw() {
    const now = shopper();
    const parts = [chips("bundles", "Bundles", now.bundles), chips("items", "Items", now.items)].filter(
      Boolean,
    );
    if (!parts.length) parts.push(nothing(now));
    else if (!now.user) parts.push(keepForm());
    place.replaceChildren(...parts);
  }

  return { draw };
}
