// Choosing a user by typing the beginning of an id: the combobox of the ARIA practices.

import { api, Newest } from "./api.js";
import { freshId, h, plural } from "./dom.js";

const TYPING = 120; // milliseconds after the last key before the request is sent

/** Users whose id begins with a text; if there are none, with the text in lower or upper case. */
async function beginningWith(text, signal) {
  let page;
  for (const form of new Set([text, text.toLowerCase(), text.toUpperCase()])) {
    page = await api.users(form, signal);
    if (page.users.length) break;
  }
  return page;
}

const noteOption = (text) =>
  h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" }, text);

/** `onChoose(id)` is called with a user's id, or with null when the choice is cleared. */
export function userCombobox({ label, hint, value = "", onChoose }) {
  const list = h("ul", {
    role: "listbox",
    id: freshId("users"),
    "aria-label": "Users",
    class: "options",
    hidden: true,
  });
  const field = freshId("user");
  const note = freshId("hint");
  const input = h("input", {
    id: field,
    type: "text",
    role: "combobox",
    autocomplete: "off",
    autocapitalize: "none",
    spellcheck: "false",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": list.id,
    "aria-describedby": note,
    placeholder: "Type an id",
    value,
  });
  const clear = h(
    "button",
    { class: "icon clear", type: "button", "aria-label": "Clear the user", hidden: !value },
    "×",
  );
  const status = h("p", { class: "fine bad-text", role: "status" });
  const newest = new Newest();
  let users = [];
  let listed = null; // the text that `users` are for
  let active = -1;
  let chosen = value;
  let timer;

  const typed = () => input.value.trim();

  const close = () => {
    clearTimeout(timer);
    newest.stop(); // a list that is still loading must not open
    list.hidden = true;
    listed = null;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };

  const choose = (id) => {
    chosen = id ?? "";
    input.value = chosen;
    clear.hidden = !chosen;
    close();
    onChoose(id);
  };

  const mark = (place) => {
    active = place;
    [...list.children].forEach((option, number) =>
      option.setAttribute("aria-selected", String(number === place)),
    );
    const option = list.children[place];
    if (option?.id) {
      input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };

  const noMatch = () =>
    listed
      ? `No user's id begins with “${listed}”. Upper and lower case differ.`
      : "No user has a history yet.";

  const draw = (more) => {
    list.replaceChildren(
      ...users.map((user) =>
        h(
          "li",
          {
            role: "option",
            id: freshId("option"),
            "aria-selected": "false",
            on: { pointerdown: (event) => event.preventDefault(), click: () => choose(user.id) },
          },
          h("b", {}, user.id),
          h("span", {}, `${plural(user.items, "item")} · ${plural(user.bundles, "bundle")}`),
        ),
      ),
      ...(users.length ? [] : [noteOption(noMatch())]),
      ...(more ? [noteOption("There are more: type more letters.")] : []),
    );
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    if (listed === chosen) mark(users.findIndex((user) => user.id === chosen));
    else mark(listed && users.length ? 0 : -1);
  };

  /** Show the list for the typed text. Returns whether it was shown. */
  const look = async () => {
    clearTimeout(timer);
    const text = typed();
    try {
      const page = await newest.run((signal) => beginningWith(text === chosen ? "" : text, signal));
      if (!page || text !== typed() || document.activeElement !== input) return false;
      status.textContent = "";
      users = page.users;
      listed = text;
      draw(page.next);
      return true;
    } catch (error) {
      close();
      status.textContent = error.message;
      return false;
    }
  };

  /** Enter chooses the marked user. If the list is not loaded yet, it is loaded, and a user is chosen only if
   * the typed text is the user's id or matches no other user. */
  const take = async () => {
    if (listed === typed()) return users[active] && choose(users[active].id);
    if (typed() === chosen || !(await look())) return undefined;
    const match = users.find((user) => user.id === listed) ?? (users.length === 1 ? users[0] : null);
    return listed && match && choose(match.id);
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, TYPING);
    if (!list.hidden) mark(-1); // the list is still that of the previous text
  });
  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && look());
  input.addEventListener("blur", () => {
    close();
    input.value = chosen; // text that was typed but not chosen is dropped
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (!list.hidden) event.preventDefault();
      close();
      input.value = chosen;
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (listed !== typed()) look();
      else if (users.length) {
        const next = event.key === "ArrowDown" ? active + 1 : Math.max(active, 0) - 1;
        mark((next + users.length) % users.length);
      }
    } else if (event.key === "Enter") {
      event.preventDefault();
      take();
    }
  });
  clear.addEventListener("click", () => {
    choose(null);
    input.focus();
  });

  const element = h(
    "div",
    { class: "field combobox" },
    h("label", { for: field }, label),
    h("div", { class: "combobox-box" }, input, clear, list),
    h("p", { class: "fine", id: note }, hint),
    status,
  );
  return {
    element,
    set: (id) => {
      chosen = id ?? "";
      input.value = chosen;
      clear.hidden = !chosen;
    },
  };
}
