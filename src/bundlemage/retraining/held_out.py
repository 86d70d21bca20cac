"""What is held out of a store's data, so that the model that serves and a new one can be compared fairly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.splits import MatchingCases, Split, SplitPlan, leave_one_out
from bundlemage.live import Stock
from bundlemage.recommender import Recommender

Pairs = npt.NDArray[np.intp]
"""Indices of user-bundle pairs, in the order of a dataset's matrix."""
Random = np.random.Generator

PROTOCOL = "retrain"


def fresh_cases(dataset: BundleDataset, serving: Recommender, stock: Stock, random: Random) -> Pairs:
    """One pair of each user who has any that the serving model has neither learned from nor been chosen by.

    The bundle can be sold now, and the user has something else as well: whoever has nothing is shown what
    sells most, whatever the model.
    """
    users, bundles = dataset.user_bundle.nonzero()
    for_sale = np.array([_for_sale(stock, name) for name in dataset.bundles], bool)
    owns = np.diff(dataset.user_item.indptr) + np.diff(dataset.user_bundle.indptr)
    askable = _unseen(dataset, serving) & for_sale[bundles] & (owns[users] > 1)
    return _one_each(users, np.flatnonzero(askable), random)


def plan_for(seed: int, negatives: int) -> SplitPlan:
    """Its protocol holds nothing out: no plan can make the split of a retraining again."""
    return SplitPlan("none", seed, negatives)


def hold_out(dataset: BundleDataset, cases: Pairs, plan: SplitPlan, random: Random) -> Split:
    """A split with these pairs to be tested on; of the rest, one pair of each user with more, to stop by."""
    users, bundles = dataset.user_bundle.nonzero()
    rest = np.setdiff1d(np.arange(len(users)), cases)
    count = np.bincount(users[rest], minlength=len(dataset.users))
    # A user's only pair is learned from: a shop has many such users.
    chosen_by = _one_each(users, rest[count[users[rest]] > 1], random)
    learned = np.setdiff1d(rest, chosen_by)

    def asked(pairs: Pairs) -> MatchingCases | None:
        if not len(pairs):
            return None
        no_bundle = np.zeros(len(dataset.bundles), bool)
        return leave_one_out(dataset, users[pairs], bundles[pairs], no_bundle, plan.negatives, random)

    train = dataset.with_interactions(
        user_bundle=binary_matrix(users[learned], bundles[learned], dataset.user_bundle.shape)
    )
    return Split(dataset, train, asked(chosen_by), asked(cases), None, PROTOCOL, plan)


def _one_each(users: npt.NDArray[Any], pairs: Pairs, random: Random) -> Pairs:
    """A random one of these pairs for each user who has any."""
    shuffled = random.permutation(pairs)
    _, first = np.unique(users[shuffled], return_index=True)
    return shuffled[first]


def _unseen(dataset: BundleDataset, serving: Recommender) -> npt.NDArray[np.bool_]:
    """For each pair of the dataset, whether it is new to the serving model."""
    known = serving.dataset
    split = serving.plan.divide(known)
    if (
        split.protocol != serving.protocol
    ):  # the split came with files, or from here: it may have seen anything
        split = SplitPlan("none").divide(known)
    seen = [split.train.user_bundle.nonzero()]
    if split.validation is not None:
        case, bundle = split.validation.positives.nonzero()
        seen.append((split.validation.users[case], bundle))
    users, bundles = (
        _places(here, there)[np.concatenate([part[axis] for part in seen])]
        for axis, (here, there) in enumerate(((known.users, dataset.users), (known.bundles, dataset.bundles)))
    )
    there = (users >= 0) & (bundles >= 0)
    row, column = dataset.user_bundle.nonzero()
    width = len(dataset.bundles)
    return ~np.isin(row.astype(np.int64) * width + column, users[there] * width + bundles[there])


def _places(here: Any, there: Any) -> npt.NDArray[np.int64]:
    """Where each id of one vocabulary is in another; -1 for what is gone, as a user who was erased."""
    return np.array([there.known_positions.get(name, -1) for name in here], np.int64)


def _for_sale(stock: Stock, name: str) -> bool:
    bundle = stock.bundles.get(name)
    return bundle is not None and bool(bundle.items) and stock.sellable(bundle)
