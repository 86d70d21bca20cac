// What the service does in the shop: how fast, how much, and what it shows against what sells.

import { shareScatter } from "./charts.js";
import { count, figure, h, moment, plural, titleOf } from "./dom.js";
import { emptyBox } from "./frame.js";

export function latency(found) {
  if (!found.count || found.p50_ms === null)
    return emptyBox("No response time yet", "Open the shop: each recommendation is timed from here on.");
  const rows = [
    ["Half of all answers within", found.p50_ms],
    ["95 of 100 within", found.p95_ms],
    ["99 of 100 within", found.p99_ms],
  ];
  const highest = Math.max(...rows.map(([, value]) => value ?? 0), 0.001);
  return [
    h(
      "dl",
      { class: "latency" },
      rows.map(([name, value]) =>
        h(
          "div",
          {},
          h("dt", {}, name),
          h("dd", {}, `${figure(value ?? 0)} ms`),
          h(
            "span",
            { class: "bar", "aria-hidden": "true" },
            h("span", { style: { width: `${((value ?? 0) / highest) * 100}%` } }),
          ),
        ),
      ),
    ),
    h("p", { class: "fine" }, `Measured over the last ${plural(found.count, "answer")} of this process.`),
  ];
}

export function served(found) {
  return [
    h(
      "dl",
      { class: "figures" },
      h("div", {}, h("dt", {}, "answers"), h("dd", {}, count(found.answers))),
      h("div", {}, h("dt", {}, "taken"), h("dd", {}, count(found.taken))),
    ),
    h(
      "p",
      { class: "fine" },
      `Since ${moment(found.since)}. Taken: a bundle that a user bought after it had been shown to them.`,
    ),
  ];
}

/** Which bundles nobody saw; of those that are left out of `rows` nothing is known here. */
function unseenWords(rows, leftOut) {
  const never = rows.filter((row) => row.shown_share === 0).length;
  if (!never) return leftOut ? "Each of these was shown." : "Every bundle was shown.";
  const all = leftOut ? `these ${count(rows.length)}` : plural(rows.length, "bundle");
  return `${count(never)} of ${all} ${never === 1 ? "was" : "were"} not shown yet.`;
}

/** `leftOut` is how many bundles there are beyond `rows`, which are those that sell or are shown most. */
export function popularity(rows, leftOut) {
  const shown = rows.some((row) => row.shown_share > 0);
  const sold = rows.some((row) => row.sales_share > 0);
  if (!shown || !sold)
    return emptyBox(
      shown ? "Nothing is sold yet" : "Nothing was shown yet",
      shown
        ? "The chart compares what is shown with what sells."
        : "Open the shop and look at someone's recommendations: every bundle that is shown counts here.",
    );
  const which = `The chart shows the ${count(rows.length)} bundles that sell or are shown most`;
  const drawn = leftOut ? `${which}; ${count(leftOut)} more are left out. ` : "";
  const points = rows.map((row) => ({ name: titleOf(row), x: row.sales_share, y: row.shown_share }));
  return [
    h(
      "p",
      { class: "fine" },
      "Above the dashed line a bundle is shown more than it sells, below it less. ",
      drawn + unseenWords(rows, leftOut),
    ),
    shareScatter({
      name: "Share of what is shown, against share of sales",
      points,
      xName: "share of sales",
      yName: "share of what is shown",
      xVerb: "of sales",
      yVerb: "of what is shown",
    }),
  ];
}
