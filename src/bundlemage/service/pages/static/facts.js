// Why a bundle may fit, as facts that anyone can check on the page. They are counted from what the user has
// and what the bundle holds; nothing here claims to know what went on inside the model.

import { count, plural, price, titleOf } from "./dom.js";

/** Tags of items that the page has seen, by item id: answers do not repeat them for every bundle. */
const seen = new Map();

export function remember(items) {
  for (const item of items) if (item.tags) seen.set(item.id, item.tags);
}

/** Those whose tags are still to be asked for, as long as they are few. */
export function unseen(items) {
  const found = items.filter((item) => !tagsOf(item));
  return found.length <= 30 ? found : [];
}

const tagsOf = (item) => item.tags ?? seen.get(item.id);

function counted(things) {
  const found = new Map();
  for (const thing of things)
    for (const tag of new Set(tagsOf(thing) ?? [])) found.set(tag, (found.get(tag) ?? 0) + 1);
  return found;
}

/** Which of a bundle's items the user has already, bought alone or in another bundle. */
export function ownedOf(bundle, owned) {
  const inBundles = owned.bundles
    .filter((other) => other.id !== bundle.id)
    .flatMap((other) => other.items ?? []);
  const mine = new Set([...owned.items, ...inBundles].map((item) => item.id));
  return (bundle.items ?? []).filter((item) => mine.has(item.id));
}

/** What the items cost apart, where every one has a price. */
export function apart(bundle) {
  const prices = (bundle.items ?? []).map((item) => item.price);
  return prices.length && prices.every((each) => typeof each === "number")
    ? prices.reduce((sum, each) => sum + each, 0)
    : null;
}

/** The price before the discount: what the items cost apart, if that is what the discount speaks of. */
export function before(bundle) {
  if (!bundle.discount || typeof bundle.price !== "number" || bundle.discount >= 1) return null;
  const worked = bundle.price / (1 - bundle.discount);
  const sum = apart(bundle);
  return sum !== null && Math.abs(sum - worked) < 0.02 * worked ? sum : worked;
}

function sharedTag(bundle, owned) {
  const mine = counted(owned.items);
  const parts = bundle.items ?? [];
  const theirs = counted(parts);
  const complete = parts.length > 0 && parts.every(tagsOf);
  const tags = complete ? [...theirs.keys()] : bundle.tags;
  // The shop's own tags of the bundle say more about it than what some of its items happen to share.
  const weight = (tag) =>
    (mine.get(tag) ?? 0) *
    (complete ? theirs.get(tag) / parts.length : 1) *
    (bundle.tags.includes(tag) ? 2 : 1);
  const best = tags
    .filter((tag) => (mine.get(tag) ?? 0) > 0)
    .sort((one, other) => weight(other) - weight(one))[0];
  if (!best) return null;
  const have = mine.get(best);
  const all = plural(owned.items.length, "item");
  const subject = `${count(have)} of your ${all} ${have === 1 ? "is" : "are"} ${best}`;
  if (!complete) return `${subject}, like this bundle`;
  const same = theirs.get(best);
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

function alreadyOwned(bundle, owned) {
  const mine = ownedOf(bundle, owned);
  if (!mine.length) return null;
  const which = `${titleOf(mine[0])}${mine.length > 1 ? " and more" : ""}`;
  return `You own ${count(mine.length)} of its ${plural(bundle.items.length, "item")}: ${which}`;
}

function saving(bundle) {
  const sum = apart(bundle);
  if (sum === null || typeof bundle.price !== "number" || sum - bundle.price < 0.005) return null;
  return `${price(sum - bundle.price)} less than its ${plural(bundle.items.length, "item")} one by one`;
}

/** Sentences, the most telling first. `owned` is {items, bundles} as the service gives them. */
export function facts(bundle, owned) {
  const found = [sharedTag(bundle, owned), alreadyOwned(bundle, owned), sharedBundleTag(bundle, owned)];
  const telling = found.filter(Boolean);
  // The price line says it too; as a reason it stands only where there is no other.
  return telling.length ? telling : [saving(bundle)].filter(Boolean);
}
