// What a shop tells of its goods. Not every shop has prices, stock or tags: what it lacks is not offered.

import { api } from "./api.js";
import { hasPrice } from "./dom.js";

const LOOK = { limit: 200 }; // enough to see what a catalogue has, and still a quick answer

export async function whatIsTold() {
  const [tags, bundles, items] = await Promise.all([api.tags(), api.bundles(LOOK), api.items(LOOK)]);
  const prices = items.items.filter(hasPrice).map((item) => item.price);
  return {
    tags, // {items, bundles}, each maybe empty
    bundlePrices: bundles.bundles.some(hasPrice),
    itemPrices: prices.length > 0,
    prices, // of the items that were looked at
    stock: items.items.some((item) => typeof item.stock === "number"),
  };
}
