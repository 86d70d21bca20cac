// The activity of the service: response times, answers, and each bundle's share of answers and of sales.

import { shareScatter } from "./charts.js";
import { count, figure, h, moment, plural, titleOf } from "./dom.js";
import { emptyBox } from "./frame.js";

/** Rows of a name, a value as text, and a bar. `rows` are [name, text, number]. */
function bars(rows) {
  const highest = Math.max(...rows.map(([, , value]) => value), 0.001);
  return h(
    "dl",
    { class: "bars" },
    rows.map(([name, text, value]) =>
      h(
        "div",
        {},
        h("dt", {}, name),
        h("dd", {}, text),
        h(
          "span",
          { class: "bar", "aria-hidden": "true" },
          h("span", { style: { width: `${(value / highest) * 100}%` } }),
        ),
      ),
    ),
  );
}

export function latency(data) {
  if (!data.count || data.p50_ms === null)
    return emptyBox("No response time yet", "Open the shop: every recommendation is timed.");
  const rows = [
    ["Half of all answers within", data.p50_ms],
    ["95 of 100 within", data.p95_ms],
    ["99 of 100 within", data.p99_ms],
  ];
  return [
    bars(rows.map(([name, value]) => [name, `${figure(value ?? 0)} ms`, value ?? 0])),
    h("p", { class: "fine" }, `Measured over the last ${plural(data.count, "answer")} of this process.`),
  ];
}

const monthName = new Intl.DateTimeFormat("en", { month: "short", year: "numeric", timeZone: "UTC" });

/** `rows` are months with a purchase of a bundle, in the order of time. */
export function months(rows) {
  if (!rows.length)
    return emptyBox(
      "No purchase has a time yet",
      "Purchases that the service records have one. Tables need a column with dates or times.",
    );
  const named = rows.map(({ month, purchases }) => [
    monthName.format(new Date(`${month}-01T00:00:00Z`)),
    count(purchases),
    purchases,
  ]);
  return [
    bars(named),
    h("p", { class: "fine" }, "Purchases of bundles with a known time, counted every five minutes."),
  ];
}

export function served(data) {
  return [
    h(
      "dl",
      { class: "figures" },
      h("div", {}, h("dt", {}, "answers"), h("dd", {}, count(data.answers))),
      h("div", {}, h("dt", {}, "taken"), h("dd", {}, count(data.taken))),
    ),
    h(
      "p",
      { class: "fine" },
      `Since ${moment(data.since)}. Taken: a bundle that a user bought after it had been shown to them.`,
    ),
  ];
}

/** A sentence about bundles that were never shown. It counts only the bundles in `rows`. */
function unseenWords(rows, leftOut) {
  const never = rows.filter((row) => row.shown_share === 0).length;
  if (!never) return leftOut ? "Each of these was shown." : "Every bundle was shown.";
  const all = leftOut ? `these ${count(rows.length)}` : plural(rows.length, "bundle");
  return `${count(never)} of ${all} ${never === 1 ? "was" : "were"} not shown yet.`;
}

/** `rows` are the bundles that sell or are shown most; `leftOut` is the number of other bundles. */
export function popularity(rows, leftOut) {
  const shown = rows.some((row) => row.shown_share > 0);
  const sold = rows.some((row) => row.sales_share > 0);
  if (!shown || !sold)
    return emptyBox(
      shown ? "Nothing is sold yet" : "Nothing was shown yet",
      shown
        ? "The chart compares shown bundles with sold bundles."
        : "Open the shop and look at a user's recommendations: every shown bundle counts here.",
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
      name: "Share of shown bundles and share of sales",
      points,
      xName: "share of sales",
      yName: "share of shown bundles",
      xVerb: "of sales",
      yVerb: "of shown bundles",
    }),
  ];
}
