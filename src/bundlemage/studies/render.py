"""A comparison as Markdown and as a page. `markdown_table` and `html_table` are for other reports, too."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bundlemage.studies.comparison import Comparison, DataFacts, Row, Spread, Table
from bundlemage.studies.standings import LEVEL
from bundlemage.studies.style import SCRIPT, STYLE

COLUMNS = ("ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@10", "recall@20")
QUESTIONS = {
    "matching": "Which bundle did the user take next?",
    "generation": "Which items complete the bundle?",
}
HOW_TO_READ = "Bars begin at 0, with one standard deviation to each side dark. Select a head to sort by it."
LIKE = "†"
"""Marks a row that cannot be told from the leading one."""


# ── Figures ──────────────────────────────────────────────────────────────────────────────────────


def figure(value: float) -> str:
    """Four digits after the point, and none before it that says nothing: `.5073`."""
    text = f"{value:.4f}"
    return text[1:] if text.startswith("0.") else text


def deviation(spread: Spread, seeds: Sequence[int]) -> str:
    """`±.0008`; nothing for a single run."""
    return f"±{figure(spread.sd)}" if spread.sd is not None and len(seeds) > 1 else ""


def duration(seconds: float | None) -> str:
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
    if count is None:
        return "–"
    if count < 2**19:
        return "<1 MB"
    return f"{count / 2**20:,.0f} MB" if count < 2**30 else f"{count / 2**30:,.1f} GB"


def heading(table: Table) -> str:
    return f"{table.dataset}, {table.protocol}: {table.task}"


def legend(table: Table, *, times: bool = True) -> str:
    """What bold and the mark mean, as plain text, and how far to trust the times where they are shown."""
    seeds = max(len(row.seeds) for row in table.rows)
    parts = ["Bold: the best of a column."]
    if seeds > 1:
        parts.append(f"±: standard deviation over {seeds} seeds.")
    if any(not row.distinguishable for row in table.rows):
        level = f"{LEVEL:g}".removeprefix("0")
        together = ", those of one bundle taken together" if table.task == "generation" else ""
        averaged = ", values averaged over the seeds" if seeds > 1 else ""
        parts.append(
            f"{LIKE}: cannot be told from the best by {table.metric} "
            f"(paired t-test over {table.cases:,} cases{together}{averaged}; Holm-corrected, p ≥ {level})."
        )
    if times and (beside := measured_beside(table)):
        parts.append(f"fit: {beside}.")
    return " ".join(parts)


def measured_beside(table: Table) -> str:
    """How the seconds of a table were measured; nothing if each run had the machine to itself."""
    jobs = sorted({count for row in table.rows for count in row.jobs})
    if not jobs or jobs == [1]:
        return ""
    count = f"{jobs[0]} to {jobs[-1]}" if len(jobs) > 1 else f"{jobs[0]}"
    return f"measured with {count} runs at a time, so it is no measure of speed"


def described(facts: DataFacts) -> str:
    """A split in a sentence."""
    asked = [f"{facts.matching_cases:,} matching"] * bool(facts.matching_cases)
    asked += [f"{facts.generation_cases:,} generation"] * bool(facts.generation_cases)
    return (
        f"{facts.users:,} users, {facts.bundles:,} bundles, {facts.items:,} items; "
        f"{facts.user_bundle_pairs:,} user-bundle ({facts.training_pairs:,} to learn from), "
        f"{facts.user_item_pairs:,} user-item and {facts.bundle_item_pairs:,} bundle-item pairs; "
        f"{' and '.join(asked)} cases to test on."
    )


def hardware(comparison: Comparison) -> list[str]:
    """Every device that an outcome came from, with the versions in use there."""
    found = {
        f"{one.device}; BundleMage {one.version}, PyTorch {one.torch}": None for one in comparison.outcomes
    }
    return list(found)


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def markdown_table(table: Table, columns: Sequence[str] = COLUMNS) -> str:
    """The rows in their order; bold, ± and ≈ as `legend` says."""
    heads = ["model", *columns, "seeds", "fit", "memory"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for row in table.rows:
        name = _quoted(row.label) + f" {LIKE}" * (not row.distinguishable)
        if row.metrics is None:
            lines.append(_line([name, f"failed: {_quoted(row.failure or '')}", *[""] * (len(heads) - 2)]))
            continue
        cells = [_markdown_cell(row, column) for column in columns]
        lines.append(
            _line(
                [
                    name,
                    *cells,
                    str(len(row.seeds)),
                    *map(_quoted, (duration(row.fit_seconds), size(row.memory))),
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(row: Row, column: str) -> str:
    assert row.metrics is not None
    spread = row.metrics[column]
    shown = f"**{figure(spread.mean)}**" if column in row.best else figure(spread.mean)
    return f"{shown} {deviation(spread, row.seeds)}".strip()


def _quoted(text: str) -> str:
    """Text that is not ours, so that nothing in it is taken for Markdown or HTML."""
    one_line = escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|~" else letter for letter in one_line)


def markdown(comparison: Comparison, command: str = "", columns: Sequence[str] = COLUMNS) -> str:
    """The whole comparison."""
    parts = ["# Models compared"]
    if command:
        parts.append(f"```sh\n{command}\n```")
    for table in comparison.tables:
        parts += [f"## {_quoted(heading(table))}", f"{QUESTIONS[table.task]} {table.cases:,} cases."]
        parts += [markdown_table(table.ranked(), columns).rstrip(), legend(table)]
    parts.append("## Data")
    for facts in comparison.data:
        parts.append(f"**{_quoted(f'{facts.name}, {facts.protocol}')}**: {described(facts)}")
        parts += [f"Note: {_quoted(note)}" for note in facts.notes]
    if comparison.skipped:
        parts.append("## Not asked")
        parts.append("\n".join(f"- {_quoted(_skipped(missing))}" for missing in comparison.skipped))
    parts += ["## Hardware", "\n".join(f"- {_quoted(line)}" for line in hardware(comparison))]
    return "\n\n".join(parts) + "\n"


def _skipped(missing: Any) -> str:
    return f"{missing.label} on {missing.dataset}, {missing.protocol}: {missing.message}"


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────


def html_table(table: Table, columns: Sequence[str] = COLUMNS) -> str:
    """A sortable table with a bar and a whisker in each cell; the page around it has STYLE and SCRIPT."""
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(head)}</button></th>'
        for head in ("model", *columns, "seeds", "fit", "memory")
    )
    top = {column: _top(table, column) for column in columns}
    rows = "\n".join(_html_row(table, row, columns, top) for row in table.rows)
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _top(table: Table, column: str) -> float:
    """What a full bar stands for."""
    found = [row.metrics[column] for row in table.rows if row.metrics]
    return max((spread.mean + (spread.sd or 0.0) for spread in found), default=0.0) or 1.0


def _html_row(table: Table, row: Row, columns: Sequence[str], top: dict[str, float]) -> str:
    label = escape(row.label)
    if row.metrics is None:
        message = escape(row.failure or "")
        name = f'<th scope="row" data-sort="{label}">{label}</th>'
        return f'<tr>{name}<td class="failed" colspan="{len(columns) + 3}">failed: {message}</td></tr>'
    mark = ""
    if not row.distinguishable:
        why = f"cannot be told from the best by {table.metric}: p = {row.p:.3f}"
        mark = f' <span class="like" title="{escape(why)}">{LIKE}</span>'
    cells = "".join(_html_cell(row, column, top[column]) for column in columns)
    return (
        f'<tr><th scope="row" data-sort="{label}">{label}{mark}</th>{cells}'
        f'<td data-sort="{len(row.seeds)}">{len(row.seeds)}</td>'
        f"{_sorted_by(row.fit_seconds)}{escape(duration(row.fit_seconds))}</td>"
        f"{_sorted_by(row.memory)}{escape(size(row.memory))}</td></tr>"
    )


def _sorted_by(value: float | None) -> str:
    return "<td>" if value is None else f'<td data-sort="{value}">'


def _html_cell(row: Row, column: str, top: float) -> str:
    assert row.metrics is not None
    spread = row.metrics[column]
    best = column in row.best
    shown = f"<strong>{figure(spread.mean)}</strong>" if best else figure(spread.mean)
    spreading = deviation(spread, row.seeds)
    whisker = ""
    if spreading and spread.sd is not None:
        left, right = max(0.0, spread.mean - spread.sd) / top, (spread.mean + spread.sd) / top
        whisker = f'<b style="left:{left:.2%};width:{right - left:.2%}"></b>'
    bar = f'<i style="width:{spread.mean / top:.2%}"></i>{whisker}'
    return (
        f'<td data-sort="{spread.mean:.6f}"{" class=best" * best}>{shown}'
        f"{f' <span class=sd>{spreading}</span>' * bool(spreading)}"
        f'<span class="bar" aria-hidden="true">{bar}</span></td>'
    )


def html(
    comparison: Comparison,
    command: str = "",
    title: str = "Models compared",
    columns: Sequence[str] = COLUMNS,
) -> str:
    """The whole comparison as one page that needs nothing else."""
    parts = [f"<h1>{escape(title)}</h1>"]
    dates = sorted(outcome.date for outcome in comparison.outcomes)
    if dates:
        parts.append(f'<p class="soft">{_when(dates)}. {HOW_TO_READ}</p>')
    if command:
        parts.append(f"<pre>{escape(command)}</pre>")
    for table in comparison.tables:
        parts.append(f"<h2>{escape(heading(table))}</h2>")
        parts.append(f'<p class="soft">{QUESTIONS[table.task]} {table.cases:,} cases.</p>')
        parts += [html_table(table.ranked(), columns), f'<p class="legend">{escape(legend(table))}</p>']
    parts += _html_data(comparison) + _html_settings(comparison)
    parts.append("<h2>Hardware</h2>")
    parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in hardware(comparison)) + "</ul>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _when(dates: Sequence[str]) -> str:
    first, last = dates[0][:10], dates[-1][:10]
    return f"Measured on {first}" if first == last else f"Measured from {first} to {last}"


def _html_data(comparison: Comparison) -> list[str]:
    parts = ["<h2>Data</h2>"]
    for facts in comparison.data:
        name = escape(f"{facts.name}, {facts.protocol}")
        parts.append(f"<p><strong>{name}</strong>: {escape(described(facts))}</p>")
        parts += [f'<p class="soft">Note: {escape(note)}</p>' for note in facts.notes]
    if comparison.skipped:
        lines = "".join(f"<li>{escape(_skipped(missing))}</li>" for missing in comparison.skipped)
        parts += ["<h2>Not asked</h2>", f"<ul>{lines}</ul>"]
    return parts


def _html_settings(comparison: Comparison) -> list[str]:
    """Every setting of every contender, folded away."""
    shown = {}
    for outcome in comparison.outcomes:
        lines = "\n".join(f"{key} = {value!r}" for key, value in outcome.shown_settings.items()) or "none"
        shown[outcome.label] = (
            f"<details><summary>{escape(outcome.label)}</summary>"
            f"<pre>{escape(f'model {outcome.model}')}\n{escape(lines)}</pre></details>"
        )
    return ["<h2>Settings</h2>", *shown.values()] if shown else []
