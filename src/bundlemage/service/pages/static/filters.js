// The filters for bundles: tags, a price range, stock. Filters for data that the shop lacks are hidden.

import { byId, count, h, listed } from "./dom.js";

const number = (text) => (text === "" || text === null || Number.isNaN(Number(text)) ? null : Number(text));

/** Returns the address without filters for data that the shop lacks (the service would refuse them), and the
 * names of these data. */
function answerable(address, { tags, bundlePrices, stock }) {
  const start = new URLSearchParams(address);
  const missing = [];
  const drop = (word, ...names) => {
    if (names.some((name) => start.has(name))) missing.push(word);
    for (const name of names) start.delete(name);
  };
  if (!tags.bundles.length) drop("tags", "tag");
  if (!bundlePrices) drop("prices", "min_price", "max_price");
  if (!stock) drop("stock", "in_stock");
  return { start, missing };
}

/** Draws the filters in `place`, set as in the address. Every change calls `onChange`. */
export function filterBar({ place, shopData, address, onChange }) {
  const tags = shopData.tags.bundles;
  const { start, missing } = answerable(address, shopData);
  const chosen = new Set(start.getAll("tag"));
  const min = h("input", {
    id: "min-price",
    type: "number",
    min: 0,
    step: "any",
    inputmode: "decimal",
    placeholder: "from",
    value: start.get("min_price") ?? "",
    "aria-label": "Lowest price",
  });
  const max = h("input", {
    id: "max-price",
    type: "number",
    min: 0,
    step: "any",
    inputmode: "decimal",
    placeholder: "to",
    value: start.get("max_price") ?? "",
    "aria-label": "Highest price",
  });
  const stock = h("input", { id: "in-stock", type: "checkbox", checked: start.get("in_stock") === "yes" });
  const wrong = h("p", { class: "fine bad-text", role: "alert" });
  const search = h("input", { type: "search", placeholder: "Find a tag", "aria-label": "Find a tag" });
  const list = h("ul", { class: "tag-list" });
  const summary = h("summary", {});
  const menu = h(
    "details",
    { class: "menu", hidden: !tags.length },
    summary,
    h("div", { class: "menu-body" }, search, list),
  );
  const active = h("ul", { class: "chips active-filters", "aria-label": "Chosen tags" });
  const clear = h("button", { type: "button", class: "link", id: "clear-filters" }, "Clear");

  const changed = () => {
    const [low, high] = [number(min.value), number(max.value)];
    const crossed = low !== null && high !== null && low > high;
    wrong.textContent = crossed ? "The lowest price is above the highest: no price is between them." : "";
    for (const field of [min, max]) field.setAttribute("aria-invalid", String(crossed));
    drawActive();
    if (!crossed) onChange();
  };

  function drawList() {
    const text = search.value.trim().toLocaleLowerCase();
    const matches = tags.filter(({ tag }) => tag.toLocaleLowerCase().includes(text));
    list.replaceChildren(
      ...matches.slice(0, 100).map(({ tag, count: many }) => {
        const toggle = (event) => {
          if (event.target.checked) chosen.add(tag);
          else chosen.delete(tag);
          changed();
        };
        return h(
          "li",
          {},
          h(
            "label",
            {},
            h("input", { type: "checkbox", checked: chosen.has(tag), on: { change: toggle } }),
            h("span", {}, tag),
            h("span", { class: "count" }, count(many)),
          ),
        );
      }),
      ...(matches.length ? [] : [h("li", { class: "fine" }, "No tag has this name.")]),
    );
  }

  function drawActive() {
    summary.replaceChildren("Tags", chosen.size ? h("span", { class: "count" }, count(chosen.size)) : "");
    active.replaceChildren(
      ...[...chosen].map((tag) => {
        const drop = () => {
          chosen.delete(tag);
          drawList();
          changed();
          summary.focus();
        };
        return h(
          "li",
          { class: "chip" },
          h("span", {}, tag),
          h(
            "button",
            { type: "button", class: "icon", "aria-label": `Remove the tag ${tag}`, on: { click: drop } },
            "×",
          ),
        );
      }),
    );
    active.hidden = !chosen.size;
    clear.hidden = !chosen.size && !stock.checked && min.value === "" && max.value === "";
  }

  const clearAll = () => {
    chosen.clear();
    min.value = max.value = "";
    stock.checked = false;
    drawList();
    changed();
  };

  search.addEventListener("input", drawList);
  for (const field of [min, max]) field.addEventListener("input", changed);
  stock.addEventListener("change", changed);
  clear.addEventListener("click", () => {
    clearAll();
    summary.focus();
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    summary.focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
  place.replaceChildren(
    h(
      "div",
      { class: "filter-row" },
      menu,
      h(
        "div",
        { class: "range", role: "group", "aria-label": "Price", hidden: !shopData.bundlePrices },
        h("span", { "aria-hidden": "true" }, "Price"),
        min,
        h("span", { "aria-hidden": "true" }, "–"),
        max,
      ),
      h("label", { class: "check", hidden: !shopData.stock }, stock, "All in stock"),
      clear,
    ),
    active,
    wrong,
    missing.length
      ? h(
          "p",
          { class: "fine", role: "status" },
          `The address filters by ${listed(missing)}, but the shop lacks them. The filters are ignored.`,
        )
      : "",
  );
  drawList();
  drawActive();
  place.hidden = !tags.length && !shopData.bundlePrices && !shopData.stock && !missing.length;

  return {
    /** The filter of a request. It has only the conditions that are set. */
    where: () => {
      const filter = {};
      if (chosen.size) filter.tags = [...chosen];
      if (number(min.value) !== null) filter.min_price = number(min.value);
      if (number(max.value) !== null) filter.max_price = number(max.value);
      if (stock.checked) filter.in_stock = true;
      return filter;
    },
    address: () => ({
      tag: [...chosen],
      min_price: min.value,
      max_price: max.value,
      in_stock: stock.checked,
    }),
    clear: () => {
      clearAll();
      byId("heading").focus();
    },
  };
}
