// Elements, and the words for numbers.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on")
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style")
      Object.assign(element.style, value); // by property: the CSP forbids the attribute
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden")
      element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** An HTML element: h("button", {class: "quiet", on: {click}}, "Buy"). */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const byId = (id) => document.getElementById(id);

let numbered = 0;
/** An id that no other element has. */
export const freshId = (name) => `${name}-${(numbered += 1)}`;

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function later(milliseconds, work) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/**
 * Do the work of a button once at a time. Not by `disabled`: a button that is disabled loses the keyboard's
 * focus, and with it a person's place on the page.
 */
export async function busy(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

/** Random and unguessable, also where the page is not a secure context. */
export const randomKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join(
    "",
  );

// ── Words for numbers ────────────────────────────────────────────────────────────────────────────

const whole = new Intl.NumberFormat("en");
const cents = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const count = (number) => whole.format(number);
export const price = (number) => cents.format(number);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** 0.0493 → 4.9%; as many digits as still say something. */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0%";
  if (value < 0.01) return "under 0.01%";
  return `${value >= 10 ? Math.round(value) : value.toPrecision(2)}%`;
}

/** A short number for an axis or a figure. */
export const figure = (value, digits = 3) =>
  value === 0 ? "0" : Number(value.toPrecision(digits)).toString();

export function listed(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

export const hasPrice = (thing) => typeof thing.price === "number";

/** A thing's price in a list: a dash where only others have one, nothing where none has. */
export function priceBeside(thing, all, style = "number") {
  if (!all.some(hasPrice)) return null;
  return h("span", { class: style }, hasPrice(thing) ? price(thing.price) : "—");
}

export const titleOf = (thing) => thing.title || thing.id;

export function moment(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime())
    ? text
    : at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
