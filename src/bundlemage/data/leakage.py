"""Finds held-out bundles that users' items give away, and removes such items from the histories.

In many shops, user_item has the contents of a user's bundles. A bundle that is held out to test a model is
then visible in the history: the user has all of its items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, binary_matrix, pairs_of

MOST_LEAKING = 0.03
"""If the share of leaking pairs is higher than by chance, and by more than this, items come from bundles.
Plans with `histories="auto"` then change the histories."""
MANY_ITEMS = 0.2
"""If users have so much more of the items of bundles that they bought, some items may come from bundles."""
COMPARED = 20_000
"""The number of other pairs that are drawn for comparison. If there are fewer, all are compared."""
HISTORIES = ("auto", "as given", "without held-out")
_WRITTEN = {way.replace(" ", "-"): way for way in HISTORIES}
_AT_A_TIME = 20_000
"""Pairs or users in memory at the same time, each with its items."""


def way_of(text: str) -> str:
    """Returns the name of a way to use histories. It may be written with hyphens, as `as-given`."""
    return _WRITTEN.get(text, text)


@dataclass(frozen=True)
class Leakage:
    """How many user-bundle pairs leak: the user has all items of the bundle in user_item.

    A user who has many items has all items of some bundles by chance. So the same is counted for other
    pairs: the same users with bundles that they do not have.
    """

    pairs: int = 0
    leaking: int = 0
    others: int = 0
    """The number of other pairs. Their bundles are those of the first pairs, the popular ones more often."""
    others_leaking: int = 0
    items_of_bought: float | None = None
    """The mean share of a bundle's items that a user has, for bundles that the user has. Items of the user's
    other bundles are left out. Only `leakage_of` finds it."""
    items_of_others: float | None = None
    """The same for the other pairs, whose bundles the users do not have."""

    @property
    def share(self) -> float:
        """The share of leaking pairs, 0 to 1."""
        return self.leaking / self.pairs if self.pairs else 0.0

    @property
    def by_chance(self) -> float:
        """The share of the other pairs in which the user has all items of the bundle, 0 to 1."""
        return self.others_leaking / self.others if self.others else 0.0

    @property
    def found(self) -> bool:
        """Whether so many pairs leak that figures measured with these histories mean little."""
        # With few pairs, chance alone may differ by more than MOST_LEAKING.
        error = math.sqrt(self.by_chance * (1 - self.by_chance) / max(1, self.pairs))
        return self.share - self.by_chance > max(MOST_LEAKING, 2 * error)


def told(found: Leakage, histories: str | None = None) -> str:
    """Returns in words how many pairs leak. `histories` is the way that a split uses; None: there is no split
    yet."""
    which = "bought bundles" if histories is None else "held-out bundles"
    many = _of_100(found.share)
    text = f"Of 100 {which}, {many} {'has' if many == '1' else 'have'} only items that the buyer also "
    text += "has in user_item"
    if found.others:
        text += f" ({_of_100(found.by_chance)} for bundles not bought)"
    if not found.found:
        return f"{text}.{_items_told(found)}"
    text += ", so a rule that looks at owned items sees the answer."
    if histories is None:
        return (
            f"{text} Where this is so for the held-out pairs, train, tune and compare use the histories "
            "without the items of held-out bundles, unless you choose --histories as-given."
        )
    if histories == "as given":
        return f"{text} Histories are used as given, so figures say little: use --histories without-held-out."
    return f"{text} Histories are used without the items of held-out bundles."


def _items_told(found: Leakage) -> str:
    if found.items_of_bought is None or found.items_of_others is None:
        return ""
    text = (
        f" Users have {_percent(found.items_of_bought)} of the items of their bundles, and "
        f"{_percent(found.items_of_others)} of the items of other bundles; items from their other bundles "
        "are not counted."
    )
    if found.items_of_bought - found.items_of_others <= MANY_ITEMS:
        return text
    return (
        f"{text} Either users like bundles of which they have items, or some items in user_item come from "
        "bundles. In the second case figures may be too high: use --histories without-held-out."
    )


def _of_100(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0")


def _percent(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%")


def leakage(pairs: sparse.csr_matrix, dataset: BundleDataset) -> Leakage:
    """Returns how many of these user-bundle pairs leak. A bundle without items does not leak."""
    users, bundles = pairs_of(pairs)
    others = _other_pairs(users, bundles, dataset)
    leaking, others_leaking = (_leaking(*each, dataset) for each in ((users, bundles), others))
    return Leakage(len(users), leaking, len(others[0]), others_leaking)


def leakage_of(dataset: BundleDataset) -> Leakage:
    """Returns the leakage of all user-bundle pairs, and which share of a bundle's items users have."""
    users, bundles = pairs_of(dataset.user_bundle)
    others = _other_pairs(users, bundles, dataset)
    some = np.linspace(0, len(users), min(COMPARED, len(users)), endpoint=False).astype(np.int64)
    return replace(
        leakage(dataset.user_bundle, dataset),
        items_of_bought=_share_of_items(users[some], bundles[some], dataset),
        items_of_others=_share_of_items(*others, dataset),
    )


def _other_pairs(users: Positions, bundles: Positions, dataset: BundleDataset) -> tuple[Positions, Positions]:
    """The users of some pairs with the bundles of others, as far as the users do not have these bundles."""
    count = len(users)
    if count**2 <= COMPARED:
        one, other = np.divmod(np.arange(count**2), max(1, count))
    else:
        one, other = np.random.default_rng(0).integers(count, size=(2, COMPARED))
    users, bundles = users[one], bundles[other]
    has = np.asarray(dataset.user_bundle[users, bundles]).ravel() > 0 if len(users) else np.zeros(0, bool)
    return users[~has], bundles[~has]


def _leaking(users: Positions, bundles: Positions, dataset: BundleDataset) -> int:
    """The number of these pairs in which the user has all items of the bundle."""
    count, sizes = 0, np.diff(dataset.bundle_item.indptr)[bundles]
    for part in _parts(len(users)):
        owned = dataset.user_item[users[part]].multiply(dataset.bundle_item[bundles[part]]).getnnz(axis=1)
        count += int(np.count_nonzero((owned == sizes[part]) & (sizes[part] > 0)))
    return count


def _share_of_items(users: Positions, bundles: Positions, dataset: BundleDataset) -> float | None:
    """The mean share of each bundle's items that its user has, without items of the user's other bundles.
    None if nothing is left."""
    shares = []
    for part in _parts(len(users)):
        items = dataset.bundle_item[bundles[part]]
        own = np.asarray(dataset.user_bundle[users[part], bundles[part]]).ravel()
        among, row = np.unique(users[part], return_inverse=True)
        in_bundles = (dataset.user_bundle[among] @ dataset.bundle_item)[row]
        # An item counts if this bundle is the only one of the user's bundles that has it.
        elsewhere = in_bundles.multiply(items) - items.multiply(own[:, None])
        outside = without(items, elsewhere)
        size, has = outside.getnnz(axis=1), dataset.user_item[users[part]].multiply(outside).getnnz(axis=1)
        shares.append(has[size > 0] / size[size > 0])
    every = np.concatenate(shares) if shares else np.zeros(0)
    return float(every.mean()) if len(every) else None


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
