"""The shared limits of a campaign. This module serves users within them, and learns their prices from a
sample of users.

The use of a limit is counted exactly, in whole numbers. The price of a limit is its Lagrange multiplier.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Shown: TypeAlias = tuple[Whole, Whole]
"""Two arrays of equal length: the user and the bundle of each showing, as positions in a block."""
Table = TypeVar("Table", npt.NDArray[np.float64], npt.NDArray[np.float32])

UNIT = 2**30
"""The use of stock and of showings is counted in parts. An item or a showing consists of this many parts."""
MONEY = 10**6
"""The use of the budget is counted in parts. A unit of money consists of this many parts."""
FACTORS = (1.0, 0.0, 0.5, 0.8, 1.2)
"""For the last users, the prices of the limits are multiplied by each factor in turn, and the best result is
kept: prices that suit many users may not suit the last few."""
STEPS = 120
SOFTNESS, SHARPEST = 0.1, 0.003
"""The first and the last softness of users' choices (see `Demand.at`), relative to a typical best value."""
_GROWTH, _SHRINKING = 1.25, 0.5  # factors of a price's step if it keeps its direction, and if it turns
_FINEST = 1e-7
_MOST = 2**62  # more than any campaign can use; sums below it do not overflow


class Limits:
    """The size of each limit (`room`), and how much of it each showing of a bundle uses (`takes`).

    Limits are numbered: first the stock of each item, then the showings of each bundle, then the budget.
    Limits that the campaign does not have are left out. If `shared` is true for a limit, its use is
    multiplied by a share: 1, or the chance that the bundle is bought. `shared` is false only for showings.
    """

    def __init__(
        self,
        contents: sparse.csr_matrix,  # [bundles, items]
        stock: Whole | None = None,  # [items]
        shown_at_most: int | None = None,
        costs: Floats | None = None,  # [bundles]
        budget: float = 0.0,
    ) -> None:
        bundles = contents.shape[0]
        kinds: list[tuple[str, Whole, Any, Whole]] = []  # kind, items or bundles, use by each bundle, room
        if stock is not None:
            inside = np.flatnonzero(np.bincount(contents.indices, minlength=contents.shape[1]))
            takes = contents[:, inside].astype(np.int64) * UNIT
            kinds.append(("stock", inside, takes, np.minimum(stock[inside], _MOST // UNIT) * UNIT))
        if shown_at_most is not None:
            takes = sparse.identity(bundles, dtype=np.int64, format="csr") * UNIT
            room = np.full(bundles, min(shown_at_most, _MOST // UNIT) * UNIT)
            kinds.append(("shown", np.arange(bundles), takes, room))
        if costs is not None:
            takes = sparse.csr_matrix(np.rint(costs * MONEY).astype(np.int64).reshape(-1, 1))
            room = np.array([min(round(budget * MONEY), _MOST)])
            kinds.append(("budget", np.zeros(1, np.int64), takes, room))
        self.names = [(kind, thing) for kind, things, *_ in kinds for thing in things.tolist()]
        """The kind of each limit, and the item or bundle that it belongs to."""
        parts = [sparse.csr_matrix((bundles, 0), dtype=np.int64), *(takes for _, _, takes, _ in kinds)]
        self.takes = sparse.csr_matrix(sparse.hstack(parts, format="csr", dtype=np.int64))
        self.room: Whole = np.concatenate(
            [np.zeros(0), *(room for *_, room in kinds)], dtype=np.int64, casting="unsafe"
        )
        self.shared: Mask = np.array([kind != "shown" for kind, _ in self.names], bool)
        self.units: Floats = np.array([MONEY if kind == "budget" else UNIT for kind, _ in self.names], float)
        natural = self.takes.multiply(1 / self.units).tocsr() if len(self) else self.takes.astype(float)
        self.by_share = natural @ sparse.diags(self.shared.astype(float))  # [bundles, limits]
        self.flat = natural @ sparse.diags((~self.shared).astype(float))

    def __len__(self) -> int:
        return self.takes.shape[1]  # type: ignore[no-any-return]

    def restricted(self, bundles: Whole) -> Limits:
        """Returns the same limits with only these bundles. The limits keep their numbers."""
        other = copy(self)
        matrices = (self.takes, self.by_share, self.flat)
        other.takes, other.by_share, other.flat = (matrix[bundles] for matrix in matrices)
        return other

    def reduced(self, prices: Floats, block: Block) -> Floats:
        """Returns the values of bundles minus the price of the limits that they use. Prices are per unit."""
        cost = (self.by_share @ prices)[block.bundles]
        left: Floats = block.values - (cost if block.shares is None else block.shares * cost)
        left -= (self.flat @ prices)[block.bundles]
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
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = room[self.takes.indices] / self.takes.data
        ratio[self.takes.data == 0] = np.inf
        # A limit that is not `shared` ignores the share: it has room for the whole bundle, or for nothing.
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
    """Some users. Each user-bundle pair has a value and a share: the factor of its use of `shared` limits."""

    values: Floats  # [users, bundles]; 0 if the bundle must not be shown
    shares: Floats | None  # [users, bundles]; None if all are 1
    bundles: Any = ...  # the default means all bundles, in order
    """The numbers of the bundles: [bundles] if they are the same for all users, else [users, bundles]."""

    def __len__(self) -> int:
        return len(self.values)

    def of(self, places: Whole) -> Block:
        """Returns the same users with only the bundles at these places: [places], or [users, places]."""
        rows: Any = slice(None) if places.ndim == 1 else np.arange(len(self))[:, None]
        return Block(self.values[rows, places], None if self.shares is None else self.shares[rows, places])


def highest(table: Table, count: int) -> Table:
    """Returns the `count` highest values of each row, in rising order."""
    if count == 1:
        best: Table = table.max(1, keepdims=True)
        return best
    first = max(0, table.shape[1] - count)
    return np.sort(np.partition(table, first, axis=1)[:, first:], axis=1)


def serve(
    block: Block, limits: Limits, room: Whole, prices: Floats, per_user: int, *, last: bool = False
) -> Shown:
    """Chooses up to `per_user` bundles for each user, and subtracts their use from `room`.

    A bundle is shown only if its value exceeds the price of the limits that it uses: a later user may gain
    more from the same room. With `last` there are no later users, and the rest of the room is used too.

    Users are served in rounds. In a round, each user gets the best remaining bundle if it fits. Users with
    the largest gain come first. Returns pairs of a user and a bundle, sorted by user; each user's best bundle
    is first.
    """
    counts = np.zeros(len(block), np.int64)
    pairs: list[Shown] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    values, shares = block.values, block.shares
    for after_prices in (True, False) if last else (True,):
        worth = limits.reduced(prices, block) if after_prices else values.copy()
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
            favourites = rows.argmax(1)
            worths = rows[np.arange(len(waiting)), favourites]
            order = np.argsort(-worths, kind="stable")
            order = order[worths[order] > 0]
            users, bundles = waiting[order], favourites[order]
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


# ── Learning prices ──────────────────────────────────────────────────────────────────────────────


def sampled(blocks: Iterable[Block], most: int, among: Whole | None = None) -> Block:
    """Returns the users of all blocks as one block. Each user keeps the best bundles, at most `most`.

    If `among` is given, only these bundles count.
    """
    parts = []
    for whole in blocks:
        names = np.arange(whole.values.shape[1]) if among is None else among
        block = whole if among is None else whole.of(among)
        if len(names) > most:
            best = np.argpartition(block.values, -most, axis=1)[:, -most:]
            names, block = names[best], block.of(best)
        parts.append((names, block))
    bundles, all_blocks = zip(*parts, strict=True)
    shares = [block.shares for block in all_blocks if block.shares is not None]
    return Block(
        np.concatenate([block.values for block in all_blocks]),
        np.concatenate(shares) if shares else None,
        bundles[0] if bundles[0].ndim == 1 else np.concatenate(bundles),
    )


class Demand:
    """Computes what the users of a sample would take at given prices, and an upper bound of a plan's value.

    It is called with many prices for the same users, so all calls share the same memory.
    """

    def __init__(self, sample: Block, limits: Limits, per_user: int) -> None:
        self.limits = limits
        self.per_user = min(per_user, sample.values.shape[1])
        self.bundles = sample.bundles
        best = sample.values.max(1, initial=0.0)
        self.typical = float(best.mean()) if len(best) else 0.0
        # Values are divided by the typical one, so that single precision is enough for any currency.
        self.unit = self.typical or 1.0
        self.values = np.where(sample.values > 0, sample.values / self.unit, -np.inf).astype(np.float32)
        self.shares = None if sample.shares is None else sample.shares.astype(np.float32)
        self._worth, self._more = np.empty_like(self.values), np.empty_like(self.values)

    def at(self, prices: Floats, room: Floats, softness: float = 0.0) -> tuple[float, Floats]:
        """Returns an upper bound of the value of a plan for these users, and the use of each limit.

        With `softness` above 0 (a fraction of a typical value), a user takes a part of each bundle that is
        nearly as good as the best. Without it, similar users would all jump from one bundle to the next
        together.
        """
        scaled = prices / self.unit
        share_costs: Floats = self.limits.by_share @ scaled
        flat_costs: Floats = self.limits.flat @ scaled
        if self.shares is None:
            costs = (share_costs + flat_costs).astype(np.float32)
            worth = np.subtract(self.values, costs[self.bundles], out=self._worth)
        else:
            costs = share_costs.astype(np.float32)
            worth = np.multiply(self.shares, costs[self.bundles], out=self._worth)
            np.subtract(self.values, worth, out=worth)
            worth -= flat_costs.astype(np.float32)[self.bundles]
        best = np.maximum(highest(worth, self.per_user), 0.0)  # [users, per_user]
        bound = float(best.sum(dtype=np.float64) * self.unit + prices @ room)
        last = best[:, :1]
        if softness > 0:
            worth -= last
            worth *= 1 / softness
            np.minimum(worth, 0.0 if self.per_user == 1 else 30.0, out=worth)
            taken = np.exp(worth, out=worth)
            nothing = np.exp(last[:, 0] * (-1 / softness))
            taken *= (self.per_user / (taken.sum(1) + nothing))[:, None]
            np.minimum(taken, 1.0, out=taken)
        else:
            taken = ((worth >= last) & (worth > 0)).astype(np.float32)
        times = self._by_bundle(taken)
        by_share = times
        if self.shares is not None:
            by_share = self._by_bundle(np.multiply(taken, self.shares, out=self._more))
        return bound, self.limits.by_share.T @ by_share + self.limits.flat.T @ times

    def _by_bundle(self, taken: npt.NDArray[np.float32]) -> Floats:
        bundles = self.limits.takes.shape[0]
        if self.bundles.ndim == 1:
            sums = np.zeros(bundles)
            sums[self.bundles] = taken.sum(0, dtype=np.float64)
            return sums
        return np.bincount(self.bundles.ravel(), taken.ravel(), minlength=bundles).astype(np.float64)


def learn(
    demand: Demand, room: Floats, begin: Floats | None = None, steps: int = STEPS, softness: float = SOFTNESS
) -> Floats:
    """Searches for prices at which demand equals the room. Returns the tried prices with the lowest bound.

    The search begins at the prices `begin`, or at 0.

    Each price has its own step, which grows while the price moves in one direction and shrinks when it turns:
    prices of limits differ by orders of magnitude. The softness of the choices decreases.
    """
    begin = np.zeros(len(room)) if begin is None else begin
    if not len(room) or not demand.typical:
        return begin
    per_bundle = demand.limits.by_share + demand.limits.flat
    touching = np.maximum(np.bincount(per_bundle.indices, minlength=len(room)), 1)
    takes = np.asarray(per_bundle.sum(0)).ravel() / touching  # the mean over the bundles that use the limit
    scale = demand.typical / np.where(takes > 0, takes, 1.0)
    step = softness * scale / max(1.0, per_bundle.nnz / max(1, per_bundle.shape[0]))
    prices, best, lowest = begin.copy(), begin, np.inf
    before = np.zeros(len(room))
    sharp = steps // 4  # the last steps are without softness, as users really choose
    for part in [*np.geomspace(softness, SHARPEST, steps - sharp).tolist(), *[0.0] * sharp]:
        bound, usage = demand.at(prices, room, part)
        if bound < lowest:
            best, lowest = prices, bound
        direction = np.sign(usage - room)
        direction[(direction < 0) & (prices == 0)] = 0
        turn = direction * before
        factor = np.where(turn > 0, _GROWTH, np.where(turn < 0, _SHRINKING, 1.0))
        step = np.clip(step * factor, _FINEST * scale, scale)
        prices = np.maximum(prices + direction * step, 0.0)
        before = direction
    return best
