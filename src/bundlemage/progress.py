"""How far long work is: the one callback that it calls, and the one way to show it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.1
LEAST_RATE_SHOWN = 10.0
"""Per second: below this, the time left says more than the rate."""


WIDTH_OF_THE_REST = 26
"""Of a line with a bar: the bar, the time that has passed, and the spaces between."""


class Progress(Protocol):
    """Called by long work, always in the same thread, with a stage, how much of it is done, and its size.

    The name of a stage says what is done or counted, such as `users`. A size of 0 is not known. A stage ends
    when all of it is done, or when another begins. The note says how things are, and a note of a stage that
    is done is its result.
    """

    def __call__(self, stage: str, done: float, of: float, note: str = "", /) -> None: ...


def in_silence(_stage: str, _done: float, _of: float, _note: str = "") -> None:
    """The progress of work that nobody watches."""


@dataclass
class _Stage:
    """A stage that is under way. `before` is what was done when it began, which took no time."""

    before: float
    began: float
    drawn: float = float("-inf")
    bar: rich.progress.TaskID | None = None


class Shown:
    """Shows progress: a bar for each stage in a terminal or a notebook, elsewhere a line now and then.

    Use it in a `with` statement. `doing` names the work as a whole. With `together`, stages run at the same
    time: they end only when they are done. Results are lines in a terminal, too.
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
        state = self._stages.get(stage) or self._begin(stage, done, now)
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
        """Print a line that stays."""
        self._last_line = time.monotonic()
        self.console.print(text, markup=False, soft_wrap=True)

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bars. A stage that goes on begins anew."""
        self._end(*self._stages)
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _begin(self, stage: str, done: float, now: float) -> _Stage:
        if not self.together:
            self._end(*self._stages)
        self._stages[stage] = _Stage(done, now)
        return self._stages[stage]

    def _end(self, *stages: str) -> None:
        for stage in stages:
            state = self._stages.pop(stage, None)
            if self._bars is not None and state is not None and state.bar is not None:
                self._bars.remove_task(state.bar)

    def _draw(self, stage: str, state: _Stage, done: float, of: float, numbers: str, note: str) -> None:
        if self._bars is None:
            self._bars = _bars(self.console)
            self._bars.start()
        name = ": ".join(filter(None, (self.doing, stage)))
        room = max(0, self.console.width - len(name) - len(numbers) - WIDTH_OF_THE_REST)
        shown: dict[str, Any] = {"total": of or None, "numbers": numbers, "note": note[:room]}
        if state.bar is None:
            state.bar = self._bars.add_task(name, completed=int(done), **shown)
        self._bars.update(state.bar, completed=done, **shown)


def for_people() -> Shown:
    """Progress on stderr that shows itself only in a terminal or a notebook."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.quiet = not (console.is_terminal or console.is_jupyter)
    return Shown(console)


def _bars(console: Console) -> rich.progress.Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=not console.is_jupyter,
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
