"""The offer of a campaign (bundles, their values for each user, limits), and the plan for serving users.

The plan is learned on a sample of users: a price for each limit, and the bundles to use. The price of a limit
is its Lagrange multiplier: the value that one more unit of the limit would add.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bundlemage.campaigns.chances import Calibration, chances_of
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
from bundlemage.campaigns.settings import Campaign
from bundlemage.core.answering import batch_of, rows_at_a_time, slices
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError
from bundlemage.models.base import Matcher, Model, require
from bundlemage.wire.shop import ShopSettings

DEFAULT_RULES = ShopSettings()
VALUES_AT_A_TIME = 2**21
"""The number of values that are held at once, one for each user and bundle: 16 MB."""
SAMPLE_USERS = 8192
CANDIDATES = 256
"""For each user of a sample, only this many bundles are considered: the most valuable ones."""
STEPS_AGAIN, SOFTNESS_AGAIN = 40, 0.02
"""Used when prices are learned again while users are served. Both are small: earlier prices are close."""
CHOICE_STEPS = 40
WORK = 2**30
"""The maximum number of values that the search for a better choice reads: about ten seconds of work."""
IN_VAIN = 40
"""The search tries the most promising exchanges first, and ends after this many without an improvement."""


@dataclass(frozen=True)
class Scored:
    """The chances and values of all candidates for a block of users."""

    block: Block
    chances: Floats  # [users, candidates]
    unconstrained: float
    """The total value if each user were shown their best bundles, without limits."""
    unknown: int
    """The number of users without a history."""


class Offer:
    """The candidates of a campaign, as positions in the shop, with their prices and limits."""

    def __init__(
        self,
        settings: Campaign,
        model: Model,
        shop: Shop,
        calibration: Calibration | None,
        rules: ShopSettings = DEFAULT_RULES,
    ) -> None:
        self.settings, self.model, self.shop, self.calibration = settings, model, shop, calibration
        self._rules = rules.changed({"owned": settings.owned or rules.owned})
        takings = settings.value == "takings"
        try:
            self.prices = shop.bundle_shelf.prices  # [bundles of the shop], NaN if unknown
        except ConfigError:
            if takings:
                raise ConfigError(
                    "takings are not known, because no bundle has a price: put a column 'price' into the "
                    "table of bundles and train again, or maximise sales"
                ) from None
            self.prices = np.full(len(shop.dataset.bundles), np.nan)
        costs = None if settings.budget is None else _discount_costs(shop)
        passing = np.isfinite(shop.bundles(settings.where, stock=settings.sold_out).hidden.cpu().numpy())
        known = np.ones_like(passing) if costs is None else np.isfinite(costs)
        known &= np.isfinite(self.prices) | (not takings)
        self.left_out = int((passing & ~known).sum())
        """Number of bundles that pass the filters, but lack a price or discount that is needed."""
        self.eligible = np.flatnonzero(passing & known)
        """Positions of all bundles that pass the filters and have the needed price and discount."""
        if not len(self.eligible):
            raise ConfigError(
                "there is no bundle to show: no bundle of the shop passes the filters"
                + (" and has a known price and discount" if passing.any() else "")
            )
        stock: Whole | None = None
        if settings.stock:  # unknown stock counts as 0, as in filters
            known_stock = shop.item_shelf.column("stock").fill_null(0).to_numpy()
            stock = np.maximum(known_stock.astype(np.int64), 0)

        def limits_of(bundles: Whole) -> Limits:
            return Limits(
                shop.dataset.bundle_item[bundles],
                stock,
                settings.shown_at_most,
                None if costs is None else costs[bundles],
                settings.budget or 0.0,
            )

        limits = limits_of(self.eligible)
        most = limits.affordable(limits.room)
        self.bundles = self.eligible[most >= 1 if settings.reserve == "shown" else most > 0]
        """[candidates]: the eligible bundles that can be shown at least once within the limits."""
        if not len(self.bundles):
            raise ConfigError(
                f"there is no bundle to show: {len(self.eligible):,} bundles pass the filters, but the "
                "limits do not allow any of them. Raise the budget, or check the stock"
            )
        self.limits = limits_of(self.bundles)

    def scored(self, users: Whole) -> Scored:
        """Returns chances and values for these users. `users` are positions in the shop."""
        shop, parts, unknown = self.shop, [], 0
        contents, eligible = shop.interactions.bundle_item, torch.from_numpy(self.eligible).to(shop.device)
        rows = rows_at_a_time(len(shop.dataset.bundles), shop.device)
        with torch.inference_mode():
            everyone = shop.interactions.histories(torch.from_numpy(users).to(shop.device))
            for histories in slices(everyone, rows):
                batch = batch_of(shop, histories, contents)
                logs = require(self.model, Matcher).bundle_scores(histories, contents).float().log_softmax(1)
                # For a user without a history, a bundle's chance is its share of all sales.
                nothing = batch.no_history
                logs[nothing] = shop.bundles().shares.clamp(min=1e-30).log()
                part = chances_of(self.calibration, logs, histories)
                if self._rules.owned != "show":
                    part[histories.bundles.row_of_entry(), histories.bundles.values] = (
                        0.0  # the user has these
                    )
                demoted = batch.goods.demoted(batch.owned, self._rules.owned, self._rules.mostly_owned)
                if demoted is not None:
                    part[demoted.rows, demoted.bundles] *= demoted.shares.to(part.dtype)
                parts.append(part[:, eligible].cpu())
                unknown += int(nothing.sum())
        chances = torch.cat(parts).numpy().astype(np.float64)  # [users, eligible]
        values = chances * self.prices[self.eligible] if self.settings.value == "takings" else chances
        unconstrained = float(highest(values, self.settings.per_user).sum())
        if len(self.bundles) < len(self.eligible):
            there = np.searchsorted(self.eligible, self.bundles)
            chances, values = chances[:, there], values[:, there]
        shares = chances if self.settings.reserve == "expected" else None
        return Scored(Block(values, shares), chances, unconstrained, unknown)

    def name(self, kind: str, thing: int) -> str:
        """Returns the id of the item or bundle that a limit belongs to, or `all` for the budget."""
        if kind == "budget":
            return "all"
        data = self.shop.dataset
        return data.items[thing] if kind == "stock" else data.bundles[int(self.bundles[thing])]

    def fingerprints(self, users: Whole) -> dict[str, str]:
        """Returns checksums of everything that the result depends on, except the settings."""
        catalogue = hashlib.sha256(self.shop.trade.bundles_gone.tobytes())
        for shelf in (self.shop.item_shelf, self.shop.bundle_shelf):
            if shelf.catalogue is not None:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, shelf.catalogue.schema) as writer:
                    writer.write_table(shelf.catalogue.combine_chunks())
                catalogue.update(sink.getvalue())
        rules = f"{self._rules.owned} {self._rules.mostly_owned}"
        model = hashlib.sha256(f"{self.model.name} {self.calibration} {rules}".encode())
        model.update(self.shop.dataset.fingerprint().encode())
        for name, weights in sorted(self.model.state_dict().items()):
            model.update(name.encode() + weights.detach().cpu().contiguous().numpy().tobytes())
        return {
            "model": model.hexdigest(),
            "catalogue": catalogue.hexdigest(),
            "users": hashlib.sha256(users.astype("<i8").tobytes()).hexdigest(),
        }


def _discount_costs(shop: Shop) -> Floats:
    """The cost of each bundle's discount: the sum of its items' prices, times the discount."""
    table = shop.bundle_shelf.catalogue
    if table is None or table["discount"].null_count == len(table):
        raise ConfigError(
            "a budget limits the cost of discounts, and no bundle has a discount. Put a column 'discount' "
            "into the table of bundles (0.2 is 20% off) and train again, or leave the budget out"
        )
    discounts: Floats = table["discount"].to_numpy().astype(np.float64)
    try:
        prices = shop.item_shelf.prices
    except ConfigError as error:
        raise ConfigError(f"the cost of discounts is unknown: {error}") from None
    contents = shop.dataset.bundle_item
    row = np.repeat(np.arange(contents.shape[0]), np.diff(contents.indptr))
    return discounts * np.bincount(row, prices[contents.indices], minlength=contents.shape[0])


# ── Decisions before the first user is served ────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """Decisions that are made before the first user is served."""

    prices: Floats  # [limits]
    chosen: Whole | None = None
    """The bundles that are used, as places in `Offer.bundles`; None if all may be used."""
    any_bundle: Floats | None = None
    """If `chosen` is set: the prices without this choice. They give a second upper bound."""

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
        self._kept: Block | None = None
        width = len(offer.bundles)
        self.block_users = max(32, VALUES_AT_A_TIME // width)
        self.sample_users = max(32, min(SAMPLE_USERS, VALUES_AT_A_TIME // min(width, CANDIDATES)))

    def plan(self) -> Plan:
        """Returns the plan for all users."""
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
            sample = self._sample(users, plan.chosen)  # all users who are left
        else:
            sample = self._kept = self._kept or self._sample(self._drawn, plan.chosen)
        limits = self.offer.limits
        scaled = room / limits.units * (len(sample) / len(users))
        demand = Demand(sample, limits, self.offer.settings.per_user)
        return learn(demand, scaled, plan.prices, STEPS_AGAIN, SOFTNESS_AGAIN)

    def blocks(self, users: Whole) -> Iterator[Whole]:
        """Yields users in blocks that the model scores together."""
        for start in range(0, len(users), self.block_users):
            yield users[start : start + self.block_users]

    @cached_property
    def _drawn(self) -> Whole:
        if len(self.users) <= self.sample_users:
            return self.users
        random = np.random.default_rng(self.offer.settings.seed)
        places = random.choice(len(self.users), self.sample_users, replace=False)
        return self.users[np.sort(places)]

    def _sample(self, users: Whole, among: Whole | None) -> Block:
        return sampled((self.offer.scored(part).block for part in self.blocks(users)), CANDIDATES, among)


def _own_limits(sample: Block, limits: Limits, prices: Floats, room: Floats, chosen: Whole) -> Floats:
    """Adds prices for the limit "shown" of bundles that were not chosen.

    If users are sorted by their gain from the bundle, the price is the gain of the first user for whom there
    is no room. Without it, the bound would assume that the bundle can be shown to everyone.
    """
    prices = prices.copy()
    reduced = limits.reduced(prices, sample)
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
    """Searches for the best set of at most `most` bundles, on a sample of users. `total` is the number of all
    users."""

    def __init__(self, offer: Offer, users: Whole, most: int, total: int) -> None:
        self.block, self.limits = offer.scored(users).block, offer.limits
        self.per_user, self.most = offer.settings.per_user, most
        self.room = self.limits.room / self.limits.units * (len(users) / total)
        """The room of each limit for these users."""
        self.whole = len(users) == total
        """Whether the sample has all users. If not, users may also get fractions of bundles."""
        self.work_left = WORK

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
