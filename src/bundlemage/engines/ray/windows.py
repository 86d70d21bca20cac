"""Many tasks, few at a time: as many are under way as workers were asked for, and no more wait in a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray

from bundlemage.engines.base import Progress


@cache
def _remote(function: Callable[..., Any]) -> Any:
    return ray.remote(function)  # a function is sent to the cluster once, not with each task


@dataclass(frozen=True)
class Task:
    """A function that gives a small value, which comes here, and `blocks` more, which stay where they are."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    blocks: int = 0

    def start(self) -> list[Any]:
        references = _remote(self.function).options(num_returns=1 + self.blocks).remote(*self.arguments)
        return references if self.blocks else [references]


@dataclass(frozen=True)
class Done:
    """What came of a task."""

    value: Any
    blocks: list[Any]
    """References."""


def run(what: str, tasks: Iterable[Task], of: int, workers: int, progress: Progress) -> list[Done]:
    """What came of each task, in order. Raises what a task raised."""
    started: list[list[Any]] = []
    values: dict[int, Any] = {}
    under_way: dict[Any, int] = {}

    def wait() -> None:
        ready, _ = ray.wait(list(under_way), num_returns=1)
        for reference in ready:
            values[under_way.pop(reference)] = ray.get(reference)
        progress(what, len(values), of)

    progress(what, 0, of)
    for task in tasks:
        if len(under_way) >= workers:
            wait()
        references = task.start()
        under_way[references[0]] = len(started)
        started.append(references[1:])
    while under_way:
        wait()
    return [Done(values[number], blocks) for number, blocks in enumerate(started)]
