// Items that would complete a bundle, as a list of buttons.

import { scoreBar } from "./cards.js";
import { count, h, plural, still, titleOf } from "./dom.js";
import { priceBeside } from "./money.js";

/** Shows suggested items. The focus stays on the best item, so Enter can be pressed again and again. */
export function drawSuggestions(list, items, onAdd) {
  const old = new Map([...list.children].map((row) => [row.dataset.item, row.getBoundingClientRect().top]));
  const focused = list.contains(document.activeElement);
  const highest = Math.max(...items.map((item) => item.score), 1e-12);
  const rows = items.map((item) =>
    h(
      "li",
      { class: "suggestion", data: { item: item.id } },
      h(
        "button",
        {
          type: "button",
          "aria-label": `Add ${titleOf(item)}, suggestion ${item.rank}`,
          on: { click: () => onAdd(item) },
        },
        h("span", { class: "suggestion-rank" }, count(item.rank)),
        h(
          "span",
          { class: "suggestion-text" },
          h("b", {}, titleOf(item)),
          about(item),
        ),
        priceBeside(item, items, "suggestion-price"),
        h("span", { class: "suggestion-add", "aria-hidden": "true" }, "+"),
      ),
      scoreBar(item, highest, "item"),
    ),
  );
  list.replaceChildren(...rows);
  if (focused) list.querySelector("button")?.focus({ preventScroll: true });
  if (still()) return;
  for (const row of rows) {
    const was = old.get(row.dataset.item);
    const shift = was === undefined ? 0 : was - row.getBoundingClientRect().top;
    if (was === undefined && old.size) row.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 320 });
    else if (shift)
      row.animate([{ transform: `translateY(${shift}px)` }, { transform: "none" }], {
        duration: 300,
        easing: "ease-out",
      });
  }
}

function about(item) {
  const words = [
    ...item.tags.slice(0, 3),
    ...(item.owned ? ["owned"] : []),
    ...(item.sold_out ? ["sold out"] : []),
  ];
  return words.length ? h("span", { class: "fine" }, words.join(" · ")) : null;
}

/** A sentence about how the items are ranked. `size` is the number of items in the bundle. */
export function sourceWords(items, user, size) {
  if (!items.length) return "";
  if (items[0].source === "popular")
    return "What sells most, as there is neither a user nor an item yet.";
  return user
    ? `Ranked for ${user} and the ${plural(size, "item")} in the bundle.`
    : `Ranked for the ${plural(size, "item")} in the bundle, without a user.`;
}
