// The forecast for a new bundle: who would buy it, and which item would improve it.

import { api, Newest } from "./api.js";
import {
  about,
  busy,
  byId,
  count,
  download,
  h,
  percent,
  plural,
  randomKey,
  titleOf,
} from "./dom.js";
import { announce, problemBox } from "./frame.js";
import { price } from "./money.js";
import { withProgress } from "./progress.js";

const FEW = 5; // the number of users and similar bundles that are listed

function audience(forecast) {
  const everyone = plural(forecast.of, "user");
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
    forecast.sampled
      ? h(
          "p",
          { class: "fine" },
          `An estimate from ${count(forecast.asked)} of them.`,
          h("span", { class: "counting" }, " Counting on…"),
        )
      : null,
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

/**
 * `draft()` returns the current {items, discount}. The discount is null if there is none. `mayWrite` says
 * whether the key may list the buyers.
 */
export function forecaster({ draft, mayWrite, onSwap }) {
  const asking = new Newest();
  const [button, place] = [byId("forecast-ask"), byId("forecast")];

  function cancel() {
    asking.stop();
    announce("Stopped.");
    button.focus(); // the pressed button is removed
  }

  function show(forecast) {
    place.removeAttribute("aria-busy"); // an estimate is worth reading, too
    place.replaceChildren(
      h(
        "div",
        { class: "forecast", data: { sampled: forecast.sampled } },
        audience(forecast),
        weakest(forecast, onSwap),
        likeliestUsers(forecast),
        forecast.sampled ? null : listButton(forecast),
        neighbours(forecast),
        forecast.note ? h("p", { class: "fine" }, forecast.note) : null,
      ),
    );
    announce(place.querySelector("p").textContent);
    place.scrollIntoView({ block: "nearest" });
  }

  /** A button that saves the list of buyers as a file. The list needs a key of role "write". */
  function listButton(forecast) {
    if (!mayWrite || !forecast.above) return null;
    const question = { items: forecast.items.map((item) => item.id) };
    const save = h("button", { type: "button", class: "quiet", id: "buyers" }, "Save the list of buyers (CSV)");
    save.addEventListener("click", () =>
      busy(save, async () => {
        try {
          const list = await withProgress(
            byId("forecast-work"),
            randomKey(),
            (id) => asking.run((signal) => api.buyers(question, signal, id)),
            () => asking.stop(),
          );
          if (list) download(list, "buyers.csv");
        } catch (error) {
          place.append(problemBox(error));
        }
      }),
    );
    return save;
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
        (id, onProgress) =>
          asking.run((signal) => api.forecast(question, { signal, id, onEstimate: show, onProgress })),
        cancel,
      );
      if (forecast) show(forecast);
      else place.querySelector(".counting")?.remove(); // it was cancelled, and the estimate stays
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
