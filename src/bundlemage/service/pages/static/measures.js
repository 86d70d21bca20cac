// What the model's answers show, and where the model is good.

import { h, plural } from "./dom.js";

const RIVAL = "Popularity";
const METRIC = "ndcg@5"; // the metric of the slices
const TASKS = { matching: "Which bundle comes next?", generation: "Which items complete a bundle?" };

const inThree = (value) => (typeof value === "number" ? value.toFixed(3) : "—");

/** The panels about answer lists and slices, as far as `metrics.json` has them. */
export const measures = (metrics) => [...lists(metrics ?? {}), ...slices(metrics ?? {})];

function table(title, heads, rows) {
  return h(
    "div",
    { class: "wide-table", tabindex: "0", role: "region", "aria-label": title },
    h(
      "table",
      { class: "measures" },
      h("caption", { class: "unseen" }, title),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h(
        "tbody",
        {},
        rows.map(([name, ...cells]) =>
          h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell))),
        ),
      ),
    ),
  );
}

// ── Answer lists ─────────────────────────────────────────────────────────────────────────────────

function lists({ test = [], meaning = {} }) {
  const [model, ...others] = test;
  if (!model?.lists) return [];
  const shown = [model, ...others.filter((row) => row.model === RIVAL && row.lists)];
  const { bundles, users, of_users: all, diversity_by: by } = model.lists;
  const names = Object.keys(bundles);
  const title = "What the answers show";
  const whose = users < all ? `a sample of ${users} of ${plural(all, "test user")}` : plural(users, "test user");
  const heads = shown.flatMap((row) => [`${row.model}, bundles`, `${row.model}, items inside`]);
  const rows = names.map((name) => [
    [h("b", {}, name), h("p", { class: "fine" }, meaning[name.split("@")[0]] ?? "")],
    ...shown.flatMap(({ lists: found }) => [inThree(found.bundles[name]), inThree(found.items[name])]),
  ]);
  return [
    h(
      "section",
      { class: "panel", id: "answer-lists" },
      h(
        "div",
        {},
        h("h2", {}, title),
        h("p", { class: "fine" }, `Each list has the first of all bundles for one user; lists of ${whose}.`),
      ),
      table(title, ["Measure", ...heads], rows),
      by === "tags" ? null : h("p", { class: "fine" }, "Diversity compares bundles by their items: there are no tags."),
    ),
  ];
}

// ── Slices ───────────────────────────────────────────────────────────────────────────────────────

function slices({ slices: byTask = {} }) {
  return Object.entries(byTask)
    .filter(([task, ways]) => TASKS[task] && ways.length)
    .map(([task, ways]) => {
      const title = `Where the model is good: ${TASKS[task]}`;
      const rows = ways.flatMap((way) => way.slices.map((each) => sliceRow(way, each)));
      return h(
        "section",
        { class: "panel slices" },
        h(
          "div",
          {},
          h("h2", {}, title),
          h("p", { class: "fine" }, "nDCG@5 in slices of the test cases; ± is its standard error."),
        ),
        table(title, ["By", "Slice", "Cases", "nDCG@5"], rows),
        h(
          "dl",
          { class: "fine" },
          ways.flatMap((way) => [h("dt", {}, way.by), h("dd", {}, way.about)]),
        ),
      );
    });
}

function sliceRow(way, each) {
  const { mean, error } = each.metrics[METRIC] ?? {};
  const value = inThree(mean) + (typeof error === "number" ? ` ± ${error.toFixed(3)}` : "");
  return [
    way.by,
    each.name,
    plural(each.cases, "case"),
    [value, each.little ? h("p", { class: "fine" }, "few cases: this says little") : ""],
  ];
}
