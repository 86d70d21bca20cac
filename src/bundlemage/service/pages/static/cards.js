// A bundle as a card.

import { count, freshId, h, listed, percent, plural, titleOf } from "./dom.js";
import { before, facts } from "./facts.js";
import { picture } from "./images.js";
import { hasPrice, price } from "./money.js";
import { reasonsSlot } from "./reasons.js";

/** The price of a bundle. `prices`: whether bundles of this shop have prices; if not, returns null. */
export function priceLine(bundle, prices) {
  if (!hasPrice(bundle) && !prices) return null;
  if (!hasPrice(bundle))
    return h("p", { class: "price" }, h("span", { class: "fine" }, "No price given"), toPay(bundle));
  const old = before(bundle);
  return h(
    "p",
    { class: "price" },
    old === null ? null : [h("span", { class: "unseen" }, "before "), h("s", {}, price(old)), " "],
    old === null ? null : h("span", { class: "unseen" }, "now "),
    h("b", {}, price(bundle.price)),
    old === null ? null : [" ", h("span", { class: "off" }, `−${Math.round(bundle.discount * 100)}%`)],
    toPay(bundle),
  );
}

/** What a user pays who owns some of the items; null if that is the price of the bundle. */
function toPay(bundle) {
  if (!bundle.owned?.length || bundle.to_pay === undefined || bundle.to_pay === bundle.price) return null;
  const known = typeof bundle.to_pay === "number";
  const words = known ? `You pay ${price(bundle.to_pay)}` : "The price of what is missing is not known";
  return h("span", { class: "to-pay" }, words);
}

/** What the user owns of a bundle, and what is missing; null if nothing is owned. */
function ownership(bundle) {
  if (!bundle.owned?.length) return null;
  const names = new Map((bundle.items ?? []).map((item) => [item.id, titleOf(item)]));
  const missing = (bundle.missing ?? []).map((id) => names.get(id) ?? id);
  const rest = missing.length - 2;
  const shown = rest > 1 ? `${missing.slice(0, 2).join(", ")} and ${count(rest)} more` : listed(missing);
  const all = plural(bundle.owned.length + missing.length, "item");
  return h(
    "p",
    { class: "owned" },
    h("b", {}, `You own ${count(bundle.owned.length)} of its ${all}`),
    missing.length ? `. Missing: ${shown}` : "",
  );
}

/** The score in words: a share of the scores of all candidates, or a share of all sales. */
export function scoreWords(thing, all) {
  return thing.source === "popular"
    ? `${percent(thing.score)} of all ${all} sales`
    : `${percent(thing.score)} of the score of all ${all}s`;
}

export function scoreBar(thing, highest, all, words = scoreWords(thing, all)) {
  const bar = h(
    "span",
    { class: "bar", "aria-hidden": "true" },
    h("span", { style: { width: `${Math.max(2, (thing.score / highest) * 100)}%` } }),
  );
  return h("p", { class: "score" }, bar, h("span", {}, words));
}

function contents(bundle) {
  const names = (bundle.items ?? []).map(titleOf);
  if (!names.length) return null;
  const first = names.length > 3 ? names.slice(0, 2) : names;
  const rest = names.length - first.length;
  return h(
    "p",
    { class: "contents" },
    h("b", {}, plural(names.length, "item")),
    `: ${rest ? `${first.join(", ")} and ${count(rest)} more` : listed(first)}`,
  );
}

function movedBadge(moved) {
  if (!moved) return null;
  if (moved === "new") return h("span", { class: "moved new" }, "New");
  const up = moved > 0;
  return h(
    "span",
    { class: `moved ${up ? "up" : "down"}` },
    h("span", { "aria-hidden": "true" }, `${up ? "↑" : "↓"} ${Math.abs(moved)}`),
    h("span", { class: "unseen" }, `${up ? "up" : "down"} by ${Math.abs(moved)}`),
  );
}

/**
 * The card of a recommended bundle. `moved` is "new", or the number of ranks that it went up. `prices` is as
 * in `priceLine`. `reasons`: whether the model's reasons will be loaded.
 */
export function bundleCard(bundle, { owned, highest, moved, prices, reasons, onOpen, onBuy }) {
  const heading = freshId("card");
  const why = reasons ? [] : facts(bundle, owned);
  const buy = onBuy
    ? h(
        "button",
        {
          type: "button",
          class: "strong buy",
          "aria-label": `Buy ${titleOf(bundle)}`,
          on: { click: (event) => onBuy(bundle, event.currentTarget) },
        },
        "Buy",
      )
    : null;
  return h(
    "li",
    { class: "card", data: { bundle: bundle.id } },
    h(
      "article",
      { "aria-labelledby": heading },
      h(
        "div",
        { class: "cover" },
        picture(bundle),
        h("span", { class: "rank" }, h("span", { class: "unseen" }, "rank "), count(bundle.rank)),
        movedBadge(moved),
        bundle.source === "popular" ? h("span", { class: "source" }, "Popular") : null,
        bundle.sold_out?.length ? h("span", { class: "sold-out" }, "Sold out") : null,
      ),
      h(
        "div",
        { class: "card-body" },
        h(
          "h3",
          { id: heading },
          h(
            "button",
            { type: "button", class: "card-open", on: { click: () => onOpen(bundle) } },
            titleOf(bundle),
          ),
        ),
        bundle.tags.length ? h("p", { class: "tags" }, bundle.tags.join(" · ")) : null,
        why.length
          ? h(
              "ul",
              { class: "why", "aria-label": "How it relates to this history" },
              why.map((fact) => h("li", {}, fact)),
            )
          : null,
        reasons ? reasonsSlot() : null,
        contents(bundle),
        ownership(bundle),
        h(
          "div",
          { class: "card-end" },
          scoreBar(bundle, highest, "bundle"),
          h("div", { class: "card-foot" }, priceLine(bundle, prices), buy),
        ),
      ),
    ),
  );
}

export const skeletonCards = (many) =>
  Array.from({ length: many }, () =>
    h(
      "li",
      { class: "card skeleton", "aria-hidden": "true" },
      h("div", { class: "cover" }),
      h("div", { class: "card-body" }, h("span"), h("span"), h("span")),
    ),
  );
