"""The first lines of a report, in words made from its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from bundlemage.readers import pathak
from bundlemage.readers.load import SAMPLE
from bundlemage.studies.document import words
from bundlemage.studies.findings import Findings, FoundTable
from bundlemage.studies.render import figure
from bundlemage.studies.sections import signed, tone_of


@dataclass(frozen=True)
class _Compared:
    table: str
    title: str
    ours: float
    theirs: float

    @property
    def share(self) -> float:
        return (self.ours - self.theirs) / self.theirs


def banners(findings: Findings) -> tuple[str, ...]:
    wishes = findings.wishes
    found = []
    if wishes.epochs is not None:
        found.append(
            f"A trial: every model was trained for at most {wishes.epochs} epochs, so its figures say "
            "nothing of how good it can be."
        )
    if wishes.dataset == SAMPLE:
        found.append("The sample shop is generated: it shows how things work, and nothing of real shops.")
    if findings.partial:
        found.append(
            f"What is measured here is {pathak.PARTIAL_NAME}, not the paper's Steam: who owns which game is "
            "reconstructed, so none of its figures stands beside the paper's."
        )
    if findings.nothing:
        found.append(
            "The data's folder holds nothing that is known here: these are the paper's figures alone."
        )
    return tuple(found)


def summary(findings: Findings) -> tuple[str, ...]:
    """A few sentences: what leads, what is near the paper, what is far from it, what is missing."""
    lines: list[str] = []
    for found in findings.tables:
        lines += _of_table(found)
    lines += _largest(findings)
    impossible = [found.plan.title for found in findings.tables if found.reason is not None]
    if impossible:
        lines.append(f"Not possible with the files that are here: {words(impossible)}.")
    if findings.missing:
        lines.append(
            f"Missing: {words([missing.part for missing in findings.missing])} (see “Missing files”)."
        )
    return tuple(lines)


def _of_table(found: FoundTable) -> list[str]:
    one, table = found.plan, found.table
    if table is None:
        return []
    titles = {entry.name: entry.title for entry in one.entries}
    done = [row for row in table.rows if row.metrics]
    leading = max(done, key=lambda row: row.metrics[one.metric].mean if row.metrics else 0)
    assert leading.metrics is not None
    best = figure(leading.metrics[one.metric].mean)
    metric = one.metric.replace("ndcg", "nDCG").replace("recall", "Recall")
    line = f"{one.title}: {titles[leading.label]} is best with {metric} {best} of {len(done)} models run"
    missing = len(one.entries) - len(done)
    line += f" ({missing} not run)" if missing else ""
    compared = _compared(found)
    if compared:
        near = sum(tone_of(each.ours, each.theirs) == "near" for each in compared)
        above = sum(tone_of(each.ours, each.theirs) == "above" for each in compared)
        whose = "the paper's" if one.beside == "the paper" else "the published"
        line += (
            f". Rows with {whose} figure: {near} near it, {above} above, {len(compared) - near - above} below"
        )
    return [line + "."]


def _compared(found: FoundTable) -> list[_Compared]:
    one, table = found.plan, found.table
    pairs = []
    for entry in one.entries:
        theirs = entry.paper.get(one.metric)
        row = next((row for row in table.rows if row.label == entry.name), None) if table else None
        if theirs and row is not None and row.metrics:
            pairs.append(_Compared(one.title, entry.title, row.metrics[one.metric].mean, theirs))
    return pairs


def _largest(findings: Findings) -> list[str]:
    """The three rows that are furthest from the paper, by how much of its figure they miss or add."""
    every = [
        pair for found in findings.tables if found.plan.beside == "the paper" for pair in _compared(found)
    ]
    far = [pair for pair in every if tone_of(pair.ours, pair.theirs) != "near"]
    if not every:
        return []
    if not far:
        return ["No row is far from the paper's figure."]
    far.sort(key=lambda pair: -abs(pair.ours - pair.theirs))
    told = [
        f"{pair.title} in {pair.table.lower()} ({figure(pair.ours)} against {figure(pair.theirs)}, "
        f"{signed(pair.ours - pair.theirs)})"
        for pair in far[:3]
    ]
    return [f"Furthest from the paper: {words(told)}."]
