// A number to slide or to type. Where it may be left open, one end of the slider stands for "no limit".

import { h } from "./dom.js";

/**
 * `min` and `max` are the slider's ends, `most` is the highest that may be typed. `open`: "low" or "high",
 * the end at which there is no limit, and the field is empty. `say` puts a number into words.
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
    if (now !== null) range.max = Math.max(max, now); // what was typed may be beyond the slider's end
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
    /** What is wrong with it, or null. */
    wrong: () => {
      const bad = !number.validity.valid || (get() === null && !open);
      number.setAttribute("aria-invalid", String(bad));
      if (!bad) return null;
      const limits = most === null ? `from ${min}` : `from ${min} to ${most}`;
      return `${label}: a ${number.step === "any" ? "" : "whole "}number ${limits} is expected.`;
    },
  };
}
