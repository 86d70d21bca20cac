// Prices. `src/bundlemage/wire/money.py` writes and ends them in the same way.

import { h } from "./dom.js";

let format = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
let scale = 100;
let ending = null; // in the smallest unit of the currency

/** Writes prices from now on as the shop does. `shop` are its settings, from GET /v1/models. */
export function writePricesAs(shop) {
  scale = 10 ** shop.decimals;
  ending = shop.price_ending === null ? null : Math.round(shop.price_ending * scale);
  format = new Intl.NumberFormat(shop.locale.replaceAll("_", "-"), {
    ...(shop.currency === null ? {} : { style: "currency", currency: shop.currency }),
    minimumFractionDigits: shop.decimals,
    maximumFractionDigits: shop.decimals,
    numberingSystem: "latn",
    useGrouping: "always", // 1.234,50 € in Spain as well, where browsers would write 1234,50 €
  });
}

// As a text, because the number 2.675 is slightly less than that and would be rounded down.
export const price = (amount) => format.format(String(amount));

/** The price of a bundle for which `amount` was computed: rounded, and with the shop's ending. */
export function finalPrice(amount) {
  let units = Math.floor(amount * scale + 0.5 + 1e-6);
  if (ending !== null && units >= ending) {
    const every = ending ? 10 ** String(ending).length : scale;
    units = ending + every * Math.floor((units - ending) / every);
  }
  return units / scale;
}

export const hasPrice = (thing) => typeof thing.price === "number";

/** The price of an item or bundle in a list: a dash if only others have a price, null if none has. */
export function priceBeside(thing, all, style = "number") {
  if (!all.some(hasPrice)) return null;
  return h("span", { class: style }, hasPrice(thing) ? price(thing.price) : "—");
}
