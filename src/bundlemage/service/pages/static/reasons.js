// The model's reasons for the bundles of an answer, asked for once they are shown.

import { api, Newest } from "./api.js";
import { h, titleOf } from "./dom.js";
import { whyBox } from "./why.js";

const AT_ONCE = 50; // as many as the service explains in one answer

export function reasonsFor() {
  const asking = new Newest();
  let never = false; // a model without reasons has none for the next answer either
  let known = new Map();

  const askedFor = async (who, bundles, signal) => {
    const found = new Map();
    for (let first = 0; first < bundles.length; first += AT_ONCE) {
      const ids = bundles.slice(first, first + AT_ONCE).map((bundle) => bundle.id);
      const { explanations } = await api.explain({ ...who, bundles: ids }, signal);
      for (const each of explanations) found.set(each.id, each.why);
    }
    return found;
  };

  return {
    /** Whether there will be any for these: what is shown because it sells has none. */
    expected: (bundles) => !never && bundles.length > 0 && bundles[0].source !== "popular",
    /** Put them on the cards. What stands there already stays; an error is said in `note`. */
    async show(who, bundles, list, note) {
      asking.stop();
      known = new Map();
      note.textContent = "";
      const slots = () => [...list.querySelectorAll("[data-bundle] .reasons-slot")];
      if (!this.expected(bundles)) return;
      try {
        const found = await asking.run((signal) => askedFor(who, bundles, signal));
        if (!found) return;
        known = found;
        for (const slot of slots()) {
          const bundle = bundles.find((each) => each.id === slot.closest("[data-bundle]").dataset.bundle);
          const why = bundle && found.get(bundle.id);
          slot.replaceChildren(why ? whyBox(why, titleOf(bundle)) : "");
        }
      } catch (error) {
        never = error.status === 409;
        for (const slot of slots()) slot.remove();
        note.textContent = never
          ? "This model gives no reasons of its own: what cards say is counted from the history."
          : `The model's reasons could not be loaded: ${error.message}`;
      }
    },
    /** Of one bundle, if they are known. */
    of: (id) => known.get(id) ?? null,
  };
}

/** Where the reasons of a card will stand, kept free so that nothing jumps when they come. */
export const reasonsSlot = () => h("div", { class: "reasons-slot" });
