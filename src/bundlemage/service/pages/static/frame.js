// The parts of every page: the top bar, the theme, the login state, and messages.

import { api, enter, reach } from "./api.js";
import { byId, h, s } from "./dom.js";

/** Name, path and title of each page. */
export const PAGES = [
  ["shop", "/", "Shop"],
  ["builder", "/builder", "Builder"],
  ["insights", "/insights", "Insights"],
  ["docs", "/docs", "API"],
];

/** Builds these parts. Returns the session. */
export async function frame(page) {
  byId("top").append(
    h(
      "a",
      { class: "brand", href: "/", "aria-label": "BundleMage, to the shop" },
      h("img", { src: "/static/favicon.svg", alt: "", width: 28, height: 28 }),
      h("span", {}, "BundleMage"),
    ),
    h(
      "nav",
      { "aria-label": "Pages", hidden: page === "login" },
      PAGES.map(([name, path, title]) =>
        h("a", { href: path, data: { path }, "aria-current": name === page ? "page" : null }, title),
      ),
    ),
    h("div", { class: "who", id: "who" }),
    themeButton(),
  );
  document.body.append(
    h("div", { class: "toasts", id: "toasts" }),
    h("div", { class: "unseen", id: "live", "aria-live": "polite", role: "status" }),
    h("div", { class: "lost", id: "lost", role: "alert", hidden: true }),
  );
  reach.addEventListener("lost", () => showLost(true));
  reach.addEventListener("found", () => showLost(false));
  const session = await enter();
  if (session.loginRequired && session.role) byId("who").append(...loggedIn(session.role));
  return session;
}

function loggedIn(role) {
  const leave = async () => {
    try {
      await api.logOut();
      location.assign("/login");
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return [
    h("span", { class: "role" }, `${role} key`),
    h("button", { class: "quiet", type: "button", on: { click: leave } }, "Log out"),
  ];
}

function showLost(lost) {
  const banner = byId("lost");
  banner.hidden = !lost;
  banner.replaceChildren(
    lost ? "The service cannot be reached. The page keeps trying; nothing you entered is lost." : "",
  );
  if (!lost) toast("The service answers again.");
}

// ── Theme ────────────────────────────────────────────────────────────────────────────────────────

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeButton() {
  const button = h("button", { class: "icon", type: "button", id: "theme" });
  const draw = () => {
    button.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
    button.replaceChildren(isDark() ? sun() : moon());
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("bundlemage-theme", next);
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  return button;
}

const glyph = (...parts) =>
  s(
    "svg",
    {
      viewBox: "0 0 20 20",
      width: 20,
      height: 20,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.6,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    },
    parts,
  );
const moon = () => glyph(s("path", { d: "M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z" }));
const sun = () =>
  glyph(
    s("circle", { cx: 10, cy: 10, r: 3.4 }),
    [0, 45, 90, 135, 180, 225, 270, 315].map((turn) =>
      s("path", { d: "M10 1.8v1.9", transform: `rotate(${turn} 10 10)` }),
    ),
  );

// ── Messages ─────────────────────────────────────────────────────────────────────────────────────

/** Lets a screen reader read a text that is not shown. */
export function announce(text) {
  byId("live").textContent = text;
}

/** Shows a short message that disappears after some seconds. A screen reader reads it, too. */
export function toast(text, kind = "good") {
  const note = h(
    "div",
    { class: `toast ${kind}` },
    h("p", {}, text),
    h(
      "button",
      {
        class: "icon",
        type: "button",
        "aria-label": "Close this message",
        on: { click: () => note.remove() },
      },
      "×",
    ),
  );
  byId("toasts").append(note);
  announce(text);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 6000);
}

/** A box with an error. `again` is called by its button "Try again". */
export function problemBox(error, again) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", { class: "problem-title" }, error.title ?? "Something in this page went wrong"),
    h("p", {}, error.message),
    error.errors?.length
      ? h(
          "ul",
          {},
          error.errors.map((each) => h("li", {}, h("b", {}, each.field), `: ${each.message}`)),
        )
      : null,
    error.requestId ? h("p", { class: "fine" }, `Request ${error.requestId}`) : null,
    again ? h("button", { type: "button", on: { click: again } }, "Try again") : null,
  );
}

/** A box for an empty list: why it is empty, or what to do. */
export const emptyBox = (title, text, ...more) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, text), ...more);

/** Adds the user to the links of the top bar, so that the other pages show the same user. */
export function carryUser(user) {
  for (const link of document.querySelectorAll("#top nav a")) {
    link.href = user ? `${link.dataset.path}?user=${encodeURIComponent(user)}` : link.dataset.path;
  }
}

/** Writes the state of the page to the address, so that it can be shared and reloaded. */
export function setAddress(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "" && each !== false)
        query.append(name, each === true ? "yes" : each);
    }
  }
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}
