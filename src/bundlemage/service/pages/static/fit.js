// Where a bundle that was just saved stands for a user.

import { api } from "./api.js";
import { scoreWords } from "./cards.js";
import { count, h } from "./dom.js";
import { announce, problemBox } from "./frame.js";

const FAR = 100; // how far down the bundle is looked for

export async function showFit(place, { id, title }, user) {
  const saved = h("p", {}, h("b", {}, `“${title}” is saved`), ", and may be recommended from now on.");
  if (!user) {
    place.replaceChildren(
      h("div", { class: "fit" }, saved, h("p", {}, "Choose a user to see where it stands for them.")),
    );
    announce(saved.textContent);
    return;
  }
  try {
    const answer = await api.userBundles(user, FAR);
    const found = answer.bundles.find((bundle) => bundle.id === id);
    const link = h("a", { href: `/?${new URLSearchParams({ user })}` }, `Open ${user}'s shop`);
    place.replaceChildren(
      h(
        "div",
        { class: "fit" },
        saved,
        found
          ? h("p", { class: "fit-rank" }, h("b", {}, `Rank ${count(found.rank)}`), ` for ${user}`)
          : h("p", {}, `Not among the first ${FAR} for ${user}: others fit better, or they own it.`),
        found ? h("p", { class: "fine" }, `${scoreWords(found, "bundle")}. No retraining was needed.`) : "",
        h("p", {}, link),
      ),
    );
    const rank = found ? `It has rank ${found.rank}` : `It is not among the first ${FAR}`;
    announce(`${saved.textContent} ${rank} for ${user}.`);
  } catch (error) {
    place.replaceChildren(problemBox(error, () => showFit(place, { id, title }, user)));
  }
}
