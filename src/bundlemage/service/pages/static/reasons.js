// The model's reasons for the bundles of an answer. They are loaded after the bundles are shown.

import { api, Newest } from "./api.js";
import { h, titleOf } from "./dom.js";
import { whyBox } from "./why.js";

const AT_ONCE = 50; // the maximum number of bundles in one request

export function reasonsFor() {
  const asking = new Newest();
  let never = false; // whether the model cannot give reasons at all
  let known = new Map();

  const load = async (who, bundles, signal) => {
    const reasons = new Map();
    for (let first = 0; first < bundles.length; first += AT_ONCE) {
      const ids = bundles.slice(first, first + AT_ONCE).map((bundle) => bundle.id);
      const { explanations } = await api.explain({ ...who, bundles: ids, details: true }, signal);
      for (const each of explanations) reasons.set(each.id, each.why);
    }
    return reasons;
  };

  return {
    /** Whether these bundles will have reasons. Bundles shown because they are popular have none. */
    expected: (bundles) => !never && bundles.length > 0 && bundles[0].source !== "popular",
    /**
     * Loads the reasons and shows them on the cards. An error is shown in `note`. If the model cannot give
     * reasons, `without` is called: cards without reasons have other facts.
     */
    async show(who, bundles, list, note, without) {
      asking.stop();
      known = new Map();
      note.textContent = "";
      const slots = () => [...list.querySelectorAll("[data-bundle] .reasons-slot")];
      if (!this.expected(bundles)) return;
      try {
        const reasons = await asking.run((signal) => load(who, bundles, signal));
        if (!reasons) return;
        known = reasons;
        for (const slot of slots()) {
          const bundle = bundles.find((each) => each.id === slot.closest("[data-bundle]").dataset.bundle);
          const why = bundle && reasons.get(bundle.id);
          slot.replaceChildren(why ? whyBox(why, titleOf(bundle)) : "");
        }
      } catch (error) {
        never = error.status === 409;
        if (never) without();
        else for (const slot of slots()) slot.remove();
        note.textContent = never
          ? "This model gives no reasons. The facts on the cards are counted from the history."
          : `The model's reasons could not be loaded: ${error.message}`;
      }
    },
    /** The reasons for a bundle; null if they are not known. */
    of: (id) => known.get(id) ?? null,
  };
}

/** The place of the reasons on a card. It is reserved, so that nothing moves when they are loaded. */
export const reasonsSlot = () => h("div", { class: "reasons-slot" });
