// The builder: items one by one, suggestions after each, and a bundle that is recommendable once it is saved.

import { api, Newest } from "./api.js";
import { userCombobox } from "./combobox.js";
import { cover } from "./cover.js";
import { busy, byId, count, h, hasPrice, later, plural, price, priceBeside, still, titleOf } from "./dom.js";
import { commonTags, discountOf, idFrom, sumOf } from "./draft.js";
import { remember } from "./facts.js";
import { showFit } from "./fit.js";
import { announce, carryUser, emptyBox, frame, problemBox, setAddress } from "./frame.js";
import { itemPicker } from "./picker.js";
import { drawSuggestions, sourceWords } from "./suggestions.js";
import { whatIsTold } from "./told.js";

const SUGGESTIONS = 8;

const start = new URLSearchParams(location.search);
const state = {
  user: start.get("user"),
  items: [],
  completing: false,
  idByHand: false,
  replacing: null,
  saved: null,
};
const asking = new Newest();
let session;
let told;
let picker;

const ids = () => state.items.map((item) => item.id);
const has = (id) => state.items.some((item) => item.id === id);
const field = (name) => byId(name).value.trim();

function address() {
  setAddress({ user: state.user, item: ids() });
  carryUser(state.user);
}

// ── The bundle ───────────────────────────────────────────────────────────────────────────────────

function add(item) {
  if (has(item.id)) return;
  state.items.push(item);
  changed(`${titleOf(item)} added. ${plural(state.items.length, "item")} in the bundle.`);
}

function remove(item) {
  state.items = state.items.filter((each) => each.id !== item.id);
  changed(`${titleOf(item)} taken out. ${plural(state.items.length, "item")} in the bundle.`);
}

function changed(words) {
  address();
  drawBundle();
  picker.refresh();
  byId("saved").replaceChildren();
  if (words) announce(words);
  if (!state.completing) suggestSoon();
}

function drawBundle() {
  const rows = state.items.map((item) => {
    const drop = () => {
      remove(item);
      (byId("bundle-items").querySelector("button") ?? byId("bundle-title")).focus();
    };
    return h(
      "li",
      { data: { item: item.id } },
      h(
        "span",
        { class: "line-title" },
        titleOf(item),
        item.tags?.length ? h("span", { class: "fine" }, item.tags.slice(0, 2).join(" · ")) : null,
      ),
      priceBeside(item, state.items),
      h(
        "button",
        { type: "button", class: "icon", "aria-label": `Take out ${titleOf(item)}`, on: { click: drop } },
        "×",
      ),
    );
  });
  byId("bundle-items").replaceChildren(...rows);
  byId("bundle-empty").hidden = rows.length > 0;
  byId("bundle-count").textContent = count(state.items.length);
  drawPrice();
  drawName();
  for (const name of ["save", "start-over"]) byId(name).disabled = !state.items.length;
}

const discount = () => discountOf(field("discount"));
const cut = () => Math.round(sumOf(state.items) * (1 - (discount() || 0)) * 100) / 100;

function drawPrice() {
  const wrong = Number.isNaN(discount());
  const unpriced = state.items.filter((item) => !hasPrice(item)).length;
  const some = told.itemPrices || unpriced < state.items.length;
  byId("sums").hidden = !some;
  if (some || field("discount")) byId("discount-field").hidden = false; // a copied bundle may bring one along
  byId("sum").textContent = unpriced ? "not known" : price(sumOf(state.items));
  byId("total").textContent = unpriced ? "not known" : wrong ? "—" : price(cut());
  byId("discount").setAttribute("aria-invalid", String(wrong));
  byId("discount-note").textContent = wrong ? "A discount is from 0 to under 100 per cent." : "";
  byId("price-note").textContent =
    some && unpriced
      ? `${plural(unpriced, "item has", "items have")} no price, so the bundle is saved without one.`
      : "";
}

function drawName() {
  const title = field("bundle-title");
  if (!state.idByHand) byId("bundle-id").value = idFrom(title);
  const tags = commonTags(state.items);
  byId("preview").replaceChildren(cover(title || "Untitled", tags));
  const tagged = told.tags.items.length > 0;
  byId("bundle-tags").textContent =
    tagged && state.items.length
      ? tags.length
        ? `Tags, from what half of the items share: ${tags.join(", ")}`
        : "No tag is shared by half of the items, so the bundle gets none."
      : "";
  if (state.replacing && state.replacing !== field("bundle-id")) askToReplace(null);
}

// ── Suggestions ──────────────────────────────────────────────────────────────────────────────────

function question(k) {
  const who = state.user ? { user_id: state.user } : { history: { items: [], bundles: [] } };
  return { ...who, items: ids(), k, where: byId("in-stock").checked ? { in_stock: true } : {} };
}

async function suggest() {
  if (state.completing) return; // it asks by itself, and for the last time when it is done
  const list = byId("suggestions");
  list.setAttribute("aria-busy", "true");
  if (!list.children.length)
    list.replaceChildren(
      ...Array.from({ length: 4 }, () => h("li", { class: "suggestion waiting", "aria-hidden": "true" })),
    );
  try {
    const answer = await asking.run((signal) => api.complete(question(SUGGESTIONS), signal));
    if (!answer) return;
    remember(answer.items);
    drawSuggestions(list, answer.items, add);
    byId("suggest-source").textContent = sourceWords(answer.items, state.user, state.items.length);
    byId("suggest-note").replaceChildren(
      ...(answer.items.length
        ? []
        : [
            emptyBox(
              "Nothing left to suggest",
              "Every item that may be shown is in the bundle or owned by this user.",
            ),
          ]),
    );
    list.removeAttribute("aria-busy");
  } catch (error) {
    list.replaceChildren();
    list.removeAttribute("aria-busy");
    byId("suggest-note").replaceChildren(problemBox(error, suggest));
  }
}

const suggestSoon = later(120, suggest);

/** Add the best one by one: after each, ask again, as each changes what fits next. */
async function complete() {
  if (state.completing) {
    state.completing = false;
    return;
  }
  const size = Number(field("size"));
  if (!Number.isInteger(size) || size < 1 || size > 100) {
    byId("size-note").textContent = "A size is a whole number from 1 to 100.";
    return byId("size").focus();
  }
  if (state.items.length >= size) {
    byId("size-note").textContent =
      `The bundle has ${plural(state.items.length, "item")} already: give a larger size, or take some out.`;
    return;
  }
  byId("size-note").textContent = "";
  state.completing = true;
  byId("complete").textContent = "Stop";
  const before = state.items.length;
  try {
    while (state.completing && state.items.length < size) {
      const answer = await asking.run((signal) => api.complete(question(1), signal));
      if (!answer || !state.completing) break;
      if (!answer.items.length) {
        byId("size-note").textContent = "There is nothing more that may be added.";
        break;
      }
      remember(answer.items);
      add(answer.items[0]);
      byId("bundle-items").lastElementChild?.animate?.(
        still()
          ? []
          : [
              { opacity: 0, transform: "translateX(-10px)" },
              { opacity: 1, transform: "none" },
            ],
        220,
      );
    }
    announce(
      `${plural(state.items.length - before, "item")} added; the bundle has ${count(state.items.length)}.`,
    );
  } catch (error) {
    byId("suggest-note").replaceChildren(problemBox(error, complete));
  } finally {
    state.completing = false;
    byId("complete").textContent = "Complete";
    suggest();
  }
}

// ── Saving ───────────────────────────────────────────────────────────────────────────────────────

function askToReplace(id) {
  state.replacing = id;
  byId("save").textContent = id ? "Replace it" : "Save bundle";
  byId("save-note").replaceChildren(
    id
      ? h(
          "p",
          { class: "note", role: "alert" },
          `There is a bundle “${id}” already. Save once more to replace it, or change the id.`,
        )
      : "",
  );
}

async function save() {
  const [id, title] = [field("bundle-id"), field("bundle-title")];
  if (!id) {
    byId("save-note").replaceChildren(
      h("p", { class: "bad-text", role: "alert" }, "Give the bundle a title first: its id is made from it."),
    );
    return byId("bundle-title").focus();
  }
  if (Number.isNaN(discount())) return byId("discount").focus();
  const priced = state.items.every(hasPrice);
  const bundle = {
    items: ids(),
    title: title || id,
    tags: commonTags(state.items),
    ...(priced ? { price: cut() } : {}),
    ...(discount() ? { discount: discount() } : {}),
  };
  try {
    await api.putBundle(id, bundle, state.replacing !== id);
  } catch (error) {
    if (error.status === 412) return askToReplace(id); // a withdrawn one, too: past buyers have it
    throw error;
  }
  askToReplace(null);
  state.saved = { id, title: title || id };
  await showFit(byId("saved"), state.saved, state.user);
  byId("saved").scrollIntoView({ block: "nearest" });
  return undefined;
}

// ── Beginning ────────────────────────────────────────────────────────────────────────────────────

async function fromAddress() {
  let wanted = start.getAll("item");
  const copied = start.get("bundle");
  if (copied) {
    const bundle = await api.bundle(copied);
    wanted = bundle.items.map((item) => item.id);
    byId("bundle-title").value = `${titleOf(bundle)}, again`;
    if (bundle.discount) byId("discount").value = Math.round(bundle.discount * 100);
  }
  state.items = await Promise.all(wanted.map((id) => api.item(id)));
  remember(state.items);
}

function chooseUser(id) {
  state.user = id;
  address();
  if (state.saved && byId("saved").children.length) showFit(byId("saved"), state.saved, state.user);
  suggest();
}

function startOver() {
  state.items = [];
  state.idByHand = false;
  byId("bundle-title").value = "";
  byId("discount").value = "";
  changed("The bundle is empty again.");
}

async function begin() {
  session = await frame("builder");
  told = await whatIsTold();
  byId("in-stock-field").hidden = !told.stock;
  byId("builder-user").append(
    userCombobox({
      label: "For whom?",
      hint: "A user, or nobody: then only the items count.",
      value: state.user ?? "",
      onChoose: chooseUser,
    }).element,
  );
  picker = itemPicker({
    label: "Search the catalogue",
    tags: told.tags.items,
    has,
    onToggle: (item) => (has(item.id) ? remove(item) : add(item)),
  });
  byId("builder-picker").append(picker.element);
  byId("complete-form").addEventListener("submit", (event) => {
    event.preventDefault();
    complete();
  });
  byId("bundle-title").addEventListener("input", drawName);
  byId("bundle-id").addEventListener("input", () => {
    state.idByHand = field("bundle-id") !== "";
    if (state.replacing) askToReplace(null);
  });
  byId("discount").addEventListener("input", drawPrice);
  byId("in-stock").addEventListener("change", suggest);
  byId("start-over").addEventListener("click", startOver);
  byId("save-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (session.may("write") && state.items.length)
      busy(byId("save"), () => save().catch((error) => byId("save-note").replaceChildren(problemBox(error))));
  });
  if (!session.may("write")) {
    byId("save").hidden = true;
    byId("save-note").append(
      h(
        "p",
        { class: "note" },
        "This key may only read: bundles can be put together here, but saving one needs a write key.",
      ),
    );
  }
  try {
    await fromAddress();
  } catch (error) {
    byId("page-note").replaceChildren(problemBox(error));
  }
  address();
  drawBundle();
  picker.refresh();
  await suggest();
}

begin().catch((error) => byId("page-note").replaceChildren(problemBox(error, () => location.reload())));
