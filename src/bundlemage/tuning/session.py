"""A search in progress: what both engines do before, between and after the trials."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from bundlemage.data.splits import Split
from bundlemage.errors import ConfigError, MissingExtraError
from bundlemage.models.base import Matcher, Model, Sizes, can
from bundlemage.models.registry import build, make_config, model_class
from bundlemage.progress import Progress
from bundlemage.readers.load import read
from bundlemage.training.history import SELECTION_METRIC
from bundlemage.training.judging import Judges
from bundlemage.tuning.folder import StudyFolder
from bundlemage.tuning.space import chosen_space, first_point
from bundlemage.tuning.study import Search, Study, Trial

WHERE = frozenset({"device"})
"""Settings that say where a trial runs and not what it does: a study may continue on another device."""


class Judged(NamedTuple):
    """The result of a trial's training."""

    value: float | None
    curve: tuple[float, ...]
    seconds: float
    stopped: bool = False
    reason: str | None = None
    """Why it failed."""


def blind(split: Split) -> Split:
    """The split without its test: no cases, and no held-out pairs."""
    return Split(split.train, split.train, split.validation, None, None, split.protocol, split.plan)


def check_matches(model: Model) -> None:
    """Raises ConfigError for a model that recommends no bundles, because recommendations judge it."""
    if not can(model, Matcher):
        raise ConfigError(
            f"{model.title}, as it is set, completes bundles and recommends none, so it has no validation "
            f"{SELECTION_METRIC} to be judged by, and cannot be tuned. 'bundlemage models' says which match"
        )


class Session:
    """Checks the whole request when it is made, before the first training."""

    def __init__(self, search: Search, progress: Progress) -> None:
        try:
            from bundlemage.tuning.adviser import Adviser
        except ImportError:
            raise MissingExtraError("tune", "tuning") from None
        self.started = time.monotonic()
        self.search, self.progress = search, progress
        self._settle()
        self.folder = StudyFolder(search.output)
        self.folder.check(resume=search.resume)
        self.split = self._read()
        self.metric = Judges.of(self.smallest, make_config(search.model, self.fixed), self.split).metric
        self.trials = {trial.number: trial for trial in self.folder.open(self._identity())}
        warm_up = max(2, self.epochs // 10)
        self.adviser = Adviser(self.space, self.first, search.seed, warm_up, [*self.trials.values()])
        if self.best is not None:  # the program may have been killed between the two files
            self._keep_best()
        self._tell()

    def _settle(self) -> None:
        """Checks the request, and works out the space and the fixed settings."""
        search = self.search
        if "seed" in {**search.start, **search.settings}:
            raise ConfigError("the seed of a search is its own setting, not one of the model's")
        config_class = model_class(search.model).config_class
        usual = make_config(search.model, {**search.start, **search.settings})
        self.smallest = build(search.model, usual, Sizes(1, 1, 1))
        check_matches(self.smallest)
        self.space = chosen_space(config_class, search.space, search.settings)
        if not self.space:
            raise ConfigError(
                f"there is nothing to search for: {search.model} has no space of its own, or all of it is "
                "set. Name settings with --space; 'bundlemage models NAME' shows what there is"
            )
        start = {name: value for name, value in search.start.items() if name not in search.settings}
        self.fixed: dict[str, Any] = {
            **{name: value for name, value in start.items() if name not in self.space},
            **search.settings,
            "seed": search.seed,
        }
        self.first = first_point(config_class, self.space, {**start, **self.fixed})
        self.epochs = int(getattr(make_config(search.model, {**self.fixed, **self.first}), "epochs", 0))

    def _read(self) -> Split:
        search = self.search
        self.progress("reading the data", 0, 0)
        source = read(search.location, search.tables)
        self.warnings = source.warnings
        split = blind(search.plan.divide(source.dataset, source.ready))
        if split.validation is None or not len(split.validation):
            raise ConfigError(
                f"the protocol {split.protocol} leaves no validation cases on this data, so trials cannot be "
                "judged: choose another with --protocol, or bring more data"
            )
        return split

    def _identity(self) -> dict[str, Any]:
        validation = self.split.validation
        assert validation is not None
        return {
            "model": self.search.model,
            "settings": self._kept(),
            "space": {name: domain.to_json() for name, domain in self.space.items()},
            "split": asdict(self.search.plan),
            "metric": self.metric,
            "training data": self.split.train.fingerprint(),
            "validation data": validation.fingerprint(),
        }

    def _kept(self) -> dict[str, Any]:
        """The settings that all trials share, with defaults, because these may change with a new version."""
        config = make_config(self.search.model, self.settings(self.first))
        return config.model_dump(mode="json", exclude={*self.space, *WHERE})

    def numbers(self) -> Iterator[int]:
        """The numbers of the trials to run, until the time is up. At least one runs in any case."""
        for number in range(self.search.trials):
            if number in self.trials:
                continue
            if self.trials and time.monotonic() - self.started >= (self.search.timeout or math.inf):
                return
            yield number

    @property
    def missing(self) -> int:
        """How many trials are still to run."""
        return sum(number not in self.trials for number in range(self.search.trials))

    @property
    def best(self) -> Trial | None:
        """The best trial so far."""
        return self.study(importance=False).best

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a trial."""
        return {**self.fixed, **chosen}

    def stops(self, number: int, epoch: int, value: float) -> bool:
        """Is told that an epoch of a trial has ended. Returns whether the trial is to stop."""
        self._tell(f"trial {number + 1}, epoch {epoch}")
        return self.adviser.stops(number, epoch, value)

    def keep(self, number: int, chosen: Mapping[str, Any], judged: Judged) -> None:
        """Writes a trial that has ended, before anything else uses it."""
        curve, failed = judged.curve, judged.value is None
        trial = Trial(
            number=number,
            settings=chosen,
            state="failed" if failed else "pruned" if judged.stopped else "complete",
            value=judged.value,
            epochs=len(curve),
            best_epoch=0 if failed or not curve else curve.index(max(curve)) + 1,
            seconds=judged.seconds,
            curve=curve,
            reason=judged.reason,
        )
        before = self.best
        self.folder.keep(trial)
        self.trials[number] = trial
        if self.best is not before:
            self._keep_best()
        self.adviser.tell(trial)
        name = f"trial {number + 1} of {self.search.trials}"
        self.progress(name, 1, 1, self._with_best(described(trial, self.metric)))
        self._tell()

    def _keep_best(self) -> None:
        assert self.best is not None
        settings = self.settings(self.best.settings)
        kept = {name: value for name, value in settings.items() if name not in WHERE}
        self.folder.keep_best(self.search.model, kept, asdict(self.search.plan))

    def _tell(self, note: str = "") -> None:
        self.progress("trials", len(self.trials), self.search.trials, note and self._with_best(note))

    def _with_best(self, note: str) -> str:
        best = "" if self.best is None else f"best {self.metric} {self.best.value:.4f}"
        return "; ".join(filter(None, (note, best)))

    def study(self, interrupted: bool = False, importance: bool = True) -> Study:
        """The results so far. `importance`: whether the importance of settings is computed, too."""
        return Study(
            self.search.output,
            self.search.model,
            tuple(self.trials[number] for number in sorted(self.trials)),
            self.search.trials,
            time.monotonic() - self.started,
            interrupted,
            self.adviser.importance([*self.trials.values()]) if importance else None,
            self.warnings,
            self.metric,
        )


def described(trial: Trial, metric: str) -> str:
    """The result of a trial in a few words."""
    if trial.value is None:
        return f"failed, {trial.reason}"
    after = f" after {trial.epochs} epochs" if trial.epochs else ""
    stopped = ", stopped early" if trial.state == "pruned" else ""
    return f"{metric} {trial.value:.4f}{after}{stopped}"
