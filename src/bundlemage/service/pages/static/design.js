// Designs whole bundles: sends the conditions, and shows the proposals, or changes if no bundle is possible.

import { api, Newest } from "./api.js";
import { skeletonCards } from "./cards.js";
import { constraintPanel } from "./constraints.js";
import { byId, h, plural, randomKey } from "./dom.js";
import { announce, problemBox } from "./frame.js";
import { withProgress } from "./progress.js";
import { betterExisting, drawProposals, foundWords } from "./proposals.js";

const MOST_BUNDLES = 20;

/**
 * `draft()` returns the {user, items} of the current draft. `onTake(items, discount, name)` replaces it by a
 * proposal.
 */
export function designer({ shopData, draft, onTake }) {
  const panel = constraintPanel({ place: byId("constraints"), shopData });
  const asking = new Newest();
  let running = false;
  let latest = 0; // the number of the last request; answers to earlier ones are ignored
  let begun = null; // {start, taken}: after a proposal is taken, designs still start from the items before it

  const idsOf = (items) => items.map((item) => item.id);
  const same = (one, other) => one.length === other.length && one.every((id) => other.includes(id));
  const isTaken = () => Boolean(begun?.taken && same(begun.taken, idsOf(draft().items)));
  const start = () => (isTaken() ? begun.start : idsOf(draft().items));

  function drawStart() {
    const many = start().length;
    const inside = many
      ? `The ${plural(many, "item")} of the bundle will be in every proposal.`
      : "Starts with an empty bundle.";
    byId("design-start").textContent = isTaken()
      ? `Starts with the bundle from before you took a proposal: ${many ? plural(many, "item") : "empty"}.`
      : inside;
    panel.forUser(draft().user);
  }

  const thorough = () => byId("method-exact").checked;

  function question() {
    const { user } = draft();
    const who = user ? { user_id: user } : { history: { items: [], bundles: [] } };
    const n = Number(byId("how-many").value);
    return { ...who, start: start(), ...panel.conditions(), n, method: thorough() ? "exact" : "beam" };
  }

  function wrong() {
    const field = byId("how-many");
    const n = Number(field.value);
    const bad = !Number.isInteger(n) || n < 1 || n > MOST_BUNDLES;
    field.setAttribute("aria-invalid", String(bad));
    return bad ? [field, `How many: a whole number from 1 to ${MOST_BUNDLES} is expected.`] : panel.wrong();
  }

  function waiting(on, n = 0) {
    running = on;
    byId("design").textContent = on ? "Stop" : "Design";
    byId("design-wait").textContent = on
      ? `Looking for bundles…${thorough() ? " This may take some seconds." : ""}`
      : "";
    const list = byId("proposals");
    if (on) {
      list.setAttribute("aria-busy", "true");
      byId("proposed").hidden = false;
      if (!list.children.length) list.replaceChildren(...skeletonCards(Math.min(n, 3)));
    } else list.removeAttribute("aria-busy");
  }

  function clearProposals() {
    byId("proposals").replaceChildren();
    byId("proposed").hidden = true;
  }

  async function ask() {
    const fault = wrong();
    byId("design-note").replaceChildren();
    if (fault) {
      const [field, words] = fault;
      byId("design-note").replaceChildren(h("p", { class: "bad-text", role: "alert" }, words));
      field.focus();
      return;
    }
    const request = question();
    const number = (latest += 1);
    waiting(true, request.n);
    announce("Looking for bundles.");
    try {
      const answer = await withProgress(byId("design-work"), randomKey(), (id) =>
        asking.run((signal) => api.design({ ...request, to: "shop", details: true, buyers: true }, signal, id)),
      );
      if (number !== latest) return;
      waiting(false); // before the proposals are shown: removing the note later would shift the page
      if (answer) {
        begun = { start: request.start, taken: isTaken() ? begun.taken : null };
        show(answer, request);
      } else if (byId("proposals").querySelector(".skeleton")) clearProposals();
    } catch (error) {
      waiting(false);
      clearProposals();
      byId("design-note").replaceChildren(
        error.conflict?.length ? impossible(error) : problemBox(error, ask),
      );
      byId("design").focus({ preventScroll: true }); // the pressed button may have been on a removed card
      byId("design-note").scrollIntoView({ block: "nearest" });
    }
  }

  function show(answer, request) {
    drawProposals(byId("proposals"), answer.bundles, {
      prices: shopData.itemPrices,
      keeps: panel.keeps,
      onKeep: (item) => {
        panel.keep(item);
        ask();
      },
      onForbid: (item) => {
        panel.forbid(item);
        ask();
      },
      onTake: take,
    });
    const words = [foundWords(answer, request), answer.note].filter(Boolean).join(" ");
    byId("proposals-note").textContent = words;
    byId("better-existing").replaceChildren(...[betterExisting(answer, request.user_id)].filter(Boolean));
    announce(words);
    if (byId("designer").hidden) return; // the user has switched to "item by item" meanwhile
    byId("proposed").hidden = false;
    byId("proposed-title").focus({ preventScroll: true });
    byId("proposed").scrollIntoView({ block: "start" });
  }

  function take(bundle) {
    begun.taken = idsOf(bundle.items);
    onTake(bundle.items, bundle.discount, `Proposal ${bundle.rank}`);
  }

  /** The conditions that exclude each other, and a button for each change that makes a bundle possible. */
  function impossible({ conflict, smallest, changes }) {
    const way = ({ text, steps }) => {
      const go = () => {
        panel.apply(steps);
        ask();
      };
      return h(
        "li",
        {},
        h("button", { type: "button", class: "way-out", on: { click: go } }, `Design ${text}`),
      );
    };
    return h(
      "div",
      { class: "problem impossible", role: "alert" },
      h(
        "p",
        { class: "problem-title" },
        conflict.length > 1
          ? `These conditions exclude each other${smallest ? "" : " (there may be a smaller set)"}:`
          : "This condition cannot be met:",
      ),
      h(
        "ul",
        { class: "conflict" },
        conflict.map(({ text }) => h("li", {}, text)),
      ),
      changes.length
        ? [
            h(
              "p",
              {},
              `${changes.length > 1 ? "Each of these changes" : "This change"} makes a bundle possible:`,
            ),
            h("ul", { class: "ways-out" }, changes.map(way)),
          ]
        : h("p", {}, "There was no time to find changes that make a bundle possible."),
    );
  }

  byId("design-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) return ask();
    asking.stop();
    return announce("Stopped.");
  });
  drawStart();

  return {
    /** Call this when the draft or its user has changed. */
    refresh: drawStart,
  };
}
