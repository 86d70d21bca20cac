"""A search as it is asked for, and what it finds. Plain values, which travel."""

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
    """Which settings are best? The job of `bundlemage tune`."""

    location: str
    """The data, as every command takes it."""
    output: Path
    """The folder of the study."""
    model: str = "bundlemage"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fixed: they are not searched for."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """As of a recipe: those in the space are where the search begins, the others are fixed."""
    space: Space = field(default_factory=dict)
    """In the place of parts of the space that the config class declares."""
    trials: int = 30
    timeout: float | None = None
    """Seconds after which no trial begins any more; those that run are finished."""
    seed: int = 0
    """Of the search and of every training in it."""
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
    """Of the space; the fixed ones are the study's."""
    state: Literal["complete", "pruned", "failed"]
    """`pruned`: stopped early, as it was worse than half of the trials before it were at the same epoch."""
    value: float | None
    """The best value on validation cases, as `Study.metric` says; None where it failed."""
    epochs: int
    """How many were run; 0 for a model that does not learn by steps."""
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
    """What a search has found."""

    folder: Path
    model: str
    trials: tuple[Trial, ...]
    """In the order of their numbers, those of an earlier command included."""
    asked: int
    """How many trials were to be made."""
    seconds: float
    """Of this command; `Trial.seconds` add up to the work of all."""
    interrupted: bool = False
    importance: Mapping[str, float] | None = None
    """How much of the spread of the values comes from each setting, the sum being 1; None where there are too
    few trials to tell, or scikit-learn is not installed."""
    warnings: tuple[Problem, ...] = ()
    """Of the data."""
    metric: str = SELECTION_METRIC
    """What a trial's value is: nDCG@5, or for both tasks how many times as good as popularity."""

    @property
    def ranked(self) -> list[Trial]:
        """The best first; of equals the earlier one. Those that failed are not among them."""
        judged = [trial for trial in self.trials if trial.value is not None]
        return sorted(judged, key=lambda trial: (-(trial.value or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        return next(iter(self.ranked), None)

    @property
    def recipe(self) -> Path:
        """The best settings, for `bundlemage train --recipe`."""
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
