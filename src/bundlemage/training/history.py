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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_line(self) -> str:
        return json.dumps(self.to_json()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> EpochRecord:
        return cls(**json.loads(line))


class Observer:
    """Told what goes on. Override what is of interest."""

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

    def on_epoch(self, record: EpochRecord) -> None:
        for phase, value in record.losses.items():
            self._writer.add_scalar(f"loss/{phase}", value, record.epoch)
        for metric, value in record.validation.items():
            self._writer.add_scalar(f"validation/{metric.replace('@', '_at_')}", value, record.epoch)
        for metric, value in record.generation.items():
            self._writer.add_scalar(f"generation/{metric.replace('@', '_at_')}", value, record.epoch)

    def on_end(self) -> None:
        self._writer.close()
