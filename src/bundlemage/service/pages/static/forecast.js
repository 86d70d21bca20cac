// The forecast for a new bundle: who would buy it, and which item would improve it.

import { api, Newest } from "./api.js";
import { byId, count, figure, h, percent, plural, randomKey, titleOf } from "./dom.js";
import { announce, problemBox } from "./frame.js";
import { price } from "./money.js";
import { withProgress } from "./progress.js";

const FEW = 5; // the number of users and similar bundles that are listed

const about = (number) => (number >= 100 ? count(Math.round(number)) : figure(number, 2));

function audience(forecast) {
  const everyone = plural(forecast.asked, "user");
  if (forecast.expected === null)
    return h("p", {}, `${everyone} considered. There is too little data to say how many would buy it.`);
  const many = forecast.above ? plural(forecast.above, "user has", "users have") : "No user has";
  const sure = `${many} a chance above ${percent(forecast.threshold)}, the threshold of the audience.`;
  return [
    h(
      "p",
      { class: "expected" },
      "About ",
      h("b", {}, about(forecast.expected)),
      ` of ${everyone} would buy it (${count(forecast.low)} to ${count(forecast.high)}).`,
    ),
    h("p", {}, sure),
    forecast.expected_takings === null
      ? null
      : h("p", {}, `Takings at ${price(forecast.price)}: `, h("b", {}, price(forecast.expected_takings))),
  ];
}

function likeliestUsers(forecast) {
  if (!forecast.people.length) return null;
  return h(
    "section",
    {},
    h("h3", {}, "Most likely buyers"),
    h(
      "ul",
      { class: "lines" },
      forecast.people
        .slice(0, FEW)
        .map((user) =>
          h(
            "li",
            {},
            h("a", { href: `/?${new URLSearchParams({ user: user.id })}` }, user.id),
            h("span", { class: "number" }, percent(user.chance ?? user.score)),
          ),
        ),
    ),
  );
}

function neighbours(forecast) {
  if (!forecast.nearest.length) return null;
  return h(
    "section",
    {},
    h("h3", {}, "Most similar bundles of the shop"),
    h(
      "ul",
      { class: "lines" },
      forecast.nearest
        .slice(0, FEW)
        .map((bundle) =>
          h(
            "li",
            {},
            h("span", {}, titleOf(bundle)),
            h("span", { class: "number" }, `${percent(bundle.score)} similar`),
          ),
        ),
    ),
  );
}

function weakest(forecast, onSwap) {
  if (!forecast.weakest) return null;
  const { weakest: out, replacement: instead } = forecast;
  const loss =
    out.without === null || forecast.expected === null ? "" : ` Without it: ${about(out.without)} would buy.`;
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
      : h("p", { class: "fine" }, "No other item that was tried would be better."),
  );
}

/** `draft()` returns the current {items, discount}. The discount is null if there is none. */
export function forecaster({ draft, onSwap }) {
  const asking = new Newest();
  const [button, place] = [byId("forecast-ask"), byId("forecast")];

  function cancel() {
    asking.stop();
    announce("Stopped.");
    button.focus(); // the pressed button is removed
  }

  async function ask() {
    const { items, discount } = draft();
    if (!items.length) return;
    button.textContent = "Scoring all users…";
    place.setAttribute("aria-busy", "true");
    try {
      const question = {
        items: items.map((item) => item.id),
        k: FEW,
        ...(discount === null ? {} : { discount }),
      };
      const forecast = await withProgress(
        byId("forecast-work"),
        randomKey(),
        (id) => asking.run((signal) => api.scoreBundle(question, signal, id)),
        cancel,
      );
      if (!forecast) return;
      place.replaceChildren(
        h(
          "div",
          { class: "forecast" },
          audience(forecast),
          weakest(forecast, onSwap),
          likeliestUsers(forecast),
          neighbours(forecast),
          forecast.note ? h("p", { class: "fine" }, forecast.note) : null,
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
    /** Remove the forecast, because the bundle has changed. */
    clear: () => {
      asking.stop();
      place.replaceChildren();
      button.disabled = !draft().items.length;
    },
    ask,
  };
}
