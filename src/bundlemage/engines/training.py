"""Training jobs: the work of each process, and training with several processes on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import Divided
from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.data.splits import PROTOCOLS, Source, Split
from bundlemage.engines.base import Engine, with_absolute_paths
from bundlemage.errors import BundleMageError, ClusterError, ConfigError, NoModelYetError
from bundlemage.models.base import Divisible, Model, Sizes, require
from bundlemage.models.config import ModelConfig, RecencyConfig
from bundlemage.models.division import DividedItems, DividedUsers, Division, Processes
from bundlemage.models.registry import build
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe
from bundlemage.recommender import Recommender
from bundlemage.training import loop
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import Forwarder, Observer, show
from bundlemage.training.loop import TrainingResult, train_members
from bundlemage.training.pool import Ask, Died, Pool

ITEM_TABLES = ("auto", "replicated", "sharded")
COPIES = 5
"""Copies of each table during training: weights, gradient, Adam's two averages, the moving average."""
ROOM = 0.5
"""The share of a process's memory that replicated item tables may use. Larger tables are sharded."""
SECONDS_FOR_REASONS = 2.0
"""After one process has failed, the others have this time to report their errors."""
RESUME_HINT = "--resume continues from the last checkpoint, if there is one"


@dataclass(frozen=True)
class TrainingJob:
    """A recipe, and the data to train on. All processes must be able to read the paths.

    The data that a job has read is kept, but not sent to other processes.
    """

    location: str
    recipe: Recipe
    folder: Path
    """The folder for checkpoints. They hold whole tables: any number of processes can continue the run."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """For a database: the table or query for each part of the data, such as `user_item`."""
    resume: bool = False
    checkpoint_every: int | None = None
    """Epochs between checkpoints; 0: no checkpoints; None: as often as takes about 5% of the time."""
    item_tables: str = "auto"
    """One of `ITEM_TABLES`."""

    def __post_init__(self) -> None:
        """Checks the settings before data is read."""
        if self.item_tables not in ITEM_TABLES:
            raise ConfigError(f"item tables are {self.item_tables!r}; they can be: {', '.join(ITEM_TABLES)}")
        self.recipe.recommender()
        self.recipe.plan()

    @property
    def device(self) -> str:
        """The device of the recipe."""
        return self.recipe.recommender().config.device

    @cached_property
    def source(self) -> Source:
        """The data, read when it is first needed."""
        return read(self.location, self.tables, self.recipe.events)

    @cached_property
    def split(self) -> Split:
        """The data, divided into training, validation and test cases by the recipe."""
        return self.recipe.plan().divide(self.source.dataset, self.source.ready)

    def __getstate__(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def begin(self) -> TrainingJob:
        """Discard an old run unless this one resumes it. Returns the job with `resume` set: if processes die,
        their replacements continue the run."""
        if not self.resume:
            RunFolder(self.folder).discard()
        return replace(with_absolute_paths(self), resume=True)

    def finish(
        self, model: Model, seconds: float, device: str, *, interrupted: bool = False
    ) -> TrainingResult:
        """Load the best weights from the folder into `model`. Returns the history."""
        folder = RunFolder(self.folder)
        if interrupted and not folder.holds_progress():
            raise NoModelYetError("interrupted before the first checkpoint was written: no model")
        _, progress, best = folder.load()
        assert best is not None
        model.load_state_dict(best)
        model.eval()
        return TrainingResult(progress.history, progress.best_epoch, seconds, device, interrupted)


def final_folder(folder: Path) -> Path:
    """The folder for the checkpoints of the final training, from that of the first one."""
    return folder.with_name(f"{folder.name}-final")


def final_job(job: TrainingJob, measured: Recommender) -> TrainingJob:
    """Returns the job that trains a model again on all data, after `job` has trained `measured`."""
    recipe = job.recipe.changed(measured.final_settings(), {"protocol": "none"})
    return replace(job, recipe=recipe, folder=final_folder(job.folder))


def train(
    job: TrainingJob, engine: Engine, observers: Sequence[Observer] = (), progress: Progress = in_silence
) -> Recommender:
    """Train the members of a recipe one after another, with an engine. Returns the recommender.

    For `auto`, the processes train BundleMage, and this process compares it with closed forms.
    """
    learned = job.recipe.learned()

    def by_processes(
        model: Model, config: ModelConfig, _: Split, *, observers: Sequence[Observer], **changed: Any
    ) -> TrainingResult:
        """Train one member. Each process reads its own part of the data."""
        require(model, Divisible).check_divisible()
        # A process that reads a part of the data cannot find out what `auto` means for the whole data.
        decided = {"histories": job.split.histories}
        if job.split.protocol in PROTOCOLS:
            decided["protocol"] = job.split.protocol
        own: dict[str, Any] = {"seed": config.seed}
        if isinstance(config, RecencyConfig):  # this process has chosen it
            own["half_life"] = config.half_life
        member_job = replace(job, recipe=learned.changed(own, decided), **changed)
        return engine.train_one(member_job, model, observers)

    recommender = job.recipe.changed({"device": engine.device_here(job.device)}, {}).recommender()
    model, training = train_members(
        recommender.model_name,
        recommender.config,
        job.split,
        recommender.ensemble,
        loop.train if engine.alone else by_processes,
        folder=None if job.checkpoint_every == 0 else job.folder,
        resume=job.resume,
        checkpoint_every=job.checkpoint_every,
        observers=observers,
        progress=progress,
    )
    return recommender.take(job.split, model, training)


def train_part(job: TrainingJob, device: str, observers: Sequence[Observer] = ()) -> None:
    """Do the training work of one process. PyTorch must already be connected to the other processes."""
    group = Processes.current()
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


def _part(job: TrainingJob, config: ModelConfig, group: Processes) -> tuple[Split, Division]:
    """Returns the data for this process, and how the work is divided. All processes make the same split.
    If the data is a sharded layout, each process reads only its share of the users or items."""
    location, plan = Path(job.location), job.recipe.plan()
    layout = Layout.open(location) if (location / LAYOUT).is_file() else None
    sharded = job.item_tables == "sharded"
    if job.item_tables == "auto":
        items = len(job.split.dataset.items) if layout is None else layout.sizes["items"]
        device = torch.device(config.device)
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0]
        else:
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // group.size
        sharded = items * getattr(config, "embedding_dim", 0) * 2 * 4 * COPIES > ROOM * free
    sharded = group.agreed(sharded)
    if layout is None:
        split = job.split
    else:
        kind = "items" if sharded else "users"
        split = plan.divide(layout.dataset(ids=False, **{kind: group.share(layout.sizes[kind])}))
        if (half_life := getattr(config, "chosen_half_life", None)) is not None:
            split = replace(split, train=on_one_scale(split.train, half_life, group))
    sizes = Sizes.of(split.dataset)
    if not sharded:
        return split, DividedUsers(group, sizes.users)
    return split, DividedItems(group, sizes.items, sizes.bundles)


def on_one_scale(train: BundleDataset, half_life: float, group: Processes) -> BundleDataset:
    """Returns training data in which recent pairs of `user_item` have the weights that they have in one
    process. Each process has some of the pairs, so the sums that the weights depend on are added up."""
    events = train.item_events
    if events.at is None or not isinstance(events.whole, Divided):
        return train
    before, after = group.totals(events.sums(half_life))
    scaled = replace(events, whole=replace(events.whole, scale=before / after if after else 1.0))
    return train.with_item_events(scaled)


# ── Several processes of this machine ────────────────────────────────────────────────────────────


def train_here(
    job: TrainingJob, model: Model, observers: Sequence[Observer] = (), workers: int = 1
) -> TrainingResult:
    """Train with several processes. Shows the progress of the first one. Returns the history."""
    started = time.perf_counter()
    device = resolve_device(job.device)
    if device.index is not None and workers > 1:
        raise ConfigError(f"device '{device}' is a single GPU, but there are {workers} workers: write 'cuda'")
    job, gpus = job.begin(), torch.cuda.device_count()
    backend = "nccl" if device.type == "cuda" and workers <= gpus else "gloo"
    devices = [f"cuda:{rank % gpus}" if device.type == "cuda" else str(device) for rank in range(workers)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    failures: list[Exception | Died] = []
    interrupted = False
    try:
        with Pool(workers, _train_part, (job, workers, store.port, backend)) as pool:
            for _, failure in pool.run(enumerate(devices), lambda _, event: show(event, observers)):
                if failure is not None:
                    failures.append(failure)
                    timer = threading.Timer(SECONDS_FOR_REASONS, pool.terminate)
                    timer.daemon = True
                    timer.start()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for observer in observers:
            observer.on_end()
    if failures:
        raise _reason(failures)
    seconds = time.perf_counter() - started
    return job.finish(model, seconds, f"{workers} × {device}", interrupted=interrupted)


def _reason(failures: Sequence[Exception | Died]) -> Exception:
    """Returns the most likely cause. When one process fails, the others lose the connection and fail too."""

    def order(failure: Exception | Died) -> int:
        if isinstance(failure, Died):
            return 1 if failure.how != "SIGTERM" else 3  # SIGTERM comes from the pool
        return 2 if isinstance(failure, ClusterError) else 0

    first = min(failures, key=order)
    if isinstance(first, Died):
        return ClusterError(f"a training process died ({first.how}); {RESUME_HINT}")
    return first


def _train_part(
    shared: tuple[TrainingJob, int, int, str], task: tuple[int, str], ask: Ask
) -> Exception | None:
    """Do the work of one process. Returns the error if it fails, otherwise None."""
    (job, size, port, backend), (rank, device) = shared, task
    try:
        if device != "cpu":
            torch.cuda.set_device(device)
        store = TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        try:
            train_part(job, device, [Forwarder(ask)])
        finally:
            dist.destroy_process_group()
    except BundleMageError as error:
        return error
    except Exception as error:
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return ClusterError(f"a training process failed ({what}); {RESUME_HINT}")
    return None
