// The page Builder: builds a bundle item by item with suggestions, or designs whole bundles, and saves it.

import { api } from "./api.js";
import { userCombobox } from "./combobox.js";
import { completer } from "./completing.js";
import { cover } from "./cover.js";
import { designer } from "./design.js";
import { byId, count, h, plural, titleOf } from "./dom.js";
import { commonTags, discountOf, idFrom, sumOf } from "./draft.js";
import { remember } from "./facts.js";
import { forecaster } from "./forecast.js";
import { announce, carryUser, frame, problemBox, setAddress } from "./frame.js";
import { finalPrice, hasPrice, price, priceBeside } from "./money.js";
import { itemPicker } from "./picker.js";
import { saver } from "./saving.js";
import { loadShopData } from "./shopdata.js";

const start = new URLSearchParams(location.search);
const state = {
  user: start.get("user"),
  items: [],
  idByHand: false,
};
let session;
let shopData;
let picker;
let suggestions;
let saving;
let designs;
let forecast;

const ids = () => state.items.map((item) => item.id);
const has = (id) => state.items.some((item) => item.id === id);
const field = (name) => byId(name).value.trim();

const whole = () => byId("way-whole").checked;

function address() {
  setAddress({ user: state.user, item: ids(), design: whole() });
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
  designs.refresh();
  if (words) announce(words);
  suggestions.soon();
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
  forecast.clear();
  for (const name of ["save", "start-over"]) byId(name).disabled = !state.items.length;
}

/** The bundle to save, without its name; null if it is empty or the discount is invalid. */
function draft() {
  if (!state.items.length) return null;
  if (Number.isNaN(discount())) return byId("discount").focus() ?? null;
  return {
    items: ids(),
    tags: commonTags(state.items),
    ...(state.items.every(hasPrice) ? { price: cut() } : {}),
    ...(discount() ? { discount: discount() } : {}),
  };
}

/** The draft for a forecast. A discount needs the prices of all items. */
const forecastable = () => ({
  items: state.items,
  discount: state.items.every(hasPrice) && discount() ? discount() : null,
});

const discount = () => discountOf(field("discount"));
const cut = () => finalPrice(sumOf(state.items) * (1 - (discount() || 0)));

function drawPrice() {
  const wrong = Number.isNaN(discount());
  const unpriced = state.items.filter((item) => !hasPrice(item)).length;
  const some = shopData.itemPrices || unpriced < state.items.length;
  byId("sums").hidden = !some;
  if (some || field("discount")) byId("discount-field").hidden = false; // a copied bundle may have a discount
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
  const tagged = shopData.tags.items.length > 0;
  byId("bundle-tags").textContent =
    tagged && state.items.length
      ? tags.length
        ? `Tags that half of the items share: ${tags.join(", ")}`
        : "No tag is shared by half of the items, so the bundle gets none."
      : "";
  saving.renamed();
}

// ── Start ────────────────────────────────────────────────────────────────────────────────────────

async function fromAddress() {
  let itemIds = start.getAll("item");
  const copied = start.get("bundle");
  if (copied) {
    const bundle = await api.bundle(copied);
    itemIds = bundle.items.map((item) => item.id);
    byId("bundle-title").value = `${titleOf(bundle)}, again`;
    if (bundle.discount) byId("discount").value = Math.round(bundle.discount * 100);
  }
  state.items = await Promise.all(itemIds.map((id) => api.item(id)));
  remember(state.items);
}

function chooseUser(id) {
  state.user = id;
  address();
  saving.userChanged();
  designs.refresh();
  suggestions.ask();
}

/** Replaces the draft by a proposal. */
function take(items, off, name) {
  state.items = items;
  remember(items);
  byId("discount").value = off ? Math.round(off * 1e4) / 100 : "";
  changed(`${name} taken: ${plural(items.length, "item")} in the bundle. Give it a title and save it.`);
  byId("bundle-title").focus();
  byId("save-form").scrollIntoView({ block: "nearest" });
}

async function swap(out, instead) {
  try {
    const item = await api.item(instead.id);
    remember([item]);
    state.items = state.items.map((each) => (each.id === out.id ? item : each));
    changed(`${titleOf(out)} swapped for ${titleOf(item)}.`);
    await forecast.ask();
    byId("forecast-ask").focus();
  } catch (error) {
    byId("forecast").replaceChildren(problemBox(error));
  }
}

/** Shows the controls for "item by item" or for "whole bundles". */
function showWay() {
  byId("suggest").hidden = whole();
  byId("designer").hidden = !whole();
  byId("proposed").hidden = !whole() || !byId("proposals").children.length;
  address();
  suggestions.ask();
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
  shopData = await loadShopData();
  byId("in-stock-field").hidden = !shopData.stock;
  byId("builder-user").append(
    userCombobox({
      label: "For whom?",
      hint: "Without a user, only the items in the bundle matter.",
      value: state.user ?? "",
      onChoose: chooseUser,
    }).element,
  );
  picker = itemPicker({
    label: "Search the catalogue",
    tags: shopData.tags.items,
    has,
    onToggle: (item) => (has(item.id) ? remove(item) : add(item)),
  });
  byId("builder-picker").append(picker.element);
  byId("bundle-title").addEventListener("input", drawName);
  byId("bundle-id").addEventListener("input", () => {
    state.idByHand = field("bundle-id") !== "";
    saving.renamed();
  });
  byId("discount").addEventListener("input", () => {
    drawPrice();
    forecast.clear();
  });
  byId("start-over").addEventListener("click", startOver);
  suggestions = completer({ draft: () => state, onAdd: add, shown: () => !whole() });
  saving = saver({ mayWrite: session.may("write"), user: () => state.user, bundle: draft });
  designs = designer({ shopData, draft: () => state, onTake: take });
  forecast = forecaster({ draft: forecastable, mayWrite: session.may("write"), onSwap: swap });
  if (start.get("design") === "yes") byId("way-whole").checked = true;
  for (const name of ["way-items", "way-whole"]) byId(name).addEventListener("change", showWay);
  try {
    await fromAddress();
  } catch (error) {
    byId("page-note").replaceChildren(problemBox(error));
  }
  drawBundle();
  picker.refresh();
  designs.refresh();
  showWay();
}

begin().catch((error) => byId("page-note").replaceChildren(problemBox(error, () => location.reload())));
