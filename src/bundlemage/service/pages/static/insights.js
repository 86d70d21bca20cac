// The page Insights: the quality and the training of the serving model, and its effect in the shop.

import { api, Newest } from "./api.js";
import { splitBar } from "./charts.js";
import { userCombobox } from "./combobox.js";
import { busy, byId, h, moment, percent } from "./dom.js";
import { announce, carryUser, emptyBox, frame, problemBox, setAddress, toast } from "./frame.js";
import { measures } from "./measures.js";
import { inThree, quality, training, trainingWords } from "./quality.js";
import { latency, months, popularity, served } from "./traffic.js";

const start = new URLSearchParams(location.search);
const gateAsking = new Newest();
let session;

// ── The gate ─────────────────────────────────────────────────────────────────────────────────────

async function showGate(user) {
  setAddress({ user });
  carryUser(user);
  const place = byId("gate");
  if (!user)
    return place.replaceChildren(
      emptyBox(
        "Choose a user",
        "For each user, the gate weighs single items they bought against bundles they bought.",
      ),
    );
  try {
    const gate = await gateAsking.run((signal) => api.gate(user, signal));
    if (!gate) return undefined;
    const more = gate.items > gate.bundles ? "their single items" : "their bundles";
    const even = Math.abs(gate.items - gate.bundles) < 0.02;
    place.replaceChildren(
      splitBar([
        { name: "item history", share: gate.items, tone: "first" },
        { name: "bundle history", share: gate.bundles, tone: "second" },
      ]),
      h(
        "p",
        {},
        even
          ? `For ${user}, both histories count about equally.`
          : `For ${user}, ${more} count more.`,
      ),
    );
    announce(
      `Gate of ${user}: item history ${percent(gate.items)}, bundle history ${percent(gate.bundles)}.`,
    );
  } catch (error) {
    place.replaceChildren(problemBox(error, () => showGate(user)));
  }
  return undefined;
}

// ── Models ───────────────────────────────────────────────────────────────────────────────────────

const reload = (version, button) =>
  busy(button, () =>
    reloaded(version).catch((error) => byId("models-note").replaceChildren(problemBox(error))),
  );

async function reloaded(version) {
  const answer = await api.reload(version);
  toast(
    answer.changed
      ? `Model ${answer.serving} serves now, in place of ${answer.previous}.`
      : `Model ${answer.serving} serves already; nothing changed.`,
  );
  await load();
  byId("models").focus(); // the button was replaced
}

function drawModels(published) {
  const admin = session.may("admin");
  const scoreOf = (model, task) => {
    const value = model.metrics?.test?.[0]?.[task]?.["ndcg@5"];
    return typeof value === "number" ? inThree(value) : "—";
  };
  byId("models-note").replaceChildren(
    admin ? "" : h("p", { class: "fine note" }, "Changing the model that serves needs an admin key."),
  );
  byId("models").replaceChildren(
    h(
      "table",
      { class: "models" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Version", "Model", "Published", "Matching nDCG@5", "Generation nDCG@5"].map((name) =>
            h("th", { scope: "col" }, name),
          ),
          admin ? h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")) : null,
        ),
      ),
      h(
        "tbody",
        {},
        published.models.map((model) =>
          h(
            "tr",
            {},
            h(
              "th",
              { scope: "row" },
              h("code", {}, model.version),
              model.serving ? h("span", { class: "badge" }, "serving") : null,
              model.problem ? h("p", { class: "fine bad-text" }, model.problem) : null,
            ),
            h("td", {}, model.name),
            h("td", {}, model.published_at ? moment(model.published_at) : "—"),
            h("td", {}, scoreOf(model, "matching")),
            h("td", {}, scoreOf(model, "generation")),
            admin
              ? h(
                  "td",
                  {},
                  model.serving
                    ? h(
                        "button",
                        { type: "button", on: { click: (event) => reload(null, event.currentTarget) } },
                        "Look for a newer one",
                      )
                    : h(
                        "button",
                        {
                          type: "button",
                          "aria-label": `Serve model ${model.version}`,
                          on: { click: (event) => reload(model.version, event.currentTarget) },
                        },
                        "Serve this one",
                      ),
                )
              : null,
          ),
        ),
      ),
    ),
  );
}

// ── Start ────────────────────────────────────────────────────────────────────────────────────────

async function load() {
  try {
    const [insights, published] = await Promise.all([api.insights(), api.models()]);
    const { model } = insights;
    byId("lead").replaceChildren(
      `${model.title}, version `,
      h("code", {}, model.version),
      model.trained_on ? `, trained on ${model.trained_on}.` : ".",
    );
    byId("page-note").replaceChildren();
    byId("quality").replaceChildren(...quality(model.metrics?.test ?? []));
    byId("measures").replaceChildren(...measures(model.metrics));
    byId("training-note").textContent = trainingWords(model.history);
    byId("training").replaceChildren(...[training(model.history)].flat());
    byId("latency").replaceChildren(...[latency(insights.latency)].flat());
    byId("served").replaceChildren(...served(insights.served));
    byId("popularity").replaceChildren(...[popularity(insights.popularity, insights.left_out)].flat());
    byId("months").replaceChildren(...[months(insights.months)].flat());
    drawModels(published);
    byId("all").hidden = false;
    byId("all").removeAttribute("aria-busy");
  } catch (error) {
    byId("all").hidden = true;
    byId("page-note").replaceChildren(problemBox(error, load));
  }
}

async function begin() {
  session = await frame("insights");
  const user = start.get("user");
  byId("gate-user").append(
    userCombobox({
      label: "User",
      hint: "Search by the beginning of an id.",
      value: user ?? "",
      onChoose: showGate,
    }).element,
  );
  byId("refresh").addEventListener("click", async () => {
    await load();
    announce("Figures are up to date.");
  });
  await Promise.all([load(), showGate(user)]);
}

begin().catch((error) => byId("page-note").replaceChildren(problemBox(error, () => location.reload())));
