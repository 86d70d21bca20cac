"""Runs long work, such as a design or a forecast, in threads of its own, so that others need not wait.

Each kind of work has a lane: a few threads with low priority, and a queue. Work stops at its next call of the
progress callback if its caller has left or its time limit has passed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from bundlemage.errors import BusyError, StoppedError
from bundlemage.progress import Progress
from bundlemage.service.problems import ApiError
from bundlemage.wire.answers import WorkOut

T = TypeVar("T")
Kind: TypeAlias = Literal["forecast", "estimate", "design", "explain", "insights"]

AT_ONCE: Final[dict[Kind, int]] = {"forecast": 1, "estimate": 1, "design": 2, "explain": 1, "insights": 1}
"""How many requests of each kind run at a time. They take CPU time from recommendations."""
MOST_WAITING = 16
"""Maximum number of requests of each kind that may wait."""
NICENESS = 10
"""How much lower the threads' priority is than that of the service's other threads."""

WORK_BETWEEN_RESTS = 0.002
REST = 0.0002
LONGEST_REST = 0.01
"""All three are in seconds. A thread that calls libraries releases Python's lock often, but each time only
for an instant. A thread that waits for the lock wakes too late to get it. An answer needs the lock about a
hundred times. So long work pauses now and then, and it pauses longer while an answer is being computed."""


class Job:
    """A long request that waits or runs."""

    def __init__(self, kind: Kind, request_id: str, answering: Callable[[], object]) -> None:
        """`answering` returns whether an answer to somebody else is being computed."""
        self.kind, self.request_id, self._answering = kind, request_id, answering
        self.began: float | None = None
        self.stopped = False
        self._arrived = time.monotonic()
        self._stage, self._done, self._of = "", 0.0, 0.0
        self._at_start = (0.0, 0.0)  # when the stage began, and how much was already done
        self._rested = 0.0

    def progress(self, stage: str, done: float, of: float, _note: str = "", /) -> None:
        """The callback of the work. Raises `StoppedError` if nobody waits for the result any more."""
        if self.stopped:
            raise StoppedError("the work was stopped: its caller has left, or its time limit has passed")
        now = time.monotonic()
        if stage != self._stage:
            self._at_start = (now, done)
        self._stage, self._done, self._of = stage, done, of
        if now - self._rested > WORK_BETWEEN_RESTS:
            time.sleep(REST)
            while self._answering() and time.monotonic() - now < LONGEST_REST:
                time.sleep(REST)
            self._rested = time.monotonic()

    def described(self) -> WorkOut:
        now, (since, before) = time.monotonic(), self._at_start
        done, of = self._done, self._of
        rate = (done - before) / max(now - since, 1e-9)
        return WorkOut(
            request_id=self.request_id,
            kind=self.kind,
            state="waiting" if self.began is None else "running",
            stage=self._stage or None,
            done=done,
            of=of or None,
            seconds=round(now - self._arrived, 3),
            seconds_left=round((of - done) / rate, 1) if rate > 0 and of >= done else None,
        )


class Lanes:
    """The lanes of one process. Use them on one event loop."""

    def __init__(self, patience: float, limit: float, answering: Callable[[], object]) -> None:
        """A request may wait `patience` seconds for its turn, and then work for `limit` seconds. Its work
        pauses while `answering` returns that an answer to somebody else is being computed."""
        self._patience, self._limit, self._answering = patience, limit, answering
        self._threads = {
            kind: ThreadPoolExecutor(AT_ONCE[kind], f"long-{kind}", _step_back) for kind in get_args(Kind)
        }
        self._jobs: dict[Job, None] = {}
        self._stopping = asyncio.Event()

    def work(self) -> list[WorkOut]:
        """The requests that wait or run, the oldest first."""
        return [job.described() for job in list(self._jobs)]

    async def run(
        self,
        kind: Kind,
        request_id: str,
        work: Callable[[Progress], T],
        left: Coroutine[Any, Any, object],
    ) -> T:
        """Run `work` in its lane and return its result. `left` ends when the caller disconnects.

        Raises `BusyError` if too many wait already, if the turn does not come in time, or if the service
        stops. Raises `ApiError` if the work takes too long or the caller has left. After each of these
        errors, the work is stopped.
        """
        job, loop = Job(kind, request_id, self._answering), asyncio.get_running_loop()
        gone, stopping = loop.create_task(left), loop.create_task(self._stopping.wait())
        began = asyncio.Event()
        todo = [work]  # emptied at the end: a cancelled job stays in the queue and would keep `work` alive

        def begin() -> T:
            job.began = time.monotonic()
            loop.call_soon_threadsafe(began.set)
            return todo.pop()(job.progress)

        turn = loop.create_task(began.wait())
        try:
            # A copy, because work may end meanwhile.
            if sum(each.kind == kind and each.began is None for each in list(self._jobs)) >= MOST_WAITING:
                raise BusyError(f"{MOST_WAITING} others ({kind}) are already waiting: try again in a second")
            future = self._threads[kind].submit(begin)
            self._jobs[job] = None
            # Called before the caller gets the answer. So what is answered is not listed any more.
            future.add_done_callback(lambda _: self._jobs.pop(job, None))
            answer = asyncio.wrap_future(future)
            first, ends = asyncio.FIRST_COMPLETED, list[asyncio.Future[Any]]([answer, gone, stopping])
            try:
                await asyncio.wait([*ends, turn], timeout=self._patience, return_when=first)
                if turn.done():
                    await asyncio.wait(ends, timeout=self._limit, return_when=first)
                if answer.done():
                    return answer.result()
                raise self._refusal(job, gone.done())
            finally:
                job.stopped = True
                answer.cancel()  # if it waits, it never begins
                todo.clear()
        finally:
            for task in (gone, stopping, turn):
                task.cancel()

    def _refusal(self, job: Job, gone: bool) -> Exception:
        if gone:
            return ApiError(499, "Caller left", "The caller has disconnected, so the work was stopped.")
        if self._stopping.is_set():
            return BusyError("the service is shutting down")
        if job.began is None:
            return BusyError(
                f"the request waited {self._patience:g} s for others ({job.kind}): try again in a second"
            )
        now = job.described()
        so_far = f" at {now.done:,.0f} of {now.of:,.0f} {now.stage}" if now.of else ""
        return ApiError(
            504,
            "Took too long",
            f"The {job.kind} was stopped after {self._limit:g} s{so_far}. Ask again when the service is less "
            "busy, ask for less, or raise its setting 'long_limit_s'.",
        )

    def stop(self) -> None:
        """Stop all work, and refuse new work. Call it on the event loop."""
        self._stopping.set()

    def close(self) -> None:
        """Stop all work and wait for the threads."""
        for job in list(self._jobs):
            job.stopped = True
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)


def _step_back() -> None:
    """Give this thread, and threads that it starts, a low priority."""
    if sys.platform == "linux":  # elsewhere, priorities belong to processes
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it; an error here would end the lane for good
            priority = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(priority, 19))
