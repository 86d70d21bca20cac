"""The offer of a campaign (bundles, their values for each user, limits), and the plan for serving users.

The plan is learned on a sample of users: a price for each limit, and the bundles to use. The price of a limit
is its Lagrange multiplier: the value that one more unit of the limit would add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from bundlemage.campaigns.candidates import repeated, with_new_bundles
from bundlemage.campaigns.chances import Calibration, chances_of
from bundlemage.campaigns.choice import CANDIDATES, WORK, Choice
from bundlemage.campaigns.limits import (
    Block,
    Demand,
    Floats,
    Limits,
    Shown,
    Whole,
    highest,
    learn,
    sampled,
)
from bundlemage.campaigns.settings import Campaign
from bundlemage.campaigns.whole import best_showings
from bundlemage.core.answering import Batch, batch_of, rows_at_a_time, slices
from bundlemage.core.filters import Filter
from bundlemage.core.ownership import BundleFacts, Demoted
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError
from bundlemage.models.base import Matcher, Model, require
from bundlemage.wire.shop import ShopSettings

DEFAULT_RULES = ShopSettings()
VALUES_AT_A_TIME = 2**21
"""The number of values that are held at once, one for each user and bundle: 16 MB."""
SAMPLE_USERS = 8192
QUICK_USERS, QUICK_WORK = 1024, 2**27
"""The size of a sample, and the work of a choice of bundles (see `choice.WORK`), for a quick answer."""
STEPS_AGAIN, SOFTNESS_AGAIN = 40, 0.02
"""Used when prices are learned again while users are served. Both are small: earlier prices are close."""


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

    @classmethod
    def of(
        cls,
        settings: Campaign,
        model: Model,
        shop: Shop,
        calibration: Calibration | None,
        rules: ShopSettings = DEFAULT_RULES,
    ) -> Offer:
        """Returns the offer of a shop, with the new bundles of the settings."""
        if settings.new_bundles:
            shop = with_new_bundles(shop, model, settings.new_bundles, settings.new_prices, rules.decimals)
        return cls(settings, model, shop, calibration, rules)

    def __init__(
        self,
        settings: Campaign,
        model: Model,
        shop: Shop,
        calibration: Calibration | None,
        rules: ShopSettings = DEFAULT_RULES,
    ) -> None:
        """`shop` has all candidates (see `of`)."""
        self.settings, self.model, self.shop, self.calibration = settings, model, shop, calibration
        self.rules = rules.changed({"owned": settings.owned or rules.owned})
        takings = settings.value == "takings"
        self.prices = shop.full_prices(rules.decimals)  # [bundles of the shop], NaN if unknown
        if takings and np.isnan(self.prices).all():
            raise ConfigError(
                "takings are not known, because no bundle has a price: put a column 'price' into the "
                "table of bundles or of items and train again, or maximise sales"
            )
        costs = None if settings.budget is None else _discount_costs(shop)
        shown = shop.bundles(settings.where, stock=settings.sold_out, decimals=rules.decimals)
        passing = np.isfinite(shown.hidden.cpu().numpy())
        known = np.ones_like(passing) if costs is None else np.isfinite(costs)
        known &= np.isfinite(self.prices) | (not takings)
        self.left_out = int((passing & ~known).sum())
        """Number of bundles that pass the filters, but lack a price or discount that is needed."""
        if not (passing & known).any():
            raise self._nothing(passing)
        places, ids = np.flatnonzero(passing & known), shop.dataset.bundles
        same = repeated(shop.dataset.bundle_item, places, len(ids) - len(settings.new_bundles))
        self.same_items = {ids[after]: ids[before] for after, before in sorted(same.items())}
        """New bundles that are left out, each with an earlier candidate that has the same items."""
        self.eligible = places[~np.isin(places, list(same))]
        """Positions of all bundles that pass the filters, have the needed price and discount, and do not
        repeat another one."""
        stock: Whole | None = None
        if settings.stock:  # unknown stock counts as 0, as in filters
            known_stock = shop.item_shelf.column("stock").fill_null(0).to_numpy()
            stock = np.maximum(known_stock.astype(np.int64), 0)
        self.stock = stock
        """The stock of each item of the shop; None if it is no limit."""

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

    def _nothing(self, passing: npt.NDArray[np.bool_]) -> ConfigError:
        """The error if there is no bundle to show. `passing` are those that pass the filters and are not
        left out because an item is sold out."""
        where = self.settings.where
        filtered = "" if where == Filter() else " that passes the filters"
        if passing.any():
            why = f"the price or discount of every bundle{filtered} is unknown"
        elif torch.isfinite(self.shop.bundles(where, decimals=self.rules.decimals).hidden).any():
            why = (
                f"every bundle{filtered} has a sold-out item. To show such bundles, use sold_out='show' "
                "(--sold-out show)"
            )
        else:
            why = "no bundle of the shop passes the filters" if filtered else "the shop sells no bundle"
        return ConfigError(f"there is no bundle to show: {why}")

    def scored(self, users: Whole) -> Scored:
        """Returns chances and values for these users. `users` are positions in the shop."""
        shop, parts, unknown = self.shop, [], 0
        payments: list[Floats] = []
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
                demoted = batch.goods.demoted(batch.owned, self.rules.owned, self.rules.mostly_owned)
                for each in batch.left_out(self.rules.owned):
                    gone = each.row_of_entry(), each.values
                    logs[gone] = -torch.inf
                    part[gone] = 0.0
                if demoted is not None:  # the rule is not `show`
                    self._leave_out(part, logs, demoted, eligible)
                parts.append(part[:, eligible].cpu())
                if self.settings.value == "takings":
                    payments.append(self._payments(batch))
                unknown += int(nothing.sum())
        chances = torch.cat(parts).numpy().astype(np.float64)  # [users, eligible]
        values = chances * np.concatenate(payments) if payments else chances
        unconstrained = float(highest(values, self.settings.per_user).sum())
        if len(self.bundles) < len(self.eligible):
            there = np.searchsorted(self.eligible, self.bundles)
            chances, values = chances[:, there], values[:, there]
        shares = chances if self.settings.reserve == "expected" else None
        return Scored(Block(values, shares), chances, unconstrained, unknown)

    def _leave_out(self, chances: Tensor, logs: Tensor, demoted: Demoted, eligible: Tensor) -> None:
        """Sets the chances of owned bundles to 0, unless a user would be recommended them first. `logs` are
        the log-probabilities, and are changed."""
        rows, bundles = demoted.rows, demoted.bundles
        logs[rows, bundles] += demoted.shares.log().to(logs.dtype)  # as `recommend` ranks them
        most = min(self.settings.per_user, len(eligible))
        last = logs[:, eligible].topk(most, dim=1).values[:, -1]
        left_out = (demoted.shares == 0) | (logs[rows, bundles] < last[rows])
        chances[rows[left_out], bundles[left_out]] = 0.0

    def _payments(self, batch: Batch) -> Floats:
        """Returns what each user pays for each eligible bundle; 0 if it is unknown because of what the user
        owns."""  # [users, eligible]
        paid = np.tile(self.prices, (len(batch.histories), 1))
        if self.rules.pays != "whole":
            rows, bundles = batch.goods.partly_owned(batch.owned)
            lines = self.shop.lines(rows, bundles, batch.owned, batch.contents)
            paid[rows, bundles] = np.nan_to_num(lines.facts(self.rules).to_pay)
        return paid[:, self.eligible]

    def facts(self, users: Whole, rows: Whole, bundles: Whole) -> BundleFacts:
        """Returns what users own of bundles, and what they pay: `users[rows[n]]` of the candidate
        `bundles[n]`. `users` are positions in the shop."""
        shop = self.shop
        contents, who = shop.interactions.bundle_item, torch.from_numpy(users).to(shop.device)
        owned = shop.owned((), shop.interactions.histories(who), contents)
        return shop.lines(rows, self.bundles[bundles], owned, contents).facts(self.rules)

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
        rules = f"{self.rules.owned} {self.rules.mostly_owned} {self.rules.pays} {self.rules.decimals}"
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
    shown: Shown | None = None
    """If the campaign was planned as a whole: what each user is shown, as places in `Planner.users` and in
    `Offer.bundles`, sorted by user."""
    bound: float | None = None
    """If `shown` is set: an upper bound of the value."""

    @property
    def proofs(self) -> list[Floats]:
        return [self.prices] if self.any_bundle is None else [self.prices, self.any_bundle]

    def to_json(self, offer: Offer) -> dict[str, Any]:
        ids = offer.shop.dataset.bundles

        def named(places: Whole) -> list[str]:
            return [ids[position] for position in offer.bundles[places]]

        return {
            "bundles": None if self.chosen is None else named(self.chosen),
            "prices": _named(self.prices, offer),
            "prices_without_choice": None if self.any_bundle is None else _named(self.any_bundle, offer),
            "shown": None
            if self.shown is None
            else {"users": self.shown[0].tolist(), "bundles": named(self.shown[1])},
            "bound": self.bound,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], offer: Offer) -> Plan:
        def places(names: Sequence[str]) -> Whole:
            return np.searchsorted(offer.bundles, offer.shop.dataset.bundles.positions(names))

        prices, shown = _numbered(stored["prices"], offer), stored["shown"]
        if shown is not None:
            shown = np.array(shown["users"], np.int64), places(shown["bundles"])
        if stored["bundles"] is None:
            return cls(prices, shown=shown, bound=stored["bound"])
        without = _numbered(stored["prices_without_choice"], offer)
        return cls(prices, places(stored["bundles"]), without, shown, stored["bound"])


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


@dataclass(frozen=True)
class Relaxed:
    """The best value of some users if they could get fractions of bundles. It is the sum of `gains`, and of
    the limits' sizes times their prices."""

    gains: Floats  # [users]
    prices: Floats  # [limits]
    room: Floats  # [limits]


class Planner:
    """Learns prices on a sample of the users who are still to be served."""

    def __init__(
        self, offer: Offer, users: Whole, *, quick: bool = False, drawn: Whole | None = None
    ) -> None:
        """With `quick`, the sample is smaller. `drawn` is a sample that was drawn before."""
        self.offer, self.users, self.quick, self._given = offer, users, quick, drawn
        self._kept: Block | None = None
        width = len(offer.bundles)
        self.block_users = max(32, VALUES_AT_A_TIME // width)
        most = min(QUICK_USERS if quick else SAMPLE_USERS, VALUES_AT_A_TIME // min(width, CANDIDATES))
        self.sample_users = max(32, most)

    def plan(self) -> Plan:
        """Returns the plan for all users."""
        limits, settings = self.offer.limits, self.offer.settings
        if (everyone := self.everyone) is not None:
            best = best_showings(everyone, limits, settings.per_user, settings.different_at_most)
            shown, bound = (best.users, best.bundles), best.bound
            if best.chosen is None:
                return Plan(best.prices, shown=shown, bound=bound)
            room = limits.room / limits.units
            prices = _own_limits(everyone, limits, best.prices_chosen, room, best.chosen)
            return Plan(prices, best.chosen, best.prices, shown, bound)
        sample = self._sample(self.drawn, None)
        any_bundle = learn(Demand(sample, limits, settings.per_user), self._room)
        if self.chosen is None:
            return Plan(any_bundle)
        prices = learn(Demand(self._sample(self.drawn, self.chosen), limits, settings.per_user), self._room)
        return Plan(_own_limits(sample, limits, prices, self._room, self.chosen), self.chosen, any_bundle)

    @cached_property
    def chosen(self) -> Whole | None:
        """The bundles to use, chosen on a sample of users; None if all may be used."""
        limits, settings = self.offer.limits, self.offer.settings
        most = settings.different_at_most
        if most is None or most >= len(self.offer.bundles):
            return None
        count = min(len(self.drawn), self.block_users)
        some = self.drawn[np.linspace(0, len(self.drawn) - 1, count).astype(np.int64)]
        room = limits.room / limits.units * (len(some) / len(self.users))
        block, whole = self.offer.scored(some).block, len(some) == len(self.users)
        work = QUICK_WORK if self.quick else WORK
        return Choice(block, limits, room, settings.per_user, most, whole=whole, work=work).best()

    def relaxed(self) -> Relaxed:
        """Returns the value of the sample's users if they could get fractions of bundles."""
        limits, per_user = self.offer.limits, self.offer.settings.per_user
        sample = self._sample(self.drawn, self.chosen)
        prices = learn(Demand(sample, limits, per_user), self._room)
        reduced = np.where(sample.values > 0, limits.reduced(prices, sample), 0.0)
        return Relaxed(np.maximum(highest(reduced, per_user), 0.0).sum(1), prices, self._room)

    @property
    def _room(self) -> Floats:
        """The room of each limit for the users of the sample."""
        limits = self.offer.limits
        return limits.room / limits.units * (len(self.drawn) / len(self.users))

    def prices(self, plan: Plan, served: int, room: Whole) -> Floats:
        """Prices for the users who are left, with the room that is left."""
        if not served or not len(room) or plan.shown is not None:
            return plan.prices
        users = self.users[served:]
        if len(users) <= self.sample_users:
            sample = self._sample(users, plan.chosen)  # all users who are left
        else:
            sample = self._kept = self._kept or self._sample(self.drawn, plan.chosen)
        limits = self.offer.limits
        scaled = room / limits.units * (len(sample) / len(users))
        demand = Demand(sample, limits, self.offer.settings.per_user)
        return learn(demand, scaled, plan.prices, STEPS_AGAIN, SOFTNESS_AGAIN)

    def blocks(self, users: Whole) -> Iterator[Whole]:
        """Yields users in blocks that the model scores together."""
        for start in range(0, len(users), self.block_users):
            yield users[start : start + self.block_users]

    @cached_property
    def everyone(self) -> Block | None:
        """All users in the order in which they are served, if they are so few that this is one block."""
        if len(self.users) > self.block_users:
            return None
        size = self.offer.settings.part_users  # scored in the same batches as when they are served
        parts = [self.users[start : start + size] for start in range(0, len(self.users), size)]
        blocks = [self.offer.scored(part).block for part in parts]
        shares = [block.shares for block in blocks if block.shares is not None]
        values = np.concatenate([block.values for block in blocks])
        return Block(values, np.concatenate(shares) if shares else None)

    @cached_property
    def drawn(self) -> Whole:
        """The users of the sample."""
        if self._given is not None:
            return self._given
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
