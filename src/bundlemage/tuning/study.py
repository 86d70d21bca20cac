"""A search and its results, as plain values that can be sent to other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ConfigError, Problem
from bundlemage.models.config import Space
from bundlemage.training.history import SELECTION_METRIC


@dataclass(frozen=True)
class Search:
    """A search for the best settings: the job of `bundlemage tune`."""

    location: str
    """The location of the data, as in every command."""
    output: Path
    """The folder of the study."""
    model: str = "bundlemage"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fixed settings, which are not searched for."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a recipe: the search starts with those in the space, and the others are fixed."""
    space: Space = field(default_factory=dict)
    """Changes to the space that the config class declares."""
    trials: int = 30
    timeout: float | None = None
    """The number of seconds after which no trial starts. Running trials are finished."""
    seed: int = 0
    """The seed of the search and of every training in it."""
    plan: SplitPlan = field(default_factory=SplitPlan)
    tables: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"trials is {self.trials}; at least one must be made")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"timeout is {self.timeout:g}; it must be a number of seconds above 0")


@dataclass(frozen=True)
class Trial:
    """One training with one choice of settings."""

    number: int
    settings: Mapping[str, Any]
    """The settings of the space. The study has the fixed ones."""
    state: Literal["complete", "pruned", "failed"]
    """`pruned`: stopped early, because it was worse than half of the earlier trials at the same epoch."""
    value: float | None
    """The best value on validation cases, of the kind of `Study.metric`; None if it failed."""
    epochs: int
    """The number of epochs; 0 for a model that does not learn by steps."""
    best_epoch: int
    seconds: float
    curve: tuple[float, ...] = ()
    """The value after each epoch."""
    reason: str | None = None
    """Why it failed."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Trial:
        return cls(**{**content, "curve": tuple(content["curve"])})


@dataclass(frozen=True)
class Study:
    """The results of a search."""

    folder: Path
    model: str
    trials: tuple[Trial, ...]
    """In the order of their numbers, with those of earlier commands."""
    asked: int
    """The number of trials that the search asks for."""
    seconds: float
    """The time of this command. The sum of `Trial.seconds` is the work of all commands."""
    interrupted: bool = False
    importance: Mapping[str, float] | None = None
    """The share of the values' variance that each setting explains; the sum is 1. None with too few trials or
    without scikit-learn."""
    warnings: tuple[Problem, ...] = ()
    """Warnings about the data."""
    metric: str = SELECTION_METRIC
    """The metric of a trial's value: nDCG@5, or with both tasks the ratio to popularity."""

    @property
    def ranked(self) -> list[Trial]:
        """The trials that did not fail, the best first, and among equals the earlier one first."""
        judged = [trial for trial in self.trials if trial.value is not None]
        return sorted(judged, key=lambda trial: (-(trial.value or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        """The best trial."""
        return next(iter(self.ranked), None)

    @property
    def recipe(self) -> Path:
        """The file with the best settings, for `bundlemage train --recipe`."""
        return self.folder / "best.toml"

    def to_json(self) -> dict[str, Any]:
        return {
            "study": str(self.folder),
            "model": self.model,
            "metric": self.metric,
            "recipe": str(self.recipe) if self.best else None,
            "best": self.best.to_json() if self.best else None,
            "importance": dict(self.importance) if self.importance else None,
            "trials": [trial.to_json() for trial in self.trials],
            "asked": self.asked,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
        }
