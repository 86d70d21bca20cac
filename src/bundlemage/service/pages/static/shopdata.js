// Which data the catalogue has. Not every shop has prices, stock or tags: pages hide controls without data.

import { api } from "./api.js";
import { apart } from "./facts.js";
import { hasPrice, writePricesAs } from "./money.js";

const SAMPLE = { limit: 200 }; // enough to see which data a catalogue has

export async function loadShopData() {
  const [tags, bundles, items, published] = await Promise.all([
    api.tags(),
    api.bundles(SAMPLE),
    api.items(SAMPLE),
    api.models(),
  ]);
  writePricesAs(published.shop);
  const prices = items.items.filter(hasPrice).map((item) => item.price);
  return {
    boughtAgain: published.shop.owned === "show", // whether users may buy what they own
    tags, // {items, bundles}, each may be empty
    bundlePrices: bundles.bundles.some((bundle) => hasPrice(bundle) || apart(bundle) !== null),
    itemPrices: prices.length > 0,
    prices, // of the items in the sample
    stock: items.items.some((item) => typeof item.stock === "number"),
  };
}
