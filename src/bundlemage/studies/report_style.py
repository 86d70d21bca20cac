"""How the report looks, on top of what all our pages share."""

from __future__ import annotations

REPORT_STYLE = """
html { scroll-behavior: smooth; scroll-padding-top: 1rem; }
body.report { max-width: 96rem; display: grid; grid-template-columns: 10.5rem minmax(0, 1fr); gap: 1.6rem;
  align-items: start; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: 1rem; background: var(--panel); }
nav { position: sticky; top: 2rem; font-size: .9rem; max-height: calc(100vh - 4rem); overflow-y: auto; }
nav ol { list-style: none; margin: 0; padding: 0; border-left: 2px solid var(--line); }
nav a { display: block; padding: .28rem .8rem; color: var(--soft); text-decoration: none; }
nav a:hover, nav a:focus-visible { color: var(--accent); }
a { color: var(--accent); }
h1 { font-size: 2rem; letter-spacing: -.01em; text-wrap: balance; }
h2 { font-size: 1.35rem; margin: 3.2rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.7rem 0 .3rem; }
p, li { max-width: 74ch; } li { margin: .25rem 0; }
.summary { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: .6rem 1.3rem .8rem; margin: 1.2rem 0; }
.banner, .warning { border-left: 4px solid var(--fig-mark); background: var(--panel); padding: .55rem .9rem;
  border-radius: 0 6px 6px 0; max-width: none; }
.banner { font-weight: 600; }
.scroll { max-height: 88vh; overflow: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); }
thead th { position: sticky; top: 0; background: var(--panel); z-index: 2; box-shadow: 0 1px 0 var(--line); }
thead th:first-child { left: 0; z-index: 3; }
tbody th { z-index: 1; white-space: normal; min-width: 10rem; max-width: 17rem; }
.scroll td, .scroll th { padding: .45rem .5rem; } .scroll table { font-size: .88rem; }
.scroll tbody th { padding-left: .8rem; }
td { vertical-align: top; } tbody th { vertical-align: top; }
tr.first > * { border-top: 2px solid var(--soft); }
tr.group-ours > th { box-shadow: inset 3px 0 0 var(--fig-ours); }
tr.group-paper > th { box-shadow: inset 3px 0 0 var(--fig-rival); }
tr.group-beyond > th { box-shadow: inset 3px 0 0 var(--fig-beyond); }
th code { display: block; font-size: .78em; font-weight: 400; color: var(--soft); }
.beside { display: block; font-size: .8em; color: var(--soft); }
.beside .above { color: var(--fig-ours); } .beside .below { color: var(--fig-mark); }
table.words td, table.words th { white-space: normal; text-align: left; }
.chips { display: flex; flex-wrap: wrap; gap: .25rem; margin: .15rem 0; }
.chips span { border: 1px solid var(--line); border-radius: 99px; padding: 0 .5rem; font-size: .78rem;
  color: var(--soft); white-space: nowrap; }
figure { margin: 1rem 0 1.6rem; }
.drawing { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .8rem;
  overflow-x: auto; }
.drawing svg { display: block; width: 100%; min-width: 36rem; max-width: 62rem; height: auto; margin: auto; }
pre.command { margin: .5rem 0; }
@media (max-width: 60rem) {
  body.report { display: block; padding: 1rem .9rem 3rem; }
  nav { position: static; max-height: none; margin-bottom: 1.2rem; }
  nav ol { border: 0; display: flex; flex-wrap: wrap; gap: .1rem .3rem; }
  nav a { padding: .2rem .55rem; border: 1px solid var(--line); border-radius: 99px; }
  h1 { font-size: 1.55rem; }
  th, td { padding: .4rem .5rem; }
  tbody th { min-width: 8rem; max-width: 9.5rem; }
  table.words tbody th { position: static; min-width: 5rem; }
}
@media print {
  body.report { display: block; padding: 0; font-size: 10pt; background: #fff; }
  nav, .skip { display: none; }
  .scroll { max-height: none; border: 0; } table { font-size: 7.5pt; } th, td { padding: .15rem .25rem; }
  section { break-before: auto; } tr, figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .drawing svg { min-width: 0; }
}
"""
