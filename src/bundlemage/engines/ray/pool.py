"""Processes of a cluster that hold something large, such as a model, and are asked again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import ray

from bundlemage.engines.ray.cluster import Cluster
from bundlemage.errors import DeviceError

Piece = TypeVar("Piece")
Result = TypeVar("Result")
AHEAD = 2
"""So many pieces of work wait for each process, so that none of them waits for the next piece."""


def resources(cluster: Cluster, device: str) -> dict[str, float]:
    """What each of the workers is given: processors, which Ray makes the number of its threads, and of the
    GPUs its share."""
    there = ray.cluster_resources()
    given: dict[str, float] = {"num_cpus": max(1, int(there.get("CPU", 1)) // cluster.workers)}
    gpus = there.get("GPU", 0)
    if device.startswith("cuda") and not gpus:
        raise DeviceError(f"device {device!r} is not present on any machine of the cluster; use auto or cpu")
    if gpus and device != "cpu":
        given["num_gpus"] = min(1.0, gpus / cluster.workers)
    return given


def in_order(
    cluster: Cluster,
    device: str,
    make: Callable[[], Callable[[Piece], Result]],
    pieces: Iterable[Piece],
) -> Iterator[Result]:
    """What each piece comes to, in their order, worked out ahead by processes that call `make` once each.

    No more pieces are under way than the processes have at hand. One that dies is replaced, and does its
    pieces again.
    """
    actor = ray.remote(max_restarts=-1, max_task_retries=-1, **resources(cluster, device))(_Worker)
    most = cluster.workers
    workers: list[Any] = []
    waiting: deque[Any] = deque()
    try:
        for number, piece in enumerate(pieces):
            if len(workers) < most:
                workers.append(actor.remote(make))
            waiting.append(workers[number % most].do.remote(piece))
            if len(waiting) >= AHEAD * most:
                yield ray.get(waiting.popleft())
        while waiting:
            yield ray.get(waiting.popleft())
    finally:
        if ray.is_initialized():  # an error may have ended all of it before
            for worker in workers:
                ray.kill(worker)


class _Worker:
    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.make = make
        self.work: Callable[[Any], Any] | None = None

    def do(self, piece: Any) -> Any:
        if self.work is None:  # here, as an error in __init__ would come out as that of a lost process
            self.work = self.make()
        return self.work(piece)
