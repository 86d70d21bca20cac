"""How our pages look, and the few lines that make their tables sortable. No page loads anything."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #fbfbf9; --panel: #ffffff; --ink: #1c2330; --soft: #5d6675;
  --line: #e2e4e0; --accent: #2f6f9f; --bar: #cfe1ee; --whisker: #2f6f9f; --best: #0d6b3f; --bad: #a6322b; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14181f; --panel: #1b212b; --ink: #e6e9ee; --soft: #9aa5b5; --line: #2d3542;
    --accent: #7db7e0; --bar: #28445a; --whisker: #7db7e0; --best: #6fd3a0; --bad: #f0918a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--ground);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .2rem; }
p, ul { margin: .4rem 0; }
.soft, figcaption, .legend { color: var(--soft); font-size: .9rem; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem;
  overflow-x: auto; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--panel);
  margin: .7rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .45rem .5rem; text-align: right;
  white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child, td:first-child, td.failed { text-align: left; }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--panel); }
tbody tr:hover > * { background: color-mix(in srgb, var(--bar) 30%, var(--panel)); }
thead th { color: var(--soft); font-weight: 600; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
td.best strong { color: var(--best); }
td.failed { color: var(--bad); white-space: normal; }
.sd { color: var(--soft); font-size: .85em; }
.like { color: var(--best); cursor: help; }
.bar { display: block; position: relative; height: 4px; margin-top: 3px; min-width: 5rem; border-radius: 2px;
  background: color-mix(in srgb, var(--line) 55%, transparent); }
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--bar); border-radius: 2px; }
.bar b { position: absolute; top: -1px; bottom: -1px; min-width: 2px; background: var(--whisker);
  border-radius: 1px; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--accent); }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : column > 0;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column]?.dataset.sort ?? "";
    const order = (one, two) => {
      const [a, b] = [value(one), value(two)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const sign = down ? -1 : 1;
      return sign * (column ? a - b : a.localeCompare(b));
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
"""
