// Saves the draft bundle. Replaces an existing bundle only after the user has confirmed it.

import { api } from "./api.js";
import { busy, byId, h } from "./dom.js";
import { showFit } from "./fit.js";
import { problemBox } from "./frame.js";

const field = (name) => byId(name).value.trim();

/** `user()` returns the chosen user or null. `bundle()` returns the bundle to save; null if it is invalid. */
export function saver({ mayWrite, user, bundle }) {
  let replacing = null; // an existing id: saving once more replaces its bundle
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
          "Enter a title first. The id is derived from it.",
        ),
      );
      return byId("bundle-title").focus();
    }
    const draft = bundle();
    if (!draft) return undefined;
    try {
      await api.putBundle(id, { ...draft, title: title || id }, replacing !== id);
    } catch (error) {
      if (error.status === 412) return askToReplace(id); // also if it is withdrawn: past buyers have it
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
        "This key may only read. You can build bundles here, but saving one needs a write key.",
      ),
    );
  }

  return {
    /** Call this when the id has changed: the question whether to replace the old id is withdrawn. */
    renamed: () => {
      if (replacing && replacing !== field("bundle-id")) askToReplace(null);
    },
    /** Call this when the user has changed: shows the saved bundle's rank for the new user. */
    userChanged: () => {
      if (saved && byId("saved").children.length) showFit(byId("saved"), saved, user());
    },
  };
}
