"""Work in stages, as it is watched: which stage, how much of it is done, and how long that will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bundlemage.cli import show
from bundlemage.engines.base import Progress
from bundlemage.training.progress import SECONDS_BETWEEN_LINES


@contextmanager
def watched(label: str) -> Iterator[Progress]:
    """A bar in a terminal, a line now and then elsewhere."""
    console = show.notes
    columns = (
        TextColumn(f"{show.plain(label)}: {{task.description}}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    began = last_line = time.monotonic()
    stage = ""
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def progress(what: str, done: int, of: int) -> None:
            nonlocal began, last_line, stage
            now = time.monotonic()
            if what != stage:
                stage, began = what, now
                bar.reset(task, description=what, total=of or None, completed=done)
            bar.update(task, completed=done, total=of or None)
            if not console.is_terminal and now - last_line >= SECONDS_BETWEEN_LINES:
                last_line = now
                left = f", {(now - began) / done * (of - done):,.0f} s left" if 0 < done <= of else ""
                counted = f" {done:,} of {of:,}{left}" if of else ""
                console.print(f"{what}{counted}", markup=False)

        yield progress
