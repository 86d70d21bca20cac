// Shows how far a long request is, as a bar with words.

import { api } from "./api.js";
import { count, h, pause } from "./dom.js";

const EVERY = 500; // milliseconds; nothing is shown for requests that take less

function inWords({ state, stage, done, of, seconds_left: left }) {
  if (state === "waiting") return "Waiting for other work of this kind.";
  if (!of) return "Working…";
  const rest = left === null ? "" : `, about ${count(Math.ceil(left))} s left`;
  return `${count(done)} of ${count(of)} ${stage}${rest}`;
}

/**
 * Runs `ask(requestId, onProgress)`, a long request with this id. Until it ends, shows its progress in
 * `place`, with a button if there is `onCancel`. A request whose answer tells its progress calls
 * `onProgress`. Returns the answer.
 */
export async function withProgress(place, requestId, ask, onCancel) {
  const bar = h("progress", { "aria-label": "Progress" });
  const words = h("span", { class: "fine" });
  const stop =
    onCancel && h("button", { type: "button", class: "quiet", on: { click: onCancel } }, "Cancel");
  const box = h("div", { class: "work" }, bar, words, stop);
  const ended = new AbortController();

  async function watch() {
    for (;;) {
      await pause(EVERY);
      if (ended.signal.aborted) return;
      // If the service is too busy to answer this, it may answer the next time.
      const { work } = await api.work(ended.signal).catch(() => ({ work: [] }));
      const now = work.find((each) => each.request_id === requestId);
      if (now) show(now); // otherwise another process of the service works on it
    }
  }

  function show(now) {
    if (ended.signal.aborted) return;
    words.textContent = inWords(now);
    if (now.of) [bar.max, bar.value] = [now.of, now.done];
    else bar.removeAttribute("value"); // moves without an end
    if (!box.isConnected) place.append(box);
  }

  watch();
  try {
    return await ask(requestId, show);
  } finally {
    ended.abort();
    box.remove();
  }
}
