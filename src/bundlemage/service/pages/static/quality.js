// The quality of a model, and its training.

import { lineChart } from "./charts.js";
import { figure, h, plural } from "./dom.js";
import { emptyBox } from "./frame.js";

const SELECTION = "ndcg@5"; // training keeps the epoch with the highest value of this metric
const SHOWN = ["ndcg", "recall"].flatMap((name) => [5, 10, 20].map((k) => `${name}@${k}`));
const TASKS = [
  ["matching", "Which bundle comes next?", "Matching: bundles that users took, held out from training."],
  [
    "generation",
    "Which items complete a bundle?",
    "Generation: items removed from bundles, which the model ranks.",
  ],
];

/** A metric (from 0 to 1) with three decimals, so that columns are aligned. */
export const inThree = (value) => (value ?? 0).toFixed(3);

const metricName = (metric) => metric.replace("ndcg", "nDCG").replace("recall", "Recall");

/** A panel for each task. `tests` are the metrics of the model and of a rival, as in `metrics.json`. */
export const quality = (tests) => TASKS.map((task) => panel(task, tests));

function panel([task, title, about], tests) {
  // The model, and the best of the others: a table of all would be wider than a phone.
  const [first, ...others] = tests.filter((test) => test[task]);
  others.sort((one, other) => other[task][SELECTION] - one[task][SELECTION]);
  const rows = first ? [first, ...others.slice(0, 1)] : [];
  if (!rows.length)
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, title),
      emptyBox("Not measured", "This model was saved without test figures for this task."),
    );
  const [model, rival] = rows;
  const compared = (metric) => against(model[task][metric], rival[task][metric], rival.model);
  const cases = plural(model[`${task}_cases`] ?? 0, "case");
  const metrics = SHOWN.filter((metric) => metric in model[task]);
  const head = metrics.includes(SELECTION) ? SELECTION : metrics[0];
  return h(
    "section",
    { class: "panel" },
    h("div", {}, h("h2", {}, title), h("p", { class: "fine" }, about)),
    h(
      "p",
      { class: "headline" },
      h("b", {}, inThree(model[task][head])),
      h("span", {}, metricName(head), rival ? compared(head) : ""),
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
      `${cases}, protocol ${model.protocol}. Higher is better; 1, a full bar, is perfect.`,
    ),
  );
}

function against(value, rival, name) {
  if (!rival) return "";
  const change = value / rival - 1;
  if (Math.abs(change) < 0.005) return `, the same as ${name}`;
  return `, ${Math.round(Math.abs(change) * 100)}% ${change > 0 ? "above" : "below"} ${name}`;
}

// ── Training ─────────────────────────────────────────────────────────────────────────────────────

/** The epochs of an ensemble's first member. The curves of the other members are similar. */
function firstMember(records) {
  return records.filter((record) => (record.member ?? 1) === 1);
}

export function training(all) {
  const records = firstMember(all);
  if (records.length < 2)
    return emptyBox(
      "No curve to draw",
      "This model was not trained in epochs, or only for one epoch.",
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

/** The epoch with the best validation metric, whose weights are used; undefined without validation. */
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
  const chosen = best ? `; epoch ${best} was the best on validation and serves` : "";
  return `${plural(records.length, "epoch")} in ${took}${chosen}.`;
}
