"""Divides the store's data into what the new model learns from, and the cases that test both models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, Vocabulary, binary_matrix, pairs_of, row_of
from bundlemage.data.leakage import leakage
from bundlemage.data.splits import MatchingCases, Split, SplitPlan, leave_one_out, new_completion_cases
from bundlemage.retraining.purchases import Case, Pairs, Purchases, Random, one_of_each, owned_by
from bundlemage.store.records import Owned


@dataclass(frozen=True)
class Completion:
    """A bundle that was new to the serving model, to be completed for a user."""

    history: Owned
    partial: tuple[str, ...]
    hidden: tuple[str, ...]


def hold_out(
    dataset: BundleDataset, purchases: Purchases, new: Positions, plan: SplitPlan, random: Random
) -> Split:
    """Returns a split. Its test cases are those of `purchases`, and half of the `new` bundles.

    For each user with two or more earlier pairs, the last of them is a validation case, or a random one if no
    times are known. The new model does not learn the contents of the held-out bundles for generation, but it
    learns who bought them. The split is without the items of held-out bundles if the plan says so, or if it
    is `auto` and the items give away more than 3% of the held-out pairs or of the cases.
    """
    users, bundles = pairs_of(dataset.user_bundle)
    rest = np.flatnonzero(~purchases.later_bundles)
    bought = dataset.bundle_events.purchases
    count = np.bincount(users[rest], minlength=len(dataset.users))
    # If a user has only one pair, it stays in the training data: a shop has many such users.
    suitable = rest[count[users[rest]] > 1]
    suitable = suitable if bought is None else suitable[bought[suitable]]
    suitable = random.permutation(suitable)
    if dataset.bundle_events.at is not None:  # the newest first; those with the same time in a random order
        suitable = suitable[np.argsort(~dataset.bundle_events.at[suitable], kind="stable")]
    validation = one_of_each(users, suitable)
    learned = np.setdiff1d(rest, validation)

    def cases_of(pairs: Pairs) -> MatchingCases | None:
        if not len(pairs):
            return None
        no_bundle = np.zeros(len(dataset.bundles), bool)
        return leave_one_out(dataset, users[pairs], bundles[pairs], no_bundle, plan.negatives, random)

    owners, items = (positions[~purchases.later_items] for positions in pairs_of(dataset.user_item))
    train = dataset.with_interactions(
        user_item=binary_matrix(owners, items, dataset.user_item.shape),
        user_bundle=binary_matrix(users[learned], bundles[learned], dataset.user_bundle.shape),
    )
    split = Split(dataset, train, cases_of(validation), cases_of(purchases.pairs), None, "retrain", plan)
    tested = binary_matrix(users[purchases.pairs], bundles[purchases.pairs], dataset.user_bundle.shape)
    leaks = split.leakage.found or leakage(tested, dataset).found
    if plan.histories == "without held-out" or (plan.histories == "auto" and leaks):
        # Also if the training data has no such item: the histories of the cases are newer and may have it.
        split = replace(plan, histories="without held-out").with_histories(split)
        split = replace(split, histories="without held-out")
    return replace(split, generation=new_completion_cases(split, new, random) if len(new) else None)


def questions_of(split: Split, purchases: Purchases) -> list[Case]:
    """Returns the cases of matching. If the split is without the items of held-out bundles, a history lacks
    the items of the case's bundle, except those that are also in another bundle of the user."""
    if split.histories != "without held-out":
        return list(purchases.cases)
    data = split.dataset

    def contents(*bundles: str) -> set[str]:
        rows = map(data.bundles.known_positions.__getitem__, bundles)
        return {name for row in rows for name in _names(data.bundle_item, row, data.items)}

    found = []
    for case in purchases.cases:
        hidden = contents(case.bundle) - contents(*case.history.bundles)
        found.append(replace(case, history=case.history.without_items(hidden)))
    return found


def completions_of(split: Split) -> list[Completion]:
    """Returns the cases of generation in the form of questions. No history has the bundle itself."""
    cases = split.generation
    if cases is None or cases.known_as is None:
        return []
    data, train = split.dataset, split.train
    found = []
    for number, (user, row) in enumerate(zip(cases.users.tolist(), cases.bundles.tolist(), strict=True)):
        history = Owned()
        if user < len(data.users):  # the position after the last user means no history
            hidden = () if cases.hidden_items is None else row_of(cases.hidden_items, number)
            kept = ~np.isin(row_of(train.user_item, user), hidden)
            others = row_of(train.user_bundle, user) != cases.known_as[row]
            history = owned_by(train, user, kept, others)
        parts = (_names(matrix, row, data.items) for matrix in (cases.partial, cases.positives))
        found.append(Completion(history, *parts))
    return found


def _names(
    matrix: sparse.csr_matrix, row: int, vocabulary: Vocabulary, kept: Any = slice(None)
) -> tuple[str, ...]:
    return tuple(vocabulary[position] for position in row_of(matrix, row)[kept])
