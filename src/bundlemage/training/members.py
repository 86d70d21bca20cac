"""Members of an ensemble, trained one after another by whoever trains a single model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bundlemage.data.splits import Split
from bundlemage.errors import CheckpointError, NoModelYetError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ensemble import joined, member_configs
from bundlemage.models.registry import build
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train


class Trainer(Protocol):
    """Trains one model: `training.loop.train`, or an engine with several processes."""

    def __call__(
        self,
        model: Model,
        config: ModelConfig,
        split: Split,
        *,
        folder: Path | None,
        resume: bool,
        checkpoint_every: int | None,
        observers: Sequence[Observer],
    ) -> TrainingResult: ...


def train_members(
    model: str,
    config: ModelConfig,
    split: Split,
    members: int,
    trainer: Trainer = train,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    observers: Sequence[Observer] = (),
) -> tuple[Model, TrainingResult]:
    """A model by its name, or several as one, with their weights, and what happened.

    Member k has the seed of the config plus k - 1, and its checkpoints in `folder`/member-k. A member that is
    finished is not trained again on `resume`. Ctrl-C ends the training: members that are finished are kept,
    and of the first one its best weights so far.
    """
    sizes = Sizes.of(split.dataset)
    configs = member_configs(model, config, members)
    if folder is not None:
        _check_folder(RunFolder(folder), members, resume)
    done: list[tuple[Model, TrainingResult]] = []
    interrupted = False
    for number, own in enumerate(configs, 1):
        alone = members == 1
        try:
            one = build(model, own, sizes)
            result = trainer(
                one,
                own,
                split,
                folder=folder if folder is None or alone else RunFolder(folder).member(number).path,
                resume=resume,
                checkpoint_every=checkpoint_every,
                observers=observers if alone else [_Member(observers, number, members)],
            )
        except (KeyboardInterrupt, NoModelYetError):
            if not done:
                raise
            interrupted = True
            break
        interrupted = result.interrupted
        if not interrupted or not done:
            done.append((one, result))
        if interrupted:
            break
    return joined([one for one, _ in done]), _together([result for _, result in done], interrupted)


def _check_folder(folder: RunFolder, members: int, resume: bool) -> None:
    """A run of one model and one of several are not mixed up."""
    if not resume:
        if members > 1:
            folder.discard()
        return
    if folder.holds_progress() and members > 1:
        raise CheckpointError(
            f"{folder.path} was begun as a single model: resume it without 'ensemble', or start over without "
            "--resume"
        )
    if folder.members() and members == 1:
        raise CheckpointError(
            f"{folder.path} was begun as an ensemble: resume it with --ensemble, or start over without "
            "--resume"
        )


def _together(results: Sequence[TrainingResult], interrupted: bool) -> TrainingResult:
    if len(results) == 1:
        return replace(results[0], interrupted=interrupted)
    return TrainingResult(
        tuple(record for number, result in enumerate(results, 1) for record in _of(result.history, number)),
        results[0].best_epoch,
        sum(result.seconds for result in results),
        results[0].device,
        interrupted,
    )


def _of(history: Sequence[EpochRecord], member: int) -> list[EpochRecord]:
    return [replace(record, member=member) for record in history]


class _Member(Observer):
    """Tells observers whose epochs these are."""

    def __init__(self, observers: Sequence[Observer], number: int, of: int) -> None:
        self.observers, self.number, self.of = observers, number, of

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        for observer in self.observers:
            observer.on_member(self.number, self.of)
            observer.on_start(epochs=epochs, steps_per_epoch=steps_per_epoch, done=_of(done, self.number))

    def on_step(self, phase: str) -> None:
        for observer in self.observers:
            observer.on_step(phase)

    def on_epoch(self, record: EpochRecord) -> None:
        for observer in self.observers:
            observer.on_epoch(replace(record, member=self.number))

    def on_end(self) -> None:
        for observer in self.observers:
            observer.on_end()
