"""Training shown as progress: epochs done, losses, validation metrics."""

from __future__ import annotations

from collections.abc import Sequence

from bundlemage.progress import Progress
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer


class EpochProgress(Observer):
    """Tells `progress` how many epochs are done. `stage` names the training if there are several."""

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
        # Patience may end the training earlier, so only `on_end` ends the stage.
        self.progress(self.stage, min(self.done, self.epochs - 0.01), self.epochs, self.note)

    def on_end(self) -> None:
        self.progress(self.stage, 1, 1, "" if self.stage == self.name else self.note)
