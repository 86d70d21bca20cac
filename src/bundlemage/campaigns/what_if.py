"""By how much the value of a campaign changes if one of its limits changes, without a new campaign."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from bundlemage.campaigns.candidates import restocked
from bundlemage.campaigns.limits import Whole
from bundlemage.campaigns.plan import Offer, Plan, Planner
from bundlemage.campaigns.settings import Campaign
from bundlemage.campaigns.whole import best_showings
from bundlemage.errors import ConfigError, is_number

Change: TypeAlias = float | str
"""The new size of a limit, such as 2000 or "2000", or the difference from the present one, such as "+200"."""
LIMITS = ("budget", "shown_at_most", "different_at_most", "per_user")
LARGEST = 10**15
"""The largest size of a limit that a question may name."""
NORMAL = 1.96
"""The number of standard errors on each side of the 95% interval."""
QUICK_VALUES = 256
"""The maximum number of pairs of a user and a bundle for which a quick answer makes a new plan."""
ITEMS = 3
"""`worth_more` tells about the stock of at most this many items: those with the highest prices of limits."""


@dataclass(frozen=True)
class WhatIf:
    """The change of a campaign's value if one limit were another. All else is as it was."""

    limit: Literal["budget", "shown_at_most", "different_at_most", "per_user", "stock"]
    item_id: str | None
    """The item, for a stock."""
    before: float | None
    """The limit of the campaign; None if there is none."""
    after: float
    change: float
    """The expected change of the value: sales or takings, as in the campaign."""
    low: float
    high: float
    """The ends of a 95% interval for the error of sampling users. It is 0 wide if `basis` is `new plan`."""
    basis: Literal["new plan", "sample"]
    """new plan: a plan was made for all users with the other limit. sample: estimated on a sample of users,
    with limits in the same proportion that may be used in fractions."""
    users: int
    """The number of users in the new plan or in the sample."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Changed:
    """A limit before and after a change."""

    limit: Any
    item: int | None
    before: float | None
    after: float

    @classmethod
    def of(cls, offer: Offer, limit: str, change: Change) -> Changed:
        """Returns the change of a limit, such as `budget` or `stock:g0022`. Raises a `ConfigError` if this is
        no limit of the campaign, or the change is no number."""
        before = _size(offer, limit)
        text = change.strip() if isinstance(change, str) else ""
        relative = text[:1] in ("+", "-")
        known = re.fullmatch(r"[+-]?\d+(\.\d+)?", text) if isinstance(change, str) else is_number(change)
        if not known or (relative and before is None):
            raise ConfigError(
                f"what if {limit} were {change!r}? Give a number, such as 200"
                + (", or a difference, such as '+200' or '-200'" if before is not None else "")
            )
        after = float(text or change) + (before or 0.0 if relative else 0.0)
        least = 0 if limit == "budget" or limit.startswith("stock:") else 1
        if not least <= after <= LARGEST or (limit != "budget" and after != int(after)):
            number = "a number" if limit == "budget" else "a whole number"
            raise ConfigError(
                f"what if {limit} were {after:g}? It must be {number} from {least} to {LARGEST:,}"
            )
        kind, _, item = limit.partition(":")
        place = offer.shop.dataset.items.position(item) if kind == "stock" else None
        return cls(kind, place, before, after)


def _size(offer: Offer, limit: str) -> float | None:
    """The size of a limit in this campaign; None if there is none."""
    if limit in LIMITS:
        size: float | None = getattr(offer.settings, limit)
        return size
    if not str(limit).startswith("stock:"):
        raise ConfigError(
            f"{limit!r} is no limit of a campaign: use {', '.join(LIMITS)}, or stock:ITEM with the id of "
            "an item"
        )
    if offer.stock is None:
        raise ConfigError("stock is no limit of this campaign: set 'stock' (--stock) in the campaign")
    return float(offer.stock[offer.shop.dataset.items.position(limit.removeprefix("stock:"))])


class WhatIfs:
    """Answers what-if questions about one campaign.

    If the campaign is planned as a whole, an answer is the difference to a new plan. Else it is estimated on
    a sample of the users. With `quick`, new plans are made only for the smallest campaigns, and the sample
    is smaller.
    """

    def __init__(self, offer: Offer, users: Whole, *, quick: bool = False) -> None:
        self.offer, self.users, self.quick = offer, users, quick
        self.planner = Planner(offer, users, quick=quick)
        everyone = self.planner.everyone
        self.few = everyone is not None and (not quick or everyone.values.size <= QUICK_VALUES)
        self._before: Any = None

    def of(self, limit: str, change: Change) -> WhatIf:
        """Returns the answer for a change of a limit (see `Changed.of`)."""
        return self._of(Changed.of(self.offer, limit, change))

    def worth_more(self, plan: Plan, used_up: Mapping[str, bool], items: Whole) -> Iterator[WhatIf]:
        """Yields what a round number more of each limit that binds would bring: about a tenth more.

        `used_up` tells which limits have no room left; `items` are the numbers of the stocks without room.
        """
        limits = self.offer.limits
        by_price = items[np.argsort(-plan.prices[items], kind="stable")][:ITEMS]
        names = [f"stock:{self.offer.name(*limits.names[n])}" for n in by_price if plan.prices[n] > 0]
        for name in [*names, *(name for name in LIMITS if used_up.get(name))]:
            size = _size(self.offer, name)
            if size is None:
                continue
            found = self.of(name, f"+{_round(size / 10)}")
            if found.change > 0:
                yield found

    def _other(self, changed: Changed) -> Offer:
        offer = self.offer
        settings, shop = offer.settings, offer.shop
        if changed.item is None:
            after = changed.after if changed.limit == "budget" else int(changed.after)
            settings = Campaign.of(**{**dict(settings), changed.limit: after})
        else:  # what is sold out may change, too
            shop = restocked(shop, changed.item, int(changed.after))
        return Offer(settings, offer.model, shop, offer.calibration, offer.rules)

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def _of(self, changed: Changed) -> WhatIf:
        other = self._other(changed)
        planner = Planner(other, self.users, quick=self.quick, drawn=self.planner.drawn)
        same = np.array_equal(other.bundles, self.offer.bundles)
        looser = changed.before is not None and changed.after >= changed.before
        basis: Literal["new plan", "sample"]
        if self.few and planner.everyone is not None:
            self._before = _value(self.planner) if self._before is None else self._before
            change, error, basis, users = _value(planner) - self._before, 0.0, "new plan", len(self.users)
        else:
            self._before = self.planner.relaxed() if self._before is None else self._before
            if same and changed.limit not in ("different_at_most", "per_user"):
                planner.chosen = self.planner.chosen  # a search for a better choice would take long
            change, error = self._difference(planner)
            basis, users = "sample", len(self.planner.drawn)
        least, most = (0.0, math.inf) if looser else (-math.inf, 0.0)
        # The old plan keeps a limit that is looser, so nothing is lost. But bundles that can be delivered
        # again may be recommended before mostly owned ones, which are not shown then.
        if not np.array_equal(other.eligible, self.offer.eligible):
            least, most = -math.inf, math.inf
        change, low, high = (min(max(x, least), most) for x in (change, change - error, change + error))
        name = None if changed.item is None else self.offer.shop.dataset.items[changed.item]
        return WhatIf(
            changed.limit,
            name,
            changed.before,
            changed.after,
            change,
            low,
            high,
            basis,
            users,
        )

    def _difference(self, planner: Planner) -> tuple[float, float]:
        """The difference of the values of all users, and the half width of its interval."""
        before, after = self._before, planner.relaxed()
        users, total = len(planner.drawn), len(self.users)
        each = after.gains - before.gains
        change = (each.sum() + after.prices @ after.room - before.prices @ before.room) * total / users
        one, other = self._rooms(self.planner, before), self._rooms(planner, after)
        if one.keys() == other.keys() and planner.chosen is self.planner.chosen:
            # A value is concave in the sizes of limits, so the prices before and after bound the change.
            more = np.array([other[name][0] - one[name][0] for name in one])
            ends = [float(more @ np.array([prices[name][1] for name in one])) for prices in (one, other)]
            change = min(max(change, min(ends)), max(ends))
        error = NORMAL * total * each.std() / math.sqrt(users) * math.sqrt(1 - users / total)
        return float(change), float(error)

    @staticmethod
    def _rooms(planner: Planner, found: Any) -> dict[str, tuple[float, float]]:
        """The size and the price of each limit by its name."""
        limits = planner.offer.limits
        rooms, prices = (limits.room / limits.units).tolist(), found.prices.tolist()
        names = (f"{kind}:{planner.offer.name(kind, thing)}" for kind, thing in limits.names)
        return dict(zip(names, zip(rooms, prices, strict=True), strict=True))


def _value(planner: Planner) -> float:
    assert planner.everyone is not None
    settings = planner.offer.settings
    found = best_showings(
        planner.everyone, planner.offer.limits, settings.per_user, settings.different_at_most
    )
    return float(planner.everyone.values[found.users, found.bundles].sum())


def _round(number: float) -> int:
    """The number 1, 2 or 5 times a power of ten that is next below `number`, at least 1."""
    if number < 1:
        return 1
    power = 10 ** int(math.log10(number))
    return int(max(step for step in (1, 2, 5) if step * power <= number) * power)
