"""Training by several processes: the job, what each of them does, and what it tells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.data.splits import Split
from bundlemage.engines.base import Engine, from_anywhere
from bundlemage.errors import ConfigError, NoModelYetError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import DividedItems, DividedUsers, Division
from bundlemage.models.group import Group
from bundlemage.models.registry import build
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe
from bundlemage.training import loop
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.history import Observer
from bundlemage.training.loop import TrainingResult
from bundlemage.training.members import Trainer

ITEM_TABLES = ("auto", "replicated", "sharded")
COPIES = 5
"""Of each table while it is trained: weights, gradient, Adam's two memories, the moving average."""
ROOM = 0.5
"""The share of a process's memory that replicated tables may take."""


@dataclass(frozen=True)
class TrainingJob:
    """What is trained on what. Paths lead to storage that all processes share."""

    location: str
    recipe: Recipe
    folder: Path
    """Checkpoints. They hold whole tables, so that a run may go on with any number of processes."""
    tables: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False
    checkpoint_every: int | None = None
    item_tables: str = "auto"
    """One of `ITEM_TABLES`."""

    def __post_init__(self) -> None:
        if self.item_tables not in ITEM_TABLES:
            raise ConfigError(f"item tables are {self.item_tables!r}; they can be: {', '.join(ITEM_TABLES)}")

    def begin(self) -> TrainingJob:
        """The same for processes that may die, so that whoever starts anew goes on from what is there; and
        that run in other folders."""
        if not self.resume:
            RunFolder(self.folder).discard()
        location, folder = from_anywhere(self.location), self.folder.resolve()
        return replace(self, location=location, folder=folder, resume=True)

    def finish(
        self, model: Model, seconds: float, device: str, *, interrupted: bool = False
    ) -> TrainingResult:
        """The best weights, from the folder to a whole model."""
        folder = RunFolder(self.folder)
        if interrupted and not folder.holds_progress():
            raise NoModelYetError("interrupted before the first checkpoint was written: no model")
        _, progress, best = folder.load()
        assert best is not None
        model.load_state_dict(best)
        model.eval()
        return TrainingResult(progress.history, progress.best_epoch, seconds, device, interrupted)


def trainer_of(by: Engine, job: TrainingJob) -> Trainer:
    """Who trains, for `Recommender.fit`: this process, or those of an engine."""
    if by.alone:
        if job.item_tables != "auto":
            raise ConfigError("item tables are laid out for several processes: add --workers")
        return loop.train
    if job.checkpoint_every == 0:
        raise ConfigError(
            "several processes hand the model over by a checkpoint: leave --checkpoint-every out"
        )

    def train(
        model: Model,
        config: ModelConfig,
        *_: Any,
        folder: Path | None = None,
        observers: Sequence[Observer] = (),
        **__: Any,
    ) -> TrainingResult:
        model.check_divisible()
        recipe = job.recipe.changed({"seed": config.seed}, {})  # a member of an ensemble has its own
        return by.train(replace(job, recipe=recipe, folder=folder or job.folder), model, observers)

    return train


def train_part(job: TrainingJob, device: str, observers: Sequence[Observer] = ()) -> None:
    """What each process does. PyTorch knows the others by now."""
    group = Group.current()
    config = job.recipe.recommender().config.model_copy(update={"device": device})
    split, division = _part(job, config, group)
    loop.train(
        build(job.recipe.model, config, Sizes.of(split.dataset)),
        config,
        split,
        folder=job.folder,
        resume=job.resume,
        checkpoint_every=job.checkpoint_every,
        observers=observers if group.leads else (),
        division=division,
    )


def _layout(job: TrainingJob) -> Layout | None:
    folder = Path(job.location)
    return Layout.open(folder) if (folder / LAYOUT).is_file() else None


def _part(job: TrainingJob, config: ModelConfig, group: Group) -> tuple[Split, Division]:
    """What this process does. The data is split alike in all of them, though of users' items each has only a
    part where the data is a layout."""
    layout, plan = _layout(job), job.recipe.plan()
    if layout is None:
        source = read(job.location, job.tables)
        split = plan.divide(source.dataset, source.ready)
        sharded = group.agreed(_sharded(job, config, len(source.dataset.items), group))
    else:
        sharded = group.agreed(_sharded(job, config, layout.sizes["items"], group))
        users, items = (group.share(layout.sizes[kind]) for kind in ("users", "items"))
        split = plan.divide(layout.dataset(ids=False, **({"items": items} if sharded else {"users": users})))
    sizes = Sizes.of(split.dataset)
    if not sharded:
        return split, DividedUsers(group, sizes.users)
    counts = None if layout is None else torch.from_numpy(layout.item_counts())
    return split, DividedItems(group, sizes.items, sizes.bundles, counts)


def _sharded(job: TrainingJob, config: ModelConfig, items: int, group: Group) -> bool:
    if job.item_tables != "auto":
        return job.item_tables == "sharded"
    width = getattr(config, "embedding_dim", 0) * 2
    device = torch.device(config.device)
    if device.type == "cuda":
        there = torch.cuda.mem_get_info(device)[0]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // group.size
    return items * width * 4 * COPIES > ROOM * there
