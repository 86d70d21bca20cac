"""A search, its results, and the folder that stores them. The first two can be sent to other processes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bundlemage.data.folders import ResumableFolder, json_bytes, write_whole
from bundlemage.data.leakage import Leakage
from bundlemage.data.splits import SplitPlan
from bundlemage.errors import CheckpointError, ConfigError, Problem
from bundlemage.models.config import Space
from bundlemage.training.checkpoint import CHECKSUMS
from bundlemage.training.history import SELECTION_METRIC

State: TypeAlias = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Search:
    """A search for the best settings, as `bundlemage tune` runs it."""

    location: str
    """The location of the data, as in every command."""
    output: Path
    """The folder in which the study is stored."""
    model: str = "bundlemage"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fixed settings. They are not searched for."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a recipe. Those in the space are the first to be tried. The others are fixed."""
    space: Space = field(default_factory=dict)
    """Changes to the space that the config class declares."""
    trials: int = 30
    timeout: float | None = None
    """The number of seconds after which no trial starts. Running trials are finished."""
    seed: int = 0
    """The seed of the search and of every training in it."""
    plan: SplitPlan = field(default_factory=SplitPlan)
    tables: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, float] = field(default_factory=dict)
    """The weights of types of events."""
    resume: bool = False

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"trials is {self.trials}; at least one is needed")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"timeout is {self.timeout:g}; it must be a number of seconds above 0")

    @property
    def device(self) -> str:
        """The device of every training."""
        return str({**self.start, **self.settings}.get("device", "auto"))


@dataclass(frozen=True)
class Trial:
    """One training with one choice of settings."""

    number: int
    settings: Mapping[str, Any]
    """The settings that were searched for. The study has the fixed settings."""
    state: State
    """`pruned`: stopped early, because it was worse than half of the earlier trials at the same epoch."""
    value: float | None
    """The best value of `Study.metric` on validation cases; None if the trial failed."""
    epochs: int
    """The number of epochs; 0 for a model that does not learn by steps."""
    best_epoch: int
    seconds: float
    curve: tuple[float, ...] = ()
    """The value after each epoch."""
    reason: str | None = None
    """Why the trial failed; None if it did not."""

    @classmethod
    def ended(
        cls,
        number: int,
        settings: Mapping[str, Any],
        curve: Sequence[float],
        started: float,
        value: float | None = None,
        *,
        stopped: bool = False,
        reason: str | None = None,
    ) -> Trial:
        """Returns a trial that ends now. `started` is its start by `time.perf_counter`. It has failed if
        `value` is None."""
        state: State = "failed" if value is None else "pruned" if stopped else "complete"
        best = 0 if value is None or not curve else curve.index(max(curve)) + 1
        seconds = round(time.perf_counter() - started, 4)
        return cls(number, settings, state, value, len(curve), best, seconds, tuple(curve), reason)

    def described(self, metric: str) -> str:
        """Returns the result in a few words, for progress messages."""
        if self.value is None:
            return f"failed, {self.reason}"
        after = f" after {self.epochs} epochs" if self.epochs else ""
        stopped = ", stopped early" if self.state == "pruned" else ""
        return f"{metric} {self.value:.4f}{after}{stopped}"


@dataclass(frozen=True)
class Study:
    """The results of a search."""

    folder: Path
    model: str
    trials: tuple[Trial, ...]
    """All trials, including those of earlier commands, ordered by number."""
    asked: int
    """The number of trials that the user requested."""
    seconds: float
    """The running time of this command. The sum of `Trial.seconds` is the work of all commands."""
    interrupted: bool = False
    importance: Mapping[str, float] | None = None
    """For each setting, the share of the variance of the trials' values that it explains; the sum is 1. None
    with too few trials or without scikit-learn."""
    warnings: tuple[Problem, ...] = ()
    """Warnings about the data."""
    metric: str = SELECTION_METRIC
    """The name of a trial's value. It is nDCG@5, or `times popularity` if both tasks are validated: nDCG@5
    divided by that of the model Popularity, as a geometric mean over the tasks."""
    leakage: Leakage = field(default_factory=Leakage)
    """How many held-out pairs users' items give away if histories are used as given."""
    histories: str = "as given"
    """How histories were used: `as given` or `without held-out`."""

    @property
    def ranked(self) -> list[Trial]:
        """The trials that did not fail, best first. Among equal values, earlier trials come first."""
        successful = [trial for trial in self.trials if trial.value is not None]
        return sorted(successful, key=lambda trial: (-(trial.value or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        """The best trial; None if no trial succeeded."""
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
            "best": asdict(self.best) if self.best else None,
            "importance": dict(self.importance) if self.importance else None,
            "leakage": self.leakage.share,
            "leakage_by_chance": self.leakage.by_chance,
            "histories": self.histories,
            "trials": [asdict(trial) for trial in self.trials],
            "asked": self.asked,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
        }


class StudyFolder(ResumableFolder):
    """A study on disk: `study.json` describes the search, `trials/` has a file for each finished trial, and
    `best.toml` is the recipe of the best trial. An interrupted trial has no file. It runs again."""

    kind = "study"
    file = "study.json"
    part_name = "trials/{:05d}.json"
    others = ("best.toml",)
    checksums = CHECKSUMS
    anew = "begin another study in another folder"

    def open(self, identity: Mapping[str, Any]) -> list[Trial]:
        """Begin a study or continue it, and return its finished trials. `identity` describes the search."""
        if not self.begun:
            self.begin(identity)
            return []
        self.resume(identity)
        trials = []
        for file in self.finished_parts():
            content = self.read(file)
            try:
                trials.append(Trial(**{**content, "curve": tuple(content["curve"])}))
            except (TypeError, KeyError) as error:
                raise self.damaged(file, error) from None
        return trials

    def keep(self, trial: Trial) -> None:
        """Write a finished trial."""
        write_whole(self.part(trial.number), json_bytes(asdict(trial)))

    def keep_best(
        self,
        model: str,
        settings: Mapping[str, Any],
        split: Mapping[str, Any],
        events: Mapping[str, float],
    ) -> None:
        """Write the recipe of the best trial, for `bundlemage train --recipe`."""
        lines = [f"model = {_toml(model)}", "", "[settings]"]
        lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
        lines += ["", "[split]"]
        lines += [f"{name} = {_toml(value)}" for name, value in split.items() if value is not None]
        if events:
            lines += ["", "[events]", *(f"{_toml(name)} = {_toml(value)}" for name, value in events.items())]
        write_whole(self.path / "best.toml", ("\n".join(lines) + "\n").encode())

    def damaged(self, file: Path, reason: object) -> CheckpointError:
        again = "" if file == self.file_path else ", or remove this file to run the trial again"
        return CheckpointError(f"{super().damaged(file, reason)}{again}")


def _toml(value: Any) -> str:
    """Writes a plain value as TOML. JSON has the same form for strings, numbers, booleans and lists."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
