"""Work as it is watched: what is being done, how much of it is done, and how long that will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bundlemage.cli import show
from bundlemage.data.progress import Progress
from bundlemage.training.progress import SECONDS_BETWEEN_LINES


@contextmanager
def watched(doing: str, *, speed: bool = False, status: bool = False) -> Iterator[Progress]:
    """A bar in a terminal, a line now and then elsewhere.

    What is told to be done is the name of a stage, and each has a clock of its own. With `speed` it is the
    name of what is counted, and how many come in a second is shown. With `status` it is how things stand,
    all is one stage, and there is a line whenever one more is done.
    """
    watch = _StageClock(speed, status)
    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(bar_width=12),
        *(() if status else (MofNCompleteColumn(),)),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    console = show.notes
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None, doing=show.plain(doing))

        def progress(what: str, done: int, of: int) -> None:
            if watch.begins_a_stage(what, done):
                bar.reset(task, completed=done, total=of or None)
            line = watch.line(what, done, of)
            shown = f"{what}{watch.per_second(done)}"
            bar.update(task, description=show.plain(shown), completed=done, total=of or None)
            if line and not console.is_terminal:
                console.print(show.plain(line), soft_wrap=True)

        yield progress


class _StageClock:
    """The clock of the stage, and when there was a line last."""

    def __init__(self, speed: bool, status: bool) -> None:
        self.speed, self.status = speed, status
        self.stage: str | None = None
        self.last_line = time.monotonic()

    def begins_a_stage(self, what: str, done: int) -> bool:
        if what == self.stage or (self.status and self.stage is not None):
            return False
        # What an earlier run had done took no time.
        self.stage, self.before, self.ended, self.began = what, done, done, time.monotonic()
        return True

    def per_second(self, done: int) -> str:
        return f", {self._rate(done):,.0f}/s" if self.speed else ""

    def line(self, what: str, done: int, of: int) -> str | None:
        """What to say, if there is something to say by now."""
        if self.status:
            more, self.ended = done > self.ended, done
            return what if more else None
        now = time.monotonic()
        if now - self.last_line < SECONDS_BETWEEN_LINES:
            return None
        self.last_line = now
        rate = self._rate(done)
        left = f", {(of - done) / rate:,.0f} s left" if rate and done <= of else ""
        if self.speed:
            return f"{done:,} of {of:,} {what}, {rate:,.0f} a second{left}"
        return f"{what} {done:,} of {of:,}{left}" if of else what

    def _rate(self, done: int) -> float:
        return (done - self.before) / max(time.monotonic() - self.began, 1e-9)
