"""Training by several processes: what each of them does, and starting them on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bundlemage.data.load import read
from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.data.splits import Split
from bundlemage.engines.base import Engine, from_anywhere
from bundlemage.errors import BundleMageError, ClusterError, ConfigError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import DividedItems, DividedUsers, Division
from bundlemage.models.group import Group
from bundlemage.models.registry import build
from bundlemage.recipe import Recipe
from bundlemage.recommender import Trainer
from bundlemage.training import loop
from bundlemage.training.checkpoint import RunFolder
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import TrainingResult

ITEM_TABLES = ("auto", "replicated", "sharded")
COPIES = 5
"""Of each table while it is trained: weights, gradient, Adam's two memories, the moving average."""
ROOM = 0.5
"""The share of a process's memory that replicated tables may take."""
SECONDS_BETWEEN_STEPS = 0.5


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

    def finish(self, model: Model, seconds: float, device: str) -> TrainingResult:
        """The best weights, from the folder to a whole model."""
        _, progress, best = RunFolder(self.folder).load()
        assert best is not None
        model.load_state_dict(best)
        model.eval()
        return TrainingResult(progress.history, progress.best_epoch, seconds, device)


def trainer_of(by: Engine, job: TrainingJob) -> Trainer:
    """Who trains, for `Recommender.fit`: this process, or those of an engine."""
    if by.alone:
        return loop.train
    if job.checkpoint_every == 0:
        raise ConfigError(
            "several processes hand the model over by a checkpoint: leave --checkpoint-every out"
        )

    def train(model: Model, *_: Any, observers: Sequence[Observer] = (), **__: Any) -> TrainingResult:
        model.check_divisible()
        return by.train(job, model, observers)

    return train


def train_part(job: TrainingJob, device: str, observers: Sequence[Observer] = ()) -> None:
    """What each process does. PyTorch knows the others by now."""
    group = Group.current()
    config = job.recipe.recommender().config.model_copy(update={"device": device})
    sharded = group.agreed(_sharded(job, config, group, torch.device(device)))
    split, division = _part(job, group, sharded)
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


def _sharded(job: TrainingJob, config: ModelConfig, group: Group, device: torch.device) -> bool:
    if job.item_tables != "auto":
        return job.item_tables == "sharded"
    layout = _layout(job)
    if layout is None:
        return False  # what a process reads whole, it can also learn whole
    width = getattr(config, "embedding_dim", 0) * 2
    needed = layout.sizes["items"] * width * 4 * COPIES
    if device.type == "cuda":
        there = torch.cuda.mem_get_info(device)[0]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // group.size
    return needed > ROOM * there


def _layout(job: TrainingJob) -> Layout | None:
    folder = Path(job.location)
    return Layout.open(folder) if (folder / LAYOUT).is_file() else None


def _part(job: TrainingJob, group: Group, sharded: bool) -> tuple[Split, Division]:
    """What this process does. The data is split alike in all of them, though of users' items each has only a
    part where the data is a layout."""
    layout = _layout(job)
    if layout is None:
        source = read(job.location, job.tables)
        split = job.recipe.plan().divide(source.dataset, source.ready)
    else:
        users, items = (group.share(layout.sizes[kind]) for kind in ("users", "items"))
        part = layout.dataset(ids=False, **({"items": items} if sharded else {"users": users}))
        split = job.recipe.plan().divide(part)
    sizes = Sizes.of(split.dataset)
    if not sharded:
        return split, DividedUsers(group, sizes.users)
    counts = None if layout is None else torch.from_numpy(layout.item_counts())
    return split, DividedItems(group, sizes.items, sizes.bundles, counts)


# ── What goes on, told to whoever looks on in another process ────────────────────────────────────────

Event = tuple[str, dict[str, Any]]


class Teller(Observer):
    """Tells what it sees to a queue; steps only now and then."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell, self.steps, self.last = tell, 0, 0.0

    def on_start(self, *, epochs: int, steps_per_epoch: int, done: Sequence[EpochRecord]) -> None:
        started = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "done": [*done]}
        self.tell(("on_start", started))

    def on_step(self, phase: str) -> None:
        self.steps += 1
        if time.monotonic() - self.last >= SECONDS_BETWEEN_STEPS:
            self.tell(("on_step", {"phase": phase, "times": self.steps}))
            self.steps, self.last = 0, time.monotonic()

    def on_epoch(self, record: EpochRecord) -> None:
        self.steps = 0
        self.tell(("on_epoch", {"record": record}))


def show(event: Event, observers: Sequence[Observer]) -> None:
    name, what = event
    times = what.pop("times", 1)
    for observer in observers:
        for _ in range(times):
            getattr(observer, name)(**what)


# ── On this machine ──────────────────────────────────────────────────────────────────────────────────


def train(
    job: TrainingJob, model: Model, observers: Sequence[Observer] = (), workers: int = 1
) -> TrainingResult:
    """Start the processes, show what the first one tells, and wait for all."""
    started, job = time.perf_counter(), job.begin()
    asked = resolve_device(job.recipe.recommender().config.device)
    alone_on_a_gpu = asked.type == "cuda" and workers <= torch.cuda.device_count()
    backend = "nccl" if alone_on_a_gpu else "gloo"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    processes = []
    for rank in range(workers):
        device = f"cuda:{rank % torch.cuda.device_count()}" if asked.type == "cuda" else str(asked)
        what = (job, rank, workers, store.port, backend, device, events)
        processes.append(context.Process(target=_process, args=what, name=f"rank {rank}", daemon=True))
        processes[-1].start()
    try:
        for event in _events(events, processes):
            show(event, observers)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for observer in observers:
            observer.on_end()
    return job.finish(model, time.perf_counter() - started, f"{workers} × {asked}")


def _events(events: Any, processes: Sequence[Any]) -> Iterator[Event]:
    """Until all processes have ended well; else an error that says why they have not."""
    while any(process.is_alive() for process in processes) or not events.empty():
        try:
            event = events.get(timeout=0.2)
        except Empty:
            event = None
        if event is not None and event[0] == "error":
            raise event[1]["error"]
        if event is not None:
            yield event
        if any(process.exitcode not in (None, 0) for process in processes):
            break
    for process in processes:
        if process.exitcode is None or process.exitcode == 0:
            continue
        while not events.empty():
            event = events.get()
            if event[0] == "error":
                raise event[1]["error"]
        code = process.exitcode
        why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise ClusterError(f"a training process was {why}; --resume goes on from the last checkpoint")


def _process(
    job: TrainingJob, rank: int, size: int, port: int, backend: str, device: str, events: Any
) -> None:
    try:
        with _member(rank, size, port, backend, device):
            train_part(job, device, [Teller(events.put)])
    except BundleMageError as error:
        if rank == 0:
            events.put(("error", {"error": error}))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextmanager
def _member(rank: int, size: int, port: int, backend: str, device: str) -> Iterator[None]:
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    else:
        torch.cuda.set_device(device)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
