"""Who is shown what: many users together, by values less prices, with no limit ever broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bundlemage.campaigns.limits import Floats, Limits, Mask, Prices, Whole

Table = TypeVar("Table", npt.NDArray[np.float64], npt.NDArray[np.float32])


@dataclass(frozen=True)
class Block:
    """Users and bundles: what it is worth to show each to each, and what of the limits that reserves."""

    values: Floats  # [users, bundles]; 0: not to be shown
    shares: Floats | None  # [users, bundles], the share of a unit that is reserved; None: the whole unit

    def __len__(self) -> int:
        return len(self.values)

    def of(self, bundles: Whole) -> Block:
        return Block(self.values[:, bundles], None if self.shares is None else self.shares[:, bundles])


@dataclass(frozen=True)
class Shown:
    """Pairs of a user and a bundle, by their places in a block."""

    users: Whole
    bundles: Whole

    def value(self, block: Block) -> float:
        return float(block.values[self.users, self.bundles].sum())

    def shares(self, block: Block) -> Floats | None:
        return None if block.shares is None else block.shares[self.users, self.bundles]


def serve(
    block: Block, limits: Limits, room: Whole, prices: Prices, per_user: int, *, last: bool = False
) -> Shown:
    """Up to `per_user` bundles for each user; the room that they take is taken off.

    A bundle is shown only where it is worth more than its price: the room may serve somebody better later.
    The last ones may have what is left in any case.
    """
    serving = _Serving(block, limits, room, per_user)
    serving.by(prices.reduced(block.values, block.shares))
    if last:
        serving.by(block.values.copy())
    return serving.shown()


def highest(table: Table, count: int) -> Table:
    """The highest values of each row, the lowest of them first."""
    columns = table.shape[1]
    if count == 1:
        best: Table = table.max(1, keepdims=True)
        return best
    if count >= columns:
        return np.sort(table, axis=1)
    return np.sort(np.partition(table, columns - count, axis=1)[:, columns - count :], axis=1)


FACTORS = (1.0, 0.0, 0.5, 0.8, 1.2)
"""By what prices are multiplied to see what serves the last users best: prices are right for many users, and
the last ones may be few."""


def serve_best(block: Block, limits: Limits, room: Whole, prices: Floats, per_user: int) -> Shown:
    """`serve` for the last users: at several prices, and the best of it. Prices are those of the limits."""
    tries = []
    for factor in FACTORS if prices.any() else (1.0,):
        left = room.copy()
        shown = serve(block, limits, left, limits.priced(prices * factor), per_user, last=True)
        tries.append((shown.value(block), shown, left))
    _, best, left = max(tries, key=lambda found: found[0])  # of equal ones the first
    room[:] = left
    return best


class _Serving:
    """Each asks for the best that is left, the ones with the most to gain are served first, and so on."""

    def __init__(self, block: Block, limits: Limits, room: Whole, per_user: int) -> None:
        self.block, self.limits, self.room, self.per_user = block, limits, room, per_user
        self.counts = np.zeros(len(block), np.int64)
        self.found: list[tuple[Whole, Whole]] = []

    def by(self, worth: Floats) -> None:
        """Serve by this worth, which is overwritten."""
        worth[self.block.values <= 0] = -np.inf
        for users, bundles in self.found:
            worth[users, bundles] = -np.inf
        waiting = np.flatnonzero(self.counts < self.per_user)
        while len(waiting):
            rows = worth[waiting]  # a copy
            rows[self._out_of_reach(waiting)] = -np.inf
            wanted = rows.argmax(1)
            worths = rows[np.arange(len(waiting)), wanted]
            there = worths > 0
            waiting, wanted, worths = waiting[there], wanted[there], worths[there]
            order = np.argsort(-worths, kind="stable")
            users, bundles = waiting[order], wanted[order]
            shares = None if self.block.shares is None else self.block.shares[users, bundles]
            fits = self.limits.admitted(bundles, shares, self.room)
            if len(users) and not fits.any():
                # The first one fits by its share, but not when that is rounded up.
                worth[users[0], bundles[0]] = -np.inf
            users, bundles = users[fits], bundles[fits]
            self.found.append((users, bundles))
            self.counts[users] += 1
            worth[users, bundles] = -np.inf
            waiting = waiting[self.counts[waiting] < self.per_user]

    def _out_of_reach(self, users: Whole) -> Mask | tuple[slice, Mask]:
        """For what there is no room any more."""
        most = self.limits.affordable(self.room)
        if self.block.shares is None:
            return slice(None), most < 1
        return self.block.shares[users] > most

    def shown(self) -> Shown:
        if not self.found:
            return Shown(np.zeros(0, np.int64), np.zeros(0, np.int64))
        users, bundles = (np.concatenate(parts) for parts in zip(*self.found, strict=True))
        # By user, and the most valuable first.
        order = np.lexsort((bundles, -self.block.values[users, bundles], users))
        return Shown(users[order], bundles[order])
