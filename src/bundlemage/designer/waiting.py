"""How long a search may go on."""

from __future__ import annotations

import time
from collections.abc import Callable

clock: Callable[[], float] = time.perf_counter
"""Every search reads its time here. A test may put a counter of readings in its place."""


class Deadline:
    """A point in time, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._begun = clock()
        self._ends = self._begun + seconds

    @property
    def passed(self) -> bool:
        return clock() >= self._ends

    @property
    def left(self) -> float:
        """The seconds that are left; 0 when it has passed."""
        return max(0.0, self._ends - clock())

    @property
    def taken(self) -> float:
        """The seconds since it was made."""
        return clock() - self._begun

    def share(self, parts: int) -> float:
        """The seconds for each of `parts` equal parts of the time that is left."""
        return self.left / max(1, parts)
