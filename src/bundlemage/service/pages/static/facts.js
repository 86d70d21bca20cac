// Facts about a bundle that can be checked on the page. They compare the user's history with the bundle's
// items and tags. They are not the reasons of the model.

import { count, plural, titleOf } from "./dom.js";
import { price } from "./money.js";

/** The tags of items in earlier answers, by item id. (The items of a bundle come without tags.) */
const seen = new Map();

export function remember(items) {
  for (const item of items) if (item.tags) seen.set(item.id, item.tags);
}

/** The items whose tags are not known yet; none if there are too many to load. */
export function unseen(items) {
  const missing = items.filter((item) => !tagsOf(item));
  return missing.length <= 30 ? missing : [];
}

const tagsOf = (item) => item.tags ?? seen.get(item.id);

function tagCounts(things) {
  const counts = new Map();
  for (const thing of things)
    for (const tag of new Set(tagsOf(thing) ?? [])) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return counts;
}

/** All items of a history, bought alone or in a bundle, each once. */
function itemsOf({ items, bundles }) {
  const all = [...items, ...bundles.flatMap((bundle) => bundle.items ?? [])];
  return [...new Map(all.map((item) => [item.id, item])).values()];
}

export const idsIn = (owned) => new Set(itemsOf(owned).map((item) => item.id));

/** The sum of the items' prices; null if an item has no price. */
export function apart(bundle) {
  const prices = (bundle.items ?? []).map((item) => item.price);
  return prices.length && prices.every((each) => typeof each === "number")
    ? prices.reduce((sum, each) => sum + each, 0)
    : null;
}

/** The price before the discount: the sum of the items' prices if the discount agrees, else computed. */
export function before(bundle) {
  if (!bundle.discount || typeof bundle.price !== "number" || bundle.discount >= 1) return null;
  const computed = bundle.price / (1 - bundle.discount);
  const sum = apart(bundle);
  return sum !== null && Math.abs(sum - computed) < 0.02 * computed ? sum : computed;
}

function sharedTag(bundle, owned) {
  const items = itemsOf(owned);
  const inHistory = tagCounts(items);
  const parts = bundle.items ?? [];
  const inBundle = tagCounts(parts);
  const complete = parts.length > 0 && parts.every(tagsOf);
  const tags = complete ? [...inBundle.keys()] : bundle.tags;
  // A tag of the bundle itself describes it better than a tag of some of its items.
  const weight = (tag) =>
    (inHistory.get(tag) ?? 0) *
    (complete ? inBundle.get(tag) / parts.length : 1) *
    (bundle.tags.includes(tag) ? 2 : 1);
  const best = tags
    .filter((tag) => (inHistory.get(tag) ?? 0) > 0)
    .sort((one, other) => weight(other) - weight(one))[0];
  if (!best) return null;
  const have = inHistory.get(best);
  const all = plural(items.length, "item");
  const subject = `${count(have)} of your ${all} ${have === 1 ? "is" : "are"} ${best}`;
  if (!complete) return `${subject}, like this bundle`;
  const same = inBundle.get(best);
  return same === parts.length
    ? `${subject}, like all ${count(same)} in here`
    : `${subject}, like ${count(same)} of its ${count(parts.length)}`;
}

function sharedBundleTag(bundle, owned) {
  for (const tag of [...bundle.tags].reverse()) {
    const alike = owned.bundles.filter((other) => other.tags.includes(tag) && other.id !== bundle.id);
    if (alike.length === 1) return `You have “${titleOf(alike[0])}”, also tagged ${tag}`;
    if (alike.length > 1)
      return `${count(alike.length)} of your ${plural(owned.bundles.length, "bundle")} are tagged ${tag} too`;
  }
  return null;
}

function saving(bundle) {
  const sum = apart(bundle);
  if (sum === null || typeof bundle.price !== "number" || sum - bundle.price < 0.005) return null;
  return `${price(sum - bundle.price)} less than its ${plural(bundle.items.length, "item")} one by one`;
}

/** The facts as sentences, the most informative first. `owned` is {items, bundles} from the service. */
export function facts(bundle, owned) {
  const all = [sharedTag(bundle, owned), sharedBundleTag(bundle, owned)];
  const sentences = all.filter(Boolean);
  // The price line shows the saving, too. So it is a sentence only if there is no other.
  return sentences.length ? sentences : [saving(bundle)].filter(Boolean);
}
