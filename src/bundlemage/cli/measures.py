"""Output in a terminal: measures of answer lists, and slices of the test cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from bundlemage.cli import show
from bundlemage.measures.meaning import FEW, FEW_MEANS, SLICE_SHOWN, meanings

if TYPE_CHECKING:
    from bundlemage.evaluation import Evaluation
    from bundlemage.measures.slices import Figure, SlicedFigures


def answer_lists(rows: Sequence[Evaluation]) -> Iterator[RenderableType]:
    """A table of the measures of the first model's lists, beside those of popularity, and what they mean."""
    from bundlemage.models.baselines.rules import Popularity

    measured = [row for row in rows if row.lists is not None]
    if not measured or measured[0] is not rows[0]:
        return
    shown = [measured[0], *(row for row in measured[1:] if row.model == Popularity.title)]
    lists = measured[0].lists
    assert lists is not None
    users = f"{lists.users:,} users"
    if lists.users < lists.of_users:
        users = f"a sample of {lists.users:,} of {lists.of_users:,} users"
    heads = [f">{row.model}\n{side}" for row in shown for side in ("bundles", "items")]
    first = " and ".join(dict.fromkeys(metric.partition("@")[2] for metric in lists.bundles))
    table = show.table(
        f"What do answers show?  (the first {first} for {users})",
        "measure",
        *heads,
    )
    for metric in lists.bundles:
        values = [
            side.get(metric)
            for row in shown
            if row.lists is not None
            for side in (row.lists.bundles, row.lists.items)
        ]
        table.add_row(metric, *("–" if value is None else f"{value:.3f}" for value in values))
    by = "" if lists.diversity_by == "tags" else " Compared by items, because the catalogue has no tags."
    lines = [
        f"[dim]{name}: {show.plain(sentence)}{by if name == 'diversity' else ''}[/]"
        for name, sentence in meanings(lists.bundles).items()
    ]
    yield Group(table, *lines)


def slices(by_task: Mapping[str, Sequence[SlicedFigures]]) -> Iterator[RenderableType]:
    """A table of the slices of each task, and what they are."""
    for task, ways in by_task.items():
        table = show.table(
            f"Where is the model good?  ({task})",
            "by",
            "slice",
            ">cases",
            *(f">{name}" for name in SLICE_SHOWN),
        )
        few = False
        for way in ways:
            table.add_section()
            for number, each in enumerate(way.slices):
                cells = (_with_error(each.metrics.get(name)) for name in SLICE_SHOWN)
                name = show.plain(each.name) + f" [yellow]({FEW})[/]" * each.little
                table.add_row(show.plain(way.by) if not number else "", name, f"{each.cases:,}", *cells)
                few |= each.little
        lines = [f"[dim]{show.plain(way.by)}: {show.plain(way.about)}[/]" for way in ways]
        lines.append("[dim]±: the standard error.[/]")
        if few:
            lines.append(f"[yellow]({FEW})[/] [dim]{FEW_MEANS}[/]")
        yield Group(table, *lines)


def _with_error(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.mean:.3f}" + ("" if figure.error is None else f" ± {figure.error:.3f}")
