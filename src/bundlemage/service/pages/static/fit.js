// Where a bundle that was just saved stands for a user.

import { api } from "./api.js";
import { scoreWords } from "./cards.js";
import { count, h } from "./dom.js";
import { announce, problemBox } from "./frame.js";

const FAR = 100; // how far down the bundle is looked for

export async function showFit(place, { id, title }, user) {
  if (!user) {
    place.replaceChildren(
      h(
        "div",
        { class: "fit" },
        h("p", {}, h("b", {}, `“${title}” is saved.`)),
        h("p", {}, "Choose a user to see where it stands for them."),
      ),
    );
    return;
  }
  try {
    const answer = await api.userBundles(user, FAR);
    const found = answer.bundles.find((bundle) => bundle.id === id);
    const link = h("a", { href: `/?${new URLSearchParams({ user })}` }, `See it in ${user}'s shop`);
    place.replaceChildren(
      h(
        "div",
        { class: "fit" },
        found
          ? h("p", { class: "fit-rank" }, h("b", {}, `Rank ${count(found.rank)}`), ` for ${user}`)
          : h("p", {}, `Not among the first ${FAR} for ${user}: others fit better, or they own it.`),
        found ? h("p", { class: "fine" }, `${scoreWords(found, "bundle")}. No retraining was needed.`) : "",
        h("p", {}, link),
      ),
    );
    announce(
      found ? `It has rank ${found.rank} for ${user}.` : `It is not among the first ${FAR} for ${user}.`,
    );
  } catch (error) {
    place.replaceChildren(problemBox(error, () => showFit(place, { id, title }, user)));
  }
}
