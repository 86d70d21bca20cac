"""The parts of a reproduction's report: statistics, tables and figures, with the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.studies import figures, paper, plan
from bundlemage.studies.findings import Findings, TableResult
from bundlemage.studies.render import (
    LIKE,
    Grid,
    GridCell,
    dates,
    described,
    duration,
    figure,
    legend,
    measured_beside,
    metric_cell,
)
from bundlemage.studies.standings import Row

NEAR_SHARE, NEAR_FIGURE = 0.05, 0.005
"""Our figure is near the paper's if it differs by at most 5% or .005. Seeds can differ this much."""
NONE = "--"
DATASET_TITLES = {"youshu": "Youshu", "netease": "NetEase", "steam": "Steam", SAMPLE: "the sample shop"}
_SIGNS = {"near": "≈", "above": "▲", "below": "▼"}
_STATISTICS_HEAD = ("", "this data", "the paper", "difference")


def signed(value: float) -> str:
    """Returns a difference with its sign: `+.0012` or `−.0125`. `.0000` has no sign."""
    size = figure(abs(value))
    return size if size == figure(0.0) else f"{'−' if value < 0 else '+'}{size}"


def tone_of(ours: float, theirs: float) -> str:
    """Returns `near`, `above` or `below`: how our figure compares with the paper's."""
    difference = ours - theirs
    if abs(difference) <= max(NEAR_FIGURE, NEAR_SHARE * theirs):
        return "near"
    return "above" if difference > 0 else "below"


# ── Statistics ───────────────────────────────────────────────────────────────────────────────────


def statistics_grid(findings: Findings) -> Grid:
    """Returns the statistics of the data and, if the paper has them, its figures."""
    printed = paper.STATISTICS.get(findings.options.dataset, {})
    rows = []
    for name, title in paper.STATISTICS_TITLES.items():
        ours, theirs = findings.statistics.get(name), printed.get(name)
        difference = _difference(name, ours, theirs)
        rows.append((title, _statistic(name, ours), _statistic(name, theirs), difference))
    return _beside_the_paper("statistics", rows, bool(printed))


def _beside_the_paper(key: str, rows: Sequence[Sequence[str]], printed: bool) -> Grid:
    """A grid of our figures. If `printed`, it also has the paper's figures and the differences."""
    width = 4 if printed else 2
    cells = tuple(tuple(GridCell(text) for text in row[:width]) for row in rows)
    return Grid(key, _STATISTICS_HEAD[:width], cells)


def _statistic(name: str, value: float | None) -> str:
    if value is None:
        return NONE
    if name.endswith("density"):
        return f"{value:.2%}"
    return f"{value:.2f}" if name == "items_per_bundle" else f"{value:,.0f}"


def _difference(name: str, ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return NONE
    digits = 4 if name.endswith("density") else 2
    difference = round(ours, digits) - round(theirs, digits)
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
    one, entries, dataset = result.plan, result.plan.entries, findings.options.dataset
    if result.reason is not None:  # only the paper's figures are known
        own = ("bundlemage", plan.ENSEMBLE)
        entries = tuple(entry for entry in entries if entry.group != "beyond" and entry.name not in own)
    grid, sources = None, []
    if result.reason is None or any(entry.paper for entry in entries):
        rows = [_row(entry, result, NONE if result.reason else "not run") for entry in entries]
        groups: list[str] = [entry.group for entry in entries]
        for published in paper.TABLES[one.key] if one.key == "full-ranking" else ():
            printed = {name: figure(value) for name, value in published.figures(dataset).items()}
            if printed:
                sources.append(f"{published.title}: {published.remark}")
            if printed and not published.contender:
                cells = (GridCell(NONE, beside=printed.get(name, NONE)) for name in one.metrics)
                rows.append((GridCell(published.title, hint=published.remark), *cells, GridCell(NONE)))
                groups.append("published")
        head = ("model", *map(metric_title, one.metrics), "fit")
        times = len(findings.machines(one.task)) <= 1  # seconds from different machines cannot be compared
        if not times:
            head, rows = head[:-1], [row[:-1] for row in rows]
        grid = Grid(one.key, head, tuple(rows), tuple(groups), _legend(result, times))
    return {
        "result": result,
        "grid": grid,
        "sources": sources,
        "remarks": [f"{entry.title}: {entry.remark}." for entry in entries if entry.remark and grid],
        "command": compare_command(result, findings) if result.table else "",
    }


def metric_title(metric: str) -> str:
    """Returns the title of a metric, such as `nDCG@5` for `ndcg@5`."""
    return metric.replace("ndcg", "nDCG").replace("recall", "Recall")


def _row(entry: plan.Entry, result: TableResult, without: str) -> tuple[GridCell, ...]:
    """A row of a table. If there is no result, its cells show `without`."""
    row = result.row(entry.name)
    recipe = plan.recipe_of(entry.name, result.plan.recipes)
    mark = f" {LIKE}" if row is not None and row.metrics and not row.distinguishable else ""
    hint = f"recipe {recipe}" if recipe else "the model's default settings"
    name = GridCell(entry.title + mark, code=recipe or entry.name, hint=hint)
    seconds = row.fit_seconds if row else None
    cells = [_figure_cell(row, metric, entry, result.plan.beside, without) for metric in result.plan.metrics]
    return (name, *cells, GridCell(duration(seconds), order=seconds))


def _figure_cell(row: Row | None, metric: str, entry: plan.Entry, beside: str, without: str) -> GridCell:
    theirs = entry.paper.get(metric)
    shown = NONE * bool(beside) if theirs is None else figure(theirs)
    if row is None:
        return GridCell(without, beside=shown)
    if row.metrics is None:
        return GridCell("failed", beside=shown, hint=row.failure or "")
    if theirs is None:
        return metric_cell(row, metric, beside=shown)
    ours = row.metrics[metric].mean
    tone = tone_of(ours, theirs)
    difference = f"{_SIGNS[tone]} {signed(ours - theirs)}"
    return metric_cell(row, metric, beside=shown, difference=difference, tone=tone)


def _legend(result: TableResult, times: bool) -> str:
    parts = [legend(result.table, times=times)] if result.table else []
    if result.plan.beside:
        whose = "the paper's" if result.plan.beside == "the paper" else "the published"
        parts.append(
            f"Beside ours, {whose} figure ({NONE}: there is none) and the difference: ≈ within "
            f"{NEAR_SHARE:.0%} or {figure(NEAR_FIGURE)} of it, ▲ above, ▼ below."
        )
    return " ".join(parts)


def compare_command(result: TableResult, findings: Findings) -> str:
    """Returns the command that computes the numbers of one table."""
    one, options = result.plan, findings.options
    names = [plan.recipe_of(entry.name, one.recipes) or entry.name for entry in one.entries]
    parts = [f"bundlemage compare {options.shown_part(one.part)} --seeds {options.shown_seeds}"]
    if options.epochs is not None:
        parts[0] += f" --epochs {options.epochs}"
    if one.metric != "ndcg@5":
        parts.append(f"--metric {one.metric} --metrics {','.join(one.metrics)}")
    parts += [f"-m {','.join(names[start : start + 5])}" for start in range(0, len(names), 5)]
    return " \\\n    ".join(parts)


# ── Figures ──────────────────────────────────────────────────────────────────────────────────────


def drawn_figures(findings: Findings) -> list[tuple[figures.Figure, str]]:
    """Returns the figures of a report, each with its caption."""
    if findings.nothing:
        return []
    name = pathak.PARTIAL_NAME if findings.partial else DATASET_TITLES[findings.options.dataset]
    tables = [one for one in findings.tables if one.plan.section in ("matching", "generation") and one.table]
    pictures = []
    if tables:
        bars = {
            one.plan.title: [bar for bar in _plotted(one, findings) if bar.paper or bar.value is not None]
            for one in tables
        }
        drawn = figures.accuracy_bars("ndcg", f"nDCG@5 of every model on {name}", bars)
        caption = "Test nDCG@5 of every model (the paper's Fig. 1a). Whiskers: deviation over seeds."
        pictures.append((drawn, caption))
    if findings.cosines is not None:
        drawn = figures.similarity("similarity", f"Item and bundle preference on {name}", findings.cosines)
        caption = "Cosine similarity of each user's item and bundle preference"
        pictures.append((drawn, f"{caption} (the paper's Fig. “dissimilarity”)."))
    matching = next((one for one in tables if one.plan.task == "matching"), None)
    if matching is None or matching.table is None:
        return pictures
    models = [model for model in _plotted(matching, findings) if model.value is not None]
    if curves := [model for model in models if len(model.curve) > 1]:
        drawn = figures.training_curves("curves", f"Training on {name}", curves)
        caption = "Validation nDCG@5 by epoch, first seed. The dot is the epoch whose weights are tested."
        pictures.append((drawn, caption))
    if len(models) > 1 and len(findings.machines("matching")) == 1:
        drawn = figures.time_and_accuracy("time", f"Training time and accuracy on {name}", models)
        beside = measured_beside(matching.table)
        caption = "Training time and test nDCG@5 of matching."
        pictures.append((drawn, caption + (f" The time was {beside}." if beside else "")))
    return pictures


def _plotted(result: TableResult, findings: Findings) -> list[figures.Plotted]:
    split, seed = result.table.split if result.table else "", findings.options.seeds[0]
    outcomes = {one.label: one for one in findings.outcomes if (one.split, one.seed) == (split, seed)}
    models = []
    for entry in result.plan.entries:
        row = result.row(entry.name)
        spread = row.metrics["ndcg@5"] if row and row.metrics else None
        outcome = outcomes.get(entry.name)
        models.append(
            figures.Plotted(
                label=plan.SHORT_NAMES.get(entry.name, entry.title),
                group=entry.group,
                value=spread.mean if spread else None,
                spread=spread.sd if spread else None,
                paper=entry.paper.get("ndcg@5"),
                seconds=max((row.fit_seconds if row else None) or 0.0, 0.001),
                curve=outcome.curve if outcome else (),
                best_epoch=outcome.best_epoch if outcome else 0,
            )
        )
    return models


# ── How it was made ──────────────────────────────────────────────────────────────────────────────


def how_it_was_made(findings: Findings) -> list[str]:
    """Returns sentences on the machines, the seeds, the data and the failures of a report."""
    lines = [f"Ran on {machine}." for machine in sorted({one.machine for one in findings.outcomes})]
    if findings.options.note:
        lines.append(findings.options.note)
    if findings.outcomes:
        lines.append(f"Measured {dates([one.date for one in findings.outcomes])}.")
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
