// Choosing a user by typing: the combobox of the ARIA practices, over the users whose id begins so.

import { api, Newest } from "./api.js";
import { freshId, h, later, plural } from "./dom.js";

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
    { class: "icon clear", type: "button", "aria-label": "Choose nobody", hidden: !value },
    "×",
  );
  const status = h("p", { class: "fine bad-text", role: "status" });
  const newest = new Newest();
  let users = [];
  let active = -1;
  let chosen = value;

  const close = () => {
    list.hidden = true;
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
    }
  };

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
      ...(users.length
        ? []
        : [
            h(
              "li",
              { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" },
              `No user's id begins with “${input.value.trim()}”.`,
            ),
          ]),
      ...(more
        ? [
            h(
              "li",
              { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" },
              "There are more: type on.",
            ),
          ]
        : []),
    );
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(users.length && input.value.trim() ? 0 : -1);
  };

  const look = async () => {
    try {
      const search = input.value.trim() === chosen ? "" : input.value.trim();
      const found = await newest.run((signal) => api.users(search, signal));
      if (!found || document.activeElement !== input) return;
      status.textContent = "";
      users = found.users;
      draw(found.next);
    } catch (error) {
      close();
      status.textContent = error.message;
    }
  };

  input.addEventListener("input", later(120, look));
  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && look());
  input.addEventListener("blur", () => {
    close();
    input.value = chosen; // what was typed but not chosen is nobody
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (!list.hidden) event.preventDefault();
      close();
      input.value = chosen;
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) look();
      else if (users.length)
        mark((active + (event.key === "ArrowDown" ? 1 : -1) + users.length) % users.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!list.hidden && users[active]) choose(users[active].id);
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
