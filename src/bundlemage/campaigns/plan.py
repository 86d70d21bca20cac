"""The plan of a campaign: prices of limits and the choice of bundles, learned on a sample of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bundlemage.campaigns.choice import Choice
from bundlemage.campaigns.limits import Floats, Limits, Whole
from bundlemage.campaigns.offer import Offer
from bundlemage.campaigns.prices import CANDIDATES, Demand, UserSample, learn

VALUES_AT_A_TIME = 2**21
"""The number of values of a user and a bundle that are held at once: 16 MB."""
SAMPLE_USERS = 8192
STEPS_AGAIN, SOFTNESS_AGAIN = 40, 0.02
"""For later prices, which only follow the room that is left."""


@dataclass(frozen=True)
class Plan:
    """Decisions that are made before the first user is served."""

    prices: Floats  # [limits]
    chosen: Whole | None = None
    """The bundles that are used, by their places in the offer; None: any."""
    any_bundle: Floats | None = None
    """If bundles are chosen: the prices without a choice. They prove a bound, too."""

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
        nothing = np.zeros(len(limits))
        any_bundle = learn(Demand(sample, limits, per_user), room, nothing)
        most = self.offer.settings.different_at_most
        if most is None or most >= len(self.offer.bundles):
            return Plan(any_bundle)
        chosen = self._choice(most)
        prices = learn(Demand(self._sample(self._drawn, chosen), limits, per_user), room, nothing)
        return Plan(_own_limits(sample, limits, prices, room, chosen), chosen, any_bundle)

    def prices(self, plan: Plan, served: int, room: Whole) -> Floats:
        """Prices for the users who are left, with the room that is left."""
        if not served or not len(room):
            return plan.prices
        users = self.users[served:]
        if len(users) <= self.sample_users:
            sample = self._sample(users, plan.chosen)  # the very ones
        else:
            sample = self._standing_for_all(plan)
        limits = self.offer.limits
        scaled = room / limits.units * (len(sample) / len(users))
        return learn(
            Demand(sample, limits, self.offer.settings.per_user),
            scaled,
            plan.prices,
            STEPS_AGAIN,
            SOFTNESS_AGAIN,
        )

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

    def _standing_for_all(self, plan: Plan) -> UserSample:
        if self._kept is None:
            self._kept = self._sample(self._drawn, plan.chosen)
        return self._kept

    def _sample(self, users: Whole, among: Whole | None) -> UserSample:
        blocks = (self.offer.scored(part).block for part in self.blocks(users))
        return UserSample.joined([UserSample.of(block, among) for block in blocks])

    def _choice(self, most: int) -> Whole:
        count = min(len(self._drawn), self.block_users)
        users = self._drawn[np.linspace(0, len(self._drawn) - 1, count).astype(np.int64)]
        limits = self.offer.limits
        return Choice(
            block=self.offer.scored(users).block,
            limits=limits,
            room=limits.room / limits.units * (count / len(self.users)),
            per_user=self.offer.settings.per_user,
            most=most,
            whole=count == len(self.users),
        ).best()


def _own_limits(sample: UserSample, limits: Limits, prices: Floats, room: Floats, chosen: Whole) -> Floats:
    """The same prices, and prices for showing bundles that were not chosen.

    These are the gains of the last user for whom there would be room, so the bound takes into account that
    such a bundle cannot be shown to everyone either.
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
            gains = np.sort(more[sample.bundles == bundle])[::-1]
            place = int(room[number])
            prices[number] = max(0.0, float(gains[place])) if place < len(gains) else 0.0
    return prices
