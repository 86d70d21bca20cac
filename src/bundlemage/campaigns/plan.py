"""The plan of a campaign, learned on a sample of users: a price for each limit, and the bundles to use.

The price of a limit is its Lagrange multiplier: the value that one more unit of the limit would add.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from bundlemage.campaigns.limits import Floats, Limits, Whole, highest, serve_best
from bundlemage.campaigns.offer import Offer
from bundlemage.campaigns.prices import CANDIDATES, Demand, UserSample, learn

VALUES_AT_A_TIME = 2**21
"""The number of values of a user and a bundle that are held at once: 16 MB."""
SAMPLE_USERS = 8192
STEPS_AGAIN, SOFTNESS_AGAIN = 40, 0.02
"""For learning prices again while users are served: the earlier prices are close already."""
CHOICE_STEPS = 40
WORK = 2**30
"""The maximum number of values that the search for a better choice reads: about ten seconds of work."""
IN_VAIN = 40
"""The search tries the most promising exchanges first, and ends after this many without an improvement."""


@dataclass(frozen=True)
class Plan:
    """Decisions that are made before the first user is served."""

    prices: Floats  # [limits]
    chosen: Whole | None = None
    """The bundles that are used, by their places in the offer; None: any."""
    any_bundle: Floats | None = None
    """If bundles are chosen: the prices if any bundle may be used. They prove a second upper bound."""

    @property
    def proofs(self) -> list[Floats]:
        return [self.prices] if self.any_bundle is None else [self.prices, self.any_bundle]

    def to_json(self, offer: Offer) -> dict[str, Any]:
        ids = offer.shop.dataset.bundles
        chosen = None if self.chosen is None else [ids[position] for position in offer.bundles[self.chosen]]
        without = None if self.any_bundle is None else _named(self.any_bundle, offer)
        return {"bundles": chosen, "prices": _named(self.prices, offer), "prices_without_choice": without}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], offer: Offer) -> Plan:
        prices = _numbered(stored["prices"], offer)
        if stored["bundles"] is None:
            return cls(prices)
        positions = offer.shop.dataset.bundles.positions(stored["bundles"])
        chosen = np.searchsorted(offer.bundles, positions)
        return cls(prices, chosen, _numbered(stored["prices_without_choice"], offer))


def _named(prices: Floats, offer: Offer) -> dict[str, dict[str, float]]:
    """Prices above 0, by the kind of limit and the id of its item or bundle."""
    named: dict[str, dict[str, float]] = {}
    for (kind, thing), price in zip(offer.limits.names, prices.tolist(), strict=True):
        if price > 0:
            named.setdefault(kind, {})[offer.name(kind, thing)] = price
    return named


def _numbered(named: Mapping[str, Mapping[str, float]], offer: Offer) -> Floats:
    names = ((kind, offer.name(kind, thing)) for kind, thing in offer.limits.names)
    return np.array([named.get(kind, {}).get(name, 0.0) for kind, name in names], float)


class Planner:
    """Learns prices on a sample of the users who are still to be served."""

    def __init__(self, offer: Offer, users: Whole) -> None:
        self.offer, self.users = offer, users
        self._kept: UserSample | None = None
        width = len(offer.bundles)
        self.block_users = max(32, VALUES_AT_A_TIME // width)
        self.sample_users = max(32, min(SAMPLE_USERS, VALUES_AT_A_TIME // min(width, CANDIDATES)))

    def plan(self) -> Plan:
        limits, per_user = self.offer.limits, self.offer.settings.per_user
        sample = self._sample(self._drawn, None)
        room = limits.room / limits.units * (len(sample) / len(self.users))
        any_bundle = learn(Demand(sample, limits, per_user), room)
        most = self.offer.settings.different_at_most
        if most is None or most >= len(self.offer.bundles):
            return Plan(any_bundle)
        count = min(len(self._drawn), self.block_users)
        some = self._drawn[np.linspace(0, len(self._drawn) - 1, count).astype(np.int64)]
        chosen = Choice(self.offer, some, most, len(self.users)).best()
        prices = learn(Demand(self._sample(self._drawn, chosen), limits, per_user), room)
        return Plan(_own_limits(sample, limits, prices, room, chosen), chosen, any_bundle)

    def prices(self, plan: Plan, served: int, room: Whole) -> Floats:
        """Prices for the users who are left, with the room that is left."""
        if not served or not len(room):
            return plan.prices
        users = self.users[served:]
        if len(users) <= self.sample_users:
            sample = self._sample(users, plan.chosen)  # all of them
        else:
            sample = self._kept = self._kept or self._sample(self._drawn, plan.chosen)
        limits = self.offer.limits
        scaled = room / limits.units * (len(sample) / len(users))
        demand = Demand(sample, limits, self.offer.settings.per_user)
        return learn(demand, scaled, plan.prices, STEPS_AGAIN, SOFTNESS_AGAIN)

    def blocks(self, users: Whole) -> Iterator[Whole]:
        for start in range(0, len(users), self.block_users):
            yield users[start : start + self.block_users]

    @cached_property
    def _drawn(self) -> Whole:
        if len(self.users) <= self.sample_users:
            return self.users
        random = np.random.default_rng(self.offer.settings.seed)
        places = random.choice(len(self.users), self.sample_users, replace=False)
        return self.users[np.sort(places)]

    def _sample(self, users: Whole, among: Whole | None) -> UserSample:
        return UserSample.of((self.offer.scored(part).block for part in self.blocks(users)), among)


def _own_limits(sample: UserSample, limits: Limits, prices: Floats, room: Floats, chosen: Whole) -> Floats:
    """Adds prices for the limit "shown" of bundles that were not chosen.

    Such a price is the gain of the last user to whom the bundle could be shown. Without it, the bound would
    assume that the bundle can be shown to everyone.
    """
    prices = prices.copy()
    reduced = limits.reduced(prices, sample.values, sample.shares, sample.bundles)
    reduced[sample.values <= 0] = 0.0
    in_plan = np.zeros(limits.takes.shape[0], bool)
    in_plan[chosen] = True
    own = np.where(in_plan[sample.bundles], reduced, 0.0).max(1, initial=0.0)
    more = reduced - own[:, None]
    for number, (kind, bundle) in enumerate(limits.names):
        if kind == "shown" and not in_plan[bundle]:
            gains = np.sort(more[np.broadcast_to(sample.bundles == bundle, more.shape)])[::-1]
            place = int(room[number])
            prices[number] = max(0.0, float(gains[place])) if place < len(gains) else 0.0
    return prices


# ── The choice of bundles, if the number of different bundles is limited ─────────────────────────


class Choice:
    """The search for a set of at most `most` bundles, on a sample of users out of `everyone`."""

    def __init__(self, offer: Offer, users: Whole, most: int, everyone: int) -> None:
        self.block, self.limits = offer.scored(users).block, offer.limits
        self.per_user, self.most = offer.settings.per_user, most
        self.room = self.limits.room / self.limits.units * (len(users) / everyone)
        """The room of each limit for these users."""
        self.whole = len(users) == everyone
        """Whether these are all users. Then a user gets a whole bundle or none; in a sample, also a part."""
        self.left = WORK

    def best(self) -> Whole:
        """Chooses by greedy gains, then exchanges single bundles as long as that is better."""
        demand = Demand(UserSample.of([self.block]), self.limits, self.per_user)
        prices = learn(demand, self.room, steps=CHOICE_STEPS)
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
        demand = Demand(UserSample.of([block]), limits, self.per_user)
        prices = learn(demand, self.room, steps=CHOICE_STEPS)
        self.left -= block.values.size * (CHOICE_STEPS + 1)
        if not self.whole:
            return demand.at(prices, self.room)[0]
        shown = serve_best(block, limits, limits.room.copy(), prices, self.per_user)
        return float(block.values[shown].sum())

    def _exchanges(self, chosen: Whole) -> list[tuple[int, int]]:
        """Pairs of a chosen bundle and another one, the most promising first."""
        gains = _Gains(self, self.block.values)
        worth_alone = []
        for bundle in chosen:  # what each adds to the ones before it
            gain, fraction = gains.of(int(bundle))
            gains.take(int(bundle), fraction)
            worth_alone.append(gain)
        inside = chosen[np.argsort(worth_alone, kind="stable")]
        gains.room = self.room.copy()  # a bundle that replaces another has the room again
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
    """What users have so far, and the gain of one more bundle."""

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
