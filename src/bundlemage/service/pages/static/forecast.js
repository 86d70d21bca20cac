// What a bundle would do that is not for sale yet: who would take it, and what would be better in it.

import { api, Newest } from "./api.js";
import { byId, count, figure, h, percent, plural, price, titleOf } from "./dom.js";
import { announce, problemBox } from "./frame.js";

const FEW = 5; // people and neighbours that are named

const about = (number) => (number >= 100 ? count(Math.round(number)) : figure(number, 2));

function audience(found) {
  const everyone = plural(found.asked, "person", "people");
  if (found.expected === null) return h("p", {}, `${everyone} asked. The model cannot tell how many would buy it.`);
  const many = found.above ? plural(found.above, "person has", "people have") : "Nobody has";
  const sure = `${many} a chance above ${percent(found.threshold)}, from which someone counts as audience.`;
  return [
    h(
      "p",
      { class: "expected" },
      h("b", {}, about(found.expected)),
      ` of ${everyone} would buy it, as the model expects.`,
    ),
    h("p", {}, sure),
    found.expected_takings === null
      ? null
      : h("p", {}, `Takings at ${price(found.price)}: `, h("b", {}, price(found.expected_takings))),
  ];
}

function people(found) {
  if (!found.people.length) return null;
  return h(
    "section",
    {},
    h("h3", {}, "Who would like it best"),
    h(
      "ul",
      { class: "lines" },
      found.people
        .slice(0, FEW)
        .map((person) =>
          h(
            "li",
            {},
            h("a", { href: `/?${new URLSearchParams({ user: person.id })}` }, person.id),
            h("span", { class: "number" }, percent(person.chance ?? person.score)),
          ),
        ),
    ),
  );
}

function neighbours(found) {
  if (!found.nearest.length) return null;
  return h(
    "section",
    {},
    h("h3", {}, "Nearest bundles of the shop"),
    h(
      "ul",
      { class: "lines" },
      found.nearest
        .slice(0, FEW)
        .map((bundle) =>
          h(
            "li",
            {},
            h("span", {}, titleOf(bundle)),
            h("span", { class: "number" }, `${percent(bundle.score)} alike`),
          ),
        ),
    ),
  );
}

function weakest(found, onSwap) {
  if (!found.weakest) return null;
  const { weakest: out, replacement: instead } = found;
  const loss =
    out.without === null || found.expected === null ? "" : ` Without it: ${about(out.without)} would buy.`;
  const gain = !instead || instead.expected === null ? "" : ` With it: ${about(instead.expected)} would buy.`;
  return h(
    "section",
    {},
    h("h3", {}, "Weakest item"),
    h("p", {}, h("b", {}, titleOf(out)), `.${loss}`),
    instead
      ? [
          h("p", {}, "Better: ", h("b", {}, titleOf(instead)), `.${gain}`),
          h("button", { type: "button", id: "swap", on: { click: () => onSwap(out, instead) } }, "Swap them"),
        ]
      : h("p", { class: "fine" }, "No other item that was tried does better."),
  );
}

/** `draft()` gives {items, discount} at any time: the discount is null where there is none to speak of. */
export function forecaster({ draft, onSwap }) {
  const asking = new Newest();
  const [button, place] = [byId("forecast-ask"), byId("forecast")];

  async function ask() {
    const { items, discount } = draft();
    if (!items.length) return;
    button.textContent = "Asking everyone…";
    place.setAttribute("aria-busy", "true");
    try {
      const question = {
        items: items.map((item) => item.id),
        k: FEW,
        ...(discount === null ? {} : { discount }),
      };
      const found = await asking.run((signal) => api.scoreBundle(question, signal));
      if (!found) return;
      place.replaceChildren(
        h(
          "div",
          { class: "forecast" },
          audience(found),
          weakest(found, onSwap),
          people(found),
          neighbours(found),
          found.note ? h("p", { class: "fine" }, found.note) : null,
        ),
      );
      announce(place.querySelector("p").textContent);
      place.scrollIntoView({ block: "nearest" });
    } catch (error) {
      place.replaceChildren(problemBox(error, ask));
    } finally {
      button.textContent = "Forecast its audience";
      place.removeAttribute("aria-busy");
    }
  }

  button.addEventListener("click", ask);
  return {
    /** The bundle is another one now: what was said of it is not true any more. */
    clear: () => {
      asking.stop();
      place.replaceChildren();
      button.disabled = !draft().items.length;
    },
    ask,
  };
}
