// Items that would complete the draft bundle: suggested after every change, or added automatically.

import { api, Newest } from "./api.js";
import { byId, count, h, later, plural, still } from "./dom.js";
import { remember } from "./facts.js";
import { announce, emptyBox, problemBox } from "./frame.js";
import { drawSuggestions, sourceWords } from "./suggestions.js";

const SUGGESTIONS = 8;

/** `draft()` returns the current {user, items}; `shown()` says whether the list is visible. */
export function completer({ draft, onAdd, shown }) {
  const asking = new Newest();
  let completing = false;

  function question(k) {
    const { user, items } = draft();
    const who = user ? { user_id: user } : { history: { items: [], bundles: [] } };
    const where = byId("in-stock").checked ? { in_stock: true } : {};
    return { ...who, items: items.map((item) => item.id), k, where };
  }

  async function suggest() {
    if (completing || !shown()) return; // `complete` sends its own requests, and calls this at the end
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
      drawSuggestions(list, answer.items, onAdd);
      const { user, items } = draft();
      byId("suggest-source").textContent = sourceWords(answer.items, user, items.length);
      byId("suggest-note").replaceChildren(
        ...(answer.items.length
          ? []
          : [
              emptyBox(
                "Nothing left to suggest",
                "All items that could be suggested are in the bundle, or this user has them.",
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

  /** Adds the best item again and again, until the bundle has the chosen size. A second call stops it. */
  async function complete() {
    if (completing) {
      completing = false;
      return;
    }
    const size = Number(byId("size").value.trim());
    if (!Number.isInteger(size) || size < 1 || size > 100) {
      byId("size-note").textContent = "A size is a whole number from 1 to 100.";
      byId("size").focus();
      return;
    }
    const before = draft().items.length;
    if (before >= size) {
      byId("size-note").textContent =
        `The bundle has ${plural(before, "item")} already: enter a larger size, or remove some items.`;
      return;
    }
    byId("size-note").textContent = "";
    completing = true;
    byId("complete").textContent = "Stop";
    try {
      while (completing && draft().items.length < size) {
        const answer = await asking.run((signal) => api.complete(question(1), signal));
        if (!answer || !completing) break;
        if (!answer.items.length) {
          byId("size-note").textContent = "No other item can be added.";
          break;
        }
        remember(answer.items);
        onAdd(answer.items[0]);
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
      const now = draft().items.length;
      announce(`${plural(now - before, "item")} added; the bundle has ${count(now)}.`);
    } catch (error) {
      byId("suggest-note").replaceChildren(problemBox(error, complete));
    } finally {
      completing = false;
      byId("complete").textContent = "Complete";
      suggest();
    }
  }

  byId("complete-form").addEventListener("submit", (event) => {
    event.preventDefault();
    complete();
  });
  byId("in-stock").addEventListener("change", suggest);
  const soon = later(120, suggest);

  return {
    ask: suggest,
    /** Suggest after a short pause, because more changes may follow. */
    soon: () => {
      if (!completing) soon();
    },
  };
}
