"""Trains the serving model again on the store's data, and publishes the result if it is not worse.

Both models are compared as the service would use them, on bundles that neither model has learned from. These
bundles are held out of the store's data. Both models use the current catalogue, and recommend from all
bundles that can be sold.
"""

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
import numpy.typing as npt
import torch

from bundlemage.core.answering import rows_at_a_time
from bundlemage.data.dataset import BundleDataset, Vocabulary, binary_matrix, row_of
from bundlemage.data.splits import MatchingCases, Split, SplitPlan, leave_one_out
from bundlemage.errors import ArtifactError, ConfigError, SupersededError, UnsupportedError
from bundlemage.evaluation import DEFAULT_KS, Evaluation, PerCase, means, ranking_metrics
from bundlemage.live import EMPTY, Live, Stock, load_published, record_of
from bundlemage.models.base import Matcher, Sizes, can
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build
from bundlemage.progress import Progress, in_silence
from bundlemage.recommender import Recommender, evaluate_beside_popularity
from bundlemage.store.records import ModelRecord, Owned, Sales
from bundlemage.store.repository import AnyModel, Store
from bundlemage.training.history import EpochProgress, Observer
from bundlemage.training.loop import TrainingResult

MIN_CASES = 30
"""Default minimum number of test cases for a comparison."""
_STAMP = re.compile(r"-\d{8}T\d{6}(-\d+)?\Z")
DECISIVE = "ndcg@10"
"""The metric that decides which model is better."""
LONGEST = max(DEFAULT_KS)
"""The number of bundles that each model recommends to a user."""
Pairs = npt.NDArray[np.intp]
"""Indices of user-bundle pairs, in the order of a dataset's matrix."""
Random = np.random.Generator


@dataclass(frozen=True)
class ModelComparison:
    """The mean metrics of two models on the same cases."""

    cases: int
    serving: dict[str, float]
    candidate: dict[str, float]
    difference: float
    """The candidate's `DECISIVE` metric minus the serving model's."""
    standard_error: float
    """The standard error of the difference, over the cases."""


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
    """The metrics of the new model and of the popularity baseline, with sampled negatives as candidates."""
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

    The new model has the ensemble size and the settings of the serving model, except for `settings` and
    `seed`. It is saved in the folder `models`, by default the folder that holds the serving model. Its
    `DECISIVE` metric may be lower by at most `tolerance`. If fewer than `min_cases` users have a new bundle,
    nothing is trained. `force` trains and publishes in any case. Raises `BusyError` if another retraining is
    running. `on_split` is called before training, with the split and the version of the serving model.
    """
    if not tolerance >= 0:
        raise ConfigError(f"the tolerance is {tolerance!r}; it must be 0 or more")
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
                "a model that was trained only for generation recommends no bundles, so the models cannot be "
                "compared: use --force to publish without comparing"
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
            reason = (
                f"{len(cases):,} users have a bundle that is new to the serving model, and {min_cases:,} are "
                "needed to compare, so nothing was trained. Wait for more purchases, or use --force to train "
                "and publish without comparing"
            )
            return replace(outcome, reason=reason)
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
    new, old = comparison.candidate[DECISIVE], comparison.serving[DECISIVE]
    how = "not lower" if new >= old else "lower"
    allowed = f" ({tolerance:g} less is allowed)" if tolerance else ""
    return (
        new >= old - tolerance,
        f"its {DECISIVE} of {new:.4f} is {how} than the serving model's {old:.4f}{allowed}",
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
    stem = f"{_STAMP.sub('', name)}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    path, number = folder / stem, 1
    while path.exists():  # a model of another shop in the same folder
        path, number = folder / f"{stem}-{number}", number + 1
    return path


# ── Holding out ──────────────────────────────────────────────────────────────────────────────────


def fresh_cases(dataset: BundleDataset, serving: Recommender, stock: Stock, random: Random) -> Pairs:
    """Returns the test cases for the comparison: one random suitable pair of each user who has any.

    A pair is suitable if it was in neither the training nor the validation data of the serving model, if the
    bundle can be sold now, and if the user has another item or bundle. All models recommend the bestsellers
    to a user without a history.
    """
    users, bundles = dataset.user_bundle.nonzero()
    entries = (stock.bundles.get(name) for name in dataset.bundles)
    for_sale = np.array([bool(entry and entry.items and stock.sellable(entry)) for entry in entries], bool)
    owns = np.diff(dataset.user_item.indptr) + np.diff(dataset.user_bundle.indptr)
    usable = _unseen(dataset, serving) & for_sale[bundles] & (owns[users] > 1)
    return _one_each(users, np.flatnonzero(usable), random)


def hold_out(dataset: BundleDataset, cases: Pairs, plan: SplitPlan, random: Random) -> Split:
    """Returns a split. `cases` are the test cases. For each user with two or more other pairs, one of them is
    a validation case."""
    users, bundles = dataset.user_bundle.nonzero()
    rest = np.setdiff1d(np.arange(len(users)), cases)
    count = np.bincount(users[rest], minlength=len(dataset.users))
    # If a user has only one pair, it stays in the training data: a shop has many such users.
    validation = _one_each(users, rest[count[users[rest]] > 1], random)
    learned = np.setdiff1d(rest, validation)

    def cases_of(pairs: Pairs) -> MatchingCases | None:
        if not len(pairs):
            return None
        no_bundle = np.zeros(len(dataset.bundles), bool)
        return leave_one_out(dataset, users[pairs], bundles[pairs], no_bundle, plan.negatives, random)

    train = dataset.with_interactions(
        user_bundle=binary_matrix(users[learned], bundles[learned], dataset.user_bundle.shape)
    )
    return Split(dataset, train, cases_of(validation), cases_of(cases), None, "retrain", plan)


def _one_each(users: npt.NDArray[Any], pairs: Pairs, random: Random) -> Pairs:
    """Returns one random pair of each user who has any of these pairs."""
    shuffled = random.permutation(pairs)
    _, first = np.unique(users[shuffled], return_index=True)
    return shuffled[first]


def _unseen(dataset: BundleDataset, serving: Recommender) -> npt.NDArray[np.bool_]:
    """Returns for each pair of the dataset whether the serving model was trained and validated without it."""
    known = serving.dataset
    split = serving.plan.divide(known)
    if split.protocol != serving.protocol:
        # The split was read from files or made by a retraining: the model may have seen any pair of its data.
        split = SplitPlan("none").divide(known)
    seen = [split.train.user_bundle.nonzero()]
    if split.validation is not None:
        case, bundle = split.validation.positives.nonzero()
        seen.append((split.validation.users[case], bundle))
    seen_users, seen_bundles = (np.concatenate(part) for part in zip(*seen, strict=True))
    users = _positions(known.users, dataset.users)[seen_users]
    bundles = _positions(known.bundles, dataset.bundles)[seen_bundles]
    present = (users >= 0) & (bundles >= 0)
    row, column = dataset.user_bundle.nonzero()
    width = len(dataset.bundles)
    return ~np.isin(row.astype(np.int64) * width + column, users[present] * width + bundles[present])


def _positions(ids: Vocabulary, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Returns for each of `ids` its position in `vocabulary`, or -1 if it has none."""
    return np.array([vocabulary.known_positions.get(name, -1) for name in ids], np.int64)


def compare(
    serving: Recommender, candidate: Recommender, split: Split, stock: Stock, progress: Progress = in_silence
) -> ModelComparison:
    """Returns both models' metrics on the test cases. Each user's history lacks only the held-out bundle."""
    assert split.test is not None
    data, held_out = split.dataset, split.test.positives.indices
    held_out_ids = [data.bundles[bundle] for bundle in held_out]
    histories = []
    for user, bundle in zip(split.test.users.tolist(), held_out_ids, strict=True):
        bundles = tuple(name for name in _names(data.user_bundle, user, data.bundles) if name != bundle)
        histories.append(Owned(tuple(_names(data.user_item, user, data.items)), bundles))
    items_sold, sold = (matrix.getnnz(axis=0) for matrix in (data.user_item, data.user_bundle))
    sold = sold - np.bincount(held_out, minlength=len(data.bundles))  # held-out pairs are no sales
    sales = Sales(
        dict(zip(data.items, items_sold.tolist(), strict=True)),
        dict(zip(data.bundles, sold.tolist(), strict=True)),
    )

    def metrics(name: str, model: Recommender) -> PerCase:
        live = Live(model, stock, sales)
        ranks: list[list[int]] = []
        step = rows_at_a_time(len(live.dataset.bundles), live.shop.device)
        for start in range(0, len(histories), step):
            batch = slice(start, start + step)
            recommended = live.recommend_many(histories[batch], LONGEST)
            for answers, bundle in zip(recommended, held_out_ids[batch], strict=True):
                shown = [answer.id for answer in answers]
                ranks.append([shown.index(bundle) if bundle in shown else LONGEST])
            progress(f"cases of the {name} model", len(ranks), len(held_out_ids))
        # One column for each rank. The last column means that the bundle is not in the list.
        scores = -torch.arange(LONGEST + 1, dtype=torch.float32).expand(len(ranks), -1)
        return ranking_metrics(scores, Ragged.from_lists(ranks))

    old, new = metrics("serving", serving), metrics("new", candidate)
    difference = new[DECISIVE] - old[DECISIVE]
    return ModelComparison(
        cases=len(held_out_ids),
        serving=means(old),
        candidate=means(new),
        difference=float(difference.mean()),
        standard_error=float(difference.std() / len(held_out_ids) ** 0.5),
    )


def _names(matrix: Any, row: int, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary[position] for position in row_of(matrix, row)]
