"""The training loop of all models and ensembles. No other module steps an optimiser."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, CheckpointError, ConfigError, NoModelYetError
from bundlemage.models.auto import LEARNED, TASKS, AutoConfig
from bundlemage.models.base import Divisible, Interactions, Learner, Model, Sizes, can, require
from bundlemage.models.blend import Blend
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.registry import build, joined, member_configs
from bundlemage.progress import Progress, in_silence
from bundlemage.training.checkpoint import RunFolder, RunProgress, Weights, prefixed, unprefixed
from bundlemage.training.choice import Choice, TaskChoice
from bundlemage.training.choosing import choose, fit_parts
from bundlemage.training.devices import memory_kept, repeatable, resolve_device
from bundlemage.training.history import EpochRecord, Forwarder, Observer, show
from bundlemage.training.recency import Recency, choose_half_life
from bundlemage.training.steps import Rows, Stepper
from bundlemage.training.validation import Validation, ValidationCases

MAY_DIFFER_ON_RESUME = frozenset({"epochs", "patience", "device", "content"})
"""Settings that may be changed when a run is resumed: they do not change the result of an epoch."""

WORK_PER_WRITING = 19
"""Seconds of training per second of writing checkpoints. Not used if `checkpoint_every` is given."""


@dataclass(frozen=True)
class TrainingResult:
    """The history and the best epoch of a training."""

    history: tuple[EpochRecord, ...]
    best_epoch: int
    """The model has the weights of this epoch. For an ensemble, this is the epoch of the first member, and
    `training.history.kept` returns the epochs of all members. 0 for a model without epochs."""
    seconds: float
    device: str
    interrupted: bool = False
    choice: Choice | None = None
    """For `auto`: what it consists of, and why. None if nothing was chosen."""
    recency: Recency | None = None
    """The half-life that was chosen, and why. None if nothing was compared."""
    learned: Model | None = field(default=None, repr=False, compare=False)
    """For `auto`: BundleMage as it was trained, even if it was not chosen."""


def train(
    model: Model,
    config: ModelConfig,
    split: Split,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    observers: Sequence[Observer] = (),
    division: Division = ALONE,
) -> TrainingResult:
    """Trains `model` on `split.train`. Returns the history.

    Afterwards the model has the weights of the best epoch on the validation cases (see the setting
    `select_by`), or of the last epoch if there are no such cases. Ctrl-C ends training early and keeps the
    best weights so far. If `folder` is given, a checkpoint is written to it every `checkpoint_every` epochs;
    by default, writing takes about a twentieth of the time. `resume` continues from the last checkpoint. If
    `division` is given, several processes, including this one, train one model and share the folder. A
    checkpoint holds the weights of all processes.
    """
    if resume and folder is None:
        raise CheckpointError("resume needs the folder of the run that is resumed")
    device = resolve_device(config.device)
    started = time.perf_counter()
    if isinstance(model, Blend):
        return _train_each(model, split, observers)
    if division.group is not None:
        require(model, Divisible).divide(division)
    check_times(model, split)
    cases = ValidationCases.of(model, config, split)
    whole = replace(model.interactions(split.train, torch.device("cpu")), held_out=cases.held_out)
    data = division.part_of(whole).to(device)
    model.to(device)
    model.observe(data)
    progress, interrupted = RunProgress(), False
    if can(model, Learner):
        if not isinstance(config, LearnedConfig):
            raise TypeError(f"{model.title} learns by steps, so its config must be a LearnedConfig")
        run = _Run(model, config, cases, data, observers, division)
        if folder is not None:
            identity = {
                **config.model_dump(mode="json"),
                "model": model.name,
                "protocol": split.protocol,
                "training data": split.train.fingerprint(),
                "validation data": split.validation.fingerprint() if split.validation else None,
            }
            run.attach(RunFolder(folder), identity, resume, checkpoint_every)
        with repeatable(device), memory_kept(device):
            interrupted = run.go()
        progress = run.progress
    model.eval()
    return TrainingResult(
        progress.history, progress.best_epoch, time.perf_counter() - started, str(device), interrupted
    )


def check_times(model: Model, split: Split) -> None:
    """Raises `ConfigError` if the model has a half-life and the data has no times."""
    if model.half_life is None:
        return
    if split.train.item_events.at is None and split.train.bundle_events.at is None:
        raise ConfigError(
            f"half_life={model.half_life:g} needs to know when users took things, but the data has no times: "
            "give user_item or user_bundle a column 'at', or leave half_life out"
        )


def _train_each(model: Blend, split: Split, observers: Sequence[Observer]) -> TrainingResult:
    """Trains the members of a blend one after another. The history is that of the first one that learns."""
    results = [
        train(member, member.config, split, observers=observers)
        for member in model.members
        if isinstance(member, Model)
    ]
    model.to(torch.device(results[0].device)).eval()
    learned = next((result for result in results if result.history), results[0])
    return replace(
        learned,
        seconds=sum(result.seconds for result in results),
        interrupted=any(result.interrupted for result in results),
    )


def train_members(
    model: str,
    config: ModelConfig,
    split: Split,
    members: int,
    trainer: Callable[..., TrainingResult] = train,
    *,
    folder: Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress = in_silence,
) -> tuple[Model, TrainingResult]:
    """Trains a model, or an ensemble of `members` models. Returns the model and the history.

    `model` is a name. `trainer` is `train`, or a function that trains a model with several processes. Member
    k has the seed of the config plus k - 1, and writes checkpoints to `folder`/member-k. With `resume`, a
    finished member is not trained again. After Ctrl-C, the result has only the finished members; if there
    are none, it has the first member with its best weights so far.

    For `auto`, BundleMage is trained so, and then the best of BundleMage and closed forms is chosen on the
    validation cases. Without validation cases, `auto` consists of the parts that its settings name.

    If the setting `half_life` is `fit`, it is chosen first, by short trainings in this process.
    """
    learned = (LEARNED, config.learned()) if isinstance(config, AutoConfig) else (model, config)
    recency = choose_half_life(*learned, split, train, progress)
    if recency is not None:
        config = config.model_copy(update={"half_life": recency.half_life})
    options: dict[str, Any] = {
        "folder": folder,
        "resume": resume,
        "checkpoint_every": checkpoint_every,
        "observers": observers,
    }
    if isinstance(config, AutoConfig):
        trained, result = _train_auto(config, split, members, progress, trainer, **options)
    else:
        trained, result = _train_members(model, config, split, members, trainer, **options)
    return trained, replace(result, recency=recency)


def _train_members(
    model: str,
    config: ModelConfig,
    split: Split,
    members: int,
    trainer: Callable[..., TrainingResult],
    *,
    folder: Path | None,
    resume: bool,
    checkpoint_every: int | None,
    observers: Sequence[Observer],
) -> tuple[Model, TrainingResult]:
    """`train_members` for other models than `auto`, with a half-life that is already chosen."""
    configs = member_configs(model, config, members)
    if folder is not None:
        _check_folder(RunFolder(folder), members, resume)
    options: dict[str, Any] = {"folder": folder, "observers": observers}
    done: list[tuple[Model, TrainingResult]] = []
    interrupted = False
    for number, own in enumerate(configs, 1):
        if members > 1:
            forwarder = Forwarder(partial(show, observers=observers), number, members, pause=0)
            place = None if folder is None else RunFolder(folder).member(number).path
            options = {"folder": place, "observers": [forwarder]}
        try:
            member = build(model, own, Sizes.of(split.dataset))
            result = trainer(member, own, split, resume=resume, checkpoint_every=checkpoint_every, **options)
        except (KeyboardInterrupt, NoModelYetError):
            if not done:
                raise
            interrupted = True
        else:
            interrupted = result.interrupted
            if not interrupted or not done:
                done.append((member, result))
        if interrupted:
            break
    results = [result for _, result in done]
    combined = replace(results[0], interrupted=interrupted)
    if len(results) > 1:
        records = [
            replace(record, member=number)
            for number, result in enumerate(results, 1)
            for record in result.history
        ]
        combined = replace(
            combined, history=tuple(records), seconds=sum(result.seconds for result in results)
        )
    return joined([member for member, _ in done]), combined


def _rising(values: Sequence[float], patience: int) -> bool:
    """Whether the median of the last `patience` values is above that of the values before them.

    With few validation cases, one lucky epoch may stay the best for long while the model still improves.
    """
    last, before = values[-patience:], values[-2 * patience : -patience]
    return bool(before) and median(last) > median(before)


def _train_auto(
    config: AutoConfig, split: Split, members: int, progress: Progress, *arguments: Any, **options: Any
) -> tuple[Model, TrainingResult]:
    """`train_members` for `auto`. `arguments` and `options` are passed on."""
    device, started = resolve_device(config.device), time.perf_counter()
    compared = split.validation is not None
    learned: Model | None = None
    result = TrainingResult((), 0, 0.0, str(device))
    if compared or config.learns:
        learned, result = _train_members(LEARNED, config.learned(), split, members, *arguments, **options)
    number = len(learned.members) if isinstance(learned, Blend) else 1
    if compared and learned is not None:
        auto, choice = choose(config, split, learned, number, device=device, progress=progress)
        result = replace(result, choice=choice)
    else:
        auto = fit_parts(config, split, learned, number, device)
        reason = "No purchases were held out for validation, so nothing could be compared"
        tasks = (task for task in TASKS if config.tasks in ("both", task))
        result = replace(result, choice=Choice(**{task: TaskChoice(reason) for task in tasks}))
    return auto, replace(result, learned=learned, seconds=time.perf_counter() - started)


def _check_folder(folder: RunFolder, members: int, resume: bool) -> None:
    """Raises CheckpointError if a run of one model is resumed as an ensemble, or vice versa."""
    begun = ""
    if members > 1 and not resume:
        folder.discard()
    elif members > 1 and folder.holds_progress():
        begun = "a single model: resume it without 'ensemble'"
    elif members == 1 and resume and folder.members():
        begun = "an ensemble: resume it with --ensemble"
    if begun:
        raise CheckpointError(f"{folder.path} was begun as {begun}, or start over without --resume")


class _Run:
    """The state of one training while it runs."""

    def __init__(
        self,
        model: Learner,
        config: LearnedConfig,
        cases: ValidationCases,
        data: Interactions,
        observers: Sequence[Observer],
        division: Division,
    ) -> None:
        self.model, self.config, self.data, self.division = model, config, data, division
        self.observers = Forwarder(partial(show, observers=observers), pause=0)
        self.leads = division.group is None or division.group.leads
        self.validation = Validation(cases, data, division)
        # The model that is evaluated and saved. It has the moving average of the weights, if there is one.
        self.scored = copy.deepcopy(model) if config.weight_average else model
        self.rows = {phase: Rows(phase, data) for phase in model.phases}
        self.batch_sizes = {phase: rows.batch_size(config) for phase, rows in self.rows.items()}
        self.steps_per_epoch = sum(
            -(-len(rows) // self.batch_sizes[phase]) for phase, rows in self.rows.items()
        )
        steps = config.epochs * self.steps_per_epoch
        self.stepper = Stepper(model, self.scored, config, data, steps, division)
        self.parameters = [name for name, _ in model.named_parameters()]
        self.progress = RunProgress()
        self.best: Weights | None = None
        self.folder: RunFolder | None = None
        self.checkpoint_every: int | None = None
        self.next_checkpoint = 0.0

    def attach(self, folder: RunFolder, identity: dict[str, Any], resume: bool, every: int | None) -> None:
        self.folder, self.checkpoint_every = folder, every
        if self._agreed(resume and folder.holds_progress()):
            # With a schedule, every learning rate depends on the total number of steps.
            fixed = {"epochs"} if self.config.schedule != "constant" else set()
            folder.resume(identity, MAY_DIFFER_ON_RESUME - fixed)
            tensors, self.progress, best = folder.load()
            self.best = None if best is None else self._own(best)
            try:
                self.model.load_state_dict(self._own(unprefixed("model", tensors)))
                if self.scored is not self.model:
                    self.scored.load_state_dict(self._own(unprefixed("average", tensors)))
                self.stepper.optimiser.load(self._own(unprefixed("optimiser", tensors)))
            except (RuntimeError, KeyError, IndexError, ValueError) as error:
                raise CheckpointError(
                    f"{folder.path} does not fit the model: another version of the model wrote it. "
                    f"Train anew ({str(error).splitlines()[0]})"
                ) from error
            self.stepper.steps = self.progress.epoch * self.steps_per_epoch
        elif self.leads:
            folder.begin(identity)

    def _agreed(self, value: Any) -> Any:
        """Returns the value of the first process. Processes may see different files and clocks."""
        return value if self.division.group is None else self.division.group.agreed(value)

    # Checkpoints hold complete tables, so a run can be resumed with another number of processes.

    def _rows(self, name: str) -> int | None:
        """Returns the number of rows of a tensor in all processes together; None if it is not divided."""
        place, _, kind = name.partition(".")
        owner = name
        if place.isdecimal():  # a tensor of the optimiser: `N.kind`, N is the index of its parameter
            owner = self.parameters[int(place)] if kind in ("mean", "square") else ""
        divided = isinstance(self.model, Divisible) and owner in self.model.divided_tables
        return self.model.sizes.items if divided else None

    def _own(self, tensors: Weights) -> Weights:
        """Returns this process's rows of whole tensors."""
        here = self.division.rows_of(self.model.sizes.items)
        return {
            name: tensor if self._rows(name) is None else tensor[here.start : here.stop]
            for name, tensor in tensors.items()
        }

    def _whole(self, tensors: Weights) -> Weights:
        """Returns whole tensors in the first process. All processes must call it at the same time."""
        group, items = self.division.group, self.model.sizes.items
        if group is None or len(self.division.rows_of(items)) == items:
            return tensors
        gathered = {
            name: tensor if self._rows(name) is None else group.gathered(tensor, items)
            for name, tensor in tensors.items()
        }
        return {name: tensor for name, tensor in gathered.items() if tensor is not None}

    def go(self) -> bool:
        """Trains to the end. Returns True if the user pressed Ctrl-C."""
        interrupted = False
        self.observers.on_start(
            epochs=self.config.epochs, steps_per_epoch=self.steps_per_epoch, done=self.progress.history
        )
        try:
            while not self._finished():
                self._epoch(self.progress.epoch + 1)
        except KeyboardInterrupt:
            interrupted = True
            if self.best is None:
                raise NoModelYetError(
                    "interrupted before the first epoch was finished, so there is no model"
                ) from None
        finally:
            self.observers.on_end()
        if self.best is not None:
            self.model.load_state_dict(self.best)
        return interrupted

    def _finished(self) -> bool:
        progress, patience = self.progress, self.config.patience
        # While the best value is 0, epochs without improvement are not counted.
        waited = progress.epoch - progress.best_epoch if progress.best_value != 0 else 0
        if progress.epoch >= self.config.epochs or waited < patience:
            return progress.epoch >= self.config.epochs
        return not _rising([record.value or 0.0 for record in progress.history], patience)

    def _epoch(self, epoch: int) -> None:
        started = time.perf_counter()
        torch.manual_seed(self.config.seed * 1_000_003 + epoch)  # a resumed run draws the same numbers
        losses = self._steps()
        with torch.no_grad():
            if self.division.group is not None:
                self.division.keep_alike(require(self.model, Divisible), require(self.scored, Divisible))
            self.scored.settle(self.data)
        matching, generation, value = self._agreed(self.validation.of(self.scored))
        improved = value is None or value > self.progress.best_value
        seconds = round(time.perf_counter() - started, 4)
        record = EpochRecord(epoch, losses, matching, improved, seconds, generation, value)
        self.progress = replace(self.progress, history=(*self.progress.history, record))
        if improved:
            self.best = {name: tensor.clone() for name, tensor in self.scored.state_dict().items()}
            best_value = float("-inf") if value is None else value
            self.progress = replace(self.progress, best_epoch=epoch, best_value=best_value)
        self._checkpoint(epoch)
        self.observers.on_epoch(record)

    def _steps(self) -> dict[str, float]:
        self.model.train()
        self.stepper.begin_epoch()
        for phase, rows in self.rows.items():
            for batch in rows.shuffled(self.batch_sizes[phase]):
                self.stepper.step(phase, batch)
                self.observers.on_step(phase.name)
        # All losses are read together, because each read waits for the device. The norms of the weights are
        # checked too: a weight with an infinite square makes scores NaN.
        norms = torch.stack(torch._foreach_norm([*self.model.parameters()]))
        sums = torch.stack([*self.stepper.losses.values(), norms.square().sum()])
        *totals, squares = self.division.add_losses(sums).tolist()
        if not all(map(math.isfinite, (squares, *totals))):
            raise BundleMageError(
                "the loss or the weights are no longer finite: the steps are too large. "
                f"Lower learning_rate (now {self.config.learning_rate:g})."
            )
        return {
            phase.name: total / max(1, len(rows))
            for (phase, rows), total in zip(self.rows.items(), totals, strict=True)
        }

    def _checkpoint(self, epoch: int) -> None:
        if self.folder is None or self.checkpoint_every == 0:
            return
        started = time.perf_counter()
        due = epoch % self.checkpoint_every == 0 if self.checkpoint_every else started >= self.next_checkpoint
        if not self._agreed(due or self._finished()):
            return
        tensors = prefixed("model", self._whole(self.model.state_dict()))
        tensors |= prefixed("optimiser", self._whole(self.stepper.optimiser.tensors()))
        if self.scored is not self.model:
            tensors |= prefixed("average", self._whole(self.scored.state_dict()))
        best = None if self.best is None else self._whole(self.best)
        if self.leads:
            self.folder.save(tensors, self.progress, best)
        self._agreed(None)  # no process continues before the file is written
        ended = time.perf_counter()
        self.next_checkpoint = ended + WORK_PER_WRITING * (ended - started)
