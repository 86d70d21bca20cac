"""Trains the serving model again on the store's data, and publishes the result if it is not worse."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import ArtifactError, ConfigError, SupersededError, UnsupportedError
from bundlemage.evaluation.protocols import Evaluation
from bundlemage.live import EMPTY, load_published, record_of
from bundlemage.models.base import Matcher, Sizes, can
from bundlemage.models.registry import build
from bundlemage.progress import Progress, in_silence
from bundlemage.recommender import Recommender, evaluate_beside_popularity
from bundlemage.retraining.comparing import DECISIVE, ModelComparison, compare, fresh_cases, hold_out
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store
from bundlemage.training.history import EpochProgress, Observer
from bundlemage.training.loop import TrainingResult

MIN_CASES = 30
"""The default for the fewest test cases with which models are compared."""
_STAMP = re.compile(r"-\d{8}T\d{6}(-\d+)?\Z")


@dataclass(frozen=True)
class Retrained:
    """The outcome of a retraining."""

    published: bool
    reason: str
    """Why the new model was published, or why not."""
    serving: str
    """The version that served at the start."""
    cases: int
    """The number of users with a bundle that is new to the serving model."""
    version: str | None = None
    """The version of the new model, if it was published."""
    path: Path | None = None
    comparison: ModelComparison | None = None
    """None if the models were not compared."""
    test: tuple[Evaluation, ...] = ()
    """The metrics of the new model and of popularity, with sampled negatives as candidates."""
    training: TrainingResult | None = None


def retrain(
    store: Store,
    *,
    settings: Mapping[str, Any] | None = None,
    models: str | Path | None = None,
    force: bool = False,
    tolerance: float = 0.0,
    min_cases: int = MIN_CASES,
    seed: int | None = None,
    on_split: Callable[[Split, str], None] = lambda *_: None,
    observers: Sequence[Observer] = (),
    progress: Progress = in_silence,
) -> Retrained:
    """Train the serving model again on the store's data, and publish it if it is not worse.

    The new model has the settings and the ensemble size of the serving model; `settings` and `seed` replace
    some. It is saved in the folder `models`, by default beside the serving model. Its `DECISIVE` metric may
    be lower by `tolerance`. If fewer than `min_cases` users have a new bundle, nothing is trained. `force`
    trains and publishes in any case. Raises `BusyError` if another retraining is running.
    `on_split` is called before training, with the split and the version of the serving model.
    """
    if not tolerance >= 0:
        raise ConfigError(f"the tolerance is {tolerance!r}; it must be a number from 0 up")
    changed = {**(settings or {}), **({} if seed is None else {"seed": seed})}
    with store.alone("retrain"):
        # Wrong arguments are reported here, before hours of training.
        record = _published(store)
        serving = load_published(record, str(changed.get("device", "auto")))
        candidate = Recommender(
            serving.model_name,
            ensemble=serving.ensemble,
            **{**serving.config.model_dump(mode="json"), **changed},
        )
        folder = _writable(Path(record.path).parent if models is None else Path(models))
        model = build(candidate.model_name, candidate.config, Sizes.of(serving.dataset))
        comparable = can(serving.model, Matcher) and can(model, Matcher)
        if not comparable and not force:
            raise UnsupportedError(
                "a model that learned generation alone recommends no bundles, so there is nothing to compare "
                "it by: use --force to publish it without comparing"
            )
        dataset = replace(store.dataset(), name=serving.dataset.name)
        stock = EMPTY.after(store.catalogue())
        # The protocol is "none", because no plan can reproduce the split of a retraining.
        plan = SplitPlan("none", candidate.config.seed, serving.plan.negatives)
        random = np.random.default_rng(plan.seed)
        cases = fresh_cases(dataset, serving, stock, random)
        outcome = Retrained(False, "", record.version, len(cases))
        enough = len(cases) >= max(min_cases, 2)  # a single case has no standard error
        if not enough and not force:
            return replace(outcome, reason=_too_few(len(cases), min_cases))
        compared = cases if enough and comparable else cases[:0]
        split = hold_out(dataset, compared, plan, random)
        on_split(split, record.version)
        candidate.fit(split, observers=[*observers, EpochProgress(progress)], progress=False)
        if candidate.training is not None and candidate.training.interrupted:
            raise KeyboardInterrupt  # an unfinished model is not published
        comparison = compare(serving, candidate, split, stock, progress) if len(compared) else None
        good, reason = _verdict(comparison, tolerance, record.version, store.state().model)
        outcome = replace(
            outcome,
            reason=reason if good or not force else f"forced: {reason}",
            comparison=comparison,
            test=tuple(evaluate_beside_popularity(candidate, split)),
            training=candidate.training,
        )
        if not good and not force:
            return outcome
        return _publish(store, candidate, outcome, folder, record, tolerance, force)


def _verdict(
    comparison: ModelComparison | None, tolerance: float, compared_with: str, serving: str | None
) -> tuple[bool, str]:
    """Returns whether to publish the candidate, and the reason."""
    if serving != compared_with:
        return False, _meanwhile(serving)
    if comparison is None:
        return False, "it was not compared"
    ours, theirs = comparison.candidate[DECISIVE], comparison.serving[DECISIVE]
    how = "not lower" if ours >= theirs else "lower"
    allowed = f" ({tolerance:g} less is allowed)" if tolerance else ""
    return (
        ours >= theirs - tolerance,
        f"its {DECISIVE} of {ours:.4f} is {how} than the serving model's {theirs:.4f}{allowed}",
    )


def _publish(
    store: Store,
    candidate: Recommender,
    outcome: Retrained,
    folder: Path,
    serving: ModelRecord,
    tolerance: float,
    force: bool,
) -> Retrained:
    """Save the candidate, then record it in the store. Until that moment the old model keeps serving."""
    about: dict[str, Any] = {"instead_of": serving.version, "reason": outcome.reason}
    if outcome.comparison is not None:
        about |= {"decided_by": DECISIVE, "tolerance": tolerance, **vars(outcome.comparison)}
    candidate.metrics = {"test": [row.to_json() for row in outcome.test], "retrain": about}
    path = candidate.save(_new_folder(folder, Path(serving.path).name)).resolve()
    record = record_of(path)
    try:
        store.publish(record, instead_of=None if force else serving.version)
    except SupersededError as error:
        shutil.rmtree(path)  # the store has no record of it
        return replace(outcome, reason=_meanwhile(error.serving))
    return replace(outcome, published=True, version=record.version, path=path)


def _published(store: Store) -> ModelRecord:
    version = store.state().model
    record = None if version is None else store.model(version)
    if record is None:
        raise ConfigError(
            f"{store.url} has no model, so there is none to train again. Serve one first, as in "
            "'bundlemage serve MODEL --db URL'"
        )
    return record


def _meanwhile(version: str | None) -> str:
    return f"the model {version} was published meanwhile, and the new model was not compared with it"


def _too_few(cases: int, needed: int) -> str:
    return (
        f"{cases:,} users have a bundle that is new to the serving model, and {needed:,} are needed to "
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
    """Returns the path for a new folder: the name of the serving model's folder, and the current time."""
    stem = f"{_STAMP.sub('', name)}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    path, number = folder / stem, 1
    while path.exists():  # a model of another shop in the same folder
        path, number = folder / f"{stem}-{number}", number + 1
    return path
