"""The bundles that a campaign uses, if the number of different bundles is limited."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from bundlemage.campaigns.limits import Block, Floats, Limits, Whole, highest, serve_best
from bundlemage.campaigns.prices import Demand, UserSample, learn

STEPS = 40
WORK = 2**30
"""The most values that the search for a better choice looks at, which takes some ten seconds."""
IN_VAIN = 40
"""The search ends after this many exchanges without an improvement, the most promising ones first."""


@dataclass
class Choice:
    """The search for a set of bundles, on a sample of users."""

    block: Block
    limits: Limits
    room: Floats
    """The room of each limit for these users."""
    per_user: int
    most: int
    whole: bool
    """Whether these are all users, so that only whole units count."""
    left: float = field(default=float(WORK))

    def best(self) -> Whole:
        """Chooses by greedy gains, then exchanges single bundles as long as that is better."""
        demand = Demand(UserSample.of(self.block), self.limits, self.per_user)
        prices = learn(demand, self.room, np.zeros(len(self.limits)), STEPS)
        starts = [self._in_demand(prices), *(self._greedy(prices * factor) for factor in (0.0, 1.0))]
        worths = [self._worth(start) for start in starts]
        chosen, worth = max(zip(starts, worths, strict=True), key=lambda pair: pair[1])
        better = True
        while better:
            better = False
            for one_out, one_in in self._exchanges(chosen)[:IN_VAIN]:
                if self.left < 0:
                    return chosen
                other = np.sort(np.append(chosen[chosen != one_out], one_in))
                value = self._worth(other)
                if value > worth * (1 + 1e-6):
                    chosen, worth, better = other, value, True
                    break
        return chosen

    def _worth(self, chosen: Whole) -> float:
        """The value of a plan with these bundles; on a sample, an upper bound of it."""
        block, limits = self.block.of(chosen), self.limits.restricted(chosen)
        demand = Demand(UserSample.of(block), limits, self.per_user)
        prices = learn(demand, self.room, np.zeros(len(limits)), STEPS)
        self.left -= block.values.size * (STEPS + 1)
        if not self.whole:
            return demand.at(prices, self.room)[0]
        shown = serve_best(block, limits, limits.room.copy(), prices, self.per_user)
        return float(block.values[shown].sum())

    def _exchanges(self, chosen: Whole) -> list[tuple[int, int]]:
        """Pairs of a chosen bundle and another one, the most promising first."""
        gains = _Gains(self.block, self.limits, self.room, self.per_user, self.whole)
        worth_alone = []
        for bundle in chosen:  # what each adds to the ones before it
            gain, fraction = gains.of(int(bundle))
            gains.take(int(bundle), fraction)
            worth_alone.append(gain)
        inside = chosen[np.argsort(worth_alone, kind="stable")]
        gains.have_limits_back(self.room)
        outside = np.setdiff1d(np.arange(self.limits.takes.shape[0]), chosen)
        promise = np.array([gains.of(int(bundle))[0] for bundle in outside])
        outside = outside[np.argsort(-promise, kind="stable")]
        pairs = product(range(len(inside)), range(len(outside)))
        by_rank = sorted(pairs, key=lambda pair: (pair[0] + pair[1], pair[0]))
        return [(int(inside[a]), int(outside[b])) for a, b in by_rank]

    def _in_demand(self, prices: Floats) -> Whole:
        """The most valuable bundles of a plan with any number of bundles."""
        reduced = self.limits.reduced(prices, self.block.values, self.block.shares)
        wanted = (reduced >= highest(reduced, self.per_user)[:, :1]) & (reduced > 0)
        worth = np.where(wanted, self.block.values, 0.0).sum(0)
        return np.sort(np.argsort(-worth, kind="stable")[: self.most])

    def _greedy(self, prices: Floats) -> Whole:
        """One bundle after another, each time the one with the largest gain.

        The gain of a bundle only falls as others are chosen, so a bundle with a low gain need not be looked
        at again before those with a higher one.
        """
        reduced = self.limits.reduced(prices, self.block.values, self.block.shares)
        reduced[self.block.values <= 0] = 0.0
        gains = _Gains(Block(reduced, self.block.shares), self.limits, self.room, self.per_user, self.whole)
        waiting = [(-gains.of(bundle)[0], bundle) for bundle in range(self.limits.takes.shape[0])]
        heapq.heapify(waiting)
        chosen: list[int] = []
        while waiting and len(chosen) < self.most:
            bundle = waiting[0][1]
            gain, fraction = gains.of(bundle)
            if len(waiting) > 1 and (-gain, bundle) > min(waiting[1:3]):
                heapq.heapreplace(waiting, (-gain, bundle))
                continue
            heapq.heappop(waiting)
            chosen.append(bundle)
            gains.take(bundle, fraction)
        return np.array(sorted(chosen), np.int64)


class _Gains:
    """What users have so far, and the gain of one more bundle."""

    def __init__(self, block: Block, limits: Limits, room: Floats, per_user: int, whole: bool) -> None:
        self.limits, self.room, self.whole = limits, room.copy(), whole
        self.have = np.zeros((len(block), per_user))  # the values of the bundles that each user has
        bundles, self.user = np.nonzero(block.values.T > 0)
        self.value = block.values[self.user, bundles]
        self.share = np.ones(len(bundles)) if block.shares is None else block.shares[self.user, bundles]
        self.edges = np.searchsorted(bundles, np.arange(limits.takes.shape[0] + 1))

    def of(self, bundle: int) -> tuple[float, Floats]:
        """The gain, and the fraction of the bundle that each user gets, from 0 to 1."""
        inside = slice(self.edges[bundle], self.edges[bundle + 1])
        more = self.value[inside] - self.have[self.user[inside]].min(1, initial=np.inf)
        order = np.argsort(-more, kind="stable")
        fits = np.ones(len(more))
        for takes, share in (
            (self.limits.by_share, self.share[inside][order]),
            (self.limits.flat, np.ones(len(more))),
        ):
            part = slice(takes.indptr[bundle], takes.indptr[bundle + 1])
            taken = takes.data[part] > 0
            if taken.any():
                units = (self.room[takes.indices[part][taken]] / takes.data[part][taken]).min()
                there = (units - np.cumsum(share) + share) / np.maximum(share, 1e-300)
                fits = np.minimum(fits, np.clip(there, 0.0, 1.0))
        fraction = np.zeros(len(more))
        fraction[order] = np.floor(fits + 1e-9) if self.whole else fits
        fraction[more <= 0] = 0.0
        return float((more * fraction).sum()), fraction

    def take(self, bundle: int, fraction: Floats) -> None:
        inside = slice(self.edges[bundle], self.edges[bundle + 1])
        for takes, amount in (
            (self.limits.by_share, (self.share[inside] * fraction).sum()),
            (self.limits.flat, fraction.sum()),
        ):
            part = slice(takes.indptr[bundle], takes.indptr[bundle + 1])
            self.room[takes.indices[part]] -= takes.data[part] * amount
        np.maximum(self.room, 0.0, out=self.room)
        got = fraction >= 0.5
        users = self.user[inside][got]
        self.have[users, self.have[users].argmin(1)] = self.value[inside][got]

    def have_limits_back(self, room: Floats) -> None:
        """Restores the room, for a bundle that replaces another."""
        self.room = room.copy()
