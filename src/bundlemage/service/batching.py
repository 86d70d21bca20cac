"""Many askers, one worker thread: what came in while it was busy is answered together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from bundlemage.errors import BusyError

Q = TypeVar("Q")
A = TypeVar("A")


class Batcher(Generic[Q, A]):
    """Hands questions to a function, as many at a time as have come in; nobody waits for a batch to fill.

    So one asker alone is answered at once, and under load a batch grows until the work keeps up.
    """

    def __init__(
        self,
        answer: Callable[[list[Q]], Sequence[A | Exception]],
        *,
        most: int = 64,
        waiting: int,
        patience: float,
    ) -> None:
        self._answer = answer
        self._most = most
        self._waiting = waiting
        self._patience = patience
        self._queue: queue.SimpleQueue[_Asked[Q, A] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._closed = False
        self._thread.start()

    def __len__(self) -> int:
        """How many questions wait."""
        return self._queue.qsize()

    async def ask(self, question: Q) -> A:
        if self._closed or len(self) >= self._waiting:
            raise BusyError(
                "the service is shutting down"
                if self._closed
                else f"{self._waiting:,} questions are waiting already: ask again in a second"
            )
        loop = asyncio.get_running_loop()
        asked: _Asked[Q, A] = _Asked(question, loop, loop.create_future())
        self._queue.put(asked)
        try:
            async with asyncio.timeout(self._patience):
                return await asked.future
        except TimeoutError:
            raise BusyError(f"there was no answer in {self._patience:g} s: ask again in a second") from None

    def close(self) -> None:
        """Answer what has been asked, then stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < self._most and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    last = True
                    break
                batch.append(following)
            self._settle(batch)
            if last:
                return

    def _settle(self, batch: list[_Asked[Q, A]]) -> None:
        batch = [asked for asked in batch if not asked.future.cancelled()]
        if not batch:
            return
        try:
            outcomes = self._answer([asked.question for asked in batch])
        except Exception as error:
            outcomes = [error] * len(batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[A], A | Exception]]] = {}
        for asked, outcome in zip(batch, outcomes, strict=True):
            by_loop.setdefault(asked.loop, []).append((asked.future, outcome))
        for loop, settled in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_tell, settled)


class _Asked(Generic[Q, A]):
    __slots__ = ("future", "loop", "question")

    def __init__(self, question: Q, loop: asyncio.AbstractEventLoop, future: asyncio.Future[A]) -> None:
        self.question = question
        self.loop = loop
        self.future = future


def _tell(settled: Iterable[tuple[asyncio.Future[A], A | Exception]]) -> None:
    for future, outcome in settled:
        if future.done():  # whoever asked has gone
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
