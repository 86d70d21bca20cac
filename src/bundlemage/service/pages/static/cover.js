// A bundle's cover: the first tag determines the colours, and the title determines the motif.
// The same title and tag always give the same picture.

import { freshId, s } from "./dom.js";
import { HEIGHT, MOTIFS, WIDTH } from "./motifs.js";

/** A 32-bit hash of a text: FNV-1a, mixed once more so that similar titles differ widely. */
function hash(text) {
  let value = 0x811c9dc5;
  for (const character of text) value = Math.imul(value ^ character.codePointAt(0), 0x01000193);
  value ^= value >>> 15;
  value = Math.imul(value, 0x2c1b3c6d);
  return (value ^ (value >>> 13)) >>> 0;
}

/** A generator of pseudo-random numbers in [0, 1). */
function dice(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The hue of a tag, in degrees. Dark yellows look muddy, so they are left out. */
function hueOf(tag) {
  const place = (hash(tag.toLocaleLowerCase("en")) * 137.508) % 300;
  return place < 74 ? place : place + 60;
}

function colours(tag, roll) {
  const hue = hueOf(tag);
  const lean = roll() < 0.5 ? -1 : 1;
  const at = (light, chroma, turn) => `oklch(${light} ${chroma} ${(hue + lean * turn + 720) % 360})`;
  return {
    deep: at(0.3, 0.075, 0),
    mid: at(0.5, 0.12, 16),
    warm: at(0.66, 0.13, 42),
    pale: at(0.84, 0.09, 62),
    light: at(0.95, 0.035, 74),
  };
}

/** The cover as an SVG element. Screen readers skip it, because it shows no more than the title. */
export function cover(title, tags) {
  const seed = hash(title);
  const roll = dice(seed);
  const c = colours(tags[0] ?? title, roll);
  const ground = freshId("ground");
  const slant = roll() < 0.5;
  return s(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "xMidYMid slice",
      class: "cover-art",
      "aria-hidden": "true",
      focusable: "false",
    },
    s(
      "linearGradient",
      { id: ground, x1: slant ? 0 : 1, y1: 0, x2: slant ? 1 : 0, y2: 1 },
      s("stop", { offset: 0, "stop-color": c.deep }),
      s("stop", { offset: 0.62, "stop-color": c.mid }),
      s("stop", { offset: 1, "stop-color": c.warm }),
    ),
    s("rect", { width: WIDTH, height: HEIGHT, fill: `url(#${ground})` }),
    MOTIFS[(seed >>> 8) % MOTIFS.length](c, roll),
  );
}
