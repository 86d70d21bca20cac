"""What the serving model has not learned: later purchases, the cases of its split, and later bundles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bundlemage.data.dataset import BundleDataset, Positions, Vocabulary
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.recommender import Recommender


def learned_by(serving: Recommender) -> Split:
    """Returns the data that the serving model was trained and validated with, as a split."""
    split = serving.plan.divide(serving.dataset)
    if split.protocol == serving.protocol:
        return split
    # The split was read from files or made by a retraining: the model may have seen any pair of its data.
    return SplitPlan("none").divide(serving.dataset)


def unseen_pairs(dataset: BundleDataset, learned: Split) -> npt.NDArray[np.bool_]:
    """Returns for each pair of the dataset whether the serving model was trained and validated without it.
    `learned` is the result of `learned_by`."""
    known = learned.dataset
    seen = [learned.train.user_bundle.nonzero()]
    if learned.validation is not None:
        case, bundle = learned.validation.positives.nonzero()
        seen.append((learned.validation.users[case], bundle))
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


def new_bundles(dataset: BundleDataset, learned: Split) -> Positions:
    """Returns the bundles of two or more items whose contents the serving model was trained without.
    `learned` is the result of `learned_by`."""
    train = learned.train
    known = {train.bundles[row] for row in np.flatnonzero(np.diff(train.bundle_item.indptr)).tolist()}
    filled = np.flatnonzero(np.diff(dataset.bundle_item.indptr) > 1)
    return np.array([row for row in filled.tolist() if dataset.bundles[row] not in known], np.int32)
