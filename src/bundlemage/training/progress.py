"""Training as it goes on: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer

SECONDS_BETWEEN_LINES = 10.0
WIDE = 150


def bar_for_people() -> list[Observer]:
    """A progress bar where a person looks on: in a terminal or a notebook."""
    console = Console(stderr=True, highlight=False)
    return [ProgressBar(console)] if console.is_terminal or console.is_jupyter else []


class ProgressBar(Observer):
    """Steps done, losses, validation, best so far, time left if no early stop comes first."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.whose = ""

    def on_member(self, number: int, of: int) -> None:
        self.whose = f"member {number} of {of}"
        if not (self.console.is_terminal or self.console.is_jupyter):
            self.console.print(self.whose)

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.epochs, self.steps_per_epoch = epochs, max(1, steps_per_epoch)
        self.best = max((record.validation.get(SELECTION_METRIC, 0.0) for record in done), default=0.0)
        self.last_line = time.monotonic()
        if done:
            self.console.print(f"resuming after epoch {done[-1].epoch}")
        if not (self.console.is_terminal or self.console.is_jupyter):
            return
        self.on_end()  # of processes that died, and whose work others go on with
        self.bar = Progress(
            TextColumn(self.whose or "training"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
        )
        self.bar.start()
        self.task = self.bar.add_task("training", total=epochs, completed=len(done), status="")

    def on_step(self, phase: str) -> None:
        if self.bar is not None:
            self.bar.advance(self.task, 1 / self.steps_per_epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        value = record.validation.get(SELECTION_METRIC)
        self.best = max(self.best, value or 0.0)
        losses = "  ".join(f"{phase} loss {loss:.2f}" for phase, loss in record.losses.items())
        found = "" if value is None else f"  {SELECTION_METRIC} {value:.4f} (best {self.best:.4f})"
        completed = record.generation.get(SELECTION_METRIC)
        found += "" if completed is None else f"  completing {completed:.4f}"
        if self.bar is not None:
            # Losses are for whoever has a wide terminal; bar, time and the metric fit into 80 columns.
            brief = "" if value is None else f"{SELECTION_METRIC} {value:.3f}"
            status = losses + found if self.console.width >= WIDE else brief
            self.bar.update(self.task, completed=record.epoch, status=status)
        elif time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.console.print(
                f"{self.whose + ', ' if self.whose else ''}epoch {record.epoch} of {self.epochs}: "
                f"{losses}{found}  {record.seconds:.1f} s"
            )

    def on_end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
