"""Trains a model, or the members of an ensemble one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bundlemage.data.splits import Split
from bundlemage.errors import CheckpointError, NoModelYetError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ensemble import joined, member_configs
from bundlemage.models.registry import build
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import Observer, Observers
from bundlemage.training.loop import TrainingResult, train

Trainer = Callable[..., TrainingResult]
"""A function that trains one model: `training.loop.train`, or one that uses several processes."""


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
    """Trains a model, or an ensemble of `members` models. Returns the model and the history.

    `model` is a name. Member k has the seed of the config plus k - 1, and writes checkpoints to
    `folder`/member-k. With `resume`, a finished member is not trained again. Ctrl-C ends the training: the
    result has the finished members, or else the first member with its best weights so far.
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
                observers=observers if alone else [Observers(observers, number, members)],
            )
        except (KeyboardInterrupt, NoModelYetError):
            if not done:
                raise
            interrupted = True
        else:
            interrupted = result.interrupted
            if not interrupted or not done:
                done.append((one, result))
        if interrupted:
            break
    return joined([one for one, _ in done]), _together([result for _, result in done], interrupted)


def _check_folder(folder: RunFolder, members: int, resume: bool) -> None:
    """Raises CheckpointError if a run of one model is resumed as an ensemble, or vice versa."""
    if not resume:
        if members > 1:
            folder.discard()
        return
    begun = None
    if folder.holds_progress() and members > 1:
        begun = "a single model: resume it without 'ensemble'"
    elif folder.members() and members == 1:
        begun = "an ensemble: resume it with --ensemble"
    if begun is not None:
        raise CheckpointError(f"{folder.path} was begun as {begun}, or start over without --resume")


def _together(results: Sequence[TrainingResult], interrupted: bool) -> TrainingResult:
    """Returns the results of all members as one."""
    if len(results) == 1:
        return replace(results[0], interrupted=interrupted)
    records = [
        replace(record, member=number)
        for number, result in enumerate(results, 1)
        for record in result.history
    ]
    seconds = sum(result.seconds for result in results)
    return TrainingResult(tuple(records), results[0].best_epoch, seconds, results[0].device, interrupted)
