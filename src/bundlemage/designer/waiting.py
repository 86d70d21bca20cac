"""The time limit of a search."""

from __future__ import annotations

import time
from collections.abc import Callable

clock: Callable[[], float] = time.perf_counter
"""The clock of all searches. A test may replace it with a function that counts its calls."""


class Deadline:
    """A point in time, `seconds` after its creation."""

    def __init__(self, seconds: float) -> None:
        self._begun = clock()
        self._ends = self._begun + seconds

    @property
    def passed(self) -> bool:
        return clock() >= self._ends

    @property
    def left(self) -> float:
        """The seconds that are left; 0 after the deadline."""
        return max(0.0, self._ends - clock())

    @property
    def taken(self) -> float:
        """The seconds since the deadline was created."""
        return clock() - self._begun

    def share(self, parts: int) -> float:
        """Returns the time that is left divided by `parts`, in seconds."""
        return self.left / max(1, parts)
