// The differences between two answers: new, moved and removed bundles, in words and as an animation.

import { count, listed, still } from "./dom.js";

/** Compares two answers. `moves`: id → "new", or the number of ranks that the bundle went up. */
export function changes(old, fresh) {
  const ranks = new Map(old.map((bundle) => [bundle.id, bundle.rank]));
  const moves = new Map(
    fresh.map((bundle) => [bundle.id, ranks.has(bundle.id) ? ranks.get(bundle.id) - bundle.rank : "new"]),
  );
  const kept = new Set(fresh.map((bundle) => bundle.id));
  return { moves, gone: old.filter((bundle) => !kept.has(bundle.id)) };
}

/** The result of `changes` as a sentence. */
export function changeWords({ moves, gone }) {
  const came = [...moves.values()].filter((move) => move === "new").length;
  const moved = [...moves.values()].filter((move) => move !== "new" && move !== 0).length;
  if (!came && !moved && !gone.length) return "The recommendations did not change.";
  const parts = [
    came ? `${count(came)} new` : "",
    moved ? `${count(moved)} moved` : "",
    gone.length ? `${count(gone.length)} gone` : "",
  ].filter(Boolean);
  return `Recommendations: ${listed(parts)}.`;
}

/** Replaces the cards in the list. Kept cards slide to their new places; removed cards fade. */
export function swapCards(list, cards) {
  const old = new Map(
    [...list.children]
      .filter((card) => card.dataset.bundle)
      .map((card) => [card.dataset.bundle, { card, box: card.getBoundingClientRect() }]),
  );
  const focused = list.contains(document.activeElement)
    ? document.activeElement.closest("[data-bundle]")?.dataset.bundle
    : null;
  list.replaceChildren(...cards);
  const back =
    focused &&
    (list.querySelector(`[data-bundle="${CSS.escape(focused)}"] .card-open`) ??
      list.querySelector(".card-open"));
  back?.focus({ preventScroll: true }); // the focus stays on its bundle, or goes to the first card
  if (still() || !old.size) return;
  for (const card of cards) {
    const was = old.get(card.dataset.bundle);
    old.delete(card.dataset.bundle);
    if (!was) {
      card.animate(
        [
          { opacity: 0, transform: "translateY(14px)" },
          { opacity: 1, transform: "none" },
        ],
        { duration: 420, easing: "ease-out" },
      );
      continue;
    }
    const now = card.getBoundingClientRect();
    const [x, y] = [was.box.left - now.left, was.box.top - now.top];
    if (x || y)
      card.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], {
        duration: 460,
        easing: "cubic-bezier(.2,.8,.2,1)",
      });
  }
  for (const { card, box } of old.values()) fade(card, box);
}

function fade(card, box) {
  const ghost = card.cloneNode(true);
  ghost.inert = true;
  ghost.setAttribute("aria-hidden", "true");
  ghost.removeAttribute("data-bundle");
  Object.assign(ghost.style, {
    position: "fixed",
    left: `${box.left}px`,
    top: `${box.top}px`,
    width: `${box.width}px`,
    height: `${box.height}px`,
    zIndex: 5,
    pointerEvents: "none",
    listStyle: "none",
  });
  document.body.append(ghost);
  ghost
    .animate(
      [
        { opacity: 1, transform: "none" },
        { opacity: 0, transform: "scale(.94)" },
      ],
      { duration: 320, easing: "ease-in", fill: "forwards" },
    )
    .finished.then(() => ghost.remove());
}
