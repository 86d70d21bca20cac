// The controls for a design's conditions: size, price, tags, and items that every or no bundle contains.

import { byId, h, plural, titleOf } from "./dom.js";
import { price } from "./money.js";
import { slider } from "./slider.js";
import { tagRules } from "./tagrules.js";

const MOST_ITEMS = 100;
const SLIDE_ITEMS = 12; // with 100 steps, a slider could not be set precisely
const FAR = 3; // with larger weights, the model's scores hardly matter

/** A round number above the prices of most bundles: five times a high item price. */
function highBudget(prices) {
  const dear = [...prices].sort((one, other) => one - other)[Math.floor(prices.length * 0.9)] ?? 1;
  const digits = 10 ** Math.max(0, Math.floor(Math.log10(dear * 5)) - 1);
  return Math.ceil((dear * 5) / digits) * digits;
}

/** Families with several tags, such as "brand" of "brand:Acme". */
function families(tags) {
  const sizes = new Map();
  for (const { tag } of tags) {
    const [family, rest] = tag.split(/:(.*)/s);
    if (rest) sizes.set(family, (sizes.get(family) ?? 0) + 1);
  }
  return [...sizes].filter(([, many]) => many > 1).map(([family]) => family);
}

const items = (number) => plural(number, "item");
const weight = (number) => (number ? String(number) : "none");

/** Draws the controls in `place`, without those for data that the shop does not have. */
export function constraintPanel({ place, shopData }) {
  const high = shopData.itemPrices ? highBudget(shopData.prices) : 1;
  const money = { max: high, step: Math.max(0.5, high / 200), say: price };
  const numbers = {
    least: slider({
      name: "size-least",
      label: "Items, at least",
      min: 1,
      max: SLIDE_ITEMS,
      most: MOST_ITEMS,
      value: 3,
      say: items,
    }),
    most: slider({
      name: "size-most",
      label: "Items, at most",
      min: 1,
      max: SLIDE_ITEMS,
      most: MOST_ITEMS,
      value: 5,
      say: items,
    }),
    cheapest: slider({ name: "budget-least", label: "Price, at least", open: "low", ...money }),
    dearest: slider({ name: "budget-most", label: "Price, at most", open: "high", ...money }),
    discount: slider({
      name: "design-discount",
      label: "Discount, per cent",
      max: 90,
      most: 99,
      value: 0,
      say: (off) => `${off}%`,
    }),
    variety: slider({
      name: "variety",
      label: "Weight of variety",
      max: FAR,
      most: 1000,
      step: 0.1,
      value: 0,
      say: weight,
    }),
    margin: slider({
      name: "margin",
      label: "Weight of margin",
      max: FAR,
      most: 1000,
      step: 0.1,
      value: 0,
      say: weight,
    }),
  };
  const priced = ["cheapest", "dearest", "discount", "margin"];
  for (const name of priced) numbers[name].element.hidden = !shopData.itemPrices;
  const rules = tagRules(shopData.tags.items);
  const onePer = h(
    "select",
    { id: "one-per" },
    h("option", { value: "" }, "allowed"),
    h("option", { value: "*" }, "no two that share a tag"),
    families(shopData.tags.items).map((name) =>
      h("option", { value: `${name}:*` }, `no two of the same ${name}`),
    ),
  );
  const inStock = h("input", { id: "design-in-stock", type: "checkbox", checked: true });
  const notOwned = h("input", { id: "design-not-owned", type: "checkbox", checked: !shopData.boughtAgain });
  const notOwnedField = h("label", { class: "check" }, notOwned, "Only items they do not have");
  const kept = new Map();
  const never = new Map();
  const lists = h("div", { class: "kept", id: "kept" });

  function chips(name, from) {
    if (!from.size) return null;
    const chip = (item) => {
      const drop = () => {
        from.delete(item.id);
        drawLists();
        (lists.querySelector("button") ?? byId("design")).focus();
      };
      const label = `Remove ${titleOf(item)} from “${name}”`;
      return h(
        "li",
        { class: "chip" },
        h("span", {}, titleOf(item)),
        h("button", { type: "button", class: "icon", "aria-label": label, on: { click: drop } }, "×"),
      );
    };
    return h(
      "div",
      {},
      h("p", { class: "label" }, name),
      h("ul", { class: "chips" }, [...from.values()].map(chip)),
    );
  }

  function drawLists() {
    lists.replaceChildren(...[chips("In every bundle", kept), chips("In no bundle", never)].filter(Boolean));
  }

  const group = (title, note, ...inside) =>
    h("fieldset", {}, h("legend", {}, title), note ? h("p", { class: "fine" }, note) : null, inside);
  place.replaceChildren(
    group("Size", null, numbers.least.element, numbers.most.element),
    ...(shopData.itemPrices
      ? [
          group(
            "Price",
            "After the discount.",
            numbers.cheapest.element,
            numbers.dearest.element,
            numbers.discount.element,
          ),
        ]
      : []),
    ...(shopData.tags.items.length
      ? [
          group(
            "Tags",
            null,
            rules.element,
            h("div", { class: "one-per" }, h("label", { for: "one-per" }, "Similar items"), onePer),
          ),
        ]
      : []),
    group(
      "Weights",
      `Besides likelihood: how different the items are${shopData.itemPrices ? ", and their margin" : ""}.`,
      numbers.variety.element,
      numbers.margin.element,
    ),
    h(
      "div",
      { class: "checks" },
      shopData.stock ? h("label", { class: "check" }, inStock, "Only items in stock") : null,
      notOwnedField,
    ),
    lists,
  );

  const limits = (one, other, all = {}) => {
    const [least, most] = [numbers[one].get(), numbers[other].get()];
    return { ...all, ...(least === null ? {} : { least }), ...(most === null ? {} : { most }) };
  };
  const whole = (name) => Math.round(numbers[name].get());

  function conditions() {
    const budget = limits("cheapest", "dearest");
    const tags = rules.get();
    return {
      size: { least: whole("least"), most: whole("most") },
      ...(Object.keys(budget).length ? { budget } : {}),
      ...(Object.keys(tags).length ? { tags } : {}),
      ...(onePer.value ? { one_per: [onePer.value] } : {}),
      ...(kept.size ? { must: [...kept.keys()] } : {}),
      ...(never.size ? { forbid: [...never.keys()] } : {}),
      ...(shopData.stock ? { in_stock: inStock.checked } : {}),
      not_owned: notOwned.checked,
      discount: numbers.discount.get() / 100,
      diversity: numbers.variety.get(),
      margin: numbers.margin.get(),
    };
  }

  const crossed = (one, other, words) => {
    const [least, most] = [numbers[one].get(), numbers[other].get()];
    if (least === null || most === null || least <= most) return null;
    numbers[one].field.setAttribute("aria-invalid", "true");
    return [numbers[one].field, words];
  };

  /** Returns the first invalid field and a message, or null. */
  function wrong() {
    const faults = Object.values(numbers).map((each) => {
      const words = each.wrong();
      return words && [each.field, words];
    });
    return (
      faults.find(Boolean) ??
      crossed("least", "most", "Items: the minimum is above the maximum.") ??
      crossed("cheapest", "dearest", "Price: the minimum is above the maximum.") ??
      rules.wrong()
    );
  }

  const STEPS = {
    size_min: (_, value) => numbers.least.set(value ?? 1),
    size_max: (_, value) => numbers.most.set(value ?? MOST_ITEMS),
    budget_min: (_, value) => numbers.cheapest.set(value),
    budget_max: (_, value) => numbers.dearest.set(value),
    must: (key) => kept.delete(key),
    forbid: () => never.clear(),
    at_least: (key, value) => rules.set("at_least", key, value),
    at_most: (key, value) => rules.set("at_most", key, value),
    one_per: () => (onePer.value = ""),
    in_stock: () => (inStock.checked = false),
    not_owned: () => (notOwned.checked = false),
  };

  return {
    conditions,
    wrong,
    /** Change the controls by the steps that make an impossible design possible. */
    apply: (steps) => {
      for (const { kind, key, value } of steps) STEPS[kind](key, value);
      drawLists();
    },
    keep: (item) => {
      kept.set(item.id, item);
      never.delete(item.id);
      drawLists();
    },
    keeps: (id) => kept.has(id),
    forbid: (item) => {
      never.set(item.id, item);
      kept.delete(item.id);
      drawLists();
    },
    /** Without a user, "items they do not have" is meaningless. */
    forUser: (user) => (notOwnedField.hidden = !user),
  };
}
