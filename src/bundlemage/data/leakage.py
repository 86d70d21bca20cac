"""Finds held-out bundles that users' items give away, and removes such items from the histories.

In many shops, user_item has the contents of a user's bundles. A bundle that is held out to test a model is
then visible in the history: the user has all of its items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, binary_matrix, pairs_of

MOST_LEAKING = 0.03
"""A higher share of leaking pairs is not chance. Plans with `histories="auto"` then change the histories."""
HISTORIES = ("auto", "as given", "without held-out")
_WRITTEN = {way.replace(" ", "-"): way for way in HISTORIES}
_AT_A_TIME = 20_000
"""Pairs or users in memory at the same time, each with its items."""


def way_of(text: str) -> str:
    """Returns the name of a way to use histories. It may be written with hyphens, as `as-given`."""
    return _WRITTEN.get(text, text)


@dataclass(frozen=True)
class Leakage:
    """How many user-bundle pairs leak: the user has all items of the bundle in user_item."""

    pairs: int = 0
    leaking: int = 0

    @property
    def share(self) -> float:
        """The share of leaking pairs, 0 to 1."""
        return self.leaking / self.pairs if self.pairs else 0.0

    @property
    def found(self) -> bool:
        """Whether so many pairs leak that figures measured with these histories mean little."""
        return self.share > MOST_LEAKING


def told(share: float, histories: str | None = None) -> str:
    """Returns a share of leaking pairs in words. `histories` is the way that a split uses; None: there is no
    split yet."""
    which = "user-bundle pairs" if histories is None else "held-out pairs"
    percent = f"{share:.1%}".replace(".0%", "%")
    text = f"In {percent} of the {which} the user already has all items of the bundle in user_item"
    if share <= MOST_LEAKING:
        return f"{text}."
    text += ", so a rule that looks at owned items sees the answer."
    if histories is None:
        return (
            f"{text} train, tune and compare use the histories without the items of held-out bundles, unless "
            "you choose --histories as-given."
        )
    if histories == "as given":
        return f"{text} Histories are used as given, so figures say little: use --histories without-held-out."
    return f"{text} Histories are used without the items of held-out bundles."


def leakage(pairs: sparse.csr_matrix, dataset: BundleDataset) -> Leakage:
    """Returns how many of these user-bundle pairs leak. A bundle without items does not leak."""
    leaking, (users, bundles) = 0, pairs_of(pairs)
    sizes = np.diff(dataset.bundle_item.indptr)[bundles]
    for part in _parts(len(users)):
        owned = dataset.user_item[users[part]].multiply(dataset.bundle_item[bundles[part]]).getnnz(axis=1)
        leaking += int(np.count_nonzero((owned == sizes[part]) & (sizes[part] > 0)))
    return Leakage(len(users), leaking)


def without_items_of(
    held_out: sparse.csr_matrix, bundle_item: sparse.csr_matrix, train: BundleDataset
) -> sparse.csr_matrix:
    """Returns the user_item of `train` without the items of each user's held-out bundles, except those that
    are also in a bundle that the user has in `train`. `held_out` is [users, bundles]."""
    removed = []
    for part in _parts(len(train.users)):
        hidden, known = held_out[part] @ bundle_item, train.user_bundle[part] @ train.bundle_item
        hidden = hidden - hidden.multiply(known > 0)
        users, items = train.user_item[part].multiply(hidden).nonzero()
        removed.append(binary_matrix(users, items, (part.stop - part.start, len(train.items))))
    if not removed:
        return train.user_item
    return without(train.user_item, sparse.vstack(removed, "csr"))


def without(matrix: sparse.csr_matrix, removed: sparse.csr_matrix) -> sparse.csr_matrix:
    """Returns the entries of a binary matrix that another one does not have."""
    rest = (matrix - removed).tocoo()
    kept = rest.data > 0
    return binary_matrix(rest.row[kept], rest.col[kept], matrix.shape)


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, _AT_A_TIME):
        yield slice(start, min(start + _AT_A_TIME, count))
