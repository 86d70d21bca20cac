// The rank of a saved bundle in a user's recommendations.

import { api } from "./api.js";
import { scoreWords } from "./cards.js";
import { count, h } from "./dom.js";
import { announce, problemBox } from "./frame.js";

const FAR = 100; // the last rank at which the bundle is searched

export async function showFit(place, { id, title }, user) {
  const saved = h("p", {}, h("b", {}, `“${title}” is saved`), ", and may be recommended from now on.");
  if (!user) {
    place.replaceChildren(
      h("div", { class: "fit" }, saved, h("p", {}, "Choose a user to see its rank for them.")),
    );
    announce(saved.textContent);
    return;
  }
  try {
    const answer = await api.userBundles(user, FAR);
    const ranked = answer.bundles.find((bundle) => bundle.id === id);
    const link = h("a", { href: `/?${new URLSearchParams({ user })}` }, `Open ${user}'s shop`);
    place.replaceChildren(
      h(
        "div",
        { class: "fit" },
        saved,
        ranked
          ? h("p", { class: "fit-rank" }, h("b", {}, `Rank ${count(ranked.rank)}`), ` for ${user}`)
          : h("p", {}, `Not among the first ${FAR} for ${user}: others fit better, or they own it.`),
        ranked ? h("p", { class: "fine" }, `${scoreWords(ranked, "bundle")}. No retraining was needed.`) : "",
        h("p", {}, link),
      ),
    );
    const rank = ranked ? `It has rank ${ranked.rank}` : `It is not among the first ${FAR}`;
    announce(`${saved.textContent} ${rank} for ${user}.`);
  } catch (error) {
    place.replaceChildren(problemBox(error, () => showFit(place, { id, title }, user)));
  }
}
