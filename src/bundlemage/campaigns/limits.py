"""The shared limits of a campaign, and serving users within them. Use is counted in exact whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Shown: TypeAlias = tuple[Whole, Whole]
"""Two arrays of equal length: users, and a bundle that each is shown, as positions in a block."""
Table = TypeVar("Table", npt.NDArray[np.float64], npt.NDArray[np.float32])

UNIT = 2**30
"""Use of stock and showings is counted in parts: one item, or one showing of a bundle, has this many."""
MONEY = 10**6
"""Use of the budget is counted in parts: one unit of money has this many."""
FACTORS = (1.0, 0.0, 0.5, 0.8, 1.2)
"""The last users are served with the prices of limits times each factor, and the best result is kept: prices
that suit many users may not suit the last few."""
_MOST = 2**62  # more than any campaign can use; sums below it do not overflow


class Limits:
    """The size of each limit (`room`), and how much of it each showing of a bundle uses (`takes`).

    Limits are numbered: first the stock of each item, then the showings of each bundle, then the budget.
    Limits that the campaign does not have are left out. If `shared` is true for a limit, its use is
    multiplied by a share: 1, or the chance that the bundle is bought. Showings are counted in full.
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
        takes = [sparse.csr_matrix((bundles, 0), dtype=np.int64)]
        rooms, shared = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        self.names: list[tuple[str, int]] = []
        """The kind of each limit, and the item or bundle that it belongs to."""
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
        self.takes = sparse.csr_matrix(sparse.hstack(takes, format="csr", dtype=np.int64))
        self.room: Whole = np.concatenate(rooms).astype(np.int64)
        self.shared: Mask = np.concatenate(shared)
        self.units: Floats = np.array([MONEY if kind == "budget" else UNIT for kind, _ in self.names], float)
        natural = self.takes.multiply(1 / self.units).tocsr() if len(self) else self.takes.astype(float)
        self.by_share = natural @ sparse.diags(self.shared.astype(float))  # [bundles, limits]
        self.flat = natural @ sparse.diags((~self.shared).astype(float))

    def __len__(self) -> int:
        return self.takes.shape[1]  # type: ignore[no-any-return]

    def restricted(self, bundles: Whole) -> Limits:
        """Returns the same limits with only these bundles. The limits keep their numbers."""
        other = object.__new__(Limits)
        other.__dict__ = {
            **self.__dict__,
            **{name: getattr(self, name)[bundles] for name in ("takes", "by_share", "flat")},
        }
        return other

    def reduced(
        self, prices: Floats, values: Floats, shares: Floats | None, bundles: Any = slice(None)
    ) -> Floats:
        """Returns the values of bundles minus the price of the limits that they use. Prices are per unit."""
        cost = (self.by_share @ prices)[bundles]
        left: Floats = values - (cost if shares is None else shares * cost)
        left -= (self.flat @ prices)[bundles]
        return left

    def amounts(self, bundles: Whole, shares: Floats | None) -> tuple[Whole, Whole, Whole]:
        """The use of limits by these showings as three arrays: place in `bundles`, limit, amount."""
        starts, ends = self.takes.indptr[bundles], self.takes.indptr[bundles + 1]
        counts = (ends - starts).astype(np.int64)
        which = np.repeat(np.arange(len(bundles)), counts)
        entry = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + starts[which]
        limit, amount = self.takes.indices[entry].astype(np.int64), self.takes.data[entry]
        if shares is not None:
            partly = self.shared[limit]
            # Rounded up, so the count is never below the real use.
            amount = np.where(partly, np.ceil(shares[which] * amount), amount).astype(np.int64)
        return which, limit, amount

    def used(self, bundles: Whole, shares: Floats | None) -> Whole:
        """Returns how much of each limit all these showings use together."""
        _, limit, amount = self.amounts(bundles, shares)
        total = np.zeros(len(self), np.int64)
        np.add.at(total, limit, amount)
        return total

    def affordable(self, room: Whole) -> Floats:
        """Returns the largest share of each bundle that fits into the room. Below 1, no whole bundle fits."""
        filled = np.diff(self.takes.indptr) > 0
        most = np.full(self.takes.shape[0], np.inf)
        if filled.any():
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = room[self.takes.indices] / self.takes.data
            ratio[self.takes.data == 0] = np.inf
            # A limit without shares has room for one more showing, or for none.
            flat = ~self.shared[self.takes.indices]
            ratio[flat] = np.where(ratio[flat] >= 1, np.inf, 0.0)
            most[filled] = np.minimum.reduceat(ratio, self.takes.indptr[:-1][filled])
        return most

    def admitted(self, bundles: Whole, shares: Floats | None, room: Whole) -> Mask:
        """Returns which of these showings fit into `room`, in their order. Subtracts their use from `room`.

        A refused showing still counts against those after it, so some of these may fit in the next call.
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


# ── Serving users ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Block:
    """Some users. Each pair of user and bundle has a value and a share of a unit that a showing reserves."""

    values: Floats  # [users, bundles]; 0: must not be shown
    shares: Floats | None  # [users, bundles]; None: the whole unit

    def __len__(self) -> int:
        return len(self.values)

    def of(self, bundles: Whole) -> Block:
        """Returns the same users with only these bundles."""
        return Block(self.values[:, bundles], None if self.shares is None else self.shares[:, bundles])


def highest(table: Table, count: int) -> Table:
    """Returns the `count` highest values of each row, in rising order."""
    columns = table.shape[1]
    if count == 1:
        best: Table = table.max(1, keepdims=True)
        return best
    if count >= columns:
        return np.sort(table, axis=1)
    return np.sort(np.partition(table, columns - count, axis=1)[:, columns - count :], axis=1)


def serve(
    block: Block, limits: Limits, room: Whole, prices: Floats, per_user: int, *, last: bool = False
) -> Shown:
    """Chooses up to `per_user` bundles for each user, and subtracts their use from `room`.

    A bundle is shown only if its value exceeds the price of the limits that it uses: a later user may gain
    more from the same room. With `last` there are no later users, and the rest of the room is used too.

    Users are served in rounds. In a round, each user wants the best bundle that is left, and users with the
    largest gain come first. Returns pairs of a user and a bundle, by user, the most valuable bundle first.
    """
    counts = np.zeros(len(block), np.int64)
    pairs: list[Shown] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    values, shares = block.values, block.shares
    for after_prices in (True, False) if last else (True,):
        worth = limits.reduced(prices, values, shares) if after_prices else values.copy()
        worth[values <= 0] = -np.inf
        for users, bundles in pairs:
            worth[users, bundles] = -np.inf
        waiting = np.flatnonzero(counts < per_user)
        while len(waiting):
            most, rows = limits.affordable(room), worth[waiting]  # a copy
            if shares is None:
                rows[:, most < 1] = -np.inf
            else:
                rows[shares[waiting] > most] = -np.inf
            wanted = rows.argmax(1)
            worths = rows[np.arange(len(waiting)), wanted]
            order = np.argsort(-worths, kind="stable")
            order = order[worths[order] > 0]
            users, bundles = waiting[order], wanted[order]
            fits = limits.admitted(bundles, None if shares is None else shares[users, bundles], room)
            if len(users) and not fits.any():
                # The first showing fits with its exact use, but not when its use is rounded up.
                worth[users[0], bundles[0]] = -np.inf
            waiting = np.sort(users)
            users, bundles = users[fits], bundles[fits]
            pairs.append((users, bundles))
            counts[users] += 1
            worth[users, bundles] = -np.inf
            waiting = waiting[counts[waiting] < per_user]
    users, bundles = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    order = np.lexsort((bundles, -values[users, bundles], users))
    return users[order], bundles[order]


def serve_best(block: Block, limits: Limits, room: Whole, prices: Floats, per_user: int) -> Shown:
    """Serves the last users: tries the prices times each of FACTORS, and keeps the best result."""
    tries = []
    for factor in FACTORS if prices.any() else (1.0,):
        left = room.copy()
        shown = serve(block, limits, left, prices * factor, per_user, last=True)
        tries.append((float(block.values[shown].sum()), shown, left))
    _, best, left = max(tries, key=lambda each: each[0])  # the first of equal results
    room[:] = left
    return best
