"""A report as a folder: a page, the same in Markdown, the figures and all results."""

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
from bundlemage.readers.load import SAMPLE
from bundlemage.studies import document, sections, summary
from bundlemage.studies.document import Document, Points, Text
from bundlemage.studies.figure_sections import DATASET_TITLES
from bundlemage.studies.findings import Findings, FoundTable

FORMAT = "bundlemage-report"
FORMAT_VERSION = 1
RESULTS = "results.json"


def check_writable(folder: Path) -> None:
    """Refuse, before hours of work, to replace anything but a report or an empty folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        try:
            ours = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise ConfigError(
                f"{folder} is there and is not a report, so it is not overwritten; name another"
            )
        return
    parent = next(place for place in (folder.parent, *folder.parent.parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {parent}: {error.strerror}") from None


def build(findings: Findings) -> Document:
    dataset = findings.wishes.dataset
    name = DATASET_TITLES[dataset]
    what = "BundleMage and its rivals on" if dataset == SAMPLE else "BundleMage rebuilt on"
    lines = summary.summary(findings)
    made = datetime.now(UTC).strftime("%Y-%m-%d")
    return Document(
        title=f"{what} {name}",
        subtitle=(
            "Every table and figure of “Accurate Bundle Matching and Generation via Multitask Learning with "
            "Partially Shared Parameters” (PLoS ONE 2023), rebuilt. "
            f"Written {made} by bundlemage {__version__}."
        ),
        banners=summary.banners(findings),
        summary=(Points(lines),) if lines else (Text("Nothing was run."),),
        sections=sections.sections(findings),
    )


def write_report(findings: Findings, folder: Path) -> Document:
    """Write the folder beside its place, then give it its name: it is there whole, or as it was."""
    check_writable(folder)
    made = build(findings)
    folder = folder.absolute()
    with beside(folder) as building:
        _write(made, findings, building)
    return made


def _write(made: Document, findings: Findings, folder: Path) -> None:
    (folder / "figures").mkdir()
    for figure in made.figures():
        (folder / "figures" / f"{figure.name}.svg").write_text(figure.file, encoding="utf-8")
        (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    (folder / "index.html").write_text(document.html(made), encoding="utf-8")
    (folder / "report.md").write_text(document.markdown(made), encoding="utf-8")
    results = json.dumps(results_of(findings), ensure_ascii=False, indent=1, allow_nan=False)
    (folder / RESULTS).write_text(results + "\n", encoding="utf-8")


def results_of(findings: Findings) -> dict[str, Any]:
    """Everything that the page shows, for programs."""
    cosines = findings.cosines
    known = None if cosines is None else cosines[~(cosines != cosines)]
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dataset": findings.wishes.dataset,
        "command": sections.reproduce_command(findings),
        "bundlemage": __version__,
        "seeds": list(findings.wishes.seeds),
        "epochs": findings.wishes.epochs,
        "summary": list(summary.summary(findings)),
        "statistics": dict(findings.statistics),
        "popularity_bias": None if findings.bias is None or math.isnan(findings.bias) else findings.bias,
        "similarity": None if known is None else {"users": len(known), "mean": float(known.mean())},
        "tables": [_table(found, findings) for found in findings.tables],
        "cases": [
            {
                "dataset": found.dataset,
                "study": found.study.to_json() if found.study else None,
                "reason": found.reason,
            }
            for found in findings.cases
        ],
        "missing": [asdict(missing) for missing in findings.missing],
        "outcomes": [outcome.to_json() for outcome in findings.outcomes],
        "failures": dict(findings.failures),
    }


def _table(found: FoundTable, findings: Findings) -> dict[str, Any]:
    one = found.plan
    rows = []
    for entry in one.entries:
        row = (
            next((row for row in found.table.rows if row.label == entry.name), None) if found.table else None
        )
        ours = {name: asdict(row.metrics[name]) for name in one.metrics} if row and row.metrics else None
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "ours": ours,
                "paper": {name: entry.paper.get(name) for name in one.metrics},
                "seeds": list(row.seeds) if row else [],
                "p": row.p if row else None,
                "failure": row.failure if row else None,
            }
        )
    return {
        "key": one.key,
        "title": one.title,
        "part": one.part,
        "task": one.task,
        "reason": found.reason,
        "cases": found.table.cases if found.table else None,
        "command": sections.compare_command(found, findings) if found.table else None,
        "rows": rows,
    }
