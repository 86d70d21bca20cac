"""Prices of shared limits, learned on a sample of users, and bounds that no plan can exceed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bundlemage.campaigns.limits import Floats, Limits, Whole
from bundlemage.campaigns.serving import Block, highest

CANDIDATES = 256
"""So many of the most valuable bundles of each user of a sample are looked at."""
STEPS = 120
SOFTNESS, SHARPEST = 0.1, 0.003
"""How sharply users decide, at first and in the end, in parts of what a typical user's best is worth."""
_GROWTH, _SHRINKING = 1.25, 0.5  # of a price's step: on while it goes one way, back where it went too far
_FINEST = 1e-7


@dataclass(frozen=True)
class Sample:
    """Users, and for each the bundles that are worth most to show them."""

    bundles: Whole  # [users, candidates]
    values: Floats  # [users, candidates]
    shares: Floats | None  # [users, candidates]

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, block: Block, among: Whole | None = None) -> Sample:
        """The users of a block. `among`: only these bundles count."""
        names = np.arange(block.values.shape[1]) if among is None else among
        block = block if among is None else block.of(among)
        if len(names) <= CANDIDATES:
            return cls(np.broadcast_to(names, block.values.shape), block.values, block.shares)
        best = np.argpartition(block.values, -CANDIDATES, axis=1)[:, -CANDIDATES:]
        shares = None if block.shares is None else np.take_along_axis(block.shares, best, 1)
        return cls(names[best], np.take_along_axis(block.values, best, 1), shares)

    @classmethod
    def joined(cls, parts: list[Sample]) -> Sample:
        if len(parts) == 1:
            return parts[0]
        names = [part.bundles for part in parts]
        if all(each.strides[0] == 0 for each in names):  # everyone has the same ones
            bundles = np.broadcast_to(names[0][0], (sum(map(len, names)), names[0].shape[1]))
        else:
            bundles = np.concatenate(names)
        shares = [part.shares for part in parts if part.shares is not None]
        return cls(
            bundles,
            np.concatenate([part.values for part in parts]),
            np.concatenate(shares) if shares else None,
        )


class Demand:
    """What users would take at some prices, and the bound that these prices prove.

    Prices are tried out a hundred times on the same users, so all of it is worked out in the same memory.
    """

    def __init__(self, sample: Sample, limits: Limits, per_user: int) -> None:
        self.limits = limits
        self.per_user = min(per_user, sample.values.shape[1])
        self.alike = sample.bundles.strides[0] == 0  # the same bundles for every user
        self.bundles = sample.bundles[0] if self.alike else sample.bundles
        best = sample.values.max(1, initial=0.0)
        self.typical = float(best.mean()) if len(best) else 0.0
        # In typical values, so that single precision does for any currency.
        self.unit = self.typical or 1.0
        self.values = np.where(sample.values > 0, sample.values / self.unit, -np.inf).astype(np.float32)
        self.shares = None if sample.shares is None else sample.shares.astype(np.float32)
        self._worth, self._more = np.empty_like(self.values), np.empty_like(self.values)

    def at(self, prices: Floats, room: Floats, softness: float = 0.0) -> tuple[float, Floats]:
        """No plan for these users within this room is worth more; and how much of each limit they take.

        With some softness, in parts of a typical value, a user takes a part of each bundle that is nearly as
        good. Without, users who are alike would all run from one bundle to the next with every change.
        """
        worth = self._reduced(prices)
        best = np.maximum(highest(worth, self.per_user), 0.0)  # [users, per_user]
        bound = float(best.sum(dtype=np.float64) * self.unit + prices @ room)
        last = best[:, :1]  # of those that a user may have; or nothing at all
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

    def _reduced(self, prices: Floats) -> npt.NDArray[np.float32]:
        """Values less prices; -∞ for what is not to be shown."""
        priced = self.limits.priced(prices / self.unit)
        if self.shares is None:
            cost = (priced.by_share + priced.flat).astype(np.float32)
            return np.subtract(self.values, cost[self.bundles], out=self._worth)
        by_share, flat = priced.by_share.astype(np.float32), priced.flat.astype(np.float32)
        worth = np.multiply(self.shares, by_share[self.bundles], out=self._worth)
        np.subtract(self.values, worth, out=worth)
        worth -= flat[self.bundles]
        return worth

    def _by_bundle(self, taken: npt.NDArray[np.float32]) -> Floats:
        bundles = self.limits.takes.shape[0]
        if self.alike:
            sums = np.zeros(bundles)
            sums[self.bundles] = taken.sum(0, dtype=np.float64)
            return sums
        return np.bincount(self.bundles.ravel(), taken.ravel(), minlength=bundles).astype(np.float64)


def learn(
    demand: Demand, room: Floats, begin: Floats, steps: int = STEPS, softness: float = SOFTNESS
) -> Floats:
    """Prices at which as much is taken as there is: those that prove the lowest bound on the way.

    Each price goes its own way up or down, faster while it goes on and slower when it turns: prices of limits
    differ by orders of magnitude, and one step for all would be too long for some and too short for others.
    Users decide more and more sharply.
    """
    if not len(room) or not demand.typical:
        return begin
    per_bundle = demand.limits.by_share + demand.limits.flat
    touching = np.maximum(np.bincount(per_bundle.indices, minlength=len(room)), 1)
    takes = np.asarray(per_bundle.sum(0)).ravel() / touching  # of each limit, by a bundle that takes any
    scale = demand.typical / np.where(takes > 0, takes, 1.0)
    step = softness * scale / max(1.0, per_bundle.nnz / max(1, per_bundle.shape[0]))
    prices, best, lowest = begin.copy(), begin, np.inf
    before = np.zeros(len(room))
    sharp = steps // 4  # in the end, as they really do
    for part in [*np.geomspace(softness, SHARPEST, steps - sharp).tolist(), *[0.0] * sharp]:
        bound, usage = demand.at(prices, room, part)
        if bound < lowest:
            best, lowest = prices, bound
        direction = np.sign(usage - room)
        direction[(direction < 0) & (prices == 0)] = 0
        turn = direction * before
        step = np.clip(
            step * np.where(turn > 0, _GROWTH, np.where(turn < 0, _SHRINKING, 1.0)), _FINEST * scale, scale
        )
        prices = np.maximum(prices + direction * step, 0.0)
        before = direction
    return best
