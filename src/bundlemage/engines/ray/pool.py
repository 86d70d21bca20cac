"""Processes of a cluster that load something large once, such as a model, and do many pieces of work."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic

import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from bundlemage.engines.base import AnyJob, Piece, Result, written_out
from bundlemage.engines.ray.resources import Resources
from bundlemage.errors import ClusterError

AHEAD = 2
"""The number of pieces that each process has at hand, so that it need not wait for the next one."""
LOST_AT_MOST = 3
"""How often the process of a piece may die, for example with its machine, before the job fails."""


class RayWorkers:
    """Processes of a cluster that do the pieces of one job."""

    def __init__(self, resources: Resources) -> None:
        self.resources, self.count = resources, resources.workers

    def each(
        self, make: Callable[[AnyJob], Callable[[Piece], Result]], job: AnyJob, pieces: Iterable[Piece]
    ) -> Iterator[Result]:
        """See `Workers.each`.

        Results are computed ahead, but only as far as the processes are busy. A process that dies is
        replaced, and does its pieces again.
        """
        crew: _Crew[Piece] = _Crew(self.resources, partial(make, written_out(job)))
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                waiting.append(crew.give(piece))
                if len(waiting) >= AHEAD * self.count:
                    yield ray.get(waiting.popleft())
            while waiting:
                yield ray.get(waiting.popleft())
        except (RayActorError, OutOfMemoryError) as error:
            raise ClusterError(
                f"given up, as a process was lost {LOST_AT_MOST} times at the same piece of work: it may "
                "need more memory than its machine has. Use fewer workers, so that each has more, or larger "
                "machines"
            ) from error
        finally:
            crew.dismiss()


class _Crew(Generic[Piece]):
    """Gives each piece to the process with the least work. A process that has not started yet gets none:
    other work may have its place."""

    def __init__(self, resources: Resources, make: Callable[[], Callable[[Piece], Any]]) -> None:
        self.most, self.make = resources.workers, make
        # Any number of processes is replaced, but the number of tries of one piece is limited.
        replaced = {"max_restarts": -1, "max_task_retries": LOST_AT_MOST - 1}
        self.actor = ray.remote(**replaced, **resources.options)(_Process)
        self.workers: list[Any] = []
        self.starting: dict[Any, int] = {}
        self.under_way: dict[Any, int] = {}

    def give(self, piece: Piece) -> Any:
        """Start a piece; returns a reference to its result."""
        if len(self.workers) < self.most:
            worker = self.actor.remote(self.make)
            self.starting[worker.started.remote()] = len(self.workers)
            self.workers.append(worker)
        while (number := self._free()) is None:
            self._wait(None)
        promise = self.workers[number].do.remote(piece)
        self.under_way[promise] = number
        return promise

    def _free(self) -> int | None:
        self._wait(0)
        busy, late = Counter(self.under_way.values()), set(self.starting.values())
        started = [number for number in range(len(self.workers)) if number not in late]
        # No piece waits in line while a process may still start that could do it at once.
        line = 1 if late else AHEAD
        return min((number for number in started if busy[number] < line), key=busy.__getitem__, default=None)

    def _wait(self, seconds: float | None) -> None:
        promises = [*self.starting, *self.under_way]
        done, _ = ray.wait(promises, num_returns=1 if seconds is None else len(promises), timeout=seconds)
        for promise in done:
            if promise in self.starting:
                ray.get(promise)
                del self.starting[promise]
            else:
                del self.under_way[promise]

    def dismiss(self) -> None:
        """End all processes."""
        if ray.is_initialized():  # an error may have ended Ray before
            for worker in self.workers:
                ray.kill(worker)


class _Process:
    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.make = make
        self.work: Callable[[Any], Any] | None = None

    def started(self) -> None:
        """Returns when the process runs."""

    def do(self, piece: Any) -> Any:
        if self.work is None:  # not in __init__, whose errors look like a lost process
            self.work = self.make()
        return self.work(piece)
