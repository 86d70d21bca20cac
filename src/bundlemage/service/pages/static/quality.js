// How good a model is, and how it came to be.

import { lineChart } from "./charts.js";
import { figure, h, plural } from "./dom.js";
import { emptyBox } from "./frame.js";

const SELECTION = "ndcg@5"; // by which training chooses an epoch
const TASKS = [
  ["matching", "Which bundle comes next?", "Matching: bundles that users took, held out from training."],
  [
    "generation",
    "Which items complete a bundle?",
    "Generation: items taken out of bundles, to be found again.",
  ],
];

/** Metrics all lie between 0 and 1: three decimals, so that columns line up. */
export const inThree = (value) => (value ?? 0).toFixed(3);

const metricName = (metric) => metric.replace("ndcg", "nDCG").replace("recall", "Recall");

function byMetric(one, other) {
  const [a, b] = [one, other].map((metric) => metric.split("@"));
  return a[0].localeCompare(b[0]) || Number(a[1]) - Number(b[1]);
}

/** A panel for each task. `tests` are the model and what it is compared with, as `metrics.json` has them. */
export const quality = (tests) => TASKS.map((task) => panel(task, tests));

function panel([task, title, about], tests) {
  const rows = tests.filter((test) => test[task]);
  if (!rows.length)
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, title),
      emptyBox("Not measured", "This model was saved without test figures for this task."),
    );
  const [mine, rival] = rows;
  const cases = plural(mine[`${task}_cases`] ?? 0, "case");
  const metrics = Object.keys(mine[task]).sort(byMetric);
  const head = metrics.includes(SELECTION) ? SELECTION : metrics[0];
  return h(
    "section",
    { class: "panel" },
    h("div", {}, h("h2", {}, title), h("p", { class: "fine" }, about)),
    h(
      "p",
      { class: "headline" },
      h("b", {}, inThree(mine[task][head])),
      h("span", {}, metricName(head), rival ? against(mine[task][head], rival[task][head], rival.model) : ""),
    ),
    h(
      "table",
      { class: "bars" },
      h("caption", { class: "unseen" }, `${title} ${cases}`),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Metric"),
          rows.map((row, number) =>
            h("th", { scope: "col" }, h("span", { class: `key ${number ? "second" : "first"}` }), row.model),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        metrics.map((metric) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, metricName(metric)),
            rows.map((row, number) =>
              h(
                "td",
                {},
                h(
                  "span",
                  { class: "cell" },
                  h(
                    "span",
                    { class: "cell-bar" },
                    h("span", {
                      class: number ? "second" : "first",
                      style: { width: `${(row[task][metric] ?? 0) * 100}%` },
                    }),
                  ),
                  h("span", {}, inThree(row[task][metric])),
                ),
              ),
            ),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "fine" },
      `${cases}, protocol ${mine.protocol}. Higher is better; 1 is perfect, and a full bar.`,
    ),
  );
}

function against(mine, theirs, name) {
  if (!theirs) return "";
  const change = mine / theirs - 1;
  if (Math.abs(change) < 0.005) return `, the same as ${name}`;
  return `, ${Math.round(Math.abs(change) * 100)}% ${change > 0 ? "above" : "below"} ${name}`;
}

// ── Training ─────────────────────────────────────────────────────────────────────────────────────

/** Of an ensemble the first member: each has a curve of its own, and they look alike. */
function firstMember(records) {
  return records.filter((record) => (record.member ?? 1) === 1);
}

export function training(all) {
  const records = firstMember(all);
  if (records.length < 2)
    return emptyBox(
      "No curve to draw",
      "This model is not learned epoch by epoch, or was trained for a single one.",
    );
  const best = bestEpoch(records);
  const measured = records.filter((record) => SELECTION in (record.validation ?? {}));
  const phases = Object.keys(records[0].losses);
  return [
    measured.length > 1
      ? lineChart({
          name: "Validation nDCG@5",
          values: measured.map((record) => [record.epoch, record.validation[SELECTION]]),
          xName: "epoch",
          yName: "nDCG@5",
          best,
          tone: "first",
        })
      : null,
    ...phases.map((phase) =>
      lineChart({
        name: `Loss, ${phase}`,
        values: records.map((record) => [record.epoch, record.losses[phase]]),
        xName: "epoch",
        yName: "loss",
        tone: "second",
      }),
    ),
  ].filter(Boolean);
}

/** The epoch that validation chose, whose weights are the model; none where nothing was held out for it. */
function bestEpoch(records) {
  return records.findLast((record) => record.improved && SELECTION in (record.validation ?? {}))?.epoch;
}

export function trainingWords(records) {
  if (!records.length) return "";
  const seconds = records.reduce((sum, record) => sum + record.seconds, 0);
  const took = seconds < 90 ? `${figure(seconds, 2)} seconds` : `${Math.round(seconds / 60)} minutes`;
  const members = new Set(records.map((record) => record.member ?? 1)).size;
  if (members > 1) {
    const epochs = plural(records.length, "epoch");
    return `${epochs} of ${members} members in ${took}; the curves are the first member's.`;
  }
  const best = bestEpoch(records);
  const chosen = best ? `; epoch ${best} was the best on validation and is the one that serves` : "";
  return `${plural(records.length, "epoch")} in ${took}${chosen}.`;
}
