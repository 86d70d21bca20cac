"""Items that come after training: some items are taken out of the training data, and then asked for.

A fifth of the items is cold: they are in no training bundle and in no history. Their catalogue stays. Test
cases complete held-out bundles by a cold item, and rank bundles that contain cold items. Cases with known
items, of the same shop, are for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, binary_matrix, pairs_of, row_of
from bundlemage.data.splits import GenerationCases, MatchingCases, Split, SplitPlan, padded
from bundlemage.errors import ConfigError

Mask = npt.NDArray[np.bool_]

SHARE = 0.2
NEGATIVES = 99
USERS_PER_BUNDLE = 20
"""The most buyers of a held-out bundle for whom it is completed."""


@dataclass(frozen=True)
class ColdItems:
    """A split without some items, and the cases about them."""

    split: Split
    """Its training data has neither the cold items nor the bundles that are held out for completion."""
    cold: Mask  # [items]
    matching: Mapping[str, MatchingCases]
    """`known`: test bundles of known items. `cold`: those with at least one cold item. `half cold`: those of
    which half of the items or more are cold."""
    generation: Mapping[str, GenerationCases]
    """The item to find is known, or cold. Both are about the same held-out bundles."""


def cold_items(dataset: BundleDataset, plan: SplitPlan) -> ColdItems:
    """Divides a data set as `plan` does, and then takes items out of the training data.

    Raises `ConfigError` if the plan holds out no bundles for completion or no purchases for a test.
    """
    split = plan.divide(dataset)
    contents = dataset.bundle_item
    held_out = (np.diff(split.train.bundle_item.indptr) == 0) & (np.diff(contents.indptr) > 1)
    if split.test is None or not held_out.any():
        raise ConfigError(f"the protocol {split.protocol!r} holds out no bundles and purchases: use 'paper'")
    random = np.random.default_rng([plan.seed, 0xC01D])
    used = np.unique(contents.indices)
    cold = np.zeros(len(dataset.items), bool)
    cold[random.permutation(used)[: round(len(used) * SHARE)]] = True
    train = split.train.with_interactions(
        user_item=_without(split.train.user_item, cold), bundle_item=_without(split.train.bundle_item, cold)
    )
    of_bundle = np.asarray(contents[:, np.flatnonzero(cold)].sum(axis=1)).ravel()
    share = (of_bundle / np.maximum(1, np.diff(contents.indptr)))[split.test.positives.indices]
    matching = {
        kind: split.test.chosen(np.flatnonzero(chosen).astype(np.int32))
        for kind, chosen in (("known", share == 0), ("cold", share > 0), ("half cold", share >= 0.5))
    }
    generation = {
        kind: _completions(dataset, np.flatnonzero(held_out), hidden, random)
        for kind, hidden in (("known", ~cold), ("cold", cold))
    }
    return ColdItems(replace(split, train=train, generation=None), cold, matching, generation)


def _without(matrix: sparse.csr_matrix, cold: Mask) -> sparse.csr_matrix:
    rows, items = pairs_of(matrix)
    kept = ~cold[items]
    return binary_matrix(rows[kept], items[kept], matrix.shape)


def _completions(
    dataset: BundleDataset, bundles: npt.NDArray[np.intp], hidden: Mask, random: np.random.Generator
) -> GenerationCases:
    """Cases that hide one item of each bundle, one of those in the mask `hidden`. The other candidates are
    items of all kinds outside the bundle."""
    buyers = sparse.csc_matrix(dataset.user_bundle)
    users: list[int] = []
    rows: list[int] = []
    partial: list[Positions] = []
    positives: list[Positions] = []
    candidates: list[Positions] = []
    for bundle in bundles.tolist():
        items = row_of(dataset.bundle_item, bundle)
        possible = items[hidden[items]]
        if not len(possible):
            continue
        positive = random.permutation(possible)[:1]
        others = np.setdiff1d(np.arange(len(dataset.items), dtype=np.int32), items)
        some = random.permutation(row_of(buyers, bundle))[:USERS_PER_BUNDLE].tolist() or [len(dataset.users)]
        users += some
        rows += [len(partial)] * len(some)
        partial.append(np.setdiff1d(items, positive))
        positives.append(positive)
        candidates.append(np.concatenate([positive, random.permutation(others)[:NEGATIVES]]))
    shape = (len(partial), len(dataset.items))
    shown, answers = (
        binary_matrix(
            np.repeat(np.arange(len(part)), [len(row) for row in part]), np.concatenate(part), shape
        )
        for part in (partial, positives)
    )
    return GenerationCases(
        np.array(users, np.int32), np.array(rows, np.int32), shown, answers, padded(candidates)
    )
