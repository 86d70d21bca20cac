"""One result for all who ask for the same thing at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedResult(Generic[T]):
    """Shares the result of some work among many callers. The work runs at most once in `seconds`.

    Errors are shared, too. Use it on one event loop only.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def result(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work, or its last result. Raises the error of the work, if any."""
        now = time.monotonic()
        if self._task is None or (self._task.done() and now >= self._until):
            self._until = now + self._seconds
            self._task = asyncio.create_task(work())
            # Reads the error. Otherwise asyncio would warn if all callers have disconnected.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._task)  # a caller who disconnects must not cancel it for the others
