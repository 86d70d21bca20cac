"""Writes results: numbers as text, tables as grids of cells, and pages from templates.

One template gives two pages with the same content: HTML and Markdown. Text from data is escaped in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bundlemage.measures.meaning import FEW, FEW_MEANS, meanings
from bundlemage.measures.meaning import title as title_of
from bundlemage.measures.slices import Figure
from bundlemage.studies.comparison import Comparison
from bundlemage.studies.figures import colour_variables
from bundlemage.studies.standings import LEVEL, DataFacts, ResultTable, Row, Spread

Form = Literal["html", "markdown"]
COLUMNS = ("ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@10", "recall@20")
NOT_DIFFERENT = "†"
"""Marks a row that is not significantly different from the best one."""
NOT_STORED = "the stored result is of an earlier version: --fresh computes it again"


def figure(value: float) -> str:
    """Returns a metric with four decimals and no leading zero, such as `.5073`."""
    text = f"{value:.4f}"
    return text[1:] if text.startswith("0.") else text


def deviation(spread: Spread, seeds: Sequence[int]) -> str:
    """Returns the standard deviation, such as `±.0008`; empty for a single run."""
    return f"±{figure(spread.sd)}" if spread.sd is not None and len(seeds) > 1 else ""


def duration(seconds: float | None) -> str:
    """Returns a time, such as `2.3 s`, `15 min` or `2 h 30`; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 0.05:
        return "<0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d}"


def size(count: int | None) -> str:
    """Returns a number of bytes, such as `38 MB`; a dash for None."""
    if count is None:
        return "–"
    if count < 2**19:
        return "<1 MB"
    return f"{count / 2**20:,.0f} MB" if count < 2**30 else f"{count / 2**30:,.1f} GB"


def words(parts: Sequence[str]) -> str:
    """Returns a list in words: `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def dates(comparison_dates: Sequence[str]) -> str:
    """Returns the dates of outcomes: `on 2026-01-01`, or `from 2026-01-01 to 2026-01-03`."""
    first, last = min(comparison_dates)[:10], max(comparison_dates)[:10]
    return f"on {first}" if first == last else f"from {first} to {last}"


def heading(table: ResultTable) -> str:
    """Returns the heading of a table: its dataset, protocol and task."""
    return f"{table.dataset}, {table.protocol}: {table.task}"


def legend(table: ResultTable, *, times: bool = True) -> str:
    """Returns the meaning of bold, ± and †. If `times` are shown, says how they were measured."""
    seeds = max(len(row.seeds) for row in table.rows)
    parts = ["Bold: the best of a column."]
    if seeds > 1:
        parts.append(f"±: standard deviation over {seeds} seeds.")
    if any(not row.distinguishable for row in table.rows):
        level = f"{LEVEL:g}".removeprefix("0")
        together = ", cases of one bundle grouped" if table.task == "generation" else ""
        averaged = ", values averaged over the seeds" if seeds > 1 else ""
        parts.append(
            f"{NOT_DIFFERENT}: not significantly different from the best by {table.metric} "
            f"(paired t-test over {table.cases:,} cases{together}{averaged}; Holm-corrected, p ≥ {level})."
        )
    if times and (note := table.timing_note):
        parts.append(f"fit: {note}.")
    return " ".join(parts)


def described(facts: DataFacts) -> str:
    """Returns the sizes of a split as a sentence."""
    cases = [f"{facts.matching_cases:,} matching"] * bool(facts.matching_cases)
    cases += [f"{facts.generation_cases:,} generation"] * bool(facts.generation_cases)
    return (
        f"{facts.users:,} users, {facts.bundles:,} bundles, {facts.items:,} items; "
        f"{facts.user_bundle_pairs:,} user-bundle ({facts.training_pairs:,} for training), "
        f"{facts.user_item_pairs:,} user-item and {facts.bundle_item_pairs:,} bundle-item pairs; "
        f"{' and '.join(cases)} test cases."
    )


@dataclass(frozen=True)
class GridCell:
    """A cell of a table in a report."""

    text: str = ""
    best: bool = False
    spread: str = ""
    """The standard deviation, such as `±.0008`."""
    beside: str = ""
    """The published figure that `text` is compared with."""
    difference: str = ""
    """One of ≈ ▲ ▼, then the difference from `beside`."""
    tone: str = ""
    """`near`, `above` or `below`: decides the colour of the difference."""
    code: str = ""
    """The name of the recipe or model, shown after the text."""
    hint: str = ""
    """An explanation of the text, shown on hovering."""
    order: float | None = None
    """The value that the column is sorted by; None sorts last."""
    bar: tuple[float, float, float] | None = None
    """In percent of the cell: the bar's length (the mean), mean minus deviation, mean plus deviation."""


@dataclass(frozen=True)
class Grid:
    """A table of numbers. A row's first cell is its name. The last cell of a short row fills the rest."""

    key: str
    head: tuple[str, ...]
    rows: tuple[tuple[GridCell, ...], ...]
    groups: tuple[str, ...] = ()
    """The group of each row. A line separates two groups."""
    legend: str = ""


def rendered(template: str, form: Form, **context: Any) -> str:
    """Returns the page of a template with the values of `context`. An HTML page loads no other file."""
    text = _environment(form).get_template(f"{template}.j2").render(form=f"{form}.j2", **context)
    lines = [line.rstrip() for line in text.strip().splitlines()]
    kept = [line for number, line in enumerate(lines) if line or (form == "markdown" and lines[number - 1])]
    return "\n".join(kept) + "\n"


@cache
def _environment(form: Form) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_markdown if form == "markdown" else None,
    )
    environment.filters |= {
        "dates": dates,
        "described": described,
        "heading": heading,
        "in_backticks": lambda text: Markup(text.replace("`", "'").replace("|", "\\|")),
        "one_line": lambda text: Markup(" ".join(text.split())),
        "words": words,
    }
    environment.globals |= {"light_colours": colour_variables(), "dark_colours": colour_variables(dark=True)}
    return environment


def _markdown(value: object) -> object:
    """Escape the values that a template prints: text from data must not act as Markdown or HTML."""
    if hasattr(value, "__html__"):  # written by a macro
        return value
    one_line = escape(" ".join(str(value).split()), quote=False)
    return Markup("".join(f"\\{letter}" if letter in "\\`*_[]|~" else letter for letter in one_line))


@dataclass(frozen=True)
class MeasuresPart:
    """A part of a report about answer lists or about slices."""

    title: str
    text: str
    grids: tuple[Grid, ...]
    points: tuple[str, ...]
    """What the measures and the slices mean."""


def measures_parts(key: str, table: ResultTable | None, names: Mapping[str, str]) -> list[MeasuresPart]:
    """Returns the parts about a table's answer lists and slices, as far as they were measured. `names` has
    the name to show for each contender, by its label."""
    if table is None:
        return []
    rows = [(names[row.label], row) for row in table.rows if row.label in names]
    return [*_lists_parts(key, rows), *_slices_parts(key, table, rows)]


def _lists_parts(key: str, rows: Sequence[tuple[str, Row]]) -> Iterator[MeasuresPart]:
    measured = [(name, row.lists) for name, row in rows if row.lists is not None]
    if not measured:
        return
    first = measured[0][1]
    sample = f"a random sample of {first.users:,} of the {first.of_users:,} test users"
    of = sample if first.users < first.of_users else f"all {first.users:,} test users"
    by = "tags" if first.diversity_by == "tags" else "items, because the catalogue has no tags"
    grids = []
    for side, title in (("bundles", "bundles"), ("items", "items inside")):
        lines = []
        for name, lists in measured:
            values = getattr(lists, side).values()
            cells = (GridCell("–" if each is None else f"{each:.3f}", order=each) for each in values)
            lines.append((GridCell(name), *cells))
        grids.append(Grid(f"lists-{side}-{key}", (title, *map(title_of, first.bundles)), tuple(lines)))
    yield MeasuresPart(
        "What the answers show",
        f"Each list has the first of all bundles that its user does not have in training. Lists of {of}. "
        f"Diversity compares bundles by {by}. Seeds are averaged.",
        tuple(grids),
        tuple(f"{title_of(name)}: {sentence}" for name, sentence in meanings(first.bundles).items()),
    )


def _slices_parts(key: str, table: ResultTable, rows: Sequence[tuple[str, Row]]) -> Iterator[MeasuresPart]:
    grids, few = [], False
    for number, way in enumerate(table.slices):
        heads = [f"{each.name}{f' ({FEW})' * each.little}: {each.cases:,} cases" for each in way.slices]
        few |= any(each.little for each in way.slices)
        lines = []
        for name, row in rows:
            figures = [each.metrics.get(row.label) for each in way.slices]
            if any(figures):
                lines.append((GridCell(name), *map(_slice_cell, figures)))
        if lines:
            grids.append(Grid(f"slices-{key}-{number}", (way.by, *heads), tuple(lines)))
    if grids:
        yield MeasuresPart(
            "Where the models are good",
            f"{title_of(table.metric)} in slices of the test cases, with its standard error (±).",
            tuple(grids),
            (*(f"{way.by}: {way.about}" for way in table.slices), *[f"{FEW}: {FEW_MEANS}"] * few),
        )


def _slice_cell(found: Figure | None) -> GridCell:
    if found is None:
        return GridCell("–")
    error = "" if found.error is None else f"±{figure(found.error)}"
    return GridCell(figure(found.mean), spread=error, order=found.mean)


def comparison_page(
    comparison: Comparison, form: Form, command: str = "", columns: Sequence[str] = COLUMNS
) -> str:
    """Returns a whole comparison as one page. `command` is the command that made it."""
    tables = [
        (
            table,
            comparison_grid(f"{number}", table.ranked(), columns),
            measures_parts(f"{number}", table.ranked(), {row.label: row.label for row in table.rows}),
        )
        for number, table in enumerate(comparison.tables)
    ]
    return rendered("comparison", form, comparison=comparison, tables=tables, command=command)


def comparison_grid(key: str, table: ResultTable, columns: Sequence[str] = COLUMNS) -> Grid:
    """Returns the rows of a table in their order, with a bar for each metric."""
    tops = {}
    for column in columns:
        spreads = [row.metrics[column] for row in table.rows if row.metrics and column in row.metrics]
        tops[column] = max((spread.mean + (spread.sd or 0.0) for spread in spreads), default=0.0) or 1.0
    rows: list[tuple[GridCell, ...]] = []
    for row in table.rows:
        name = GridCell(row.label)
        if not row.distinguishable:
            why = f"not significantly different from the best by {table.metric}: p = {row.p:.3f}"
            name = GridCell(f"{row.label} {NOT_DIFFERENT}", hint=why)
        if row.metrics is None:
            rows.append((name, GridCell(f"failed: {row.failure}")))
            continue
        cells = [metric_cell(row, column, tops[column]) for column in columns]
        count = GridCell(str(len(row.seeds)), order=len(row.seeds))
        fit = GridCell(duration(row.fit_seconds), order=row.fit_seconds)
        rows.append((name, *cells, count, fit, GridCell(size(row.memory), order=row.memory)))
    head = ("model", *columns, "seeds", "fit", "memory")
    return Grid(key, head, tuple(rows), legend=legend(table))


def metric_cell(row: Row, metric: str, top: float | None = None, **others: Any) -> GridCell:
    """Returns the cell of a metric, with its deviation. If `top` is given, adds a bar, full at `top`."""
    assert row.metrics is not None
    if metric not in row.metrics:
        return GridCell("–", hint=NOT_STORED)
    spread = row.metrics[metric]
    spread_text = deviation(spread, row.seeds)
    bar = None
    if top is not None:
        sd = (spread.sd or 0.0) if spread_text else 0.0
        ends = (spread.mean, max(0.0, spread.mean - sd), spread.mean + sd)
        bar = (100 * ends[0] / top, 100 * ends[1] / top, 100 * ends[2] / top)
    best = metric in row.best
    return GridCell(figure(spread.mean), best, spread_text, order=spread.mean, bar=bar, **others)
