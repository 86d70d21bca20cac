// Rules for tags: at least or at most a number of items with a tag. Each rule is a row.

import { freshId, h } from "./dom.js";

const LISTED = 300; // the maximum number of tags in the list; others can be typed

/** `tags` is a list of {tag, count}, as in the service's answer. */
export function tagRules(tags) {
  const known = new Set(tags.map(({ tag }) => tag));
  const names = h(
    "datalist",
    { id: freshId("tags") },
    tags.slice(0, LISTED).map(({ tag }) => h("option", { value: tag })),
  );
  const list = h("ul", { class: "tag-rules", "aria-label": "Rules on tags" });
  const more = h("button", { type: "button", class: "link", id: "add-tag-rule" }, "Add a rule on a tag");
  const rows = [];

  function add({ kind = "at_least", many = 1, tag = "" } = {}) {
    const row = {
      kind: h(
        "select",
        { "aria-label": "At least or at most" },
        h("option", { value: "at_least" }, "at least"),
        h("option", { value: "at_most" }, "at most"),
      ),
      many: h("input", {
        type: "number",
        min: 0,
        max: 100,
        step: 1,
        value: many,
        inputmode: "numeric",
        "aria-label": "How many items",
      }),
      tag: h("input", {
        list: names.id,
        value: tag,
        placeholder: "a tag",
        autocomplete: "off",
        "aria-label": "Tag",
      }),
    };
    row.kind.value = kind;
    const drop = () => {
      remove(row);
      more.focus();
    };
    row.element = h(
      "li",
      {},
      row.kind,
      row.many,
      h("span", { "aria-hidden": "true" }, "with"),
      row.tag,
      h(
        "button",
        { type: "button", class: "icon", "aria-label": "Remove this rule", on: { click: drop } },
        "×",
      ),
    );
    rows.push(row);
    list.append(row.element);
    return row;
  }

  function remove(row) {
    rows.splice(rows.indexOf(row), 1);
    row.element.remove();
  }

  const named = (row) => row.tag.value.trim();

  /** The invalid field of a row and a message, or null. `before` are the rows above. */
  function fault(row, before) {
    if (!row.many.validity.valid || row.many.value === "")
      return [row.many, "How many items: a whole number from 0 to 100 is expected."];
    if (!named(row)) return [row.tag, "A rule on a tag has no tag: choose one, or remove the rule."];
    if (!known.has(named(row)))
      return [row.tag, `No item has the tag “${named(row)}”. Upper and lower case differ.`];
    const twice = before.some((other) => named(other) === named(row) && other.kind.value === row.kind.value);
    return twice ? [row.tag, `There are two such rules on “${named(row)}”: remove one.`] : null;
  }

  more.addEventListener("click", () => add().tag.focus());

  return {
    element: h("div", { class: "tag-rules-box", hidden: !tags.length }, list, more, names),
    /** The rules as {at_least: {tag: number}, at_most: {tag: number}}. A kind without rules is left out. */
    get: () => {
      const rules = {};
      for (const row of rows) (rules[row.kind.value] ??= {})[named(row)] = Number(row.many.value);
      return rules;
    },
    /** Changes the number of a rule. Null, or 0 for `at_least`, removes the rule. */
    set: (kind, tag, many) => {
      const row = rows.find((each) => each.kind.value === kind && named(each) === tag);
      if (!row) return;
      if (many === null || (kind === "at_least" && many === 0)) remove(row);
      else row.many.value = many;
    },
    /** Returns the first invalid field and a message, or null. */
    wrong: () => {
      const faults = rows.map((row, place) => fault(row, rows.slice(0, place)));
      rows.forEach((row, place) => {
        for (const field of [row.many, row.tag])
          field.setAttribute("aria-invalid", String(faults[place]?.[0] === field));
      });
      return faults.find(Boolean) ?? null;
    },
  };
}
