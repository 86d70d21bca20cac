"""The measures in a model card: tables in Markdown from what `metrics.json` has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bundlemage.measures.meaning import FEW, FEW_MEANS, SLICE_SHOWN, meanings
from bundlemage.models.baselines.rules import Popularity


def measures_of(metrics: Mapping[str, Any]) -> str:
    """Returns the sections of a card about answer lists and slices; empty if `metrics.json` has neither."""
    return "".join(f"\n\n{section}" for section in (*_lists(metrics), *_slices(metrics)))


def _lists(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = [(row["model"], row["lists"]) for row in metrics.get("test", ()) if row.get("lists")]
    if not rows:
        return
    first = rows[0][1]
    rows[1:] = [row for row in rows[1:] if row[0] == Popularity.title]
    names = list(first["bundles"])
    of = f" (a random sample of {first['of_users']:,})" * (first["users"] < first["of_users"])
    yield "### What its answers show"
    yield f"The first of all bundles for {first['users']:,} test users{of}, and the items inside them."
    lines = [f"| model | of | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for model, lists in rows:
        for side in ("bundles", "items"):
            figures = " | ".join(_figure(lists[side].get(name)) for name in names)
            lines.append(f"| {model} | {side} | {figures} |")
    yield "\n".join(lines)
    yield "\n".join(f"- {name}: {sentence}" for name, sentence in meanings(names).items())


def _slices(metrics: Mapping[str, Any]) -> Iterator[str]:
    for task, ways in metrics.get("slices", {}).items():
        if not ways:
            continue
        yield f"### Where it is good: {task}"
        lines = [f"| by | slice | cases | {' | '.join(SLICE_SHOWN)} |", "|---" * (len(SLICE_SHOWN) + 3) + "|"]
        few = False
        for way in ways:
            for each in way["slices"]:
                figures = " | ".join(_with_error(each["metrics"].get(name)) for name in SLICE_SHOWN)
                name = each["name"].replace("|", "\\|") + f" ({FEW})" * each["little"]
                lines.append(f"| {way['by']} | {name} | {each['cases']:,} | {figures} |")
                few |= each["little"]
        yield "\n".join(lines)
        about = [f"- {way['by']}: {way['about']}" for way in ways]
        yield "\n".join([*about, *[f"- {FEW}: {FEW_MEANS}"] * few, "- ±: the standard error."])


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _with_error(figure: Mapping[str, float | None] | None) -> str:
    if figure is None:
        return "–"
    error = figure["error"]
    return _figure(figure["mean"]) + ("" if error is None else f" ± {error:.3f}")
