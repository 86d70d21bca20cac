"""The figures of a report, drawn from what was found."""

from __future__ import annotations

from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.studies import figures, plan
from bundlemage.studies.document import Block, Picture, Section
from bundlemage.studies.findings import Findings, FoundTable
from bundlemage.studies.render import measured_beside

DATASET_TITLES = {"youshu": "Youshu", "netease": "NetEase", "steam": "Steam", SAMPLE: "the sample shop"}


def figure_section(findings: Findings) -> Section:
    name = pathak.PARTIAL_NAME if findings.partial else DATASET_TITLES[findings.wishes.dataset]
    tables = {
        found.plan.key: found
        for found in findings.tables
        if found.plan.section in ("matching", "generation") and (found.table or not found.reason)
    }
    bars = {found.plan.title: _bars(found) for found in tables.values() if found.table}
    blocks: list[Block] = []
    if bars:
        drawn = figures.accuracy_bars("ndcg", f"nDCG@5 of every model on {name}", bars)
        blocks.append(Picture(drawn, "Test nDCG@5 of every model (the paper's Fig. 1a). Whiskers: seeds."))
    if findings.cosines is not None:
        drawn = figures.similarity("similarity", f"Item and bundle preference on {name}", findings.cosines)
        caption = (
            "Cosine similarity of each user's item and bundle preference (the paper's Fig. “dissimilarity”)."
        )
        blocks.append(Picture(drawn, caption))
    titles = {entry.name: entry for found in tables.values() for entry in found.plan.entries}
    curves = [
        figures.Curve(
            _short(titles[one.label]), titles[one.label].group, one.epochs, one.values, one.best_epoch
        )
        for one in findings.curves
        if one.label in titles and len(one.epochs) > 1
    ]
    if curves:
        drawn = figures.training_curves("curves", f"Training on {name}", curves)
        caption = "Validation nDCG@5 by epoch, first seed. The dot is the epoch whose weights are tested."
        blocks.append(Picture(drawn, caption))
    timed = next((found for found in tables.values() if found.plan.task == "matching"), None)
    points = _points(timed)
    machines = {outcome.device for outcome in findings.outcomes if outcome.matching is not None}
    if len(points) > 1 and len(machines) == 1:  # seconds of different machines do not compare
        drawn = figures.time_and_accuracy("time", f"Training time and accuracy on {name}", points)
        caption = "What accuracy costs: training time and test nDCG@5 of matching."
        if timed and timed.table and (beside := measured_beside(timed.table)):
            caption += f" The time was {beside}."
        blocks.append(Picture(drawn, caption))
    return Section("figures", "Figures", tuple(blocks))


def _short(entry: plan.Entry) -> str:
    names = {
        "bundlemage": "BundleMage",
        plan.ENSEMBLE: "BundleMage × 4",
        "bundlemage-paper": "BundleMage (paper)",
        "item-popularity": "Item popularity",
        "owned-share": "Owned share",
        "popularity": "Popularity",
    }
    return names.get(entry.name, entry.title)


def _bars(found: FoundTable) -> list[figures.Bar]:
    bars = []
    for entry in found.plan.entries:
        row = (
            next((row for row in found.table.rows if row.label == entry.name), None) if found.table else None
        )
        spread = row.metrics["ndcg@5"] if row and row.metrics else None
        theirs = entry.paper.get("ndcg@5")
        if spread is not None or theirs is not None:
            value, sd = (spread.mean, spread.sd) if spread else (None, None)
            bars.append(figures.Bar(_short(entry), entry.group, value, sd, theirs))
    return bars


def _points(found: FoundTable | None) -> list[figures.Point]:
    if found is None or found.table is None:
        return []
    return [
        figures.Point(_short(entry), entry.group, max(row.fit_seconds, 0.001), row.metrics["ndcg@5"].mean)
        for entry in found.plan.entries
        for row in found.table.rows
        if row.label == entry.name and row.metrics and row.fit_seconds is not None
    ]
