// The dialog with all details of a bundle.

import { api, Newest } from "./api.js";
import { priceLine, scoreWords } from "./cards.js";
import { byId, count, h, plural, titleOf } from "./dom.js";
import { facts, idsIn, remember, unseen } from "./facts.js";
import { problemBox } from "./frame.js";
import { picture } from "./images.js";
import { priceBeside } from "./money.js";
import { whyBox } from "./why.js";

const newest = new Newest();

/**
 * Opens the dialog of a bundle, with similar bundles. `options.prices` says whether bundles of this shop have
 * prices, and `options.boughtAgain` whether users may buy what they own. `options.reasons(id)` returns the model's reasons, or null.
 */
export async function openBundle(bundle, options) {
  const { owned, user, prices, boughtAgain, reasons, onBuy } = options;
  const dialog = byId("bundle-dialog");
  const again = () => openBundle(bundle, options);
  const close = h(
    "button",
    { type: "button", class: "icon close", "aria-label": "Close", on: { click: () => dialog.close() } },
    "×",
  );
  const heading = h("h2", { id: "dialog-title", tabindex: -1 }, titleOf(bundle));
  const body = h(
    "div",
    { class: "dialog-body" },
    h("div", { class: "skeleton-lines", "aria-hidden": "true" }, h("span"), h("span"), h("span")),
  );
  dialog.replaceChildren(
    h("div", { class: "cover dialog-cover" }, picture(bundle), close),
    h(
      "div",
      { class: "dialog-head" },
      heading,
      bundle.tags.length ? h("p", { class: "tags" }, bundle.tags.join(" · ")) : null,
    ),
    body,
  );
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  heading.focus();
  try {
    const loaded = await newest.run((signal) =>
      Promise.all([api.bundle(bundle.id, signal), api.similar(bundle.id, 4, signal)]),
    );
    if (!loaded) return;
    const [full, similar] = loaded;
    const items = await newest.run((signal) =>
      Promise.all(unseen(full.items).map((item) => api.item(item.id, signal))),
    );
    if (!items) return;
    remember(items);
    // Similar bundles are an answer for nobody in particular, which does not know what the user owns.
    const ownedIds = bundle.alike ? idsIn(owned) : new Set(bundle.owned);
    const has = owned.bundles.some((each) => each.id === bundle.id);
    const why = facts(full, owned);
    const own = reasons(bundle.id);
    body.replaceChildren(
      h(
        "div",
        { class: "dialog-buy" },
        priceLine({ ...bundle, items: full.items }, prices),
        has ? h("p", { class: "fine" }, "Already in this history") : null,
        onBuy && (boughtAgain || !has)
          ? h(
              "button",
              {
                type: "button",
                class: "strong",
                on: { click: (event) => onBuy(bundle, event.currentTarget) },
              },
              "Buy",
            )
          : null,
      ),
      typeof bundle.score === "number" && bundle.rank && !bundle.alike
        ? h("p", { class: "fine" }, `Rank ${count(bundle.rank)} here: ${scoreWords(bundle, "bundle")}.`)
        : "",
      why.length
        ? h(
            "section",
            {},
            h("h3", {}, "How it relates to this history"),
            h(
              "ul",
              { class: "why" },
              why.map((fact) => h("li", {}, fact)),
            ),
          )
        : "",
      own
        ? h(
            "section",
            {},
            h("h3", {}, "What the model used"),
            whyBox(own, titleOf(full)),
          )
        : "",
      h(
        "section",
        {},
        h("h3", {}, plural(full.items.length, "item")),
        h(
          "ul",
          { class: "lines" },
          full.items.map((item) =>
            h(
              "li",
              {},
              h(
                "span",
                {},
                titleOf(item),
                ownedIds.has(item.id) ? h("span", { class: "badge" }, "owned") : null,
                bundle.sold_out.includes(item.id) ? h("span", { class: "badge" }, "sold out") : null,
              ),
              priceBeside(item, full.items),
            ),
          ),
        ),
      ),
      h(
        "section",
        {},
        h("h3", {}, "Similar bundles"),
        similar.bundles.length
          ? h(
              "ul",
              { class: "alike" },
              similar.bundles.map((other) =>
                h(
                  "li",
                  {},
                  h(
                    "button",
                    {
                      type: "button",
                      on: { click: () => openBundle({ ...other, alike: true }, options) },
                    },
                    h("span", { class: "cover small" }, picture(other)),
                    h(
                      "span",
                      {},
                      titleOf(other),
                      other.sold_out.length ? h("span", { class: "badge" }, "sold out") : null,
                    ),
                  ),
                ),
              ),
            )
          : h("p", { class: "fine" }, "No other bundle is similar."),
      ),
      h(
        "p",
        {},
        h(
          "a",
          { href: `/builder?${new URLSearchParams({ bundle: bundle.id, ...(user ? { user } : {}) })}` },
          "Open a copy in the builder",
        ),
      ),
    );
  } catch (error) {
    body.replaceChildren(problemBox(error, again));
  }
}
