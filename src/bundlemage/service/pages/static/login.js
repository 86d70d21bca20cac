// Logs in with a key. After that, the browser sends a cookie that no script can read.

import { api } from "./api.js";
import { busy, byId } from "./dom.js";
import { PAGES, frame, problemBox } from "./frame.js";

/**
 * The page to open after the login: one of PAGES, because an address in a link could lead to another site. To
 * check the origin is not enough: the path of "/.//host" is "//host", which is another host.
 */
function next() {
  const target = new URLSearchParams(location.search).get("next") ?? "/";
  if (!URL.canParse(target, location.origin)) return "/";
  const { origin, pathname, search } = new URL(target, location.origin);
  const isPage = origin === location.origin && PAGES.some(([, path]) => path === pathname);
  return isPage ? pathname + search : "/";
}

async function logIn() {
  const key = byId("key").value.trim();
  const note = byId("login-note");
  if (!key) {
    note.replaceChildren(
      problemBox({ title: "No key", message: "Paste your key first. It begins with bm_." }),
    );
    return byId("key").focus();
  }
  try {
    await api.logIn(key);
    location.assign(next());
  } catch (error) {
    note.replaceChildren(problemBox(error));
    byId("key").select();
  }
  return undefined;
}

byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(byId("log-in"), logIn);
});
frame("login")
  .then((session) => {
    if (!session.loginRequired || session.role) location.replace(next());
  })
  .catch((error) => byId("login-note").replaceChildren(problemBox(error)));
