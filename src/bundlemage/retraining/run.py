"""Trains the serving model again on the store's data, and publishes the result if it is not worse."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import ArtifactError, ConfigError, SupersededError, UnsupportedError
from bundlemage.evaluation import Evaluation
from bundlemage.live import EMPTY, Live, load_published, record_of
from bundlemage.models.base import Completer, Matcher, Sizes, can
from bundlemage.models.registry import build
from bundlemage.progress import Progress, in_silence
from bundlemage.recommender import Recommender
from bundlemage.retraining.comparison import (
    CLEARLY,
    DECISIVE,
    ModelComparison,
    compare_generation,
    compare_matching,
)
from bundlemage.retraining.holding_out import completions_of, hold_out, questions_of
from bundlemage.retraining.purchases import PLACES, choose_purchases
from bundlemage.retraining.sweep import STAMP, sweep
from bundlemage.retraining.unseen import learned_by, new_bundles
from bundlemage.scorecard import BySlice, figures_json, scorecard
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import AnyModel, Store
from bundlemage.training.history import EpochProgress, Observer
from bundlemage.training.loop import TrainingResult

MIN_CASES = 30
"""Default minimum number of test cases for a comparison."""
KEEP = 3
"""Default number of models of retrainings whose folders are kept."""
FEW_LISTS = 0.05
"""If fewer of the cases have a list that was shown before, most lists are probably not in the store."""


@dataclass(frozen=True)
class Retrained:
    """The outcome of a retraining."""

    published: bool
    reason: str
    """Why the new model was published, or why not."""
    serving: str
    """The version that served at the start."""
    cases: int
    """The number of users with a suitable purchase: new to the serving model, and not prompted."""
    prompted: int = 0
    """The number of purchases that were left out because the bundle had been shown to the user before."""
    since: datetime | None = None
    """The cases are purchases since this time; None if they were drawn at random."""
    with_list: int = 0
    """The number of cases whose user had been shown a list before the purchase."""
    version: str | None = None
    """The version of the new model, if it was published."""
    path: Path | None = None
    comparison: ModelComparison | None = None
    """None if the models were not compared."""
    new_bundles: int | None = None
    """The number of bundles whose contents the serving model has not learned; None if nothing was compared,
    or if the models complete no bundles."""
    generation: ModelComparison | None = None
    """The same for completing bundles. None if there were too few new bundles."""
    removed: tuple[Path, ...] = ()
    """The folders of old models that were removed."""
    not_removed: tuple[Path, ...] = ()
    """The folders of old models that should be removed, but the system did not allow it."""
    test: tuple[Evaluation, ...] = ()
    """The metrics of the new model and of the popularity baseline, with sampled negatives as candidates."""
    slices: BySlice = field(default_factory=dict)
    """The metrics of the new model in slices of the cases, for each task."""
    training: TrainingResult | None = None
    """The training of the model that was tested. A published model was then trained again on all data."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody should know or do."""
        found = []
        if self.comparison is not None and self.since and self.with_list < self.comparison.cases * FEW_LISTS:
            cases = self.comparison.cases
            found.append(
                f"the store has a list shown to the user before the purchase for {self.with_list:,} of the "
                f"{cases:,} cases. If the shop shows lists that the service did not return, such as those in "
                "mails, the purchases that followed count as not prompted, and they favour the serving model"
            )
        found += [
            f"the folder {path} of an old model cannot be removed. Remove it yourself"
            for path in self.not_removed
        ]
        return tuple(found)


def retrain(
    store: Store,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    models: str | Path | None = None,
    force: bool = False,
    tolerance: float = 0.0,
    min_cases: int = MIN_CASES,
    keep: int = KEEP,
    places: int = PLACES,
    seed: int | None = None,
    on_split: Callable[[Split, Retrained], None] = lambda *_: None,
    observers: Sequence[Observer] = (),
    progress: Progress = in_silence,
) -> Retrained:
    """Train the serving model again on the store's data, and publish it if it is not worse.

    The new model has the ensemble size and the settings of the serving model, except for `settings` and
    `seed`. With `model`, it is a model of this name with default settings. It is saved in the folder
    `models`, by default the folder that holds the serving model. Its `DECISIVE` metric may be lower by at
    most `tolerance`, and it must not be clearly worse in completing bundles. If there are fewer than
    `min_cases` suitable purchases, nothing is trained. `force` trains and publishes in any case. After a
    publication, all but the newest `keep` models of retrainings are removed. A bundle counts as shown to a
    user if it was among the first `places` of a list. Raises `BusyError` if another
    retraining is running. `on_split` is called before training, with the split and what is known so far.
    """
    if not tolerance >= 0:
        raise ConfigError(f"the tolerance is {tolerance!r}; it must be 0 or more")
    for what, number in (("models to keep", keep), ("places of a list", places)):
        if number < 1:
            raise ConfigError(f"the number of {what} is {number!r}; it must be 1 or more")
    changed = {**(settings or {}), **({} if seed is None else {"seed": seed})}
    with store.alone("retrain"):
        # Wrong arguments are reported here, before hours of training.
        record = _published(store)
        serving = load_published(record, str(changed.get("device", "auto")))
        candidate = _candidate(serving, model, changed)
        folder = _writable(Path(record.path).parent if models is None else Path(models))
        comparable = _comparable(serving, candidate, force)
        served = serving.dataset
        dataset = replace(store.dataset(), name=served.name, event_weights=served.event_weights)
        stock = EMPTY.after(store.catalogue())
        # The protocol is "none", because no plan can reproduce the split of a retraining.
        histories = serving.plan.histories
        plan = SplitPlan("none", candidate.config.seed, serving.plan.negatives, histories=histories)
        random = np.random.default_rng(plan.seed)
        min_cases = max(min_cases, 2)  # a single case has no standard error
        learned = learned_by(serving)
        purchases = choose_purchases(store, dataset, learned, stock, min_cases, random, places)
        outcome = Retrained(False, "", record.version, len(purchases.cases), purchases.prompted)
        enough = len(purchases.cases) >= min_cases
        if not enough and not force:
            return replace(outcome, reason=_too_few(outcome, min_cases))
        if not enough or not comparable[Matcher]:
            purchases = purchases.left_out()
        with_list = sum(bool(case.shown) for case in purchases.cases)
        outcome = replace(outcome, since=purchases.since, with_list=with_list)
        new, completed = np.zeros(0, np.int32), False
        if purchases.cases and comparable[Completer]:
            new = new_bundles(dataset, learned)
            outcome = replace(outcome, new_bundles=len(new))
            completed = len(new) // 2 >= min_cases  # half of them are cases
        split = hold_out(dataset, purchases, new if completed else new[:0], plan, random)
        on_split(split, outcome)
        candidate.fit(split, observers=[*observers, EpochProgress(progress)], progress=False)
        _check_finished(candidate)
        if purchases.cases:
            sales = purchases.earlier_sales(dataset)
            both = Live(serving, stock, sales), Live(candidate, stock, sales)
            outcome = replace(
                outcome, comparison=compare_matching(*both, questions_of(split, purchases), progress)
            )
            if completed:
                compared = compare_generation(*both, completions_of(split), progress)
                outcome = replace(outcome, generation=compared)
        good, reason = _verdict(outcome, tolerance, store.state().model)
        if good or force:
            reason += f"; it was then trained again on all {dataset.user_bundle.nnz:,} user-bundle pairs"
        card = scorecard(candidate, split)
        outcome = replace(
            outcome,
            reason=reason if good or not force else f"forced: {reason}",
            test=card.rows,
            slices=card.slices,
            training=candidate.training,
        )
        if not good and not force:
            return outcome
        candidate.metrics = _metrics(outcome, tolerance)
        final = candidate.refit(split, observers=[EpochProgress(progress)], progress=False)
        outcome = _publish(store, final, outcome, folder, record, force)
        if outcome.published:
            swept = sweep(store, keep, needed={record.version})
            outcome = replace(outcome, removed=swept.removed, not_removed=swept.stuck)
        return outcome


def _candidate(serving: Recommender, model: str | None, changed: Mapping[str, Any]) -> Recommender:
    """Returns the new model, not yet trained."""
    shop = serving.shop_settings.model_dump()
    if model is not None and model != serving.model_name:
        return Recommender(model, shop=shop, **{"seed": serving.config.seed, **changed})
    settings = {**serving.config.model_dump(mode="json"), **changed}
    return Recommender(serving.model_name, ensemble=serving.ensemble, shop=shop, **settings)


def _comparable(serving: Recommender, candidate: Recommender, force: bool) -> dict[type[Any], bool]:
    """Returns the tasks in which both models can be compared. Raises `UnsupportedError` if the service cannot
    serve the candidate. Unless the publication is forced, it does so, too, if the models cannot recommend
    bundles, or if only the serving model completes bundles."""
    model = build(candidate.model_name, candidate.config, Sizes.of(serving.dataset))
    if not model.knows_new_users:
        raise UnsupportedError(
            f"{model.title} knows only the users it was trained on, so the service cannot serve it: "
            "'bundlemage models' lists the models that it can serve, under 'new users'"
        )
    tasks: dict[type[Any], bool] = {
        task: can(serving.model, task) and can(model, task) for task in (Matcher, Completer)
    }
    if not tasks[Matcher] and not force:
        raise UnsupportedError(
            "a model that was trained only for generation recommends no bundles, so the models cannot be "
            "compared: use --force to publish without comparing"
        )
    if can(serving.model, Completer) and not tasks[Completer] and not force:
        raise UnsupportedError(
            f"{model.title} with these settings completes no bundles, and the serving model does: choose "
            "another model or other settings, or use --force to publish it nevertheless"
        )
    return tasks


def _too_few(outcome: Retrained, min_cases: int) -> str:
    prompted = ""
    if outcome.prompted:
        do = "purchase does" if outcome.prompted == 1 else "purchases do"
        prompted = (
            f" ({outcome.prompted:,} other new {do} not count, because the bundle had been shown to the user "
            "before)"
        )
    have = "user has" if outcome.cases == 1 else "users have"
    return (
        f"{outcome.cases:,} {have} a bundle that is new to the serving model{prompted}, and "
        f"{min_cases:,} are needed to compare, so nothing was trained. Wait for more purchases, or use "
        "--force to train and publish without comparing"
    )


def _verdict(outcome: Retrained, tolerance: float, serving: str | None) -> tuple[bool, str]:
    """Returns whether to publish the candidate, and the reason."""
    if serving != outcome.serving:
        return False, _meanwhile(serving)
    matching, generation = outcome.comparison, outcome.generation
    if matching is None:
        return False, "it was not compared"
    if generation is not None and generation.clearly_below(tolerance):
        return False, (
            f"in completing bundles {_in_words(generation, tolerance)}, which is more than {CLEARLY:g} "
            "standard errors"
        )
    left_out = ""
    if outcome.prompted:
        were = "purchase was" if outcome.prompted == 1 else "purchases were"
        left_out = f"; {outcome.prompted:,} prompted {were} left out"
    return matching.difference >= -tolerance, f"{_in_words(matching, tolerance)}{left_out}"


def _in_words(comparison: ModelComparison, tolerance: float) -> str:
    new, old = comparison.candidate[DECISIVE], comparison.serving[DECISIVE]
    how = "not lower" if new >= old else "lower"
    allowed = f" ({tolerance:g} less is allowed)" if tolerance else ""
    return (
        f"its {DECISIVE} of {new:.4f} is {how} than the serving model's {old:.4f}{allowed}: over "
        f"{comparison.cases:,} cases it differs by {comparison.difference:+.4f}, with a standard error of "
        f"{comparison.standard_error:.4f}"
    )


def _metrics(outcome: Retrained, tolerance: float) -> dict[str, Any]:
    """Returns the metrics of the candidate, with the comparison."""
    about: dict[str, Any] = {"instead_of": outcome.serving, "reason": outcome.reason}
    if outcome.comparison is not None:
        about |= {"decided_by": DECISIVE, "tolerance": tolerance, "prompted": outcome.prompted}
        about |= {"since": outcome.since.isoformat() if outcome.since else None, **vars(outcome.comparison)}
        about |= {"generation": vars(outcome.generation) if outcome.generation else None}
    return {**figures_json(outcome.test, outcome.slices), "retrain": about}


def _check_finished(model: Recommender) -> None:
    if model.training is not None and model.training.interrupted:
        raise KeyboardInterrupt  # an unfinished model is not published


def _publish(
    store: Store,
    model: Recommender,
    outcome: Retrained,
    folder: Path,
    serving: ModelRecord,
    force: bool,
) -> Retrained:
    """Save the model, then record it in the store. Until that moment the old model keeps serving."""
    path = model.save(_new_folder(folder, Path(serving.path).name)).resolve()
    record = record_of(path)
    try:
        store.publish(record, instead_of=AnyModel.ANY if force else serving.version)
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
    stem = f"{STAMP.sub('', name)}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    path, number = folder / stem, 1
    while path.exists():  # a model of another shop in the same folder
        path, number = folder / f"{stem}-{number}", number + 1
    return path
