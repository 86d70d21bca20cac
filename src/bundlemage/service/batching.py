"""One worker thread answers all questions. Questions that arrive while it is busy form the next batch."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

from bundlemage.errors import BusyError

Q = TypeVar("Q")
A = TypeVar("A")
_Waiting: TypeAlias = tuple[Q, "asyncio.Future[A]"]


class Batcher(Generic[Q, A]):
    """Passes questions to a function in batches: all questions that are waiting. It never waits for more.

    So a single question is answered at once. Under load, batches grow until the worker keeps up.
    """

    def __init__(
        self,
        answer: Callable[[list[Q]], Sequence[A | Exception]],
        *,
        most: int = 64,
        waiting: int,
        patience: float,
    ) -> None:
        """`answer` gets at most `most` questions, and returns an answer or an error for each. A question is
        refused if `waiting` others wait already, and fails after `patience` seconds."""
        self._answer = answer
        self._most = most
        self._waiting = waiting
        self._patience = patience
        self._queue: queue.SimpleQueue[_Waiting[Q, A] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._closed = False
        self._thread.start()

    def __len__(self) -> int:
        """The number of waiting questions."""
        return self._queue.qsize()

    async def ask(self, question: Q) -> A:
        """Returns the answer to a question. Raises `BusyError` if too many wait, or if it takes too long."""
        if self._closed or len(self) >= self._waiting:
            raise BusyError(
                "the service is shutting down"
                if self._closed
                else f"{self._waiting:,} questions are waiting already: ask again in a second"
            )
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue.put((question, future))
        try:
            async with asyncio.timeout(self._patience):
                return await future
        except TimeoutError:
            raise BusyError(
                f"there was no answer within {self._patience:g} s: ask again in a second"
            ) from None

    def close(self) -> None:
        """Answer the waiting questions, then stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch: list[_Waiting[Q, A] | None] = [first]
            while batch[-1] is not None and len(batch) < self._most and not self._queue.empty():
                batch.append(self._queue.get())
            self._settle([waiting for waiting in batch if waiting is not None])
            if batch[-1] is None:
                return

    def _settle(self, batch: list[_Waiting[Q, A]]) -> None:
        batch = [waiting for waiting in batch if not waiting[1].cancelled()]
        if not batch:
            return
        try:
            outcomes = self._answer([question for question, _ in batch])
        except Exception as error:
            outcomes = [error] * len(batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[A], A | Exception]]] = {}
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        for loop, settled in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set_outcomes, settled)


def _set_outcomes(settled: Iterable[tuple[asyncio.Future[A], A | Exception]]) -> None:
    for future, outcome in settled:
        if future.done():  # the caller has gone
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
