// A number input with a slider. If the number is optional, one end of the slider means "no limit".

import { h } from "./dom.js";

/**
 * `min` and `max` are the slider's ends. `most` is the highest number that may be typed. `open` ("low" or
 * "high") is the end that means "no limit": there the field is empty. `say` converts a number to words.
 */
export function slider({
  name,
  label,
  min = 0,
  max,
  most = null,
  step = 1,
  value,
  open = null,
  say = String,
}) {
  const range = h("input", {
    id: `${name}-slide`,
    type: "range",
    min,
    max,
    step,
    "aria-label": `${label}, slider`,
  });
  const number = h("input", {
    id: name,
    type: "number",
    min,
    max: most,
    step: Number.isInteger(step) && !open ? step : "any",
    inputmode: Number.isInteger(step) && !open ? "numeric" : "decimal",
    placeholder: open ? "any" : null,
  });
  const get = () => (number.value === "" ? null : Number(number.value));

  const slide = () => {
    const now = get();
    if (now !== null) range.max = Math.max(max, now); // the typed number may be beyond the slider's end
    range.value = now ?? (open === "high" ? range.max : min);
    range.setAttribute("aria-valuetext", now === null ? "no limit" : say(now));
  };
  const set = (next) => {
    number.value = next ?? "";
    number.removeAttribute("aria-invalid");
    slide();
  };
  range.addEventListener("input", () => {
    const now = Number(range.value);
    const end = open === "high" ? Number(range.max) : open === "low" ? min : null;
    set(now === end ? null : now);
  });
  number.addEventListener("input", slide);
  set(value ?? null);

  return {
    element: h("div", { class: "slider" }, h("label", { for: name }, label), range, number),
    get,
    set,
    field: number,
    /** A message if the number is invalid, or null. */
    wrong: () => {
      const bad = !number.validity.valid || (get() === null && !open);
      number.setAttribute("aria-invalid", String(bad));
      if (!bad) return null;
      const limits = most === null ? `from ${min}` : `from ${min} to ${most}`;
      return `${label}: a ${number.step === "any" ? "" : "whole "}number ${limits} is expected.`;
    },
  };
}
