"""What a training process tells, and what is shown of it elsewhere."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.progress import ProgressBar
from bundlemage.training.relay import Event, Teller, show

RECORD = EpochRecord(1, {"matching": 2.0}, {"ndcg@5": 0.5}, True, 0.1)


class Counts(Observer):
    def __init__(self) -> None:
        self.steps, self.epochs = 0, 0

    def on_step(self, phase: str) -> None:
        self.steps += 1

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs += 1


def test_every_observer_sees_every_step_that_is_told() -> None:
    told: list[Event] = []
    teller = Teller(told.append)
    teller.last = float("inf")  # not yet time to tell
    for _ in range(6):
        teller.on_step("matching")
    teller.last = 0.0
    teller.on_step("matching")
    teller.on_epoch(RECORD)
    one, other = Counts(), Counts()
    for event in told:
        show(event, [one, other])
    assert (one.steps, one.epochs) == (other.steps, other.epochs) == (7, 1)


def test_a_bar_may_be_begun_again_by_processes_that_take_over() -> None:
    bar = ProgressBar(Console(file=StringIO(), force_terminal=True, width=120))
    begun: dict[str, Any] = {"epochs": 5, "steps_per_epoch": 3}
    bar.on_start(done=[], **begun)
    bar.on_epoch(RECORD)
    bar.on_start(done=[RECORD], **begun)
    assert bar.bar is not None
    assert bar.bar.tasks[0].completed == 1
    bar.on_end()
