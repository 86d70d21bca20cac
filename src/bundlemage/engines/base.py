"""Engines run jobs: on this machine, or on a Ray cluster with the same results."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bundlemage.errors import ConfigError
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.load import SAMPLE

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.engines.campaigning import CampaignJob
    from bundlemage.engines.evaluating import EvaluationJob
    from bundlemage.engines.scoring import ScoredUsers, ScoringJob
    from bundlemage.engines.training import TrainingJob
    from bundlemage.evaluation.protocols import Evaluation
    from bundlemage.models.base import Model
    from bundlemage.recommender import Recommender
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study

ENGINES = ("local", "ray")

AnyJob = TypeVar("AnyJob", bound=Any)
Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ModelJob:
    """A job that needs a saved model. What it has loaded is kept, and does not travel to other processes."""

    model: Path
    """The folder of the model."""
    device: str = field(default="auto", kw_only=True)

    @cached_property
    def recommender(self) -> Recommender:
        """The model, loaded when it is first needed."""
        from bundlemage.recommender import Recommender

        return Recommender.load(self.model, device=self.device)

    def load(self, device: str) -> None:
        """Load the model on `device` unless it is loaded already."""
        if "recommender" not in vars(self):
            vars(self)["recommender"] = replace(self, device=device).recommender

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def written_out(job: AnyJob) -> AnyJob:
    """The same job with absolute paths, for processes in other folders."""
    values = {each.name: getattr(job, each.name) for each in fields(job)}
    whole: dict[str, Any] = {name: path.resolve() for name, path in values.items() if isinstance(path, Path)}
    if isinstance(values.get("location"), str):
        whole["location"] = _absolute(values["location"])
    if "job" in values:
        whole["job"] = written_out(values["job"])
    changed: AnyJob = replace(job, **whole)
    return changed


def _absolute(location: str) -> str:
    if file := _DATABASE_FILE.match(location):
        return f"{file['scheme']}{Path(file['path']).resolve()}{file['options']}"
    path = Path(location)
    return str(path.resolve()) if location != SAMPLE and path.exists() else location


_DATABASE_FILE = re.compile(
    r"(?P<scheme>(sqlite|duckdb)(\+\w+)?:///)(?P<path>[^/:?][^?]*)(?P<options>.*)", re.IGNORECASE
)
"""The URL of a database file with a relative path."""


class Workers:
    """The processes that share one job: this process alone, unless a subclass says otherwise."""

    count: int = 1

    def each(
        self, make: Callable[[AnyJob], Callable[[Piece], Result]], job: AnyJob, pieces: Iterable[Piece]
    ) -> Iterator[Result]:
        """Yield the result of each piece, in order. Each process calls `make(job)` once, before its first
        piece, and the function that this returns for every piece."""
        return map(make(job), pieces)


class Engine(ABC):
    """Runs jobs. A job is a plain value; every process can reach the folders that it names.

    An engine implements `working`, `train_one` and `tune`; the other verbs are the same for all.
    """

    name: ClassVar[str]
    alone: bool = False
    """Whether this process trains by itself."""

    @abstractmethod
    def working(self, doing: str, device: str) -> AbstractContextManager[Workers]:
        """The processes for one job on `device`. `doing` names the work in messages."""

    @abstractmethod
    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        """Train one model with several processes. The weights are loaded into `model`."""

    @abstractmethod
    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        """Search for the best settings of a model, by validation."""

    def device_here(self, device: str) -> str:
        """The device for this process, where other processes have `device`."""
        return device

    def check(self, job: TrainingJob) -> None:
        """Raise an error, before any data is read, if this engine cannot train this way."""
        from bundlemage.training.devices import resolve_device

        if self.alone and job.item_tables != "auto":
            raise ConfigError("item tables are laid out for several processes: add --workers")
        if not self.alone and job.checkpoint_every == 0:
            raise ConfigError(
                "several processes hand the model over by a checkpoint: leave --checkpoint-every out"
            )
        resolve_device(self.device_here(job.device))

    def train(self, job: TrainingJob, observers: Sequence[Observer] = ()) -> Recommender:
        """Train a model or an ensemble; returns it fitted, but not calibrated."""
        from bundlemage.engines.training import train

        self.check(job)
        return train(job, self, observers)

    def evaluate(self, job: EvaluationJob, progress: Progress = in_silence) -> list[Evaluation]:
        """Evaluate a saved model on the held-out cases of its data, and popularity beside it."""
        from bundlemage.engines.evaluating import evaluate

        with self.working("evaluating", job.device) as workers:
            job.load(self.device_here(job.device))
            return evaluate(job, workers, progress)

    def recommend_all(self, job: ScoringJob, progress: Progress = in_silence) -> ScoredUsers:
        """Write the best bundles of every user as Parquet."""
        from bundlemage.engines.scoring import score

        with self.working("recommending", job.device) as workers:
            return score(job, workers, progress)

    def campaign(self, job: CampaignJob, progress: Progress = in_silence) -> CampaignSummary:
        """Choose bundles for every user under limits that all share."""
        from bundlemage.engines.campaigning import run

        with self.working("a campaign", job.device) as workers:
            progress("loading the model", 0, 0)
            job.load(self.device_here(job.device))
            return run(job, workers, progress)


class LocalEngine(Engine):
    """This machine. One process does a job; training and tuning may have several."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1
        self.alone = self.workers == 1

    @contextmanager
    def working(self, doing: str, device: str) -> Iterator[Workers]:
        if not self.alone:
            raise ConfigError(
                f"here, {doing} is done by one process, and --workers says {self.workers}: add --engine ray, "
                "or leave it out"
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
    """`local` is this machine; `ray` is a Ray cluster.

    `address` is that of the cluster; without it, Ray is started on this machine for each job. `workers` is
    the number of processes: by default one on this machine, and on a cluster one for each GPU that is used,
    or else for each processor.
    """
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}; the engines are: {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; at least one must work")
    if name == "ray":
        from bundlemage.engines.ray import RayEngine

        return RayEngine(address, workers)
    if address is not None:
        raise ConfigError("an address is that of a Ray cluster: add --engine ray, or leave it out")
    return LocalEngine(workers)
