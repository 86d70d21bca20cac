"""Training progress sent from one process to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bundlemage.training.history import EpochRecord, Observer

SECONDS_BETWEEN_STEPS = 0.5
Event = tuple[str, dict[str, Any]]


class Teller(Observer):
    """Tells what it sees to a queue; steps only now and then."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell, self.steps, self.last = tell, 0, 0.0

    def on_member(self, number: int, of: int) -> None:
        self.tell(("on_member", {"number": number, "of": of}))

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        started = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "done": [*done]}
        self.tell(("on_start", started))

    def on_step(self, phase: str) -> None:
        self.steps += 1
        if time.monotonic() - self.last >= SECONDS_BETWEEN_STEPS:
            self.tell(("on_step", {"phase": phase, "times": self.steps}))
            self.steps, self.last = 0, time.monotonic()

    def on_epoch(self, record: EpochRecord) -> None:
        self.steps = 0
        self.tell(("on_epoch", {"record": record}))


def show(event: Event, observers: Sequence[Observer]) -> None:
    name, what = event
    times = what.pop("times", 1)
    for observer in observers:
        for _ in range(times):
            getattr(observer, name)(**what)
