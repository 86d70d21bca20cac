"""The history of a training: a record of each epoch, and observers that are called during training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bundlemage.errors import MissingExtraError
from bundlemage.progress import Progress

SELECTION_METRIC = "ndcg@5"
SECONDS_BETWEEN_STEPS = 0.5
Event = tuple[str, dict[str, Any]]
"""The name of an observer's method, and its arguments."""


@dataclass(frozen=True)
class EpochRecord:
    """An epoch's losses and validation metrics."""

    epoch: int
    """Counted from 1."""
    losses: Mapping[str, float]
    """The mean loss of each phase."""
    validation: Mapping[str, float]
    """Matching metrics on the validation cases; empty without validation cases."""
    improved: bool
    """Whether this is the best epoch so far."""
    seconds: float
    generation: Mapping[str, float] = field(default_factory=dict)
    """Generation metrics on held-out training bundles; empty if no bundles are held out."""
    value: float | None = None
    """The epoch with the highest value is used. It is nDCG@5 of one task, or for both tasks the mean ratio to
    the model `popularity`. None without validation cases."""
    member: int = 1
    """The member of the ensemble that was trained, counted from 1; 1 for a single model."""

    def chosen_by(self) -> dict[str, float]:
        """Returns all validation metrics by name. Names of generation metrics begin with `generation`."""
        generation = {f"generation {name}": value for name, value in self.generation.items()}
        value = {} if self.value is None else {"value": self.value}
        return {**self.validation, **generation, **value}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_line(self) -> str:
        """Returns the record as a line of JSON."""
        return json.dumps(self.to_json()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> EpochRecord:
        """Returns the record from a line that `to_line` wrote."""
        return cls(**json.loads(line))


def kept(history: Sequence[EpochRecord]) -> list[EpochRecord]:
    """Returns the best epoch of each member: its weights are used. Empty for a model without epochs."""
    return [*{record.member: record for record in history if record.improved}.values()]


def mean_validation(history: Sequence[EpochRecord]) -> dict[str, float]:
    """Returns the validation metrics of the best epoch; for an ensemble, their means over the members."""
    metrics = [record.chosen_by() for record in kept(history)]
    names = metrics[0] if metrics else ()
    return {name: sum(each[name] for each in metrics) / len(metrics) for name in names}


class Observer:
    """Its methods are called during training. A subclass overrides the methods that it needs."""

    def on_member(self, number: int, of: int) -> None:
        """Called before `on_start` of an ensemble's member, counted from 1; never for a single model."""

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        """Called before the first epoch. `done` holds the earlier epochs of a resumed run."""

    def on_step(self, phase: str) -> None:
        """Called after each optimiser step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after each epoch."""

    def on_end(self) -> None:
        """Called at the end of training, also if it is interrupted or fails."""


class Observers(Observer):
    """Several observers as one. For an ensemble, the member's number is added to each record."""

    def __init__(self, observers: Sequence[Observer], member: int = 1, of: int = 1) -> None:
        self.observers, self.member, self.of = observers, member, of

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        records = [self._own(record) for record in done]
        if self.of > 1:
            self._tell("on_member", number=self.member, of=self.of)
        self._tell("on_start", epochs=epochs, steps_per_epoch=steps_per_epoch, done=records)

    def on_step(self, phase: str) -> None:
        self._tell("on_step", phase=phase)

    def on_epoch(self, record: EpochRecord) -> None:
        self._tell("on_epoch", record=self._own(record))

    def on_end(self) -> None:
        self._tell("on_end")

    def _tell(self, method: str, **arguments: Any) -> None:
        show((method, arguments), self.observers)

    def _own(self, record: EpochRecord) -> EpochRecord:
        return replace(record, member=self.member) if self.of > 1 else record


class Teller(Observer):
    """Sends events to another process; there, `show` passes them to observers. Steps are sent in groups."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell, self.steps, self.last = tell, 0, 0.0

    def on_member(self, number: int, of: int) -> None:
        self.tell(("on_member", {"number": number, "of": of}))

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        arguments = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "done": [*done]}
        self.tell(("on_start", arguments))

    def on_step(self, phase: str) -> None:
        self.steps += 1
        if time.monotonic() - self.last >= SECONDS_BETWEEN_STEPS:
            self.tell(("on_step", {"phase": phase, "times": self.steps}))
            self.steps, self.last = 0, time.monotonic()

    def on_epoch(self, record: EpochRecord) -> None:
        self.steps = 0
        self.tell(("on_epoch", {"record": record}))


def show(event: Event, observers: Sequence[Observer]) -> None:
    """Calls the observers' method for an event that a `Teller` sent."""
    name, arguments = event
    times = arguments.pop("times", 1)
    for observer in observers:
        for _ in range(times):
            getattr(observer, name)(**arguments)


class EpochProgress(Observer):
    """Reports finished epochs to `progress`. `stage` is the name of this training in the report."""

    def __init__(self, progress: Progress, stage: str = "epochs") -> None:
        self.progress, self.name, self.stage = progress, stage, stage
        self.note = ""

    def on_member(self, number: int, of: int) -> None:
        self.stage = f"{self.name}, member {number} of {of}"

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        self.epochs, self.steps_per_epoch = epochs, max(1, steps_per_epoch)
        self.best = max((record.validation.get(SELECTION_METRIC, 0.0) for record in done), default=0.0)
        self.done: float = len(done)
        if done:
            self.progress(self.stage, 1, 1, f"resuming after epoch {done[-1].epoch}")
        self.progress(self.stage, self.done, epochs)

    def on_step(self, phase: str) -> None:
        self.done += 1 / self.steps_per_epoch
        self._tell()

    def on_epoch(self, record: EpochRecord) -> None:
        value, completed = (each.get(SELECTION_METRIC) for each in (record.validation, record.generation))
        self.done, self.best = record.epoch, max(self.best, value or 0.0)
        parts = [
            "" if value is None else f"{SELECTION_METRIC} {value:.4f} (best {self.best:.4f})",
            "" if completed is None else f"completing {completed:.4f}",
            *(f"{phase} loss {loss:.2f}" for phase, loss in record.losses.items()),
        ]
        self.note = "  ".join(filter(None, parts))
        self._tell()

    def _tell(self) -> None:
        # Training may stop before the last epoch, so only `on_end` marks the stage as complete.
        self.progress(self.stage, min(self.done, self.epochs - 0.01), self.epochs, self.note)

    def on_end(self) -> None:
        self.progress(self.stage, 1, 1, "" if self.stage == self.name else self.note)


class TensorBoard(Observer):
    """Writes losses and validation metrics for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("plots", "writing TensorBoard logs") from None
        self._writer: Any = SummaryWriter(str(folder))
        self._member = ""

    def on_member(self, number: int, of: int) -> None:
        self._member = f"member-{number}/"

    def on_epoch(self, record: EpochRecord) -> None:
        groups = {"loss": record.losses, "validation": record.validation, "generation": record.generation}
        for group, values in groups.items():
            for name, value in values.items():
                path = f"{self._member}{group}/{name.replace('@', '_at_')}"
                self._writer.add_scalar(path, value, record.epoch)

    def on_end(self) -> None:
        self._writer.close()
