// A key, once; after that a cookie that no script can read.

import { api } from "./api.js";
import { busy, byId } from "./dom.js";
import { PAGES, frame, problemBox } from "./frame.js";

/**
 * Only ever a page of this service, and by its name: an address from elsewhere could lead anywhere. That the
 * origin is ours is not enough, as the path alone may name another host: that of "/.//host" is "//host".
 */
function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  if (!URL.canParse(wanted, location.origin)) return "/";
  const { origin, pathname, search } = new URL(wanted, location.origin);
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
