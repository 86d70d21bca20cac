"""Engines run jobs on this machine or on a Ray cluster. The results are the same."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bundlemage.errors import ConfigError
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.load import is_sample

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.engines.jobs import CampaignJob, EvaluationJob
    from bundlemage.engines.scoring import ScoredUsers, ScoringJob
    from bundlemage.engines.training import TrainingJob
    from bundlemage.models.base import Model
    from bundlemage.recommender import Recommender
    from bundlemage.scorecard import Scorecard
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study

ENGINES = ("local", "ray")

AnyJob = TypeVar("AnyJob", bound=Any)
Piece = TypeVar("Piece")
Result = TypeVar("Result")


def with_absolute_paths(job: AnyJob) -> AnyJob:
    """Returns the job with absolute paths, for processes that run in other folders."""
    values = {part.name: getattr(job, part.name) for part in fields(job)}
    absolute: dict[str, Any] = {
        name: path.resolve() for name, path in values.items() if isinstance(path, Path)
    }
    if isinstance(location := values.get("location"), str):
        if file := _DATABASE_FILE.match(location):
            absolute["location"] = f"{file['scheme']}{Path(file['path']).resolve()}{file['options']}"
        elif not is_sample(location) and Path(location).exists():
            absolute["location"] = str(Path(location).resolve())
    if "job" in values:
        absolute["job"] = with_absolute_paths(values["job"])
    changed: AnyJob = replace(job, **absolute)
    return changed


_DATABASE_FILE = re.compile(
    r"(?P<scheme>(sqlite|duckdb)(\+\w+)?:///)(?P<path>[^/:?][^?]*)(?P<options>.*)", re.IGNORECASE
)
"""The URL of a database file with a relative path."""


class Workers:
    """The processes that share one job. In this base class, this process does all the work."""

    count: int = 1

    def each(
        self, make: Callable[[AnyJob], Callable[[Piece], Result]], job: AnyJob, pieces: Iterable[Piece]
    ) -> Iterator[Result]:
        """Yields the result of each piece of work, in order. Each process calls `make(job)` once, before its
        first piece. `make` returns the function that does a piece."""
        return map(make(job), pieces)


class Engine(ABC):
    """Runs jobs. A job is a plain value. All processes must be able to read the folders that it names.

    An engine implements `working`, `train_one` and `tune`; the other methods are the same for all.
    """

    name: ClassVar[str]
    alone: bool = False
    """Whether training runs in this process only."""

    @abstractmethod
    def working(self, doing: str, device: str) -> AbstractContextManager[Workers]:
        """Returns a context with the processes for one job on `device`. `doing` names the job in messages."""

    @abstractmethod
    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        """Train one model with several processes, and load the weights into `model`. Returns the history."""

    @abstractmethod
    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        """Search for the settings of a model with the best validation result. Returns all trials."""

    def device_here(self, device: str) -> str:
        """Returns the device that this process uses when the other processes use `device`."""
        return device

    def check(self, job: TrainingJob) -> None:
        """Raises an error if this engine cannot run the job. No data is read."""
        from bundlemage.training.devices import resolve_device

        if self.alone and job.item_tables != "auto":
            raise ConfigError("--item-tables is for several processes: add --workers, or leave it out")
        if not self.alone and job.checkpoint_every == 0:
            raise ConfigError(
                "several processes need a checkpoint to return the model: leave --checkpoint-every out"
            )
        resolve_device(self.device_here(job.device))

    def train(
        self, job: TrainingJob, observers: Sequence[Observer] = (), progress: Progress = in_silence
    ) -> Recommender:
        """Train a model or an ensemble. Returns the fitted recommender. Its scores are not calibrated yet."""
        from bundlemage.engines.training import train

        self.check(job)
        return train(job, self, observers, progress)

    def evaluate(self, job: EvaluationJob, progress: Progress = in_silence) -> Scorecard:
        """Returns metrics on held-out cases: of a saved model, and of closed forms for comparison."""
        from bundlemage.engines.jobs import evaluate

        with self.working("evaluating", job.device) as workers:
            job.load(self.device_here(job.device))
            return evaluate(job, workers, progress)

    def recommend_all(self, job: ScoringJob, progress: Progress = in_silence) -> ScoredUsers:
        """Write the best bundles for every user as Parquet. Returns the numbers of users and answers."""
        from bundlemage.engines.scoring import score

        with self.working("recommending", job.device) as workers:
            return score(job, workers, progress)

    def campaign(self, job: CampaignJob, progress: Progress = in_silence) -> CampaignSummary:
        """Choose bundles for every user. Limits apply to all users together. Returns a summary."""
        from bundlemage.engines.jobs import campaign

        with self.working("a campaign", job.device) as workers:
            progress("loading the model", 0, 0)
            job.load(self.device_here(job.device))
            return campaign(job, workers, progress)


class LocalEngine(Engine):
    """Runs jobs on this machine. Training and tuning may use several processes, other jobs use one."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1
        self.alone = self.workers == 1

    @contextmanager
    def working(self, doing: str, device: str) -> Iterator[Workers]:
        if not self.alone:
            raise ConfigError(
                f"on this machine, {doing} uses one process; --workers is {self.workers}: add --engine ray, "
                "or leave --workers out"
            )
        yield Workers()

    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        from bundlemage.engines.training import train_here

        return train_here(job, model, observers, self.workers)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        from bundlemage.training.devices import resolve_device
        from bundlemage.tuning.session import tune

        resolve_device(search.device)
        return tune(search, progress, self.workers)


def engine(name: str = "local", *, address: str | None = None, workers: int | None = None) -> Engine:
    """Returns an engine: `local` runs jobs on this machine, `ray` on a Ray cluster.

    `address` is the address of the cluster; without it, Ray is started on this machine for each job.
    `workers` is the number of processes. The default on this machine is one. On a cluster it is the number
    of GPUs, or of processors if no GPU is used.
    """
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}; the engines are: {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; at least one is needed")
    if name == "ray":
        from bundlemage.engines.ray import RayEngine

        return RayEngine(address, workers)
    if address is not None:
        raise ConfigError("--address is for a Ray cluster: add --engine ray, or leave --address out")
    return LocalEngine(workers)
