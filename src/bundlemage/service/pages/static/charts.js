// SVG charts that adapt to their width. Values are read by pointer, by arrow keys, or as a table.

import { figure, freshId, h, percent, s } from "./dom.js";

const ROOM = { top: 14, right: 14, bottom: 36, left: 48 };

/** About `number` round values that cover a range: 0.02, 0.04, … */
function ticks(low, high, number = 4) {
  const raw = (high - low || Math.abs(high) || 1) / number;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((each) => each >= raw);
  const steps = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step)
    steps.push(Number(value.toPrecision(10)));
  return steps;
}

/** The numbers as texts, with the fewest digits (three to five) that make them differ. */
function distinct(values) {
  const written = [3, 4, 5].map((digits) => values.map((value) => figure(value, digits)));
  return written.find((texts) => new Set(texts).size === texts.length) ?? written.at(-1);
}

/** 1, 2, 5, 10, … between 10^low and 10^high; the middle of the range if it contains none of them. */
function logTicks(low, high) {
  const steps = [];
  for (let power = Math.floor(low); power <= high; power += 1)
    for (const factor of [1, 2, 5]) steps.push(factor * 10 ** power);
  const inside = steps.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  return inside.length ? inside : [10 ** ((low + high) / 2)];
}

/** The values whose labels do not overlap: each is at least `room` pixels from the one before. */
function apart(values, place, room) {
  let last = null;
  return values.filter((value) => {
    const free = last === null || Math.abs(place(value) - last) >= room;
    if (free) last = place(value);
    return free;
  });
}

/**
 * The frame of a chart: a plot that is redrawn when its width changes, a readout, and arrow keys that go from
 * point to point. `draw(width, height)` returns the drawing and the places of its points. `say(number)`
 * describes a point.
 */
function chart({ name, height, points, draw, say, table, near, first = 0 }) {
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const plot = h("div", {
    class: "plot",
    role: "slider",
    tabindex: 0,
    "aria-label": `${name}. Arrow keys go from point to point.`,
    "aria-valuemin": 1,
    "aria-valuemax": points,
    "aria-valuenow": first + 1,
    style: { height: `${height}px` },
  });
  let at = first;
  let drawing;

  const show = (number, pointed) => {
    at = Math.max(0, Math.min(points - 1, number));
    plot.setAttribute("aria-valuenow", at + 1);
    plot.setAttribute("aria-valuetext", say(at));
    readout.textContent = pointed ? say(at) : "";
    plot.classList.toggle("pointed", pointed);
    drawing?.mark(at);
  };

  const redraw = () => {
    if (!plot.clientWidth) return;
    drawing = draw(plot.clientWidth, height);
    plot.replaceChildren(drawing.svg);
    show(at, plot.classList.contains("pointed"));
  };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    show(near(drawing.places, event.clientX - box.left, event.clientY - box.top), true);
  });
  plot.addEventListener("pointerleave", () => show(at, document.activeElement === plot));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && show(at, true));
  plot.addEventListener("blur", () => show(at, false));
  plot.addEventListener("keydown", (event) => {
    const moves = {
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      PageUp: at + 10,
      PageDown: at - 10,
      Home: 0,
      End: points - 1,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key], true);
  });
  new ResizeObserver(redraw).observe(plot);
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, name), readout), plot, table);
}

/** The numbers of a chart as a table that can be unfolded. */
function dataTable(columns, rows) {
  return h(
    "details",
    { class: "numbers" },
    h("summary", {}, "Show as a table"),
    h(
      "div",
      { class: "numbers-scroll", tabindex: 0, role: "region", "aria-label": "Table of the chart's numbers" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map((column) => h("th", { scope: "col" }, column)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              row.map((cell, number) => (number ? h("td", {}, cell) : h("th", { scope: "row" }, cell))),
            ),
          ),
        ),
      ),
    ),
  );
}

const nearest = (places, distance) =>
  places.reduce((best, place, number) => (distance(place) < distance(places[best]) ? number : best), 0);

/** One line over epochs. `values` are [x, y]; `best` is the x of the point that is marked. */
export function lineChart({ name, values, xName, yName, best, tone }) {
  const [xs, ys] = [values.map(([x]) => x), values.map(([, y]) => y)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const pad = (high - low || Math.abs(high) || 1) * 0.12;
  const draw = (width, height) => {
    const [right, bottom] = [width - ROOM.right, height - ROOM.bottom];
    const across = (x) => ROOM.left + ((x - xs[0]) / (xs.at(-1) - xs[0] || 1)) * (right - ROOM.left);
    const up = (y) => bottom - ((y - (low - pad)) / (high - low + 2 * pad)) * (bottom - ROOM.top);
    const places = values.map(([x, y]) => [across(x), up(y)]);
    const ruler = s("line", { class: "ruler", y1: ROOM.top, y2: bottom });
    const dot = s("circle", { class: `dot ${tone}`, r: 5 });
    const marked = values.findIndex(([x]) => x === best);
    const rows = ticks(low - pad, high + pad);
    const heights = distinct(rows);
    const columns = ticks(xs[0], xs.at(-1), Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
    const svg = s(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      rows.map((y, number) => [
        s("line", { class: "grid", x1: ROOM.left, x2: right, y1: up(y), y2: up(y) }),
        s("text", { x: ROOM.left - 8, y: up(y) + 4, "text-anchor": "end" }, heights[number]),
      ]),
      columns.map((x) => s("text", { x: across(x), y: bottom + 18, "text-anchor": "middle" }, String(x))),
      s("text", { class: "axis", x: right, y: height - 3, "text-anchor": "end" }, xName),
      s("path", {
        class: `line ${tone}`,
        d: `M${places.map((place) => place.map((each) => each.toFixed(1)).join(" ")).join("L")}`,
      }),
      ruler,
      marked < 0
        ? null
        : [
            s("circle", { class: `best ${tone}`, cx: places[marked][0], cy: places[marked][1], r: 5.5 }),
            s(
              "text",
              {
                class: "best-label",
                x: Math.min(right, Math.max(ROOM.left + 40, places[marked][0])),
                y: Math.max(12, places[marked][1] - 11),
                "text-anchor": places[marked][0] > width * 0.7 ? "end" : "middle",
              },
              `best: epoch ${best}`,
            ),
          ],
      dot,
    );
    const mark = (number) => {
      const [x, y] = places[number];
      for (const end of ["x1", "x2"]) ruler.setAttribute(end, x);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
    };
    return { svg, places, mark };
  };
  const say = (number) =>
    `${xName} ${xs[number]}: ${figure(ys[number], 4)}${xs[number] === best ? ", the best" : ""}`;
  return chart({
    name,
    height: 210,
    points: values.length,
    draw,
    say,
    near: (places, x) => nearest(places, ([px]) => Math.abs(px - x)),
    first: Math.max(0, xs.indexOf(best)),
    table: dataTable(
      [xName, yName],
      values.map(([x, y]) => [String(x), figure(y, 5)]),
    ),
  });
}

/**
 * A scatter plot of two shares on logarithmic axes. Shares of 0 have no place on such an axis, so they are
 * drawn in a separate strip beside it.
 */
export function shareScatter({ name, points, xName, yName, xVerb, yVerb }) {
  const sorted = [...points].sort((one, other) => other.x - one.x);
  const lane = 30;
  const span = (values) => [Math.log10(Math.min(...values)) - 0.12, Math.log10(Math.max(...values)) + 0.12];
  const [xLow, xHigh] = span(sorted.map(({ x }) => x).filter(Boolean));
  const [yLow, yHigh] = span(sorted.map(({ y }) => y).filter(Boolean));
  const hasZero = { x: sorted.some(({ x }) => x === 0), y: sorted.some(({ y }) => y === 0) };
  const draw = (width, height) => {
    const [left, right] = [ROOM.left + 8 + (hasZero.x ? lane : 0), width - ROOM.right];
    const bottom = height - ROOM.bottom - 12 - (hasZero.y ? lane : 0);
    const across = (x) =>
      x > 0 ? left + ((Math.log10(x) - xLow) / (xHigh - xLow)) * (right - left) : left - lane * 0.6;
    const up = (y) =>
      y > 0 ? bottom - ((Math.log10(y) - yLow) / (yHigh - yLow)) * (bottom - ROOM.top) : bottom + lane * 0.6;
    const places = sorted.map(({ x, y }) => [across(x), up(y)]);
    const ring = s("circle", { class: "ring", r: 8 });
    const columns = apart(logTicks(xLow, xHigh), across, 46);
    const rows = apart(logTicks(yLow, yHigh), up, 18);
    const even = [10 ** Math.max(xLow, yLow), 10 ** Math.min(xHigh, yHigh)];
    const svg = s(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      rows.map((y) => [
        s("line", { class: "grid", x1: left, x2: right, y1: up(y), y2: up(y) }),
        s("text", { x: ROOM.left, y: up(y) + 4, "text-anchor": "end" }, percent(y)),
      ]),
      columns.map((x) => [
        s("line", { class: "grid", x1: across(x), x2: across(x), y1: ROOM.top, y2: bottom }),
        s("text", { x: across(x), y: height - ROOM.bottom + 6, "text-anchor": "middle" }, percent(x)),
      ]),
      hasZero.y
        ? [
            s("rect", {
              class: "lane",
              x: left,
              y: bottom + 4,
              width: right - left,
              height: lane - 6,
              rx: 5,
            }),
            s("text", { x: ROOM.left, y: up(0) + 4, "text-anchor": "end" }, "none"),
          ]
        : null,
      hasZero.x
        ? [
            s("rect", {
              class: "lane",
              x: left - lane + 2,
              y: ROOM.top,
              width: lane - 6,
              height: bottom - ROOM.top,
              rx: 5,
            }),
            s("text", { x: across(0), y: height - ROOM.bottom + 6, "text-anchor": "middle" }, "none"),
          ]
        : null,
      even[0] < even[1]
        ? s("line", {
            class: "even",
            x1: across(even[0]),
            y1: up(even[0]),
            x2: across(even[1]),
            y2: up(even[1]),
          })
        : null,
      s("text", { class: "axis", x: right, y: height - 4, "text-anchor": "end" }, `${xName} →`),
      s("text", { class: "axis", x: left + 6, y: ROOM.top + 12 }, `↑ ${yName}`),
      places.map(([cx, cy]) => s("circle", { class: "spot", cx, cy, r: 4.2 })),
      ring,
    );
    const mark = (number) => {
      ring.setAttribute("cx", places[number][0]);
      ring.setAttribute("cy", places[number][1]);
    };
    return { svg, places, mark };
  };
  const say = (number) =>
    `${sorted[number].name}: ${percent(sorted[number].x)} ${xVerb}, ${percent(sorted[number].y)} ${yVerb}`;
  return chart({
    name,
    height: 380,
    points: sorted.length,
    draw,
    say,
    near: (places, x, y) => nearest(places, ([px, py]) => (px - x) ** 2 + (py - y) ** 2),
    table: dataTable(
      ["Bundle", xName, yName],
      sorted.map((each) => [each.name, percent(each.x), percent(each.y)]),
    ),
  });
}

/** A bar divided into parts, with their names and percentages. */
export function splitBar(parts) {
  const label = freshId("split");
  return h(
    "div",
    { class: "split", role: "group", "aria-labelledby": label },
    h(
      "p",
      { class: "unseen", id: label },
      parts.map((part) => `${part.name} ${percent(part.share)}`).join(", "),
    ),
    h(
      "div",
      { class: "split-bar", "aria-hidden": "true" },
      parts.map((part) => h("span", { class: part.tone, style: { flexGrow: Math.max(part.share, 0.001) } })),
    ),
    h(
      "div",
      { class: "split-words", "aria-hidden": "true" },
      parts.map((part) =>
        h("p", {}, h("b", {}, percent(part.share)), h("span", { class: `key ${part.tone}` }), part.name),
      ),
    ),
  );
}
