"""What a campaign may use up: shared limits in whole numbers, so that every sum is exact in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

UNIT = 2**30
"""Parts of one item, or of one time that a bundle is shown, in which use is counted."""
MONEY = 10**6
"""Parts of one unit of money in which the budget is counted."""
_MOST = 2**62  # more than any campaign can use; sums below it do not overflow


@dataclass(frozen=True)
class Prices:
    """What a bundle costs a campaign in limits that others would use as well."""

    by_share: Floats  # [bundles], times the share of a unit that showing it reserves
    flat: Floats  # [bundles], for each time that it is shown

    def reduced(self, values: Floats, shares: Floats | None, bundles: Any = slice(None)) -> Floats:
        """Values less what they cost."""
        cost = self.by_share[bundles]
        left: Floats = values - (cost if shares is None else shares * cost)
        left -= self.flat[bundles]
        return left


class Limits:
    """How much of each limit there is, and what showing each bundle takes of which.

    Limit numbers: first the items, then how often each bundle is shown, then the budget; those that were not
    asked for are not there. A bundle takes `takes` of a limit, times the share of a unit that is reserved
    where `shared` is true: all of it, or only the chance that the bundle is bought.
    """

    def __init__(
        self,
        contents: sparse.csr_matrix,  # [bundles, items]
        stock: Whole | None = None,  # [items]
        shown_at_most: int | None = None,
        costs: Whole | None = None,  # [bundles], in parts of money
        budget: float | None = None,
    ) -> None:
        bundles = contents.shape[0]
        takes, rooms, shared = [], [], []
        self.names: list[tuple[str, int]] = []
        """The kind of each limit, and the item or bundle that it is of."""
        if stock is not None:
            inside = np.flatnonzero(np.bincount(contents.indices, minlength=contents.shape[1]))
            takes.append(contents[:, inside].astype(np.int64) * UNIT)
            rooms.append(np.minimum(stock[inside], _MOST // UNIT) * UNIT)
            shared.append(np.ones(len(inside), bool))
            self.names += [("stock", int(item)) for item in inside]
        if shown_at_most is not None:
            takes.append(sparse.identity(bundles, dtype=np.int64, format="csr") * UNIT)
            rooms.append(np.full(bundles, min(shown_at_most, _MOST // UNIT) * UNIT))
            shared.append(np.zeros(bundles, bool))
            self.names += [("shown", bundle) for bundle in range(bundles)]
        if budget is not None:
            assert costs is not None
            takes.append(sparse.csr_matrix(costs.reshape(-1, 1)))
            rooms.append(np.array([min(int(budget * MONEY), _MOST)]))
            shared.append(np.ones(1, bool))
            self.names += [("budget", 0)]
        self.takes = (
            sparse.csr_matrix(sparse.hstack(takes, format="csr", dtype=np.int64))
            if takes
            else sparse.csr_matrix((bundles, 0), dtype=np.int64)
        )
        self.room: Whole = np.concatenate(rooms).astype(np.int64) if rooms else np.zeros(0, np.int64)
        self.shared: Mask = np.concatenate(shared) if shared else np.zeros(0, bool)
        self.units: Floats = np.array([MONEY if kind == "budget" else UNIT for kind, _ in self.names], float)
        natural = self.takes.multiply(1 / self.units).tocsr() if len(self) else self.takes.astype(float)
        self.by_share = natural @ sparse.diags(self.shared.astype(float))  # [bundles, limits]
        self.flat = natural @ sparse.diags((~self.shared).astype(float))

    def __len__(self) -> int:
        return self.takes.shape[1]  # type: ignore[no-any-return]

    def restricted(self, bundles: Whole) -> Limits:
        """The same limits for these bundles alone; numbers of limits stay as they are."""
        other = object.__new__(Limits)
        other.__dict__ = {
            **self.__dict__,
            **{name: getattr(self, name)[bundles] for name in ("takes", "by_share", "flat")},
        }
        return other

    def priced(self, prices: Floats) -> Prices:
        """What each bundle costs at these prices of the limits, in whole items, times and money."""
        return Prices(self.by_share @ prices, self.flat @ prices)

    def amounts(self, bundles: Whole, shares: Floats | None) -> tuple[Whole, Whole, Whole]:
        """What showing these takes, entry by entry: which of these, of which limit, and how much."""
        starts, ends = self.takes.indptr[bundles], self.takes.indptr[bundles + 1]
        counts = (ends - starts).astype(np.int64)
        which = np.repeat(np.arange(len(bundles)), counts)
        entry = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + starts[which]
        limit, amount = self.takes.indices[entry].astype(np.int64), self.takes.data[entry]
        if shares is not None:
            partly = self.shared[limit]
            # Rounded up: what is counted is never less than what is used.
            amount = np.where(partly, np.ceil(shares[which] * amount), amount).astype(np.int64)
        return which, limit, amount

    def used(self, bundles: Whole, shares: Floats | None) -> Whole:
        """What showing all of these takes of each limit."""
        _, limit, amount = self.amounts(bundles, shares)
        total = np.zeros(len(self), np.int64)
        np.add.at(total, limit, amount)
        return total

    def affordable(self, room: Whole) -> Floats:
        """The largest share of each bundle for which there is room: below 1, not even one can be reserved."""
        filled = np.diff(self.takes.indptr) > 0
        most = np.full(self.takes.shape[0], np.inf)
        if filled.any():
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = room[self.takes.indices] / self.takes.data
            ratio[self.takes.data == 0] = np.inf
            # What does not go by shares is there for one more, or not at all.
            flat = ~self.shared[self.takes.indices]
            ratio[flat] = np.where(ratio[flat] >= 1, np.inf, 0.0)
            most[filled] = np.minimum.reduceat(ratio, self.takes.indptr[:-1][filled])
        return most

    def admitted(self, bundles: Whole, shares: Floats | None, room: Whole) -> Mask:
        """Which of these fit in, the first ones first; the room that they take is taken off.

        One that is turned away counts for those behind it all the same, so some may fit in the next time.
        """
        which, limit, amount = self.amounts(bundles, shares)
        order = np.argsort(limit, kind="stable")
        sums = np.cumsum(amount[order])
        first = np.searchsorted(limit[order], limit[order], side="left")
        before = sums - amount[order]
        fits = sums - before[first] <= room[limit[order]]
        admitted = np.ones(len(bundles), bool)
        admitted[which[order[~fits]]] = False
        taken = admitted[which]
        np.subtract.at(room, limit[taken], amount[taken])
        return admitted
