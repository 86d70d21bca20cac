"""Writes a report as a folder: an HTML page, the same page in Markdown, the figures and all results."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundlemage import __version__
from bundlemage.data.folders import beside
from bundlemage.errors import ConfigError
from bundlemage.measures.meaning import title as title_of
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.studies import cases, paper
from bundlemage.studies.figures import drawn_figures
from bundlemage.studies.render import (
    NOT_DIFFERENT,
    Grid,
    GridCell,
    dates,
    described,
    duration,
    figure,
    legend,
    measures_parts,
    metric_cell,
    rendered,
    words,
)
from bundlemage.studies.reproduction import (
    DATASET_TITLES,
    ENSEMBLE,
    MEASURED,
    Entry,
    Findings,
    TableResult,
    recipe_of,
)
from bundlemage.studies.standings import Row

FORMAT = "bundlemage-report"
FORMAT_VERSION = 1
RESULTS = "results.json"
NEAR_SHARE, NEAR_FIGURE = 0.05, 0.005
"""Our figure is near the paper's if it differs by at most 5% or .005. Other seeds can change it this much."""
NONE = "--"
_SIGNS = {"near": "≈", "above": "▲", "below": "▼"}
_STATISTICS_HEAD = ("", "this data", "the paper", "difference")


def check_writable(folder: Path) -> None:
    """Raise ConfigError unless `folder` is new, empty or a report. Call this before hours of training."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        try:
            is_report = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            is_report = False
        if not is_report:
            raise ConfigError(
                f"{folder} exists and is not a report, so it is not overwritten; name another folder"
            )
        return
    parent = next(place for place in (folder.parent, *folder.parent.parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {parent}: {error.strerror}") from None


def content(findings: Findings) -> dict[str, Any]:
    """Returns the values that the template of a report shows."""
    dataset = findings.options.dataset
    what = "BundleMage and its rivals on" if dataset == SAMPLE else "BundleMage rebuilt on"
    data = findings.options.shown_part(findings.statistics_part) if findings.statistics else ""
    settings = {
        f"[{outcome.label} on {outcome.dataset}, {outcome.protocol}]": outcome.settings_text()
        for outcome in findings.outcomes
    }
    return {
        "title": f"{what} {DATASET_TITLES[dataset]}",
        "written": f"Written {datetime.now(UTC):%Y-%m-%d} by bundlemage {__version__}.",
        "findings": findings,
        "banners": banners(findings),
        "summary": summary(findings),
        "data": data,
        "place": "the built-in shop" if data == SAMPLE else data,
        "statistics": statistics_grid(findings),
        "bias": bias_grid(findings),
        "tables": [table_part(result, findings) for result in findings.tables],
        "figures": drawn_figures(findings),
        "least_items": cases.LEAST_ITEMS,
        "case_users": cases.USERS,
        "how": how_it_was_made(findings),
        "command": reproduce_command(findings),
        "settings": "\n\n".join(f"{title}\n{text}" for title, text in settings.items()),
    }


def write_report(findings: Findings, folder: Path) -> list[str]:
    """Write a report and return the names of its figures. It replaces an earlier report completely."""
    check_writable(folder)
    shown = content(findings)
    results = json.dumps(results_of(findings), ensure_ascii=False, indent=1, allow_nan=False)
    files = {
        "index.html": rendered("report", "html", **shown),
        "report.md": rendered("report", "markdown", **shown),
        RESULTS: results + "\n",
        **{f"figures/{drawn.name}.svg": drawn.file for drawn, _ in shown["figures"]},
    }
    with beside(folder.absolute()) as building:
        (building / "figures").mkdir()
        for name, text in files.items():
            (building / name).write_text(text, encoding="utf-8")
        for drawn, _ in shown["figures"]:
            (building / "figures" / f"{drawn.name}.png").write_bytes(drawn.png)
    return [drawn.name for drawn, _ in shown["figures"]]


def results_of(findings: Findings) -> dict[str, Any]:
    """Returns everything that the page shows, as plain values for programs."""
    cosines = findings.cosines
    known = None if cosines is None else cosines[~(cosines != cosines)]
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dataset": findings.options.dataset,
        "command": reproduce_command(findings),
        "bundlemage": __version__,
        "seeds": findings.options.seeds,
        "epochs": findings.options.epochs,
        "summary": summary(findings),
        "statistics": findings.statistics,
        "popularity_bias": None if findings.bias is None or math.isnan(findings.bias) else findings.bias,
        "similarity": None if known is None else {"users": len(known), "mean": float(known.mean())},
        "tables": [_table(result, findings) for result in findings.tables],
        "cases": [asdict(result) for result in findings.cases],
        "missing": [asdict(missing) for missing in findings.missing],
        "outcomes": [outcome.to_json() for outcome in findings.outcomes],
        "failures": findings.failures,
    }


def _table(result: TableResult, findings: Findings) -> dict[str, Any]:
    plan = result.plan
    rows = []
    for entry in plan.entries:
        row = result.row(entry.name)
        ours = {name: asdict(row.metrics[name]) for name in plan.metrics} if row and row.metrics else None
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "ours": ours,
                "paper": {name: entry.paper.get(name) for name in plan.metrics},
                "seeds": row.seeds if row else [],
                "p": row and row.p,
                "lists": asdict(row.lists) if row and row.lists else None,
                "failure": row and row.failure,
            }
        )
    return {
        **{name: getattr(plan, name) for name in ("key", "title", "part", "task")},
        "reason": result.reason,
        "cases": result.table.cases if result.table else None,
        "command": compare_command(result, findings) if result.table else None,
        "rows": rows,
        "slices": [way.to_json() for way in result.table.slices] if result.table else [],
    }


# ── Summary ──────────────────────────────────────────────────────────────────────────────────────


def banners(findings: Findings) -> tuple[str, ...]:
    """Returns the warnings that a reader must see first."""
    lines = []
    if findings.options.epochs is not None:
        lines.append(
            f"A trial: every model was trained for at most {findings.options.epochs} epochs, so the "
            "results do not show how good it can be."
        )
    if findings.options.dataset == SAMPLE:
        lines.append("The sample shop is generated: it shows how things work, not how real shops behave.")
    if findings.partial:
        lines.append(
            f"The data is {pathak.PARTIAL_NAME}, not the paper's Steam: the list of games that each user "
            "owns is reconstructed. So the results are not compared with the paper's."
        )
    if findings.no_data:
        lines.append(
            "The data's folder has no data that can be read: this report shows only the paper's figures."
        )
    return tuple(lines)


def summary(findings: Findings) -> tuple[str, ...]:
    """Returns sentences about the best models, the distance to the paper's figures and missing files."""
    lines = [_table_summary(result) for result in findings.tables if result.table]
    pairs = [
        (f"{title} in {result.plan.title.lower()}", ours, published)
        for result in findings.tables
        if result.plan.beside == "the paper"
        for title, ours, published in _compared_rows(result)
    ]
    far = [pair for pair in pairs if tone_of(*pair[1:]) != "near"]
    far.sort(key=lambda pair: -abs(pair[1] - pair[2]))
    if far:
        rows = [
            f"{title} ({figure(ours)} against {figure(published)}, {signed(ours - published)})"
            for title, ours, published in far[:3]
        ]
        lines.append(f"Furthest from the paper: {words(rows)}.")
    elif pairs:
        lines.append("No row is far from the paper's figure.")
    impossible = [result.plan.title for result in findings.tables if result.reason is not None]
    if impossible:
        lines.append(f"Not possible with the available files: {words(impossible)}.")
    if findings.missing:
        lines.append(
            f"Missing: {words([missing.part for missing in findings.missing])} (see “Missing files”)."
        )
    return tuple(lines)


def _table_summary(result: TableResult) -> str:
    plan = result.plan
    values = {
        entry.title: row.metrics[plan.metric].mean
        for entry in plan.entries
        if (row := result.row(entry.name)) and row.metrics
    }
    best = max(values, key=lambda title: values[title])
    line = f"{plan.title}: {best} is best with {title_of(plan.metric)} {figure(values[best])}"
    line += f" of {len(values)} models run"
    if missing := len(plan.entries) - len(values):
        line += f" ({missing} not run)"
    if tones := [tone_of(ours, published) for _, ours, published in _compared_rows(result)]:
        near, above, below = (tones.count(tone) for tone in ("near", "above", "below"))
        whose = "the paper's" if plan.beside == "the paper" else "the published"
        line += f". Rows with {whose} figure: {near} near it, {above} above, {below} below"
    return line + "."


def _compared_rows(result: TableResult) -> list[tuple[str, float, float]]:
    """Returns the title, our figure and the published figure of each row that has both."""
    metric = result.plan.metric
    return [
        (entry.title, row.metrics[metric].mean, entry.paper[metric])
        for entry in result.plan.entries
        if entry.paper.get(metric) and (row := result.row(entry.name)) and row.metrics
    ]


def signed(value: float) -> str:
    """Returns a difference with its sign: `+.0012` or `−.0125`. `.0000` has no sign."""
    size = figure(abs(value))
    return size if size == figure(0.0) else f"{'−' if value < 0 else '+'}{size}"


def tone_of(ours: float, published: float) -> str:
    """Returns `near`, `above` or `below`: how our figure compares with the paper's."""
    difference = ours - published
    if abs(difference) <= max(NEAR_FIGURE, NEAR_SHARE * published):
        return "near"
    return "above" if difference > 0 else "below"


# ── Statistics ───────────────────────────────────────────────────────────────────────────────────


def statistics_grid(findings: Findings) -> Grid:
    """Returns the statistics of the data and, if the paper has them, its figures."""
    printed = paper.STATISTICS.get(findings.options.dataset, {})
    rows = []
    for name, title in paper.STATISTICS_TITLES.items():
        ours, published = findings.statistics.get(name), printed.get(name)
        difference = _difference(name, ours, published)
        rows.append((title, _statistic(name, ours), _statistic(name, published), difference))
    return _beside_the_paper("statistics", rows, bool(printed))


def _beside_the_paper(key: str, rows: Sequence[Sequence[str]], printed: bool) -> Grid:
    """Returns a grid of our figures. If `printed`, it also has the paper's figures and the differences."""
    width = 4 if printed else 2
    cells = tuple(tuple(GridCell(text) for text in row[:width]) for row in rows)
    return Grid(key, _STATISTICS_HEAD[:width], cells)


def _statistic(name: str, value: float | None) -> str:
    if value is None:
        return NONE
    if name.endswith("density"):
        return f"{value:.2%}"
    return f"{value:.2f}" if name == "items_per_bundle" else f"{value:,.0f}"


def _difference(name: str, ours: float | None, published: float | None) -> str:
    if ours is None or published is None:
        return NONE
    digits = 4 if name.endswith("density") else 2
    difference = round(ours, digits) - round(published, digits)
    if abs(difference) < 10**-digits / 2:
        return "none"
    return ("−" if difference < 0 else "+") + _statistic(name, abs(difference))


def bias_grid(findings: Findings) -> Grid:
    """Returns the popularity bias of the data and, if the paper has it, its figure."""
    ours, printed = findings.bias, paper.POPULARITY_BIAS.get(findings.options.dataset)
    difference = NONE
    if ours is not None and printed is not None:
        difference = f"{ours - printed:+.2%}".replace("-", "−")
    shares = [NONE if share is None else f"{share:.2%}" for share in (ours, printed)]
    row = ("mean rank of the items in bundles", *shares, difference)
    return _beside_the_paper("bias", [row], printed is not None)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────


def table_part(result: TableResult, findings: Findings) -> dict[str, Any]:
    """Returns the values that the report shows for a table: grid, sources, remarks and command."""
    plan, entries, dataset = result.plan, result.plan.entries, findings.options.dataset
    if result.reason is not None:  # only the paper's figures are known
        own = ("bundlemage", ENSEMBLE)
        entries = tuple(entry for entry in entries if entry.group != "beyond" and entry.name not in own)
    grid, sources = None, []
    if result.reason is None or any(entry.paper for entry in entries):
        rows = [_row(entry, result, NONE if result.reason else "not run") for entry in entries]
        groups: list[str] = [entry.group for entry in entries]
        for published in paper.TABLES[plan.key] if plan.key == "full-ranking" else ():
            printed = {name: figure(value) for name, value in published.figures(dataset).items()}
            if printed:
                sources.append(f"{published.title}: {published.remark}")
            if printed and not published.contender:
                cells = (GridCell(NONE, beside=printed.get(name, NONE)) for name in plan.metrics)
                rows.append((GridCell(published.title, hint=published.remark), *cells, GridCell(NONE)))
                groups.append("published")
        head = ("model", *map(title_of, plan.metrics), "fit")
        times = len(findings.machines(plan.task)) <= 1  # seconds from different machines cannot be compared
        if not times:
            head, rows = head[:-1], [row[:-1] for row in rows]
        legends = [legend(result.table, times=times)] if result.table else []
        if plan.beside:
            whose = "the paper's" if plan.beside == "the paper" else "the published"
            legends.append(
                f"Beside our figure: {whose} figure ({NONE}: none) and the difference (≈ within "
                f"{NEAR_SHARE:.0%} or {figure(NEAR_FIGURE)}, ▲ above, ▼ below)."
            )
        grid = Grid(plan.key, head, tuple(rows), tuple(groups), " ".join(legends))
    titles = {entry.name: entry.title for entry in plan.entries}
    return {
        "result": result,
        "grid": grid,
        "sources": sources,
        "remarks": [f"{entry.title}: {entry.remark}." for entry in entries if entry.remark and grid],
        "command": compare_command(result, findings) if result.table else "",
        "measures": measures_parts(plan.key, result.table, titles) if plan.section in MEASURED else [],
    }


def _row(entry: Entry, result: TableResult, without: str) -> tuple[GridCell, ...]:
    """Returns a row of a table. If there is no result, its cells show `without`."""
    row = result.row(entry.name)
    recipe = recipe_of(entry.name, result.plan.recipes)
    mark = f" {NOT_DIFFERENT}" if row is not None and row.metrics and not row.distinguishable else ""
    hint = f"recipe {recipe}" if recipe else "the model's default settings"
    name = GridCell(entry.title + mark, code=recipe or entry.name, hint=hint)
    seconds = row.fit_seconds if row else None
    cells = [_figure_cell(row, metric, entry, result.plan.beside, without) for metric in result.plan.metrics]
    return (name, *cells, GridCell(duration(seconds), order=seconds))


def _figure_cell(row: Row | None, metric: str, entry: Entry, beside: str, without: str) -> GridCell:
    published = entry.paper.get(metric)
    shown = NONE * bool(beside) if published is None else figure(published)
    if row is None:
        return GridCell(without, beside=shown)
    if row.metrics is None:
        return GridCell("failed", beside=shown, hint=row.failure or "")
    if published is None:
        return metric_cell(row, metric, beside=shown)
    ours = row.metrics[metric].mean
    tone = tone_of(ours, published)
    difference = f"{_SIGNS[tone]} {signed(ours - published)}"
    return metric_cell(row, metric, beside=shown, difference=difference, tone=tone)


def compare_command(result: TableResult, findings: Findings) -> str:
    """Returns the command that computes the numbers of one table."""
    plan, options = result.plan, findings.options
    names = [recipe_of(entry.name, plan.recipes) or entry.name for entry in plan.entries]
    parts = [f"bundlemage compare {options.shown_part(plan.part)} --seeds {options.shown_seeds}"]
    if options.epochs is not None:
        parts[0] += f" --epochs {options.epochs}"
    if plan.metric != "ndcg@5":
        parts.append(f"--metric {plan.metric} --metrics {','.join(plan.metrics)}")
    parts += [f"-m {','.join(names[start : start + 5])}" for start in range(0, len(names), 5)]
    return " \\\n    ".join(parts)


def how_it_was_made(findings: Findings) -> list[str]:
    """Returns sentences on the machines, the seeds, the data and the failures of a report."""
    lines = [f"Ran on {machine}." for machine in sorted({outcome.machine for outcome in findings.outcomes})]
    if findings.options.note:
        lines.append(findings.options.note)
    if findings.outcomes:
        lines.append(f"Measured {dates([outcome.date for outcome in findings.outcomes])}.")
    lines.append(f"Seeds of the training: {findings.options.shown_seeds}. The splits are always the same.")
    lines += [f"{facts.name}, {facts.protocol}: {described(facts)}" for facts in findings.facts]
    notes = dict.fromkeys(note for facts in findings.facts for note in facts.notes)
    lines += [f"Note: {note}" for note in notes]
    return lines + [f"Failed: {what}: {message}" for what, message in findings.failures.items()]


def reproduce_command(findings: Findings) -> str:
    """Returns the command that makes the report."""
    options = findings.options
    parts = [f"bundlemage reproduce {options.dataset}"]
    if options.folder is not None:
        parts.append(f"--data {options.shown_folder}")
    parts.append(f"-o REPORT --seeds {options.shown_seeds}")
    if options.epochs is not None:
        parts.append(f"--epochs {options.epochs}")
    parts += [f"--skip {name}" for name in options.skip]
    return " ".join(parts) + " --only-cached" * options.only_cached
