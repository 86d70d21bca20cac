"""Measures of the lists that a model answers: how much of the shop they show, how rare, how alike.

A list has the first k of all bundles that its user does not have in training, with any protocol: what lists
show of 100 candidates says nothing about a shop. Of equal scores the one with more sales comes first, as in
answers. The items of a list are those inside its bundles, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy import sparse

from bundlemage.core.ranking import top
from bundlemage.data.dataset import BundleDataset, as_binary, binary_matrix
from bundlemage.data.splits import MatchingCases, Split
from bundlemage.evaluation import ListMeasures, MatchingEvaluator
from bundlemage.measures.meaning import LIST_MEASURES
from bundlemage.models.base import Interactions, Matcher, Model, can

LIST_KS = (10,)
MOST_USERS, FEWEST_USERS = 2000, 100
MOST_SCORES = 2**27
"""Lists are made for at most `MOST_USERS` test users, drawn with a fixed seed. In a shop with so many bundles
that this needs more scores, they are made for fewer, but for at least `FEWEST_USERS`."""
MOST_PAIRS = 200
"""Of a list with more pairs, diversity is the mean over this many pairs, drawn with a fixed seed."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Side:
    """What lists are measured against: the bundles of a shop, or its items."""

    sales: Array  # [things], how many users have each in training
    users: int  # users who have any in training
    offered: Array  # [things] bool, bundles with items, or items that are in a bundle
    features: sparse.csr_matrix | None  # [things, features], what two things may have in common

    @classmethod
    def of(cls, pairs: sparse.csr_matrix, offered: Array, features: sparse.csr_matrix | None) -> _Side:
        sales = np.bincount(pairs.indices, minlength=pairs.shape[1])
        return cls(sales, int((np.diff(pairs.indptr) > 0).sum()), offered, features)

    def measures(self, lists: sparse.csr_matrix, k: int) -> dict[str, float | None]:
        """Returns the measures of lists; `lists` is [users, things], with a one for each thing in a list."""
        shown = lists.indices
        found: dict[str, float | None] = dict.fromkeys(LIST_MEASURES)
        if len(shown):
            exposure = np.bincount(shown, minlength=len(self.sales))[self.offered]
            found["coverage"] = float((exposure > 0).mean())
            found["gini"] = gini(exposure)
            found["diversity"] = self._diversity(lists)
        if len(shown) and self.users:
            # What nobody has counts as if one user had it.
            share = np.maximum(self.sales[shown], 1) / self.users
            usual = float((self.sales**2).sum() / self.sales.sum())  # the mean over all pairs in training
            found["novelty"] = float(-np.log2(share).mean())
            found["lift"] = float(self.sales[shown].mean() / usual)
        return {f"{name}@{k}": value for name, value in found.items()}

    def _diversity(self, lists: sparse.csr_matrix) -> float | None:
        """Returns the mean over the lists of the mean distance of two things. Things without features are
        left out."""
        if self.features is None:
            return None
        row, first, second = _pairs(lists)
        known = np.diff(self.features.indptr) > 0
        row, first, second = (each[known[first] & known[second]] for each in (row, first, second))
        if not len(row):
            return None
        distance = jaccard_distances(self.features, first, second)
        counts = np.bincount(row)
        filled = counts > 0
        return float((np.bincount(row, distance)[filled] / counts[filled]).mean())


class AnswerLists:
    """Makes and measures the lists of models for the same test users of a split."""

    def __init__(
        self, split: Split, cases: MatchingCases, data: Interactions, ks: Sequence[int] = LIST_KS
    ) -> None:
        users, first = np.unique(cases.users, return_index=True)
        train = split.train
        most = min(MOST_USERS, max(FEWEST_USERS, MOST_SCORES // max(1, len(train.bundles))))
        if len(users) > most:
            first = np.sort(np.random.default_rng(0).choice(first, most, replace=False))
        self.of_users, self.ks, self.split = len(users), ks, split
        chosen = replace(cases.chosen(first.astype(np.int32)), candidates=None)
        self.evaluator = MatchingEvaluator(chosen, data, ks, split.new_bundles)
        self.contents = train.bundle_item
        items, bundles, self.by = features_of(train)
        inside = np.bincount(self.contents.indices, minlength=len(train.items)) > 0
        self.bundles = _Side.of(train.bought_bundles, np.diff(self.contents.indptr) > 0, bundles)
        self.items = _Side.of(train.bought_items, inside, items)

    def measured(self, model: Model) -> ListMeasures | None:
        """Returns the measures of a model's lists; None if it does not score bundles."""
        if not can(model, Matcher):
            return None
        best = self.best(model)
        bundles: dict[str, float | None] = {}
        items: dict[str, float | None] = {}
        for k in self.ks:
            first = best[:, :k]
            row, place = np.nonzero(first >= 0)
            lists = binary_matrix(row, first[row, place], (len(best), self.contents.shape[0]))
            bundles |= self.bundles.measures(lists, k)
            items |= self.items.measures(as_binary(lists @ self.contents), k)
        return ListMeasures(bundles, items, len(best), self.of_users, self.by)

    def best(self, model: Model) -> Array:
        """Returns the first max(ks) bundles of each user, best first; -1 where there are no more."""
        sales = torch.from_numpy(self.bundles.sales.astype(np.float32)).to(self.evaluator.device)
        parts = []
        for scores, _ in self.evaluator.scored(model):
            k = min(max(self.ks), scores.shape[1])
            values, positions = top(scores, k, sales, self.split.dataset.bundles)
            parts.append(positions.masked_fill(~torch.isfinite(values), -1).cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.int64)


def list_measures(models: Sequence[Model], split: Split, data: Interactions) -> list[ListMeasures | None]:
    """Returns the measures of each model's lists; None without test users, or for a model without lists."""
    if not split.test:
        return [None] * len(models)
    lists = AnswerLists(split, split.test, data)
    return [lists.measured(model) for model in models]


def gini(exposure: Array) -> float:
    """Returns the Gini coefficient of how often each thing is shown."""
    ordered, count = np.sort(exposure).astype(np.float64), len(exposure)
    if not ordered.sum():
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * ordered.sum()))


def features_of(
    data: BundleDataset,
) -> tuple[sparse.csr_matrix | None, sparse.csr_matrix, str]:
    """Returns what items have in common, what bundles have in common, and its name: `tags` or `items`.

    The tags of a bundle are its own and those of its items. Without tags, items have nothing to compare.
    """
    if data.catalogue is not None:
        tables = (data.catalogue.items, data.catalogue.bundles)
        names, (items, own) = tag_matrices([table["tags"].combine_chunks() for table in tables])
        if names:
            return items, as_binary(own + data.bundle_item @ items), "tags"
    return None, data.bundle_item, "items"


def tag_matrices(columns: Sequence[pa.ListArray]) -> tuple[list[str], list[sparse.csr_matrix]]:
    """Returns all tags of some columns of lists, and for each column a binary matrix [rows, tags]."""
    flat = [pc.list_flatten(column) for column in columns]
    names = pc.unique(pa.concat_arrays(flat)).drop_null()
    matrices = []
    for lists, tags in zip(columns, flat, strict=True):
        row, found = pc.list_parent_indices(lists).to_numpy(), pc.index_in(tags, names)
        known = found.is_valid().to_numpy(zero_copy_only=False)
        column = found.fill_null(0).to_numpy()
        matrices.append(binary_matrix(row[known], column[known], (len(lists), len(names))))
    return names.to_pylist(), matrices


def _pairs(lists: sparse.csr_matrix) -> tuple[Array, Array, Array]:
    """Returns the list, the first and the second thing of each pair of a list. Of a list with more than
    MOST_PAIRS pairs, MOST_PAIRS are drawn with a fixed seed."""
    lengths, starts = np.diff(lists.indptr).astype(np.int64), lists.indptr[:-1]
    whole = lengths * (lengths - 1) // 2 <= MOST_PAIRS
    random = np.random.default_rng(0)
    parts: list[tuple[Array, Array, Array]] = []
    for length in np.unique(lengths[whole & (lengths > 1)]).tolist():
        rows = np.flatnonzero(lengths == length)
        first, second = np.triu_indices(length, 1)
        parts.append((np.repeat(rows, len(first)), np.tile(first, len(rows)), np.tile(second, len(rows))))
    if len(rows := np.flatnonzero(~whole)):
        row = np.repeat(rows, MOST_PAIRS)
        first = random.integers(lengths[row])
        parts.append((row, first, (first + random.integers(1, lengths[row])) % lengths[row]))
    if not parts:
        return (np.zeros(0, np.int64),) * 3
    row, first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
    return row, lists.indices[starts[row] + first], lists.indices[starts[row] + second]


def jaccard_distances(features: sparse.csr_matrix, first: Array, second: Array) -> npt.NDArray[np.float64]:
    """Returns for each pair of rows 1 minus the features that both have, divided by those that either has."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    keys, which = np.unique(low * features.shape[0] + high, return_inverse=True)  # many pairs occur often
    low, high = np.divmod(keys, features.shape[0])
    sizes = np.diff(features.indptr)
    both = np.asarray(features[low].multiply(features[high]).sum(1)).ravel()
    distance: npt.NDArray[np.float64] = 1 - both / (sizes[low] + sizes[high] - both)
    return distance[which]
