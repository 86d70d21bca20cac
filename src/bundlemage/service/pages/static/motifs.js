// The motifs of covers. Each function draws one in the five colours `c`, with random numbers from `roll()`.

import { s } from "./dom.js";

export const WIDTH = 320;
export const HEIGHT = 180;

const point = (angle, radius, x, y) =>
  `${(x + radius * Math.cos(angle)).toFixed(1)} ${(y + radius * Math.sin(angle)).toFixed(1)}`;

function waves(c, roll) {
  const tones = [c.pale, c.warm, c.mid, c.deep];
  const moon = s("circle", {
    cx: 60 + roll() * 200,
    cy: 46 + roll() * 16,
    r: 17 + roll() * 12,
    fill: c.light,
  });
  const phase = roll() * 80;
  return [
    moon,
    ...tones.map((fill, row) => {
      const y = 84 + row * 25;
      const length = 64 + row * 18;
      const tall = 9 + row * 2;
      let path = `M${-phase - length} ${y}`;
      for (let x = -phase - length; x < WIDTH + length; x += length)
        path += `q${length / 4} ${-tall} ${length / 2} 0t${length / 2} 0`;
      return s("path", { d: `${path}V${HEIGHT}H-200z`, fill, "fill-opacity": 0.86 });
    }),
  ];
}

function peaks(c, roll) {
  const ridge = (base, rough, fill, opacity) => {
    let path = `M-10 ${HEIGHT}`;
    for (let x = -10, up = roll() < 0.5; x <= WIDTH + 30; x += 24 + roll() * 30, up = !up)
      path += `L${x.toFixed(0)} ${(base - (up ? rough * (0.5 + roll() * 0.5) : 0)).toFixed(0)}`;
    return s("path", {
      d: `${path}L${WIDTH + 40} ${HEIGHT}z`,
      fill,
      "fill-opacity": opacity,
      "stroke-linejoin": "round",
    });
  };
  return [
    s("circle", { cx: 70 + roll() * 180, cy: 56, r: 24, fill: c.light, "fill-opacity": 0.92 }),
    ridge(116, 58, c.pale, 0.5),
    ridge(140, 52, c.warm, 0.85),
    ridge(164, 40, c.deep, 0.95),
  ];
}

function orbits(c, roll) {
  const x = 90 + roll() * 140;
  const y = 76 + roll() * 34;
  const rings = [40, 68, 98, 132].map((radius, number) => {
    const angle = roll() * 6.28;
    const [px, py] = point(angle, radius, x, y).split(" ");
    return [
      s("circle", {
        cx: x,
        cy: y,
        r: radius,
        fill: "none",
        stroke: c.light,
        "stroke-opacity": 0.34,
        "stroke-width": 1.2,
      }),
      s("circle", { cx: px, cy: py, r: 4 + number * 1.6 + roll() * 3, fill: number % 2 ? c.pale : c.light }),
    ];
  });
  return [
    s("circle", { cx: x, cy: y, r: 22, fill: c.pale }),
    s("circle", { cx: x - 6, cy: y - 5, r: 22, fill: c.warm, "fill-opacity": 0.55 }),
    ...rings.flat(),
  ];
}

function rays(c, roll) {
  const x = 40 + roll() * 240;
  const blades = 11 + Math.floor(roll() * 5);
  const parts = [];
  for (let number = 0; number < blades; number += 1) {
    const from = Math.PI + (number / blades) * Math.PI;
    parts.push(
      s("path", {
        d: `M${x} 182L${point(from, 400, x, 182)}L${point(from + Math.PI / blades / 2, 400, x, 182)}z`,
        fill: number % 3 ? c.pale : c.light,
        "fill-opacity": 0.42,
      }),
    );
  }
  return [
    ...parts,
    s("circle", { cx: x, cy: 182, r: 62, fill: c.warm }),
    s("circle", { cx: x, cy: 182, r: 42, fill: c.light, "fill-opacity": 0.9 }),
  ];
}

function tiles(c, roll) {
  const tones = [c.light, c.pale, c.warm, c.mid];
  const parts = [];
  for (let row = 0; row < 5; row += 1)
    for (let column = 0; column < 9; column += 1) {
      if (roll() < 0.4) continue;
      const [x, y] = [column * 36 - 1, row * 36];
      const fill = tones[Math.floor(roll() * tones.length)];
      const turn = Math.floor(roll() * 4);
      const quarter = [
        "M0 0h36a36 36 0 0 1-36 36z",
        "M36 0v36a36 36 0 0 1-36-36z",
        "M36 36h-36a36 36 0 0 1 36-36z",
        "M0 36v-36a36 36 0 0 1 36 36z",
      ][turn];
      parts.push(s("path", { d: quarter, transform: `translate(${x} ${y})`, fill, "fill-opacity": 0.74 }));
    }
  return parts;
}

function stars(c, roll) {
  const places = Array.from({ length: 8 }, (_, number) => [
    26 + number * 38 + roll() * 16,
    30 + roll() * 112,
  ]);
  const line = places.map(([x, y]) => `${x.toFixed(0)} ${y.toFixed(0)}`).join("L");
  const dust = Array.from({ length: 34 }, () =>
    s("circle", {
      cx: roll() * WIDTH,
      cy: roll() * HEIGHT,
      r: 0.7 + roll() * 1.1,
      fill: c.light,
      "fill-opacity": 0.6,
    }),
  );
  const lights = places.map(([x, y], number) => {
    const r = number % 3 ? 3.4 : 9;
    return s("path", {
      d: `M0 ${-r}Q0 0 ${r} 0Q0 0 0 ${r}Q0 0 ${-r} 0Q0 0 0 ${-r}z`,
      transform: `translate(${x} ${y})`,
      fill: c.light,
      stroke: c.light,
      "stroke-width": 1.4,
    });
  });
  return [
    ...dust,
    s("path", { d: `M${line}`, fill: "none", stroke: c.pale, "stroke-width": 1.2, "stroke-opacity": 0.7 }),
    ...lights,
  ];
}

function arches(c, roll) {
  const tones = [c.deep, c.mid, c.warm, c.pale, c.light];
  const x = 70 + roll() * 180;
  return tones.map((fill, number) => {
    const r = 150 - number * 29;
    return s("path", {
      d: `M${x - r} 190v-${34 - number * 2}a${r} ${r * 0.88} 0 0 1 ${2 * r} 0v60z`,
      fill,
      "fill-opacity": 0.92,
    });
  });
}

function towers(c, roll) {
  const row = (base, tall, fill, opacity) => {
    const parts = [];
    for (let x = -6; x < WIDTH;) {
      const wide = 18 + roll() * 26;
      const high = tall * (0.35 + roll() * 0.65);
      parts.push(
        s("rect", { x, y: base - high, width: wide, height: HEIGHT, fill, "fill-opacity": opacity, rx: 2 }),
      );
      if (opacity > 0.9)
        for (let y = base - high + 9; y < HEIGHT - 8; y += 13)
          if (roll() < 0.6)
            parts.push(
              s("rect", { x: x + 5, y, width: 4, height: 5, fill: c.pale, "fill-opacity": 0.8 }),
              s("rect", {
                x: x + 12,
                y,
                width: 4,
                height: 5,
                fill: c.light,
                "fill-opacity": roll() < 0.5 ? 0.8 : 0,
              }),
            );
      x += wide + 3;
    }
    return parts;
  };
  return [
    s("circle", { cx: 60 + roll() * 200, cy: 60, r: 32, fill: c.pale, "fill-opacity": 0.8 }),
    ...row(150, 96, c.warm, 0.5),
    ...row(176, 92, c.deep, 0.96),
  ];
}

function petals(c, roll) {
  const x = 110 + roll() * 100;
  const many = 7 + Math.floor(roll() * 4);
  const ring = (radius, wide, fill, opacity, shift) =>
    Array.from({ length: many }, (_, number) =>
      s("ellipse", {
        cx: x + radius,
        cy: 90,
        rx: radius * 0.78,
        ry: wide,
        fill,
        "fill-opacity": opacity,
        transform: `rotate(${(360 / many) * (number + shift)} ${x} 90)`,
      }),
    );
  return [
    ...ring(84, 25, c.warm, 0.6, 0),
    ...ring(52, 17, c.pale, 0.7, 0.5),
    s("circle", { cx: x, cy: 90, r: 17, fill: c.light }),
  ];
}

function prisms(c, roll) {
  const parts = [];
  const [w, t] = [46, 27];
  for (let row = -1; row < 5; row += 1)
    for (let column = -1; column < 5; column += 1) {
      if (roll() < 0.3) continue;
      const x = column * w * 2 + (row % 2 ? w : 0);
      const y = row * t * 1.85 + 14;
      const face = (d, fill) =>
        s("path", { d, fill, "fill-opacity": 0.82, transform: `translate(${x} ${y})` });
      parts.push(
        face(
          `M0 0l${w * 0.84}-${t * 0.84} ${w * 0.84} ${t * 0.84}-${w * 0.84} ${t * 0.84}z`,
          roll() < 0.4 ? c.light : c.pale,
        ),
        face(`M0 0l${w * 0.84} ${t * 0.84}v${t}l-${w * 0.84}-${t * 0.84}z`, c.warm),
        face(`M${w * 1.68} 0l-${w * 0.84} ${t * 0.84}v${t}l${w * 0.84}-${t * 0.84}z`, c.deep),
      );
    }
  return parts;
}

function ribbons(c, roll) {
  const tones = [c.deep, c.warm, c.light, c.pale, c.mid];
  const start = 20 + roll() * 50;
  const bend = 50 + roll() * 60;
  return tones.map((stroke, number) => {
    const y = start + number * 25;
    return s("path", {
      d: `M-20 ${y}C80 ${y - bend} 130 ${y + bend + 30} 210 ${y + 12}S320 ${y - 36} 350 ${y + 16}`,
      fill: "none",
      stroke,
      "stroke-width": 17,
      "stroke-opacity": 0.86,
    });
  });
}

function steps(c, roll) {
  const tones = [c.pale, c.warm, c.mid, c.deep];
  const many = 8;
  const up = roll() < 0.5;
  return [
    s("circle", { cx: up ? 66 : 254, cy: 52, r: 26, fill: c.light }),
    ...tones.flatMap((fill, layer) =>
      Array.from({ length: many }, (_, number) => {
        const place = up ? number : many - 1 - number;
        const top = 150 - place * 14 + layer * 24 - roll() * 7;
        return s("rect", { x: number * 40, y: top, width: 40.5, height: HEIGHT, fill, "fill-opacity": 0.9 });
      }),
    ),
  ];
}

export const MOTIFS = [
  waves,
  peaks,
  orbits,
  rays,
  tiles,
  stars,
  arches,
  towers,
  petals,
  prisms,
  ribbons,
  steps,
];
