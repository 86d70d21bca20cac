"""What happened in training: a record an epoch, kept as JSON lines and shown to whoever observes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bundlemage.errors import MissingExtraError

SELECTION_METRIC = "ndcg@5"


@dataclass(frozen=True)
class EpochRecord:
    epoch: int
    """Counted from 1."""
    losses: Mapping[str, float]
    """Mean loss of each phase."""
    validation: Mapping[str, float]
    """Matching metrics on the validation cases; empty where there are none."""
    improved: bool
    """Whether this is the best epoch so far."""
    seconds: float
    generation: Mapping[str, float] = field(default_factory=dict)
    """Generation metrics on held-out training bundles; empty where there are none."""
    value: float | None = None
    """What the best epoch is chosen by: nDCG@5, or for both tasks times as good as popularity; None where
    there are no validation cases."""
    member: int = 1
    """Which member of an ensemble learned; 1 where there is only one."""

    def chosen_by(self) -> dict[str, float]:
        """All validation metrics, those of generation by names of their own, and the value that counts."""
        generation = {f"generation {name}": value for name, value in self.generation.items()}
        value = {} if self.value is None else {"value": self.value}
        return {**self.validation, **generation, **value}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_line(self) -> str:
        return json.dumps(self.to_json()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> EpochRecord:
        return cls(**json.loads(line))


def kept(history: Sequence[EpochRecord]) -> list[EpochRecord]:
    """The epoch whose weights are used, of each member; none for a model that learns nothing by steps."""
    return [*{record.member: record for record in history if record.improved}.values()]


def mean_validation(history: Sequence[EpochRecord]) -> dict[str, float]:
    """The validation metrics of the kept epoch; of several members the mean of theirs."""
    found = [record.chosen_by() for record in kept(history)]
    names = found[0] if found else ()
    return {name: sum(metrics[name] for metrics in found) / len(found) for name in names}


class Observer:
    """Told what goes on. Override what is of interest."""

    def on_member(self, number: int, of: int) -> None:
        """Before `on_start` of each member of an ensemble, counted from 1; never for a single model."""

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        """Before the first epoch; `done` are the epochs of a run that is being resumed."""

    def on_step(self, phase: str) -> None:
        """After each optimiser step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """After each epoch."""

    def on_end(self) -> None:
        """After the last epoch, also when training is interrupted or fails."""


class TensorBoard(Observer):
    """Writes losses and validation metrics where TensorBoard reads them."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("plots", "writing TensorBoard logs") from None
        self._writer: Any = SummaryWriter(str(folder))
        self._whose = ""

    def on_member(self, number: int, of: int) -> None:
        self._whose = f"member-{number}/"

    def on_epoch(self, record: EpochRecord) -> None:
        for phase, value in record.losses.items():
            self._write(f"loss/{phase}", value, record.epoch)
        for metric, value in record.validation.items():
            self._write(f"validation/{metric.replace('@', '_at_')}", value, record.epoch)
        for metric, value in record.generation.items():
            self._write(f"generation/{metric.replace('@', '_at_')}", value, record.epoch)

    def _write(self, name: str, value: float, epoch: int) -> None:
        self._writer.add_scalar(self._whose + name, value, epoch)

    def on_end(self) -> None:
        self._writer.close()
