// A searchable grid of the catalogue's items. Each item is a toggle button.

import { api, Newest } from "./api.js";
import { count, freshId, h, later, titleOf } from "./dom.js";
import { remember } from "./facts.js";
import { emptyBox, problemBox } from "./frame.js";
import { imageOf } from "./images.js";
import { hasPrice, price } from "./money.js";

const PAGE = 30;
const TAGS = 300; // the maximum number of tags in the list

/** `has(id)` says whether an item is chosen; `onToggle(item)` adds or removes it. */
export function itemPicker({ label, tags, has, onToggle }) {
  const field = freshId("search");
  const tagField = freshId("tag");
  const search = h("input", {
    id: field,
    type: "search",
    placeholder: "Search by title or id",
    autocomplete: "off",
  });
  const tag = h(
    "select",
    { id: tagField },
    h("option", { value: "" }, "All tags"),
    tags.slice(0, TAGS).map((each) => h("option", { value: each.tag }, `${each.tag} (${count(each.count)})`)),
  );
  const total = h("p", { class: "fine", role: "status" });
  const grid = h("ul", { class: "tiles" });
  const more = h("button", { type: "button", class: "quiet wide", hidden: true }, "Show more");
  const place = h(
    "div",
    { class: "picker-scroll", tabindex: 0, role: "region", "aria-label": "Items to choose from" },
    grid,
    more,
  );
  const newest = new Newest();
  let shown = 0;

  const tile = (item) => {
    const button = h(
      "button",
      { type: "button", class: "tile", "aria-pressed": String(has(item.id)), data: { item: item.id } },
      imageOf(item, "tile-image"),
      h("span", { class: "tile-title" }, titleOf(item)),
      item.tags.length ? h("span", { class: "tile-tags" }, item.tags.slice(0, 2).join(" · ")) : null,
      hasPrice(item) ? h("span", { class: "tile-price" }, price(item.price)) : null,
    );
    button.addEventListener("click", () => onToggle(item));
    return h("li", {}, button);
  };

  const load = async (offset) => {
    if (!offset) grid.setAttribute("aria-busy", "true");
    try {
      const answer = await newest.run((signal) =>
        api.items({ search: search.value.trim(), tag: tag.value, limit: PAGE, offset }, signal),
      );
      if (!answer) return;
      remember(answer.items);
      const here = answer.items.filter((item) => !item.withdrawn);
      if (offset) grid.append(...here.map(tile));
      else grid.replaceChildren(...here.map(tile));
      shown = offset + answer.items.length;
      total.textContent = answer.total ? `${count(answer.total)} found` : "";
      more.hidden = shown >= answer.total;
      if (!answer.total)
        grid.replaceChildren(
          h(
            "li",
            { class: "full" },
            emptyBox(
              "No item has this name",
              tag.value ? "Try fewer letters, or all tags." : "Try fewer letters.",
            ),
          ),
        );
    } catch (error) {
      grid.replaceChildren(
        h(
          "li",
          { class: "full" },
          problemBox(error, () => load(0)),
        ),
      );
      more.hidden = true;
    } finally {
      grid.removeAttribute("aria-busy");
    }
  };

  const again = later(150, () => load(0));
  search.addEventListener("input", again);
  tag.addEventListener("change", () => load(0));
  more.addEventListener("click", () => load(shown));
  load(0);

  const element = h(
    "div",
    { class: "picker" },
    h(
      "div",
      { class: "picker-search" },
      h("div", { class: "field" }, h("label", { for: field }, label), search),
      tags.length ? h("div", { class: "field" }, h("label", { for: tagField }, "Tag"), tag) : null,
    ),
    total,
    place,
  );
  return {
    element,
    /** Call this when items were added or removed elsewhere on the page. */
    refresh: () =>
      grid
        .querySelectorAll(".tile")
        .forEach((button) => button.setAttribute("aria-pressed", String(has(button.dataset.item)))),
  };
}
