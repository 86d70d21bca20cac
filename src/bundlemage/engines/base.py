"""What an engine does. A command makes a job, and any engine does it with the same result."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bundlemage.errors import ConfigError
from bundlemage.readers.load import SAMPLE

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.engines.campaigning import CampaignJob
    from bundlemage.engines.evaluating import EvaluationJob
    from bundlemage.engines.scoring import Scored, ScoringJob
    from bundlemage.engines.training import TrainingJob
    from bundlemage.evaluation.results import Evaluation
    from bundlemage.models.base import Model
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study

ENGINES = ("local", "ray")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def in_silence(what: str, done: int, of: int) -> None:
    """For callers who do not look on."""


def from_anywhere(location: str) -> str:
    """A location as a worker finds it that runs in another folder: paths are written out."""
    if file := _DATABASE_FILE.match(location):
        return f"{file['scheme']}{Path(file['path']).resolve()}{file['options']}"
    path = Path(location)
    return str(path.resolve()) if location != SAMPLE and path.exists() else location


_DATABASE_FILE = re.compile(
    r"(?P<scheme>(sqlite|duckdb)(\+\w+)?:///)(?P<path>[^/:?][^?]*)(?P<options>.*)", re.IGNORECASE
)
"""By a path that begins where one is."""

AnyJob = TypeVar("AnyJob", bound=Any)


def written_out(job: AnyJob) -> AnyJob:
    """The same job with whole paths, for workers in other folders."""
    told = {each.name: getattr(job, each.name) for each in fields(job)}
    whole: dict[str, Any] = {name: path.resolve() for name, path in told.items() if isinstance(path, Path)}
    if isinstance(told.get("location"), str):
        whole["location"] = from_anywhere(told["location"])
    changed: AnyJob = replace(job, **whole)
    return changed


class Engine(ABC):
    """Jobs are plain values that travel. What they name, such as folders, every worker can reach."""

    name: ClassVar[str]

    @property
    def alone(self) -> bool:
        """Whether this process does it all."""
        return False

    @abstractmethod
    def train(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        """Give a model its weights, by as many processes as there are workers."""

    @abstractmethod
    def evaluate(self, job: EvaluationJob, progress: Progress = in_silence) -> list[Evaluation]:
        """A saved model on held-out cases, and popularity beside it."""

    @abstractmethod
    def recommend_all(self, job: ScoringJob, progress: Progress = in_silence) -> Scored:
        """The best bundles of every user, as a folder of Parquet files."""

    @abstractmethod
    def campaign(self, job: CampaignJob, progress: Progress = in_silence) -> CampaignSummary:
        """Bundles for every user under limits that all share."""

    @abstractmethod
    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        """The best settings of a model, by validation."""


def engine(name: str = "local", *, address: str | None = None, workers: int | None = None) -> Engine:
    """`local` is this machine; `ray` a Ray cluster, by its address, or one that is started here for the time.

    `workers`: how many processes work at a time; if not said, one here, and on a cluster one for each GPU
    that is used, or else for each processor.
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
    from bundlemage.engines.local import LocalEngine

    return LocalEngine(workers)
