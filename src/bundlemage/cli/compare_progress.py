"""A comparison as it goes on: a live list of its cells in a terminal, a line for each elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bundlemage.studies.cells import Cell
from bundlemage.studies.comparison import CompareObserver
from bundlemage.studies.outcome import Outcome
from bundlemage.studies.render import duration, figure
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer

SECONDS_BETWEEN_DRAWINGS = 0.2
WAITING = "waiting"


class Progress(CompareObserver):
    """One plain line for each cell that is finished."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def on_plan(self, cells: Sequence[Cell]) -> None:
        self.total, self.finished = len(cells), 0

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        self._line(cell, done(outcome, from_cache))

    def on_failure(self, cell: Cell, message: str) -> None:
        self._line(cell, f"failed: {message}")

    def _line(self, cell: Cell, state: str) -> None:
        self.finished += 1
        self.say(f"{self.finished} of {self.total}: {named(cell)}: {state}")


def named(cell: Cell) -> str:
    return f"{cell.contender.label} on {cell.split.dataset.name}, {cell.split.protocol}, seed {cell.seed}"


def done(outcome: Outcome, from_cache: bool) -> str:
    took = (
        "from the cache" if from_cache else f"in {duration(outcome.fit_seconds + outcome.evaluate_seconds)}"
    )
    found = outcome.matching or outcome.generation or {}
    return f"done {took}, test {SELECTION_METRIC} {figure(found.get(SELECTION_METRIC, 0.0))}"


@dataclass
class _Line:
    """A cell in the list."""

    cell: Cell
    state: str = WAITING
    style: str = "dim"
    share: float = 0.0
    """How much of it is done, at most 1."""


class LiveProgress(Progress):
    """Every cell with its state, as many as fit, and a bar over all of them."""

    def on_plan(self, cells: Sequence[Cell]) -> None:
        super().on_plan(cells)
        self.lines = [_Line(cell) for cell in cells]
        self.started: float | None = None
        """When training first began: what comes before happens once, and says nothing of the time left."""
        self.worked = 0.0
        """Cells' worth of work done by this command: what the cache had took no time."""
        self.last_drawing = 0.0
        self.live = Live(self._drawn(), console=self.console, auto_refresh=False, transient=True)
        self.live.start()

    def on_begin(self, cell: Cell) -> Sequence[Observer]:
        self._state(cell, "starting", "cyan")
        return [_Epochs(self, cell)]

    def on_done(self, cell: Cell, outcome: Outcome, from_cache: bool) -> None:
        self.worked += not from_cache
        self._state(cell, done(outcome, from_cache), "green", 1.0)

    def on_failure(self, cell: Cell, message: str) -> None:
        self.worked += 1
        self._state(cell, f"failed: {message}", "red", 1.0)
        for line in self.lines:  # the other seeds of what failed are not run
            same = line.cell.contender == cell.contender and line.cell.split is cell.split
            if same and line.state == WAITING:
                line.state, line.style, line.share = "left out, as it failed", "red", 1.0
        self.say(f"{named(cell)}: failed: {message}")

    def on_end(self) -> None:
        self.live.stop()

    def _state(self, cell: Cell, state: str, style: str, share: float = 0.0, *, draw: bool = True) -> None:
        line = next(line for line in self.lines if line.cell is cell)
        line.state, line.style, line.share = state, style, share
        if draw:
            self.last_drawing = time.monotonic()
            self.live.update(self._drawn(), refresh=True)

    def training(self, cell: Cell, state: str, share: float) -> None:
        """Where many run at a time, not every epoch is drawn: those that train wait meanwhile."""
        due = time.monotonic() - self.last_drawing >= SECONDS_BETWEEN_DRAWINGS
        self._state(cell, state, "cyan", min(share, 0.99), draw=due)

    def _drawn(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for line in self._window():
            grid.add_row(Text(named(line.cell)), Text(line.state, style=line.style, overflow="ellipsis"))
        share = sum(line.share for line in self.lines)
        bar = Table.grid(padding=(0, 2))
        finished = sum(line.share >= 1 for line in self.lines)
        bar.add_row(
            ProgressBar(total=max(1, len(self.lines)), completed=share, width=30),
            f"{finished} of {len(self.lines)} done",
            self._left(share),
        )
        return Group(grid, bar)

    def _left(self, share: float) -> str:
        """By the mean time of a cell so far."""
        running = sum(line.share for line in self.lines if line.share < 1)
        worked = self.worked + running
        if self.started is None or worked < 0.02:
            return ""
        each = (time.monotonic() - self.started) / worked
        return f"about {duration(each * (len(self.lines) - share))} left"

    def _window(self) -> list[_Line]:
        """As many lines as the terminal has room for, around the first that is not done."""
        room = max(3, self.console.height - 4)
        current = next((place for place, line in enumerate(self.lines) if line.share < 1), len(self.lines))
        start = max(0, min(current - room // 2, len(self.lines) - room))
        return self.lines[start : start + room]


class _Epochs(Observer):
    """Passes the epochs of one cell on."""

    def __init__(self, progress: LiveProgress, cell: Cell) -> None:
        self.progress, self.cell = progress, cell
        self.member, self.members = 1, 1

    def on_member(self, number: int, of: int) -> None:
        self.member, self.members = number, of

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.epochs, self.before, self.started = epochs, len(done), time.monotonic()
        self.progress.started = self.progress.started or self.started
        self.best = 0.0

    def on_epoch(self, record: EpochRecord) -> None:
        self.best = max(self.best, record.validation.get(SELECTION_METRIC, 0.0))
        each = (time.monotonic() - self.started) / max(1, record.epoch - self.before)
        found = f", validation {SELECTION_METRIC} {figure(self.best)}" if record.validation else ""
        to_come = self.epochs - record.epoch + self.epochs * (self.members - self.member)
        whose = f"member {self.member} of {self.members}, " if self.members > 1 else ""
        state = (
            f"{whose}epoch {record.epoch} of {self.epochs}{found}, at most {duration(each * to_come)} left"
        )
        done = self.member - 1 + record.epoch / self.epochs
        self.progress.training(self.cell, state, done / self.members)


def progress_for(console: Console) -> Progress:
    return LiveProgress(console) if console.is_terminal else Progress(console)
