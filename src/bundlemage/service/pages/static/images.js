// The images of items and bundles, which the shop has set.

import { cover } from "./cover.js";
import { h, titleOf } from "./dom.js";

/** The image of a bundle, or a drawn cover if it has none or if it cannot be loaded. */
export function picture(bundle) {
  const drawn = () => cover(titleOf(bundle), bundle.tags ?? []);
  return imageOf(bundle, "cover-art", (image) => image.replaceWith(drawn())) ?? drawn();
}

/** The image of a thing, or null. If it cannot be loaded, `broken` is called, or else it is removed. */
export function imageOf(thing, style, broken = (image) => image.remove()) {
  if (!thing.image_url) return null;
  const image = h("img", {
    class: style,
    alt: "", // the title stands beside it
    loading: "lazy",
    decoding: "async",
    referrerpolicy: "no-referrer",
    on: { error: () => broken(image) },
  });
  image.src = thing.image_url; // last, so that the attributes above are in force when it is loaded
  return image;
}
