// Designed bundles as cards.

import { priceLine, scoreBar } from "./cards.js";
import { cover } from "./cover.js";
import { about, count, figure, freshId, h, listed, percent, plural, titleOf } from "./dom.js";
import { commonTags } from "./draft.js";
import { priceBeside } from "./money.js";
import { whyBox } from "./why.js";

const added = (bundle) => bundle.items.filter((item) => !item.given);

/** A sentence about the items that no other proposal has. */
function difference(bundle, all) {
  const others = new Set(
    all.filter((other) => other !== bundle).flatMap((other) => other.items.map(({ id }) => id)),
  );
  const only = added(bundle).filter((item) => !others.has(item.id));
  if (all.length < 2) return null;
  if (!only.length) return "Each of its items is also in another proposal.";
  const rest = added(bundle).length - only.length;
  return `${rest ? "Only here" : "All items are only here"}: ${listed(only.map(titleOf))}.`;
}

/** The value of a bundle and its terms; null if it has neither margin nor variety. */
function terms({ value, terms: parts }) {
  const others = ["margin", "diversity"].filter((name) => parts[name]);
  if (!others.length) return null;
  const signed = (number) => figure(number).replace("-", "−");
  const named = { matching: "the whole bundle", likelihood: "its items", diversity: "variety" };
  const words = ["matching", "likelihood", ...others].map(
    (name) => `${named[name] ?? name} ${signed(parts[name])}`,
  );
  return h("p", { class: "fine" }, `Value ${signed(value)}: ${listed(words)}.`);
}

/**
 * A sentence about the expected buyers; null if they are not known. If they are the same for all bundles, the
 * interval says nothing about this one.
 */
function buyers({ expected_buyers: expected, low, high }, all) {
  if (typeof expected !== "number") return null;
  const alike = all.length > 1 && all.every((other) => other.expected_buyers === expected);
  const number = about(expected);
  const noun = number === "1" ? "buyer" : "buyers";
  return `About ${number} ${noun}${alike ? "" : ` (${count(low)} to ${count(high)})`}.`;
}

function row(item, bundle, { keeps, onKeep, onForbid }) {
  const link = (text, label, work) =>
    h(
      "button",
      { type: "button", class: "link", "aria-label": label, on: { click: () => work(item) } },
      text,
    );
  return h(
    "li",
    { class: "proposed-item", data: { item: item.id } },
    h(
      "div",
      { class: "proposed-line" },
      h(
        "span",
        { class: "line-title" },
        h(
          "span",
          {},
          titleOf(item),
          [item.given && "given", item.owned && "owned", item.sold_out && "sold out"]
            .filter(Boolean)
            .map((label) => h("span", { class: "badge" }, label)),
        ),
        item.given ? null : h("span", { class: "fine" }, `${percent(item.score)} of the score of all items`),
      ),
      priceBeside(item, bundle.items),
    ),
    item.why ? whyBox(item.why, titleOf(item)) : null,
    item.given
      ? null
      : h(
          "div",
          { class: "row" },
          keeps(item.id)
            ? h("span", { class: "fine" }, "In every bundle.")
            : link("Keep", `Keep ${titleOf(item)} in every bundle`, onKeep),
          link("Not this one", `Not this one: ${titleOf(item)}`, onForbid),
        ),
  );
}

/** `options` is {keeps, onKeep, onForbid, onTake, prices}. */
function card(bundle, all, highest, options) {
  const heading = freshId("proposal");
  const name = listed(added(bundle).slice(0, 2).map(titleOf));
  const differs = difference(bundle, all);
  const expected = buyers(bundle, all);
  const owned = bundle.items.filter((item) => item.owned);
  const from = { ...bundle, discount: bundle.discount || null, owned };
  return h(
    "li",
    { class: "card proposal", data: { rank: bundle.rank } },
    h(
      "article",
      { "aria-labelledby": heading },
      h(
        "div",
        { class: "cover" },
        cover(name, commonTags(bundle.items)),
        h("span", { class: "rank" }, count(bundle.rank)),
      ),
      h(
        "div",
        { class: "card-body" },
        h("h3", { id: heading }, `Proposal ${count(bundle.rank)}: ${plural(bundle.items.length, "item")}`),
        bundle.same_as
          ? h("p", { class: "note" }, `The shop already has this bundle: ${bundle.same_as}.`)
          : null,
        bundle.expected_rank
          ? h("p", { class: "fine" }, `Rank ${count(bundle.expected_rank)} among all bundles for this user.`)
          : null,
        expected ? h("p", { class: "fine buyers" }, expected) : null,
        differs ? h("p", { class: "contents" }, differs) : null,
        h(
          "ul",
          { class: "lines", "aria-label": `Items of proposal ${bundle.rank}` },
          bundle.items.map((item) => row(item, bundle, options)),
        ),
        h(
          "div",
          { class: "card-end" },
          terms(bundle),
          scoreBar(bundle, highest, "item", `${percent(bundle.score)} of the score of all items, on average`),
          h(
            "div",
            { class: "card-foot" },
            priceLine(from, options.prices),
            h(
              "button",
              {
                type: "button",
                class: "strong take",
                "aria-label": `Take proposal ${bundle.rank}`,
                on: { click: () => options.onTake(bundle) },
              },
              "Take this one",
            ),
          ),
        ),
      ),
    ),
  );
}

export function drawProposals(list, bundles, options) {
  const highest = Math.max(...bundles.map((bundle) => bundle.score), 1e-12);
  list.replaceChildren(...bundles.map((bundle) => card(bundle, bundles, highest, options)));
}

/** A sentence about an answer: the number of bundles, the method and the time. */
export function foundWords({ bundles, method, seconds, complete, proven }, request) {
  const how = method === "exact" ? "thorough search" : "quick search";
  const whom = request.user_id ?? "no particular user";
  const all = `${plural(bundles.length, "bundle")} for ${whom}, ${how}, ${figure(seconds, 2)} s.`;
  const more = complete
    ? bundles.length < request.n && "No other bundle differs enough from these."
    : "Time ran out: these are the best bundles that the search found.";
  const sure = proven && "No possible bundle is better than the first.";
  return [all, more, sure].filter(Boolean).join(" ");
}

/** A line about a bundle that the shop already has and that is better, with a link to it; null if none is. */
export function betterExisting({ better_existing: better }, user) {
  if (!better) return null;
  const rank = better.expected_rank ? ` Its rank for this user is ${count(better.expected_rank)}.` : "";
  const query = new URLSearchParams({ bundle: better.id, ...(user ? { user } : {}) });
  return h(
    "p",
    { class: "note" },
    "The shop already has a bundle that suits better: ",
    h("a", { href: `/builder?${query}` }, better.title ?? better.id),
    `.${rank}`,
  );
}
