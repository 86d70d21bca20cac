"""Compares two models as the service would use them, on bundles that neither model has learned from.

These bundles are held out of the store's data. Both models use the current catalogue, and recommend from all
bundles that can be sold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bundlemage.core.answering import rows_at_a_time
from bundlemage.data.dataset import BundleDataset, binary_matrix, row_of
from bundlemage.data.splits import MatchingCases, Split, SplitPlan, leave_one_out
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.evaluation.metrics import DEFAULT_KS, ranking_metrics
from bundlemage.evaluation.protocols import PerCase, means
from bundlemage.live import Live, Stock
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.recommender import Recommender
from bundlemage.store.records import Owned, Sales

DECISIVE = "ndcg@10"
"""The metric that decides which model is better."""
LONGEST = max(DEFAULT_KS)
"""The number of bundles that each model recommends to a user."""
PROTOCOL = "retrain"

Pairs = npt.NDArray[np.intp]
"""Indices of user-bundle pairs, in the order of a dataset's matrix."""
Random = np.random.Generator


# ── Holding out ──────────────────────────────────────────────────────────────────────────────────


def fresh_cases(dataset: BundleDataset, serving: Recommender, stock: Stock, random: Random) -> Pairs:
    """Returns at most one pair of each user for the comparison. Users without a suitable pair have none.

    A pair is suitable if it was in neither the training nor the validation data of the serving model, if the
    bundle can be sold now, and if the user has something else: all models show a user without history what
    sells most.
    """
    users, bundles = dataset.user_bundle.nonzero()
    for_sale = np.array([_for_sale(stock, name) for name in dataset.bundles], bool)
    owns = np.diff(dataset.user_item.indptr) + np.diff(dataset.user_bundle.indptr)
    usable = _unseen(dataset, serving) & for_sale[bundles] & (owns[users] > 1)
    return _one_each(users, np.flatnonzero(usable), random)


def hold_out(dataset: BundleDataset, cases: Pairs, plan: SplitPlan, random: Random) -> Split:
    """Returns a split. `cases` are its test cases; one pair of each user with several is for validation."""
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
    return Split(dataset, train, cases_of(validation), cases_of(cases), None, PROTOCOL, plan)


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
    users, bundles = (
        _places(here, there)[np.concatenate([part[axis] for part in seen])]
        for axis, (here, there) in enumerate(((known.users, dataset.users), (known.bundles, dataset.bundles)))
    )
    present = (users >= 0) & (bundles >= 0)
    row, column = dataset.user_bundle.nonzero()
    width = len(dataset.bundles)
    return ~np.isin(row.astype(np.int64) * width + column, users[present] * width + bundles[present])


def _places(here: Vocabulary, there: Vocabulary) -> npt.NDArray[np.int64]:
    """Returns for each id of `here` its position in `there`, or -1 if it is not there."""
    return np.array([there.known_positions.get(name, -1) for name in here], np.int64)


def _for_sale(stock: Stock, name: str) -> bool:
    bundle = stock.bundles.get(name)
    return bundle is not None and bool(bundle.items) and stock.sellable(bundle)


# ── Comparing ────────────────────────────────────────────────────────────────────────────────────


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


def compare(
    serving: Recommender,
    candidate: Recommender,
    split: Split,
    stock: Stock,
    progress: Progress = in_silence,
) -> ModelComparison:
    """Returns both models' metrics on the test cases. A history lacks only the held-out bundle."""
    assert split.test is not None
    data, held_out = split.dataset, split.test.positives.indices
    wanted = [data.bundles[bundle] for bundle in held_out]
    histories = []
    for user, bundle in zip(split.test.users.tolist(), wanted, strict=True):
        bundles = tuple(name for name in _names(data.user_bundle, user, data.bundles) if name != bundle)
        histories.append(Owned(tuple(_names(data.user_item, user, data.items)), bundles))
    items_sold, sold = (matrix.getnnz(axis=0) for matrix in (data.user_item, data.user_bundle))
    sold = sold - np.bincount(held_out, minlength=len(data.bundles))  # the held-out pairs are not sold yet
    sales = Sales(
        dict(zip(data.items, items_sold.tolist(), strict=True)),
        dict(zip(data.bundles, sold.tolist(), strict=True)),
    )

    def metrics(name: str, model: Recommender) -> PerCase:
        live = Live(model, stock, sales)
        ranks: list[list[int]] = []
        step = rows_at_a_time(len(live.dataset.bundles), live.shop.device)
        for start in range(0, len(histories), step):
            some = slice(start, start + step)
            for answers, bundle in zip(
                live.recommend_many(histories[some], LONGEST), wanted[some], strict=True
            ):
                shown = [answer.id for answer in answers]
                ranks.append([shown.index(bundle) if bundle in shown else LONGEST])
            progress(f"cases of the {name} model", len(ranks), len(wanted))
        # One column for each rank. The last column means that the bundle is not in the list.
        scores = -torch.arange(LONGEST + 1, dtype=torch.float32).expand(len(ranks), -1)
        return ranking_metrics(scores, Ragged.from_lists(ranks))

    old, new = metrics("serving", serving), metrics("new", candidate)
    difference = new[DECISIVE] - old[DECISIVE]
    return ModelComparison(
        cases=len(wanted),
        serving=means(old),
        candidate=means(new),
        difference=float(difference.mean()),
        standard_error=float(difference.std() / len(wanted) ** 0.5),
    )


def _names(matrix: Any, row: int, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary[place] for place in row_of(matrix, row)]
