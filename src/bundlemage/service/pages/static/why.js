// The reason in a sentence, and the effect of each item and bundle, measured by scoring again without it.

import { splitBar } from "./charts.js";
import { count, h, plural, titleOf } from "./dom.js";

const KINDS = { item: "an item in the history", bundle: "a bundle in the history", partial: "in this bundle" };

/** Converts a logarithm to a factor such as "×1.04" or "×545,000". */
function times(log) {
  const value = Math.exp(log);
  return `×${value < 10 ? value.toFixed(2) : count(Number(value.toPrecision(3)))}`;
}

/** The weights of the history's items and bundles, in words and as a bar. */
function gateLine(gate) {
  const even = Math.abs(gate - 0.5) < 0.01;
  const more =
    gate > 0.5 ? "The history's single items count more" : "The history's bundles count more";
  return h(
    "div",
    { class: "gate" },
    h("p", {}, even ? "The history's items and bundles count about equally." : `${more}.`),
    splitBar([
      { name: "items", share: gate, tone: "first" },
      { name: "bundles", share: 1 - gate, tone: "second" },
    ]),
  );
}

function table(numbers) {
  if (!numbers.reasons.length) return h("p", {}, "There is nothing in the history or the bundle to leave out.");
  const rows = numbers.reasons.map((reason) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, titleOf(reason), h("span", { class: "fine" }, KINDS[reason.kind])),
      h("td", {}, times(reason.effect)),
    ),
  );
  return [
    h(
      "table",
      { class: "reasons" },
      h("caption", {}, "How many times likelier it is than without this, relative to the average."),
      h(
        "thead",
        {},
        h("tr", {}, h("th", { scope: "col" }, "Because of"), h("th", { scope: "col" }, "Likelier")),
      ),
      h("tbody", {}, rows),
    ),
    numbers.more ? h("p", { class: "fine" }, `And ${plural(numbers.more, "thing")} more, with less effect.`) : null,
  ];
}

/** A sentence with the reasons, and their numbers, which can be unfolded. `of` is the title of the thing. */
export function whyBox(why, of) {
  const sentence = why.words ? h("p", {}, why.words) : null;
  const numbers = why.details;
  if (!numbers) return h("div", { class: "model-why" }, sentence);
  const most = { ...numbers, reasons: numbers.reasons.slice(0, 5) };
  most.more = (numbers.more ?? 0) + numbers.reasons.length - most.reasons.length;
  return h(
    "div",
    { class: "model-why" },
    sentence,
    h(
      "details",
      { class: "numbers" },
      h("summary", {}, "In numbers", h("span", { class: "unseen" }, `: why ${of}`)),
      h(
        "div",
        { class: "numbers-body" },
        table(most),
        typeof numbers.gate === "number" ? gateLine(numbers.gate) : null,
      ),
    ),
  );
}
