// What follows from the items of a bundle that is being built: its sum, its tags, an id from its title.

export const sumOf = (items) => items.reduce((total, item) => total + (item.price ?? 0), 0);

/** Tags that at least half of the items have; they are the bundle's. */
export function commonTags(items) {
  const found = new Map();
  for (const item of items) for (const tag of item.tags ?? []) found.set(tag, (found.get(tag) ?? 0) + 1);
  return [...found]
    .filter(([, many]) => many * 2 >= items.length && many > 1)
    .sort((one, other) => other[1] - one[1])
    .slice(0, 4)
    .map(([tag]) => tag);
}

/** An id that can be read: "Déjà vu!" → "deja-vu". */
export const idFrom = (title) =>
  title
    .toLocaleLowerCase("en")
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 80);

/** A discount as typed, in per cent, as a fraction; NaN where it is none. */
export function discountOf(typed) {
  const value = Number(typed);
  return value >= 0 && value < 100 ? value / 100 : NaN;
}
