"""Progress of long operations: the callback that they call, and a display for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.1
LEAST_RATE_SHOWN = 10.0
"""Lowest rate per second that is shown. Slower work shows only the time left."""


WIDTH_OF_THE_REST = 26
"""Width of the bar, the elapsed time and the spaces in a line."""


class Progress(Protocol):
    """A callback for long work. The work calls it with a stage, the amount done, the total, and a note.

    The name of a stage says what is done or counted, such as `users`. A total of 0 means unknown. A stage
    ends when `done` reaches the total, or when another stage begins. The note describes the current state;
    the note of a finished stage is its result. All calls come from the same thread.
    """

    def __call__(self, stage: str, done: float, of: float, note: str = "", /) -> None: ...


def in_silence(_stage: str, _done: float, _of: float, _note: str = "") -> None:
    """A `Progress` that shows nothing."""


@dataclass
class _Stage:
    """A running stage. `before` is the amount already done when the stage began; the rate does not
    count it."""

    before: float
    began: float
    drawn: float = float("-inf")
    bar: rich.progress.TaskID | None = None


class Shown:
    """Shows progress: a bar for each stage in a terminal or a notebook, elsewhere a line every 10 seconds.

    Use it in a `with` statement. `doing` names the whole work. With `together`, stages run at the same time,
    so the start of a stage does not end the others. Results of stages are always printed as lines.
    """

    def __init__(self, console: Console, doing: str = "", *, together: bool = False) -> None:
        self.console, self.doing, self.together = console, doing, together
        self.live = console.is_terminal or console.is_jupyter
        self._stages: dict[str, _Stage] = {}
        self._bars: rich.progress.Progress | None = None
        self._last_line = time.monotonic()

    def __call__(self, stage: str, done: float, of: float, note: str = "", /) -> None:
        if 0 < of <= done:
            self._end(stage)
            if note:
                self.say(f"{stage}: {note}")
            return
        now = time.monotonic()
        state = self._stages.get(stage)
        if state is None:
            if not self.together:
                self._end(*self._stages)
            state = self._stages[stage] = _Stage(done, now)
        last, pause = (
            (state.drawn, SECONDS_BETWEEN_DRAWINGS) if self.live else (self._last_line, SECONDS_BETWEEN_LINES)
        )
        if now - last < pause:
            return
        rate = (done - state.before) / max(now - state.began, 1e-9)
        count = f"{int(done):,} of {int(of):,}" if of else ""
        speed = f"{rate:,.0f} a second" if rate >= LEAST_RATE_SHOWN else ""
        left = f"{_duration((of - done) / rate)} left" if rate > 0 and of else ""
        numbers = ", ".join(filter(None, (count, speed, left)))
        if self.live:
            state.drawn = now
            self._draw(stage, state, done, of, numbers, note)
        else:
            self.say(": ".join(filter(None, (stage, numbers, note))))

    def say(self, text: str) -> None:
        """Print a line that remains when the bars are removed."""
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, soft_wrap=True)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bars. A stage that calls again afterwards gets a new bar."""
        self._end(*self._stages)
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _end(self, *stages: str) -> None:
        for stage in stages:
            state = self._stages.pop(stage, None)
            if self._bars is not None and state is not None and state.bar is not None:
                self._bars.remove_task(state.bar)

    def _draw(self, stage: str, state: _Stage, done: float, of: float, numbers: str, note: str) -> None:
        if self._bars is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[numbers]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=self.console,
                transient=not self.console.is_jupyter,
            )
            self._bars.start()
        name = ": ".join(filter(None, (self.doing, stage)))
        room = max(0, self.console.width - len(name) - len(numbers) - WIDTH_OF_THE_REST)
        shown: dict[str, Any] = {"total": of or None, "numbers": numbers, "note": note[:room]}
        if state.bar is None:
            state.bar = self._bars.add_task(name, completed=int(done), **shown)
        self._bars.update(state.bar, completed=done, **shown)


def stderr_display() -> Shown:
    """Returns a display on stderr. It shows nothing outside a terminal or a notebook."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.quiet = not (console.is_terminal or console.is_jupyter)
    return Shown(console)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
