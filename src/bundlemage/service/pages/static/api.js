// Requests to the service. Every failure throws an error whose message explains it.

import { pause } from "./dom.js";

/** An error that the service reports as problem details (RFC 9457). */
class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The service answered ${status}.`);
    this.status = status;
    this.title = body.title || "That did not work";
    this.errors = body.errors ?? [];
    this.requestId = body.request_id;
    this.conflict = body.conflict ?? []; // of an impossible design, with its changes
    this.smallest = body.smallest ?? true; // whether no smaller set of conditions is a conflict
    this.changes = body.changes ?? [];
  }
}

/** The request got no answer. */
class Unreachable extends Error {
  constructor() {
    super("The service cannot be reached. It may have stopped, or the network is down.");
    this.title = "No answer";
    this.errors = [];
  }
}

/** Sends the event "lost" when the service cannot be reached, and "found" when it answers again. */
export const reach = new EventTarget();

let waiting = null;

function untilReachable() {
  waiting ??= (async () => {
    reach.dispatchEvent(new Event("lost"));
    for (let seconds = 1; ; seconds = Math.min(seconds * 2, 8)) {
      await pause(seconds * 1000);
      try {
        if ((await fetch("/healthz", { cache: "no-store" })).ok) break;
      } catch {
        continue; // still not reachable
      }
    }
    waiting = null;
    reach.dispatchEvent(new Event("found"));
  })();
  return waiting;
}

function toLogin() {
  const here = location.pathname + location.search;
  location.replace(`/login?next=${encodeURIComponent(here)}`);
  return new Promise(() => {}); // never settles: the browser leaves the page
}

async function bodyOf(response) {
  if (response.status === 204) return null;
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 300) };
  }
}

/**
 * Sends a request and returns the answer. If the service cannot be reached, waits and sends it again.
 * `once` is for requests that must not be sent twice: they fail instead.
 */
async function ask(method, path, options = {}) {
  return bodyOf(await send(method, path, options));
}

/** Sends a request like `ask`. Returns the response when its headers are there. */
async function send(method, path, { body, query, signal, key, id, onlyNew, once = false } = {}) {
  const parameters = new URLSearchParams(
    Object.entries(query ?? {}).filter(([, value]) => value !== "" && value != null),
  );
  const url = parameters.size ? `${path}?${parameters}` : path;
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  if (id) headers["X-Request-Id"] = id;
  if (onlyNew) headers["If-None-Match"] = "*";
  for (;;) {
    let response;
    try {
      response = await fetch(url, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (once) throw new Unreachable();
      await untilReachable();
      signal?.throwIfAborted();
      continue;
    }
    if (response.ok) return response;
    const answer = await bodyOf(response);
    if (response.status === 401 && location.pathname !== "/login") return toLogin();
    throw new Problem(response.status, answer ?? {});
  }
}

/**
 * Asks for a forecast. Calls `onEstimate` with an estimate first, unless the shop is small, and
 * `onProgress` while the exact forecast is computed. Returns the exact forecast.
 */
async function streamForecast(question, { signal, id, onEstimate, onProgress }) {
  const response = await send("POST", "/v1/bundles:score", {
    body: question,
    query: { stream: "true" },
    signal,
    id,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new Unreachable();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((text) => JSON.parse(text))) {
      if (line.estimate) onEstimate(line.estimate);
      if (line.progress) onProgress(line.progress);
      if (line.problem) throw new Problem(line.problem.status, line.problem);
      if (line.forecast) return line.forecast;
    }
  }
}

const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

export const api = {
  users: (search, signal) => ask("GET", at("users"), { query: { search, limit: 20 }, signal }),
  user: (id, signal) => ask("GET", at("users", id), { signal }),
  gate: (id, signal) => ask("GET", at("users", id, "gate"), { signal }),
  userBundles: (id, k, signal) => ask("GET", `${at("users", id)}/bundles`, { query: { k }, signal }),
  recommend: (question, signal) => ask("POST", at("recommend"), { body: question, signal }),
  complete: (question, signal) => ask("POST", at("complete"), { body: question, signal }),
  design: (question, signal, id) => ask("POST", at("design"), { body: question, signal, id }),
  explain: (question, signal) => ask("POST", at("explain"), { body: question, signal }),
  forecast: streamForecast,
  buyers: async (question, signal, id) =>
    (await send("POST", "/v1/bundles:buyers", { body: question, signal, id })).blob(),
  work: (signal) => ask("GET", at("work"), { signal, once: true }),
  record: (interactions, key) => ask("POST", at("interactions"), { body: { interactions }, key }),
  items: (query, signal) => ask("GET", at("items"), { query, signal }),
  item: (id, signal) => ask("GET", at("items", id), { signal }),
  bundles: (query, signal) => ask("GET", at("bundles"), { query, signal }),
  bundle: (id, signal) => ask("GET", at("bundles", id), { signal }),
  putBundle: (id, bundle, onlyNew) => ask("PUT", at("bundles", id), { body: bundle, onlyNew }),
  similar: (id, k, signal) => ask("GET", `${at("bundles", id)}/similar`, { query: { k }, signal }),
  tags: () => ask("GET", at("tags")),
  insights: (signal) => ask("GET", at("insights"), { signal }),
  models: (signal) => ask("GET", at("models"), { signal }),
  reload: (version) =>
    ask("POST", `${at("models")}/reload`, { body: version ? { version } : {}, once: true }),
  session: () => ask("GET", at("session")),
  logIn: (key) => ask("POST", at("session"), { body: { key }, once: true }),
  logOut: () => ask("DELETE", at("session"), { once: true }),
};

const STRENGTH = { read: 1, write: 2, admin: 3 };

/** Returns the session of the caller. Goes to the login page if a login is needed. */
export async function enter() {
  const session = await api.session();
  if (session.login_required && !session.role && location.pathname !== "/login") return toLogin();
  return {
    loginRequired: session.login_required,
    role: session.role,
    may: (role) => !session.login_required || (STRENGTH[session.role] ?? 0) >= STRENGTH[role],
  };
}

/** Runs one request at a time: a newer request cancels the older one, which then returns undefined. */
export class Newest {
  #running = null;

  async run(work) {
    this.#running?.abort();
    const controller = (this.#running = new AbortController());
    try {
      const answer = await work(controller.signal);
      return controller.signal.aborted ? undefined : answer;
    } catch (error) {
      if (controller.signal.aborted) return undefined;
      throw error;
    }
  }

  stop() {
    this.#running?.abort();
  }
}
