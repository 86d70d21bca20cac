"""How long a search may go on."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._begun = time.perf_counter()
        self._ends = self._begun + seconds

    @property
    def passed(self) -> bool:
        return time.perf_counter() >= self._ends

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.perf_counter())

    @property
    def taken(self) -> float:
        return time.perf_counter() - self._begun

    def share(self, parts: int) -> float:
        """What each of so many parts may take of the time that is left."""
        return self.left / max(1, parts)
