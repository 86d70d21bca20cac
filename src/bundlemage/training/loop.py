"""The one training loop. Nothing else in the package steps an optimiser."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, CheckpointError
from bundlemage.evaluation.protocols import matching_metrics, means
from bundlemage.models.base import Interactions, Model
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.training.batches import phase_rows, shuffled
from bundlemage.training.checkpoint import (
    Progress,
    RunFolder,
    Weights,
    optimiser_tensors,
    prefixed,
    restore_optimiser,
    unprefixed,
)
from bundlemage.training.devices import repeatable, resolve_device, seed_epoch
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer

MAY_DIFFER_ON_RESUME = frozenset({"epochs", "patience", "device"})
"""Settings that change how long a run goes on or where, but not what an epoch does."""


@dataclass(frozen=True)
class TrainingResult:
    history: tuple[EpochRecord, ...]
    best_epoch: int
    """The epoch whose weights the model now has; 0 for a model that learns nothing by steps."""
    seconds: float
    device: str
    interrupted: bool = False


def train(
    model: Model,
    config: ModelConfig,
    split: Split,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    observers: Sequence[Observer] = (),
) -> TrainingResult:
    """Fit `model` to `split.train`; it ends with the weights of the best validation nDCG@5.

    Without validation cases, or for a model that does not match, the last epoch's weights stay.
    With a `folder`, every `checkpoint_every`-th epoch is written there, and `resume` goes on from it.
    Ctrl-C ends training early and keeps the best weights so far.
    """
    if resume and folder is None:
        raise CheckpointError("resume needs the folder that the run was begun in")
    device = resolve_device(config.device)
    started = time.perf_counter()
    data = Interactions.of(split.train, device)
    model.to(device)
    model.observe(data)
    progress, interrupted = Progress(), False
    if model.phases:
        if not isinstance(config, LearnedConfig):
            raise TypeError(f"{model.title} learns by steps, so its config must be a LearnedConfig")
        run = _Run(model, config, split, data, observers)
        identity = {**config.model_dump(mode="json"), "model": model.name, **_data_identity(split)}
        if folder is not None:
            run.attach(RunFolder(folder), identity, resume, checkpoint_every)
        with repeatable(device):
            interrupted = run.go()
        progress = run.progress
    model.eval()
    return TrainingResult(
        progress.history, progress.best_epoch, time.perf_counter() - started, str(device), interrupted
    )


def _data_identity(split: Split) -> dict[str, Any]:
    validation = split.validation.fingerprint() if split.validation else None
    return {
        "protocol": split.protocol,
        "training data": split.train.fingerprint(),
        "validation data": validation,
    }


class _Run:
    """One fit in progress."""

    def __init__(
        self,
        model: Model,
        config: LearnedConfig,
        split: Split,
        data: Interactions,
        observers: Sequence[Observer],
    ) -> None:
        self.model, self.config, self.data, self.observers = model, config, data, observers
        self.validation = split.validation if model.matches else None
        fused = data.user_item.device.type in ("cpu", "cuda")
        self.optimiser = torch.optim.Adam(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused
        )
        # What is evaluated and kept: the moving average of the weights where one is asked for.
        self.scored = copy.deepcopy(model) if config.weight_average else model
        self.steps = 0
        self.rows = {phase: phase_rows(phase, data) for phase in model.phases}
        self.progress = Progress()
        self.best: Weights | None = None
        self.folder: RunFolder | None = None
        self.checkpoint_every = 1

    def attach(self, folder: RunFolder, identity: dict[str, Any], resume: bool, every: int) -> None:
        self.folder, self.checkpoint_every = folder, every
        if resume and folder.holds_progress():
            folder.check_identity(identity, MAY_DIFFER_ON_RESUME)
            tensors, self.progress, self.best = folder.load()
            try:
                self.model.load_state_dict(unprefixed("model", tensors))
                if self.scored is not self.model:
                    self.scored.load_state_dict(unprefixed("average", tensors))
                restore_optimiser(self.optimiser, tensors)
            except (RuntimeError, KeyError, ValueError) as error:
                raise CheckpointError(
                    f"{folder.path} does not fit the model, so another version of it wrote this: "
                    f"train anew ({str(error).splitlines()[0]})"
                ) from error
            self.steps = self.progress.epoch * self.steps_per_epoch
        else:
            folder.begin(identity)

    @property
    def steps_per_epoch(self) -> int:
        return sum(-(-len(rows) // self.config.batch_size) for rows in self.rows.values())

    def go(self) -> bool:
        """Train to the end; True if the user interrupted."""
        interrupted = False
        for observer in self.observers:
            observer.on_start(
                epochs=self.config.epochs,
                steps_per_epoch=self.steps_per_epoch,
                done=self.progress.history,
            )
        try:
            while not self._finished():
                self._epoch(self.progress.epoch + 1)
        except KeyboardInterrupt:
            interrupted = True
            if self.best is None:
                raise BundleMageError("interrupted before the first epoch was finished: no model") from None
        finally:
            for observer in self.observers:
                observer.on_end()
        if self.best is not None:
            self.model.load_state_dict(self.best)
        return interrupted

    def _finished(self) -> bool:
        progress = self.progress
        waited = progress.epoch - progress.best_epoch
        return progress.epoch >= self.config.epochs or waited >= self.config.patience

    def _epoch(self, epoch: int) -> None:
        started = time.perf_counter()
        seed_epoch(self.config.seed, epoch)
        losses = self._steps()
        with torch.no_grad():
            self.scored.settle(self.data)
        validation = self._validate()
        value = validation.get(SELECTION_METRIC)
        improved = value is None or value > self.progress.best_value
        seconds = time.perf_counter() - started
        record = EpochRecord(epoch, losses, validation, improved, round(seconds, 4))
        self.progress = replace(self.progress, history=(*self.progress.history, record))
        if improved:
            self.best = {name: tensor.clone() for name, tensor in self.scored.state_dict().items()}
            best_value = float("-inf") if value is None else value
            self.progress = replace(self.progress, best_epoch=epoch, best_value=best_value)
        self._checkpoint(epoch, improved)
        for observer in self.observers:
            observer.on_epoch(record)

    def _steps(self) -> dict[str, float]:
        self.model.train()
        losses = {}
        for phase, rows in self.rows.items():
            total = torch.zeros((), device=rows.device)  # summed there: reading it each step would wait
            for batch in shuffled(rows, self.config.batch_size):
                self.optimiser.zero_grad(set_to_none=True)
                loss = self.model.loss(phase, batch, self.data)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimiser.step()
                self.steps += 1
                self._average()
                total += loss.detach() * len(batch)
                for observer in self.observers:
                    observer.on_step(phase.name)
            losses[phase.name] = float(total) / max(1, len(rows))
        # Squared, as a weight whose square is infinite makes scores that are no numbers.
        sound = all(bool(weights.square().sum().isfinite()) for weights in self.model.parameters())
        if not sound or not all(map(math.isfinite, losses.values())):
            raise BundleMageError(
                "the loss or the weights are no longer finite: the steps are too large. "
                f"Lower learning_rate (now {self.config.learning_rate:g})."
            )
        return losses

    @torch.no_grad()
    def _average(self) -> None:
        if self.scored is self.model:
            return
        # A young average forgets faster, or the first random weights would stay in it for long.
        decay = min(self.config.weight_average, (1 + self.steps) / (10 + self.steps))
        mine: list[Tensor] = list(self.scored.parameters())
        torch._foreach_lerp_(mine, list(self.model.parameters()), 1 - decay)

    def _validate(self) -> dict[str, float]:
        if self.validation is None or not len(self.validation):
            return {}
        return means(matching_metrics(self.scored, self.validation, self.data))

    def _checkpoint(self, epoch: int, improved: bool) -> None:
        if self.folder is None or not self.checkpoint_every:
            return
        if epoch % self.checkpoint_every and not self._finished():
            return
        tensors = {**prefixed("model", self.model.state_dict()), **optimiser_tensors(self.optimiser)}
        if self.scored is not self.model:
            tensors |= prefixed("average", self.scored.state_dict())
        # With rare checkpoints the best epoch may be one that was not written at the time.
        newest_best = improved or self.checkpoint_every > 1
        self.folder.save(tensors, self.progress, self.best if newest_best else None)
