"""The choice of bundles, if the number of different bundles is limited."""

from __future__ import annotations

import heapq
from itertools import product

import numpy as np

from bundlemage.campaigns.limits import (
    Block,
    Demand,
    Floats,
    Limits,
    Whole,
    highest,
    learn,
    sampled,
    serve_best,
)

CANDIDATES = 256
"""For each user of a sample, only this many bundles are considered: the most valuable ones."""
CHOICE_STEPS = 40
WORK = 2**30
"""The maximum number of values that the search for a better choice reads: about ten seconds of work."""
IN_VAIN = 40
"""The search tries the most promising exchanges first, and ends after this many without an improvement."""


class Choice:
    """Searches for the best set of at most `most` bundles, on all users or a sample of them."""

    def __init__(
        self,
        block: Block,
        limits: Limits,
        room: Floats,
        per_user: int,
        most: int,
        *,
        whole: bool,
        work: int = WORK,
    ) -> None:
        self.block, self.limits, self.per_user, self.most = block, limits, per_user, most
        self.room = room
        """The room of each limit for these users."""
        self.whole = whole
        """Whether these are all users. If not, users may also get fractions of bundles."""
        self.work_left = work

    def best(self) -> Whole:
        """Returns the best set found: a greedy choice, improved by exchanging single bundles."""
        demand = Demand(sampled([self.block], CANDIDATES), self.limits, self.per_user)
        prices = learn(demand, self.room, steps=CHOICE_STEPS)
        reduced = self.limits.reduced(prices, self.block)
        is_taken = (reduced >= highest(reduced, self.per_user)[:, :1]) & (reduced > 0)
        demand_for = np.where(is_taken, self.block.values, 0.0).sum(0)
        in_demand = np.sort(np.argsort(-demand_for, kind="stable")[: self.most])
        starts = [in_demand, *(self._greedy(prices * factor) for factor in (0.0, 1.0))]
        worths = [self._worth(start) for start in starts]
        chosen, worth = max(zip(starts, worths, strict=True), key=lambda pair: pair[1])
        better = True
        while better:
            better = False
            for one_out, one_in in self._exchanges(chosen)[:IN_VAIN]:
                if self.work_left < 0:
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
        demand = Demand(sampled([block], CANDIDATES), limits, self.per_user)
        prices = learn(demand, self.room, steps=CHOICE_STEPS)
        self.work_left -= block.values.size * (CHOICE_STEPS + 1)
        if not self.whole:
            return demand.at(prices, self.room)[0]
        shown = serve_best(block, limits, limits.room.copy(), prices, self.per_user)
        return float(block.values[shown].sum())

    def _exchanges(self, chosen: Whole) -> list[tuple[int, int]]:
        """Pairs of a chosen bundle and another one, the most promising first."""
        gains = _Gains(self, self.block.values)
        worth_alone = []
        for bundle in chosen:  # the gain that each adds to the bundles before it
            gain, fraction = gains.of(int(bundle))
            gains.take(int(bundle), fraction)
            worth_alone.append(gain)
        inside = chosen[np.argsort(worth_alone, kind="stable")]
        gains.room = self.room.copy()  # a bundle that replaces another can use its room
        outside = np.setdiff1d(np.arange(self.limits.takes.shape[0]), chosen)
        promise = np.array([gains.of(int(bundle))[0] for bundle in outside])
        outside = outside[np.argsort(-promise, kind="stable")]
        pairs = product(range(len(inside)), range(len(outside)))
        by_rank = sorted(pairs, key=lambda pair: (pair[0] + pair[1], pair[0]))
        return [(int(inside[a]), int(outside[b])) for a, b in by_rank]

    def _greedy(self, prices: Floats) -> Whole:
        """Adds bundles one by one, each time the one with the largest gain.

        The gain of a bundle only decreases as others are chosen. So a bundle with a low gain is evaluated
        again only after those with a higher gain.
        """
        reduced = self.limits.reduced(prices, self.block)
        reduced[self.block.values <= 0] = 0.0
        gains = _Gains(self, reduced)
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
    """The bundles that users have been given so far, and the gain of one more bundle."""

    def __init__(self, choice: Choice, values: Floats) -> None:
        self.limits, self.room, self.whole = choice.limits, choice.room.copy(), choice.whole
        self.have = np.zeros((len(values), choice.per_user))  # the values of the bundles that each user has
        bundles, self.user = np.nonzero(values.T > 0)
        self.value, shares = values[self.user, bundles], choice.block.shares
        self.share = np.ones(len(bundles)) if shares is None else shares[self.user, bundles]
        self.edges = np.searchsorted(bundles, np.arange(self.limits.takes.shape[0] + 1))

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
