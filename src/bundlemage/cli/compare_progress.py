"""Shows the progress of a comparison. A cell is one model on one split with one seed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bundlemage.cli import show
from bundlemage.progress import Shown
from bundlemage.studies.cells import Cell
from bundlemage.studies.comparison import CompareObserver
from bundlemage.studies.outcome import CacheWarning, Outcome
from bundlemage.studies.render import duration, figure
from bundlemage.training.history import SELECTION_METRIC, EpochProgress, Observer


@contextmanager
def watching() -> Iterator[CompareObserver]:
    """Yields an observer that shows the progress of a comparison. Warnings of the cache are shown too.

    After Ctrl-C, a note says that the finished results are kept.
    """
    with warnings.catch_warnings(), Shown(show.notes, together=True) as shown:
        usual = warnings.showwarning

        def show_warning(message: Any, category: type[Warning], *rest: Any, **others: Any) -> None:
            if issubclass(category, CacheWarning):
                shown.say(f"warning: {message}")
            else:
                usual(message, category, *rest, **others)

        warnings.showwarning = show_warning
        try:
            yield ComparisonProgress(shown)
        except KeyboardInterrupt:
            show.note("Finished results are kept: the same command continues from here.")
            raise


class ComparisonProgress(CompareObserver):
    """Prints a line for each finished cell. In a terminal, each running cell has a progress bar. One more bar
    counts all cells, except those from the cache."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    def on_plan(self, cells: Sequence[Cell]) -> None:
        self.total, self.finished, self.from_cache = len(cells), 0, 0
        self._update()

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        return [EpochProgress(self.shown, _name(cell))] if self.shown.live else []

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        self.from_cache += from_cache
        seconds = outcome.fit_seconds + outcome.evaluate_seconds
        took = "from the cache" if from_cache else f"in {duration(seconds)}"
        value = (outcome.matching or outcome.generation or {}).get(SELECTION_METRIC, 0.0)
        self._end(cell, f"done {took}, test {SELECTION_METRIC} {figure(value)}")

    def on_failure(self, cell: Cell, message: str) -> None:
        self._end(cell, f"failed: {message}")

    def on_end(self) -> None:
        self.shown.close()

    def _end(self, cell: Cell, result: str) -> None:
        self.finished += 1
        self.shown(_name(cell), 1, 1)
        self.shown.say(f"{self.finished} of {self.total}: {_name(cell)}: {result}")
        self._update()

    def _update(self) -> None:
        if self.shown.live:
            self.shown("comparing", self.finished - self.from_cache, self.total - self.from_cache)


def _name(cell: Cell) -> str:
    return f"{cell.contender.label} on {cell.split.dataset.name}, {cell.split.protocol}, seed {cell.seed}"
