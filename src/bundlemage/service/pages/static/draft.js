// Values derived from a draft bundle: the sum of its prices, its tags, and an id from its title.

export const sumOf = (items) => items.reduce((total, item) => total + (item.price ?? 0), 0);

/** The tags of the bundle: up to four that at least two items and at least half of all items have. */
export function commonTags(items) {
  const counts = new Map();
  for (const item of items) for (const tag of item.tags ?? []) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return [...counts]
    .filter(([, many]) => many * 2 >= items.length && many > 1)
    .sort((one, other) => other[1] - one[1])
    .slice(0, 4)
    .map(([tag]) => tag);
}

/** A readable id: "Déjà vu!" → "deja-vu". */
export const idFrom = (title) =>
  title
    .toLocaleLowerCase("en")
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 80);

/** Converts a typed discount in per cent to a fraction; NaN if it is invalid. */
export function discountOf(typed) {
  const value = Number(typed);
  return value >= 0 && value < 100 ? value / 100 : NaN;
}
