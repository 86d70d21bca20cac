// The page Shop: a user or a visitor, their history, and their recommendations.

import { api, Newest } from "./api.js";
import { bundleCard, skeletonCards } from "./cards.js";
import { changes, changeWords, swapCards } from "./changes.js";
import { userCombobox } from "./combobox.js";
import { openBundle } from "./dialog.js";
import { busy, byId, h, later, plural, randomKey, titleOf } from "./dom.js";
import { remember } from "./facts.js";
import { filterBar } from "./filters.js";
import { announce, carryUser, emptyBox, frame, problemBox, setAddress, toast } from "./frame.js";
import { historyPanel, isBought } from "./history.js";
import { itemPicker } from "./picker.js";
import { reasonsFor } from "./reasons.js";
import { loadShopData } from "./shopdata.js";

const MORE = 12;
const MOST = 100; // the maximum number in an answer

const start = new URLSearchParams(location.search);
const state = {
  user: start.get("user"),
  items: [], // of the user or of the visitor, as the service describes them
  bundles: [],
  k: MORE,
  answer: null,
};
const asking = new Newest();
const loading = new Newest();
const reasons = reasonsFor();
let session;
let shopData;
let filters;
let picker;
let combobox;
let panel;

const owned = () => ({ items: state.items.filter(isBought), bundles: state.bundles.filter(isBought) });
const ids = (things) => things.map((thing) => thing.id);

function address() {
  setAddress({
    user: state.user,
    item: state.user ? [] : ids(state.items),
    bundle: state.user ? [] : ids(state.bundles),
    ...filters.address(),
  });
  carryUser(state.user);
}

// ── Who is shopping ──────────────────────────────────────────────────────────────────────────────

async function chooseUser(id) {
  Object.assign(state, { user: id, items: [], bundles: [], k: MORE, answer: null });
  combobox.set(id);
  address();
  byId("mode-known").checked = true;
  showMode();
  if (id) await loadUser();
  else panel.draw();
  await recommend("fresh");
}

async function loadUser() {
  byId("history").replaceChildren(
    h("div", { class: "skeleton-lines", "aria-hidden": "true" }, h("span"), h("span"), h("span")),
  );
  try {
    const user = await loading.run((signal) => api.user(state.user, signal));
    if (!user) return;
    state.items = user.items;
    state.bundles = user.bundles;
    remember(user.items);
    panel.draw();
  } catch (error) {
    byId("history").replaceChildren(problemBox(error, loadUser));
  }
}

function switchToVisitor() {
  if (state.user) Object.assign(state, { user: null, items: [], bundles: [], k: MORE, answer: null });
  combobox.set(null);
  address();
  showMode();
  panel.draw();
  recommend("fresh");
}

function showMode() {
  const known = byId("mode-known").checked;
  byId("known").hidden = !known;
  byId("visitor").hidden = known;
}

function toggleItem(item) {
  const there = state.items.some((each) => each.id === item.id);
  state.items = there ? state.items.filter((each) => each.id !== item.id) : [...state.items, item];
  visitorChanged(`${titleOf(item)} ${there ? "taken out" : "added"}.`);
}

function drop(kind, thing) {
  state[kind] = state[kind].filter((each) => each.id !== thing.id);
  visitorChanged(`${titleOf(thing)} taken out.`);
}

function visitorChanged(words) {
  address();
  panel.draw();
  picker.refresh();
  recommend("change", words);
}

// ── Recommendations ──────────────────────────────────────────────────────────────────────────────

const who = () =>
  state.user
    ? { user_id: state.user }
    : { history: { items: ids(state.items), bundles: ids(state.bundles) } };

function question() {
  return { ...who(), k: state.k, details: true, where: filters.where() };
}

/** Loads recommendations. `why` is "fresh" for another user, "change" if the history or filters changed. */
async function recommend(why, words = "") {
  const list = byId("cards");
  const old = why === "change" && state.answer ? state.answer.bundles : null;
  list.setAttribute("aria-busy", "true");
  if (!old) list.replaceChildren(...skeletonCards(6));
  byId("answer-note").replaceChildren();
  try {
    const answer = await asking.run((signal) => api.recommend(question(), signal));
    if (!answer) return false;
    const change = old ? changes(old, answer.bundles) : null;
    state.answer = answer;
    drawCards(change);
    reasons.show(who(), answer.bundles, byId("cards"), byId("reasons-note"), () => drawCards(change));
    if (change) announce(`${words} ${changeWords(change)}`.trim());
    else announce(`${plural(answer.bundles.length, "bundle")} recommended.`);
    return change;
  } catch (error) {
    list.replaceChildren();
    state.answer = null;
    byId("heading-note").textContent = "";
    byId("answer-note").replaceChildren(problemBox(error, () => recommend("fresh")));
    return false;
  } finally {
    list.removeAttribute("aria-busy");
  }
}

function drawCards(change) {
  const { bundles, history } = state.answer;
  const highest = Math.max(...bundles.map((bundle) => bundle.score), 1e-12);
  const cards = bundles.map((bundle) =>
    bundleCard(bundle, {
      owned: owned(),
      highest,
      moved: change?.moves.get(bundle.id),
      prices: shopData.bundlePrices,
      reasons: reasons.expected(bundles),
      onOpen,
      onBuy: mayBuy() ? buy : null,
    }),
  );
  swapCards(byId("cards"), cards);
  byId("heading").textContent = state.user
    ? `For ${state.user}`
    : state.items.length + state.bundles.length
      ? "For this visitor"
      : "For anyone";
  byId("heading-note").textContent = aboutAnswer(bundles, history);
  byId("answer-note").replaceChildren(...(bundles.length ? [] : [nothingToShow()]));
  byId("more").hidden = bundles.length < state.k || state.k === MOST;
  const scale = "Scores of all bundles add up to 100%; a bar compares with the highest here.";
  byId("answer-foot").textContent = `Answered by model ${state.answer.model_version}. ${scale}`;
  document.title = `${byId("heading").textContent} · BundleMage`;
}

function nothingToShow() {
  const where = filters.where();
  if (!Object.keys(where).length)
    return emptyBox(
      "Nothing left to recommend",
      "All bundles that could be shown are already in this history.",
    );
  const ranged = "min_price" in where || "max_price" in where;
  return emptyBox(
    "No bundle passes these filters",
    ranged ? "Remove a filter, or widen the price range." : "Remove a filter.",
    h("button", { type: "button", on: { click: () => filters.clear() } }, "Clear all filters"),
  );
}

function aboutAnswer(bundles, history) {
  if (!bundles.length) return "";
  const late = history.not_in_model;
  const newer = `${plural(late, "purchase")} newer than the model ${late === 1 ? "is" : "are"} ignored`;
  const passed = late ? ` ${newer} until it is retrained.` : "";
  const none = history.items + history.bundles === 0;
  if (bundles[0].source === "popular")
    return none
      ? `What sells most, as there is no history yet.${passed}`
      : `What sells most. In this shop, a ranking for each person was not clearly better.${passed}`;
  const [items, owned] = [plural(history.items, "item"), plural(history.bundles, "bundle")];
  return `Ranked from ${items} and ${owned} in the history.${passed}`;
}

const mayBuy = () => !state.user || session.may("write");
const onOpen = (bundle) =>
  openBundle(bundle, {
    owned: owned(),
    user: state.user,
    prices: shopData.bundlePrices,
    boughtAgain: shopData.boughtAgain,
    reasons: reasons.of,
    onBuy: mayBuy() ? buy : null,
  });

const buy = (bundle, button) =>
  busy(button, () => bought(bundle).catch((error) => toast(error.message, "bad")));

async function bought(bundle) {
  if (state.user) {
    const requestId = state.answer?.request_id;
    await api.record(
      [{ user_id: state.user, bundle_id: bundle.id, ...(requestId ? { request_id: requestId } : {}) }],
      randomKey(),
    );
  }
  if (!state.bundles.some((each) => each.id === bundle.id))
    state.bundles = [...state.bundles, await api.bundle(bundle.id)]; // an answer may lack its items
  if (!state.user) {
    byId("mode-visitor").checked = true; // a buyer without an id is a new visitor
    showMode();
    address();
  }
  byId("bundle-dialog").close();
  panel.draw();
  const change = await recommend("change");
  const words = change ? ` ${changeWords(change)}` : "";
  toast(`${state.user ?? "The visitor"} has “${titleOf(bundle)}” now.${words}`);
}

// ── Start ────────────────────────────────────────────────────────────────────────────────────────

async function visitorFromAddress() {
  const [itemIds, bundleIds] = [start.getAll("item"), start.getAll("bundle")];
  if (!itemIds.length && !bundleIds.length) return;
  byId("mode-visitor").checked = true;
  const [items, bundles] = await Promise.all([
    Promise.all(itemIds.map((id) => api.item(id))),
    Promise.all(bundleIds.map((id) => api.bundle(id))),
  ]);
  Object.assign(state, { items, bundles });
  remember(items);
}

async function begin() {
  session = await frame("shop");
  shopData = await loadShopData();
  filters = filterBar({
    place: byId("filters"),
    shopData,
    address: start,
    onChange: later(200, () => {
      address();
      recommend("change");
    }),
  });
  combobox = userCombobox({
    label: "User",
    hint: "Search by the beginning of an id.",
    value: state.user ?? "",
    onChoose: chooseUser,
  });
  byId("known").append(combobox.element);
  if (!session.may("write"))
    byId("known").append(
      h("p", { class: "fine note" }, "This key may only read. To let users buy, log in with a write key."),
    );
  panel = historyPanel({
    place: byId("history"),
    shopper: () => ({
      user: state.user,
      known: byId("mode-known").checked,
      items: state.items,
      bundles: state.bundles,
    }),
    mayKeep: session.may("write"),
    onChoose: chooseUser,
    onDrop: drop,
  });
  picker = itemPicker({
    label: "Items they own",
    tags: shopData.tags.items,
    has: (id) => state.items.some((item) => item.id === id),
    onToggle: toggleItem,
  });
  byId("visitor").append(picker.element);
  byId("mode-known").addEventListener("change", () => chooseUser(null));
  byId("mode-visitor").addEventListener("change", switchToVisitor);
  byId("more").addEventListener("click", () => {
    state.k = Math.min(MOST, state.k + MORE);
    recommend("change");
  });
  byId("bundle-dialog").addEventListener(
    "click",
    (event) => event.target === event.currentTarget && event.currentTarget.close(),
  );
  if (state.user) await loadUser();
  else await visitorFromAddress();
  address();
  showMode();
  if (!state.user) panel.draw();
  picker.refresh();
  await recommend("fresh");
}

begin().catch((error) => byId("answer-note").replaceChildren(problemBox(error, () => location.reload())));
