// Creates elements, and formats numbers.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on")
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style")
      Object.assign(element.style, value); // by property, because the CSP forbids the attribute
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

let lastId = 0;
/** An id that no other element has. */
export const freshId = (name) => `${name}-${(lastId += 1)}`;

/** Whether the user prefers no animations. */
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Debounces `work`: it runs after a pause without further calls. */
export function later(milliseconds, work) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/**
 * Runs the work of a button, and ignores further clicks meanwhile. It does not set `disabled`, because a
 * disabled button loses the keyboard focus.
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

/** A random, unguessable key. `crypto.randomUUID` needs a secure context; this does not. */
export const randomKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join(
    "",
  );

/** Saves a file on the user's computer. */
export function download(content, name) {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // some browsers read it after the click
}

// ── Words for numbers ────────────────────────────────────────────────────────────────────────────

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** 0.0493 → 4.9%: two significant digits. */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0%";
  if (value < 0.01) return "under 0.01%";
  return `${value >= 10 ? Math.round(value) : value.toPrecision(2)}%`;
}

/** A short number for an axis or a figure. */
export const figure = (value, digits = 3) =>
  value === 0 ? "0" : Number(value.toPrecision(digits)).toString();

/** An expected number of buyers, rounded. */
export const about = (number) => (number >= 100 ? count(Math.round(number)) : figure(number, 2));

export function listed(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

export const titleOf = (thing) => thing.title || thing.id;

export function moment(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime())
    ? text
    : at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
