"""The history of a training: a record of each epoch, and observers that are called during training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bundlemage.data.checked_json import parse, typed
from bundlemage.errors import MissingExtraError
from bundlemage.progress import Progress

SELECTION_METRIC = "ndcg@5"
LONGEST_LINE = 2**16
"""Real lines have some hundred characters."""
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
    """The epoch with the highest value is used. For one task, the value is nDCG@5. For both tasks, it is
    the geometric mean of the ratios of nDCG@5 to that of the model `popularity`. None without validation
    cases."""
    member: int = 1
    """The member of the ensemble that was trained, counted from 1; 1 for a single model."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_line(self) -> str:
        """Returns the record as a line of JSON."""
        return json.dumps(self.to_json()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> EpochRecord:
        """Returns the record from a line that `to_line` wrote. Raises ValueError if it is none."""
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line of the history has {len(line):,} characters")
        return typed(cls, parse(line))


def kept(history: Sequence[EpochRecord]) -> list[EpochRecord]:
    """Returns the best epoch of each member, whose weights are used. Empty for a model without epochs."""
    return [*{record.member: record for record in history if record.improved}.values()]


def mean_validation(history: Sequence[EpochRecord]) -> dict[str, float]:
    """Returns the validation metrics of the best epoch; for an ensemble, their means over the members.

    Names of generation metrics begin with `generation`. The epoch's value has the name `value`.
    """
    metrics: dict[str, list[float]] = {}
    for record in kept(history):
        generation = {f"generation {name}": value for name, value in record.generation.items()}
        own = {} if record.value is None else {"value": record.value}
        for name, value in {**record.validation, **generation, **own}.items():
            metrics.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in metrics.items()}


class Observer:
    """Its methods are called during training. A subclass overrides the methods that it needs."""

    def on_member(self, number: int, of: int) -> None:
        """Called before `on_start` of each member of an ensemble. `number` counts from 1, and `of` is the
        size of the ensemble. Not called for a single model."""

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        """Called before the first epoch. `done` holds the earlier epochs of a resumed run."""

    def on_step(self, phase: str) -> None:
        """Called after each optimiser step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after each epoch."""

    def on_end(self) -> None:
        """Called at the end of training, also if it is interrupted or fails."""


class Forwarder(Observer):
    """Sends each call as an event. `show` passes events to observers, in this process or in another one.

    An event may count several steps, and at most one such event is sent in `pause` seconds. With a pause of
    0, each step and the end of training are sent. For an ensemble of `of` members, each record gets the
    number of the `member`.
    """

    def __init__(
        self, send: Callable[[Event], object], member: int = 1, of: int = 1, pause: float = 0.5
    ) -> None:
        self.send, self.member, self.of, self.pause = send, member, of, pause
        self.steps, self.last = 0, 0.0

    def on_member(self, number: int, of: int) -> None:
        self.send(("on_member", {"number": number, "of": of}))

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        if self.of > 1:
            self.on_member(self.member, self.of)
        records = [self._own(record) for record in done]
        self.send(("on_start", {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "done": records}))

    def on_step(self, phase: str) -> None:
        self.steps += 1
        if time.monotonic() - self.last >= self.pause:
            self.send(("on_step", {"phase": phase, "times": self.steps}))
            self.steps, self.last = 0, time.monotonic()

    def on_epoch(self, record: EpochRecord) -> None:
        self.steps = 0
        self.send(("on_epoch", {"record": self._own(record)}))

    def on_end(self) -> None:
        if not self.pause:
            self.send(("on_end", {}))

    def _own(self, record: EpochRecord) -> EpochRecord:
        return replace(record, member=self.member) if self.of > 1 else record


def show(event: Event, observers: Sequence[Observer]) -> None:
    """Calls the observers' method for an event of a `Forwarder`."""
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
        self._update()

    def on_epoch(self, record: EpochRecord) -> None:
        value, generation = (each.get(SELECTION_METRIC) for each in (record.validation, record.generation))
        self.done, self.best = record.epoch, max(self.best, value or 0.0)
        parts = [
            "" if value is None else f"{SELECTION_METRIC} {value:.4f} (best {self.best:.4f})",
            "" if generation is None else f"generation {generation:.4f}",
            *(f"{phase} loss {loss:.2f}" for phase, loss in record.losses.items()),
        ]
        self.note = "  ".join(filter(None, parts))
        self._update()

    def _update(self) -> None:
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
