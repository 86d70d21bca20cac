"""Learns the prices (Lagrange multipliers) of shared limits on a sample of users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bundlemage.campaigns.limits import Block, Floats, Limits, Whole, highest

CANDIDATES = 256
"""The number of most valuable bundles that count for each user of a sample."""
STEPS = 120
SOFTNESS, SHARPEST = 0.1, 0.003
"""The first and the last softness of users' choices, as a fraction of a typical user's best value."""
_GROWTH, _SHRINKING = 1.25, 0.5  # factors of a price's step if it keeps its direction, and if it turns
_FINEST = 1e-7


@dataclass(frozen=True)
class UserSample:
    """Users, and for each the most valuable bundles."""

    bundles: Whole  # [candidates] if they are the same for all users, else [users, candidates]
    values: Floats  # [users, candidates]
    shares: Floats | None  # [users, candidates]

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, blocks: Iterable[Block], among: Whole | None = None) -> UserSample:
        """The users of some blocks. If `among` is given, only these bundles count."""
        parts = []
        for whole in blocks:
            names = np.arange(whole.values.shape[1]) if among is None else among
            block = whole if among is None else whole.of(among)
            if len(names) > CANDIDATES:
                best = np.argpartition(block.values, -CANDIDATES, axis=1)[:, -CANDIDATES:]
                shares = None if block.shares is None else np.take_along_axis(block.shares, best, 1)
                names, block = names[best], Block(np.take_along_axis(block.values, best, 1), shares)
            parts.append((names, block))
        bundles = [names for names, _ in parts]
        shares_of_all = [block.shares for _, block in parts if block.shares is not None]
        return cls(
            bundles[0] if bundles[0].ndim == 1 else np.concatenate(bundles),
            np.concatenate([block.values for _, block in parts]),
            np.concatenate(shares_of_all) if shares_of_all else None,
        )


class Demand:
    """What users would take at some prices, and the bound that these prices prove.

    Prices are tried a hundred times on the same users, so all trials share the same memory.
    """

    def __init__(self, sample: UserSample, limits: Limits, per_user: int) -> None:
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

        With some softness, as a fraction of a typical value, a user takes a part of each bundle that is
        nearly as good. Without it, similar users would all jump from one bundle to the next together.
        """
        worth = self._reduced(prices)
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

    def _reduced(self, prices: Floats) -> npt.NDArray[np.float32]:
        """Values minus prices; -∞ for what is not to be shown."""
        scaled = prices / self.unit
        by_share: Floats = self.limits.by_share @ scaled
        flat: Floats = self.limits.flat @ scaled
        if self.shares is None:
            cost = (by_share + flat).astype(np.float32)
            return np.subtract(self.values, cost[self.bundles], out=self._worth)
        cost = by_share.astype(np.float32)
        worth = np.multiply(self.shares, cost[self.bundles], out=self._worth)
        np.subtract(self.values, worth, out=worth)
        worth -= flat.astype(np.float32)[self.bundles]
        return worth

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
    takes = (
        np.asarray(per_bundle.sum(0)).ravel() / touching
    )  # the mean use of each limit by the bundles that use it
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
        step = np.clip(
            step * np.where(turn > 0, _GROWTH, np.where(turn < 0, _SHRINKING, 1.0)), _FINEST * scale, scale
        )
        prices = np.maximum(prices + direction * step, 0.0)
        before = direction
    return best
