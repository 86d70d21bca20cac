"""Writes a report as a folder: an HTML page, the same page in Markdown, the figures and all results."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundlemage import __version__
from bundlemage.data.folders import beside
from bundlemage.errors import ConfigError
from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.studies import cases, sections
from bundlemage.studies.findings import Findings, TableResult
from bundlemage.studies.render import figure, rendered, words
from bundlemage.studies.sections import compare_command, metric_title, reproduce_command, signed, tone_of

FORMAT = "bundlemage-report"
FORMAT_VERSION = 1
RESULTS = "results.json"


def check_writable(folder: Path) -> None:
    """Raise ConfigError unless `folder` is new, empty or a report. Call this before hours of training."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        try:
            ours = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
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
        f"[{one.label} on {one.dataset}, {one.protocol}]": one.settings_text() for one in findings.outcomes
    }
    return {
        "title": f"{what} {sections.DATASET_TITLES[dataset]}",
        "written": f"Written {datetime.now(UTC):%Y-%m-%d} by bundlemage {__version__}.",
        "findings": findings,
        "banners": banners(findings),
        "summary": summary(findings),
        "data": data,
        "place": "the built-in shop" if data == SAMPLE else data,
        "statistics": sections.statistics_grid(findings),
        "bias": sections.bias_grid(findings),
        "tables": [sections.table_part(result, findings) for result in findings.tables],
        "figures": sections.drawn_figures(findings),
        "least_items": cases.LEAST_ITEMS,
        "case_users": cases.USERS,
        "how": sections.how_it_was_made(findings),
        "command": sections.reproduce_command(findings),
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
    """Returns everything that the page shows as plain values, for programs."""
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
    one = result.plan
    rows = []
    for entry in one.entries:
        row = result.row(entry.name)
        ours = {name: asdict(row.metrics[name]) for name in one.metrics} if row and row.metrics else None
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "ours": ours,
                "paper": {name: entry.paper.get(name) for name in one.metrics},
                "seeds": row.seeds if row else [],
                "p": row and row.p,
                "failure": row and row.failure,
            }
        )
    return {
        **{name: getattr(one, name) for name in ("key", "title", "part", "task")},
        "reason": result.reason,
        "cases": result.table.cases if result.table else None,
        "command": compare_command(result, findings) if result.table else None,
        "rows": rows,
    }


# ── Summary ──────────────────────────────────────────────────────────────────────────────────────


def banners(findings: Findings) -> tuple[str, ...]:
    """Returns the warnings that a reader must see first."""
    lines = []
    if findings.options.epochs is not None:
        lines.append(
            f"A trial: every model was trained for at most {findings.options.epochs} epochs, so its figures "
            "do not show how good it can be."
        )
    if findings.options.dataset == SAMPLE:
        lines.append("The sample shop is generated: it shows how things work, not how real shops behave.")
    if findings.partial:
        lines.append(
            f"What is measured here is {pathak.PARTIAL_NAME}, not the paper's Steam: who owns which game is "
            "reconstructed, so none of its figures stands beside the paper's."
        )
    if findings.nothing:
        lines.append(
            "The data's folder has no data that can be read: this report shows only the paper's figures."
        )
    return tuple(lines)


def summary(findings: Findings) -> tuple[str, ...]:
    """Returns some sentences on the best models, the distance to the paper's figures and missing files."""
    lines = [_of_table(result) for result in findings.tables if result.table]
    pairs = [
        (f"{title} in {result.plan.title.lower()}", ours, theirs)
        for result in findings.tables
        if result.plan.beside == "the paper"
        for title, ours, theirs in _beside(result)
    ]
    far = [pair for pair in pairs if tone_of(*pair[1:]) != "near"]
    far.sort(key=lambda pair: -abs(pair[1] - pair[2]))
    if far:
        rows = [
            f"{title} ({figure(ours)} against {figure(theirs)}, {signed(ours - theirs)})"
            for title, ours, theirs in far[:3]
        ]
        lines.append(f"Furthest from the paper: {words(rows)}.")
    elif pairs:
        lines.append("No row is far from the paper's figure.")
    impossible = [result.plan.title for result in findings.tables if result.reason is not None]
    if impossible:
        lines.append(f"Not possible with the files that are here: {words(impossible)}.")
    if findings.missing:
        lines.append(
            f"Missing: {words([missing.part for missing in findings.missing])} (see “Missing files”)."
        )
    return tuple(lines)


def _of_table(result: TableResult) -> str:
    one = result.plan
    values = {
        entry.title: row.metrics[one.metric].mean
        for entry in one.entries
        if (row := result.row(entry.name)) and row.metrics
    }
    best = max(values, key=lambda title: values[title])
    line = f"{one.title}: {best} is best with {metric_title(one.metric)} {figure(values[best])}"
    line += f" of {len(values)} models run"
    if missing := len(one.entries) - len(values):
        line += f" ({missing} not run)"
    if tones := [tone_of(ours, theirs) for _, ours, theirs in _beside(result)]:
        near, above, below = (tones.count(tone) for tone in ("near", "above", "below"))
        whose = "the paper's" if one.beside == "the paper" else "the published"
        line += f". Rows with {whose} figure: {near} near it, {above} above, {below} below"
    return line + "."


def _beside(result: TableResult) -> list[tuple[str, float, float]]:
    """Rows that have a published figure: title, our figure, published figure."""
    metric = result.plan.metric
    return [
        (entry.title, row.metrics[metric].mean, entry.paper[metric])
        for entry in result.plan.entries
        if entry.paper.get(metric) and (row := result.row(entry.name)) and row.metrics
    ]
