// Saving the bundle in the making, under a name that is asked for, never over another one unasked.

import { api } from "./api.js";
import { busy, byId, h } from "./dom.js";
import { showFit } from "./fit.js";
import { problemBox } from "./frame.js";

const field = (name) => byId(name).value.trim();

/** `user()` is whom it is for, or null; `bundle()` is what to save, or null where that cannot be. */
export function saver({ mayWrite, user, bundle }) {
  let replacing = null; // an id that is taken, and may be replaced if it is said once more
  let saved = null;

  function askToReplace(id) {
    replacing = id;
    byId("save").textContent = id ? "Replace it" : "Save bundle";
    byId("save-note").replaceChildren(
      id
        ? h(
            "p",
            { class: "note", role: "alert" },
            `There is a bundle “${id}” already. Save once more to replace it, or change the id.`,
          )
        : "",
    );
  }

  async function save() {
    const [id, title] = [field("bundle-id"), field("bundle-title")];
    if (!id) {
      byId("save-note").replaceChildren(
        h(
          "p",
          { class: "bad-text", role: "alert" },
          "Give the bundle a title first: its id is made from it.",
        ),
      );
      return byId("bundle-title").focus();
    }
    const what = bundle();
    if (!what) return undefined;
    try {
      await api.putBundle(id, { ...what, title: title || id }, replacing !== id);
    } catch (error) {
      if (error.status === 412) return askToReplace(id); // a withdrawn one, too: past buyers have it
      throw error;
    }
    askToReplace(null);
    saved = { id, title: title || id };
    await showFit(byId("saved"), saved, user());
    byId("saved").scrollIntoView({ block: "nearest" });
    return undefined;
  }

  byId("save-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (mayWrite)
      busy(byId("save"), () => save().catch((error) => byId("save-note").replaceChildren(problemBox(error))));
  });
  if (!mayWrite) {
    byId("save").hidden = true;
    byId("save-note").append(
      h(
        "p",
        { class: "note" },
        "This key may only read: bundles can be put together here, but saving one needs a write key.",
      ),
    );
  }

  return {
    /** The id is another one: what was asked about the old one is not asked any more. */
    renamed: () => {
      if (replacing && replacing !== field("bundle-id")) askToReplace(null);
    },
    /** Where what was saved stands for them. */
    forSomeoneElse: () => {
      if (saved && byId("saved").children.length) showFit(byId("saved"), saved, user());
    },
  };
}
