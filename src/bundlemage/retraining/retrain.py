"""The whole of a retraining: read, hold out, train, compare, and publish or not."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage.artifact.files import artifact_version
from bundlemage.data.splits import Split
from bundlemage.errors import ArtifactError, ConfigError, SupersededError, UnsupportedError
from bundlemage.evaluation.results import Evaluation
from bundlemage.live import EMPTY, load_published
from bundlemage.models.base import Sizes
from bundlemage.models.registry import build
from bundlemage.recommender import Recommender, evaluate_beside_popularity
from bundlemage.retraining.comparing import DECISIVE, Comparison, compare
from bundlemage.retraining.held_out import fresh_cases, hold_out, plan_for
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store
from bundlemage.training.history import Observer
from bundlemage.training.loop import TrainingResult

MIN_CASES = 30
_STAMP = re.compile(r"-\d{8}T\d{6}(-\d+)?\Z")


@dataclass(frozen=True)
class Retrained:
    """What became of a retraining."""

    published: bool
    reason: str
    """Why it was published, or why not."""
    serving: str
    """The version that served when it began."""
    cases: int
    """How many users have a bundle that is new to the serving model."""
    version: str | None = None
    """Of the new model, where it was published."""
    path: Path | None = None
    comparison: Comparison | None = None
    """None where nothing was compared."""
    test: tuple[Evaluation, ...] = ()
    """The new model beside popularity, by the usual protocol of sampled bundles."""
    training: TrainingResult | None = None


class RetrainingObserver(Observer):
    """An observer of training who is also told what goes on before and after it."""

    def on_split(self, split: Split, serving: str) -> None:
        """Before training: what is learned from, what is held out, and which version serves."""

    def on_compared(self, done: int, total: int) -> None:
        """After each batch of questions to the two models."""


def retrain(
    store: Store,
    *,
    settings: Mapping[str, Any] | None = None,
    models: str | Path | None = None,
    force: bool = False,
    tolerance: float = 0.0,
    min_cases: int = MIN_CASES,
    seed: int | None = None,
    observers: Sequence[Observer] = (),
) -> Retrained:
    """Train the model that serves anew on what the store holds, and publish it if it is not worse.

    It keeps its settings but for those given, and its number of members. It goes into the folder `models`, or
    beside the one that serves. It may be worse by `tolerance`. `force` publishes whatever the comparison
    says, and without one where fewer than `min_cases` users can be asked about. Raises `BusyError` where
    another is at it.
    """
    if not tolerance >= 0:
        raise ConfigError(f"the tolerance is {tolerance!r}; it must be a number from 0 up")
    given = {**(settings or {}), **({} if seed is None else {"seed": seed})}
    with store.alone("retrain"):
        return _Retraining(store, given, models, observers).go(force, tolerance, min_cases)


class _Retraining:
    """One retraining, with the two models that it is about."""

    def __init__(
        self,
        store: Store,
        settings: Mapping[str, Any],
        models: str | Path | None,
        observers: Sequence[Observer],
    ) -> None:
        """All that can be wrong with what is asked for is found here, before hours of training."""
        self.store, self.observers = store, observers
        self.record = _published(store)
        self.serving = load_published(self.record, str(settings.get("device", "auto")))
        self.candidate = Recommender(
            self.serving.model_name,
            ensemble=self.serving.ensemble,
            **{**self.serving.config.model_dump(mode="json"), **settings},
        )
        self.folder = _writable(Path(self.record.path).parent if models is None else Path(models))

    def go(self, force: bool, tolerance: float, min_cases: int) -> Retrained:
        comparable = self._comparable()
        if not comparable and not force:
            raise UnsupportedError(
                "a model that learned generation alone recommends no bundles, so there is nothing to compare "
                "it by: use --force to publish it without comparing"
            )
        dataset = replace(self.store.dataset(), name=self.serving.dataset.name)
        stock = EMPTY.after(self.store.catalogue())
        plan = plan_for(self.candidate.config.seed, self.serving.plan.negatives)
        random = np.random.default_rng(plan.seed)
        cases = fresh_cases(dataset, self.serving, stock, random)
        outcome = Retrained(False, "", self.record.version, len(cases))
        enough = len(cases) >= max(min_cases, 2)  # of a single case there is no standard error
        if not enough and not force:
            return replace(outcome, reason=_too_few(len(cases), min_cases))
        compared = cases if enough and comparable else cases[:0]
        split = hold_out(dataset, compared, plan, random)
        self._train(split)
        comparison = None
        if len(compared):
            comparison = compare(self.serving, self.candidate, split, stock, self._progress)
        good, reason = self._verdict(comparison, tolerance)
        outcome = replace(
            outcome,
            reason=reason if good or not force else f"forced: {reason}",
            comparison=comparison,
            test=tuple(evaluate_beside_popularity(self.candidate, split)),
            training=self.candidate.training,
        )
        return self._publish(outcome, tolerance, force) if good or force else outcome

    def _comparable(self) -> bool:
        model = build(self.candidate.model_name, self.candidate.config, Sizes.of(self.serving.dataset))
        return self.serving.model.matches and model.matches

    def _train(self, split: Split) -> None:
        for observer in self._onlookers():
            observer.on_split(split, self.record.version)
        self.candidate.fit(split, observers=self.observers, progress=False)
        if self.candidate.training is not None and self.candidate.training.interrupted:
            raise KeyboardInterrupt  # half a training is no candidate

    def _progress(self, done: int, total: int) -> None:
        for observer in self._onlookers():
            observer.on_compared(done, total)

    def _onlookers(self) -> list[RetrainingObserver]:
        return [observer for observer in self.observers if isinstance(observer, RetrainingObserver)]

    def _verdict(self, comparison: Comparison | None, tolerance: float) -> tuple[bool, str]:
        """Whether the candidate is to serve, and why."""
        serves_now = self.store.state().model
        if serves_now != self.record.version:
            return False, _meanwhile(serves_now)
        if comparison is None:
            return False, "it was not compared"
        ours, theirs = comparison.candidate[DECISIVE], comparison.serving[DECISIVE]
        how = "not lower" if ours >= theirs else "lower"
        allowed = f" ({tolerance:g} less is allowed)" if tolerance else ""
        return (
            ours >= theirs - tolerance,
            f"its {DECISIVE} of {ours:.4f} is {how} than the serving model's {theirs:.4f}{allowed}",
        )

    def _publish(self, outcome: Retrained, tolerance: float, force: bool) -> Retrained:
        """The store is told only of a whole folder: whatever ends this before, the old model goes on."""
        told: dict[str, Any] = {"instead_of": self.record.version, "reason": outcome.reason}
        if outcome.comparison is not None:
            told |= {"decided_by": DECISIVE, "tolerance": tolerance, **vars(outcome.comparison)}
        candidate = self.candidate
        candidate.metrics = {"test": [row.to_json() for row in outcome.test], "retrain": told}
        path = candidate.save(_new_folder(self.folder, Path(self.record.path).name)).resolve()
        version = artifact_version(path)
        record = ModelRecord(version, str(path), candidate.model_name, candidate.metrics)
        try:
            self.store.publish(record, instead_of=None if force else self.record.version)
        except SupersededError as error:
            shutil.rmtree(path)  # nobody was told of it
            return replace(outcome, reason=_meanwhile(error.serving))
        return replace(outcome, published=True, version=version, path=path)


def _published(store: Store) -> ModelRecord:
    version = store.state().model
    record = None if version is None else store.model(version)
    if record is None:
        raise ConfigError(
            f"{store.url} names no model, so there is none to train anew. Serve one first, as in "
            "'bundlemage serve MODEL --db URL'"
        )
    return record


def _meanwhile(version: str | None) -> str:
    return f"the model {version} was published meanwhile, and was not compared with"


def _too_few(cases: int, needed: int) -> str:
    return (
        f"{cases:,} users have a bundle that is new to the model that serves, and {needed:,} are needed to "
        "compare, so nothing was trained. Wait for more purchases, or use --force to train and publish "
        "without comparing"
    )


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            return folder
    except OSError as error:
        raise ArtifactError(
            f"no model can be written to {folder.resolve()}: {error.strerror}. Name another folder for models"
        ) from None


def _new_folder(folder: Path, name: str) -> Path:
    """The serving folder's name, with the time of now in the place of an older one."""
    stem = f"{_STAMP.sub('', name)}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    path, number = folder / stem, 1
    while path.exists():  # a model that another shop keeps here
        path, number = folder / f"{stem}-{number}", number + 1
    return path
