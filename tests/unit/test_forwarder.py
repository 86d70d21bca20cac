"""What a training process tells, and what is shown of it elsewhere."""

from __future__ import annotations

from typing import Any

from bundlemage.training.history import EpochProgress, EpochRecord, Event, Forwarder, Observer, show

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
    forwarder = Forwarder(told.append)
    forwarder.last = float("inf")  # not yet time to tell
    for _ in range(6):
        forwarder.on_step("matching")
    forwarder.last = 0.0
    forwarder.on_step("matching")
    forwarder.on_epoch(RECORD)
    one, other = Counts(), Counts()
    for event in told:
        show(event, [one, other])
    assert (one.steps, one.epochs) == (other.steps, other.epochs) == (7, 1)


def test_epochs_may_be_begun_again_by_processes_that_take_over() -> None:
    steps: list[tuple[Any, ...]] = []
    epochs = EpochProgress(lambda *step: steps.append(step))
    begun: dict[str, Any] = {"epochs": 5, "steps_per_epoch": 3}
    epochs.on_start(done=[], **begun)
    epochs.on_step("matching")
    epochs.on_epoch(RECORD)
    epochs.on_start(done=[RECORD], **begun)
    epochs.on_end()
    note = "ndcg@5 0.5000 (best 0.5000)  matching loss 2.00"
    assert steps == [
        ("epochs", 0, 5),
        ("epochs", 1 / 3, 5, ""),
        ("epochs", 1, 5, note),
        ("epochs", 1, 1, "resuming after epoch 1"),
        ("epochs", 1, 5),
        ("epochs", 1, 1, ""),
    ]
