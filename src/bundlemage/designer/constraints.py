"""The rules of a design request as arrays, the check of a bundle against them, and the time limit."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Mask, Shelf
from bundlemage.errors import ConfigError
from bundlemage.wire.design import DesignRequest, PriceRange, Rule
from bundlemage.wire.money import final_price, price_text
from bundlemage.wire.requests import MOST_ITEMS
from bundlemage.wire.shop import ShopSettings

Items: TypeAlias = tuple[int, ...]
Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]

NO_LIMIT = 2**60
UNITS = 10_000
"""Prices are added up as whole numbers of 1/10,000 of the currency unit, so that sums are exact."""

clock: Callable[[], float] = time.perf_counter
"""The clock of all searches. A test may replace it with a function that counts its calls."""


class Deadline:
    """A point in time, `seconds` after its creation.

    `tick` is called whenever `passed` is read. It may raise an error to stop the search.
    """

    def __init__(self, seconds: float, tick: Callable[[], None] | None = None) -> None:
        self._begun = clock()
        self._ends = self._begun + seconds
        self.tick = tick

    def within(self, seconds: float) -> Deadline:
        """Returns a deadline `seconds` from now with the same `tick`."""
        return Deadline(seconds, self.tick)

    @property
    def passed(self) -> bool:
        if self.tick is not None:
            self.tick()
        return clock() >= self._ends

    @property
    def left(self) -> float:
        """The seconds that are left; 0 after the deadline."""
        return max(0.0, self._ends - clock())

    @property
    def taken(self) -> float:
        """The seconds since the deadline was created."""
        return clock() - self._begun


def to_pay(units: int, discount: float, settings: ShopSettings) -> float:
    """Returns the price of a bundle whose list price is given in `units`, by `final_price`."""
    return final_price(Decimal(units) / UNITS * (1 - Decimal(repr(float(discount)))), settings)


def price_of(prices: Iterable[float | None], discount: float, settings: ShopSettings) -> float | None:
    """Returns the price of a bundle of items with these prices; None if a price is unknown."""
    units = [None if price is None else round(price * UNITS) for price in prices]
    return None if None in units else to_pay(sum(filter(None, units)), discount, settings)


def list_price_of(prices: Iterable[float | None], settings: ShopSettings) -> float | None:
    """Returns the sum of the prices, which has no special ending; None if a price is unknown."""
    return price_of(prices, 0.0, settings.model_copy(update={"price_ending": None}))


@dataclass(frozen=True)
class Lists:
    """Several lists of whole numbers in one array. This is faster than the rows of a sparse matrix."""

    values: Integers
    edges: Integers

    @classmethod
    def of(cls, lists: Sequence[Integers]) -> Lists:
        values = np.concatenate([*lists, np.zeros(0, np.int64)]).astype(np.int64)
        return cls(values, np.cumsum([0, *map(len, lists)]))

    def __getitem__(self, number: int) -> Integers:
        return self.values[self.edges[number] : self.edges[number + 1]]

    def all_of(self, numbers: Iterable[int]) -> Integers:
        """Returns several lists as one."""
        return np.concatenate([*(self[number] for number in numbers), np.zeros(0, np.int64)])

    def inverse(self, count: int) -> Lists:
        """Returns for each value below `count` the numbers of the lists that contain it."""
        order = np.argsort(self.values, kind="stable")
        lists = np.repeat(np.arange(len(self.edges) - 1), np.diff(self.edges))
        sizes = np.bincount(self.values, minlength=count)
        return Lists(lists[order], np.cumsum([0, *sizes]))


@dataclass(frozen=True)
class Limit:
    """The minimum and the maximum of a quantity of a bundle, as exact whole numbers."""

    rules: tuple[int | None, int | None]
    """The numbers of the rules that set `least` and `most`; None if no rule does."""
    least: int
    most: int


@dataclass(frozen=True)
class Sum(Limit):
    """The limits of a sum over the items of a bundle, such as their total price, or their number."""

    weights: Integers  # [items]

    def of(self, items: Sequence[int]) -> int:
        return int(self.weights[list(items)].sum())


@dataclass(frozen=True)
class Number:
    """The number in a rule."""

    words: str
    """The rule in words, with {} for the number."""
    form: Callable[[float], str] = "{:g}".format
    of_sum: Callable[[int], float] = float
    """Turns a sum over items into the number of the request, such as units of money into a price."""
    value: float = 0.0
    upper: bool = False
    """Whether the rule says "at most"."""

    def in_words(self, value: float) -> str:
        """Returns the rule in words, with this number."""
        text = self.words.format(self.form(value))
        return text.replace(" items", " item") if value == 1 else text


class Rules:
    """All conditions of one request. Items are positions; `start` are the items already in the bundle.

    A rule either excludes items (`bans`), or limits a sum over a bundle's items (`size` and `sums`), or
    limits how many items have a tag (`groups`). The searches know only these three kinds, so a new condition
    of one of the kinds is added only in this class. `gone` are the withdrawn items, `owned` the user's items,
    and `rejected` those that the user returned or dislikes.
    """

    def __init__(
        self,
        request: DesignRequest,
        settings: ShopSettings,
        shelf: Shelf,
        gone: Mask,
        owned: Integers,
        rejected: Integers | None = None,
    ) -> None:
        self.request, self.settings, self.items = request, settings, len(shelf.ids)
        self.rules: list[Rule] = []
        self.numbers: dict[int, Number] = {}
        """The number in a rule, such as its budget, by the position of the rule. Some rules have none."""
        self.bans: dict[int, Mask] = {}
        """The items that a rule excludes, by the number of the rule."""
        self.earlier: list[frozenset[int]] = []
        """The chosen items of bundles that are designed already. A bundle must differ enough from each."""
        self.start: Items = tuple(shelf.ids.positions(request.start).tolist())
        must = [name for name in request.must if name not in request.start]
        self.must: Items = tuple(shelf.ids.positions(must).tolist())
        for name, place in zip(must, self.must, strict=True):
            if gone[place]:
                raise ConfigError(f"'must' names the item {name!r}, which is withdrawn: it is no longer sold")
        if len(self.start) >= MOST_ITEMS:
            raise ConfigError(
                f"'start' has {len(self.start)} items; a bundle has at most {MOST_ITEMS}, and at least "
                "one is added"
            )
        self.sold = ~gone
        self.sold[list(self.start)] = False  # they are in the bundle already
        if rejected is not None:
            self.sold[rejected] = False
        limits = (request.size.least, request.size.most)
        self.size = self._sum("size", np.ones(self.items, np.int64), limits, Number("{} {{}} items"))
        if "size" not in request.model_fields_set:
            self.rules = [replace(rule, text=f"{rule.text} (the default 'size')") for rule in self.rules]
        self.budget: Sum | None = None
        """The sum of the prices, if the request has a budget. It is one of `sums`."""
        self.sums = self._sums(shelf)
        self.must_rules = {
            place: self._rule("must", name, f"the item {name!r} in the bundle")
            for name, place in zip(must, self.must, strict=True)
        }
        if request.forbid:
            named = ", ".join(map(repr, request.forbid[:3])) + (", …" if len(request.forbid) > 3 else "")
            rule = self._rule("forbid", None, f"no forbidden item ({named})")
            self.bans[rule] = self.mask(shelf.ids.positions(shelf.ids.known(request.forbid)))
        self.not_owned = settings.owned != "show" if request.not_owned is None else request.not_owned
        """Whether only items are added that the user does not have."""
        self.owned = frozenset(owned.tolist())
        """The items of the user."""
        groups = list(self._groups(shelf))
        self._asked = len(groups)
        """The number of groups that the request limits. Another one may follow."""
        if not self.not_owned and settings.owned != "show" and self.owned.issuperset(self.start):
            # Of each bundle the user lacks an item. This is not a rule of the request.
            lacked = np.setdiff1d(np.arange(self.items), owned)
            groups.append((Limit((None, None), 1, NO_LIMIT), lacked))
        self.groups = [limit for limit, _ in groups]
        """Limits of the number of items that are in a group, such as those with a tag."""
        self.membership = Lists.of([members for _, members in groups])
        """The items of each group."""
        # Items that are already in the bundle may be out of stock, and the user may have them.
        if shelf.stock_known if request.in_stock is None else request.in_stock:
            rule = self._rule("in_stock", None, "only items in stock")
            self.bans[rule] = ~shelf.in_stock & ~self.mask(self.start)
        if self.not_owned and len(owned):
            rule = self._rule("not_owned", None, "only items that the user does not have")
            self.bans[rule] = self.mask(owned) & ~self.mask(self.start)
        self.allowed = self.sold.copy()
        """The items that no rule excludes."""
        for mask in self.bans.values():
            self.allowed &= ~mask
        self.allowed[list(self.must)] = False  # they are always in the bundle
        self.fixed: Items = self.start + self.must
        self.groups_of = self.membership.inverse(self.items)
        """The groups that each item counts in."""
        self.least = np.array([group.least for group in self.groups], np.int64)
        self.most = np.array([group.most for group in self.groups], np.int64)

    # ── Taking a request apart ───────────────────────────────────────────────────────────────────

    def _rule(self, kind: str, key: str | None, text: str, number: Number | None = None) -> int:
        self.rules.append(Rule(kind, key, text))
        if number is not None:
            self.numbers[len(self.rules) - 1] = number
        return len(self.rules) - 1

    def mask(self, places: npt.ArrayLike) -> Mask:
        """Returns a mask that is true for the items at these places."""
        mask = np.zeros(self.items, bool)
        mask[np.asarray(places, np.int64)] = True
        return mask

    def _sum(
        self, name: str, weights: Integers, limits: tuple[float | None, float | None], number: Number
    ) -> Sum:
        """Returns a sum with the rules `NAME_min` and `NAME_max`, if the request has these limits.

        `number` is the number of both rules, without a value. Its words have {} for "at least" or "at most",
        and {{}} for the value. Its `of_sum` must not decrease as the sum grows.
        """
        rules: list[int | None] = [None, None]
        for end, (limit, phrase) in enumerate(zip(limits, ("at least", "at most"), strict=True)):
            if limit is not None:
                own = replace(number, value=limit, upper=end == 1, words=number.words.format(phrase))
                rules[end] = self._rule(f"{name}_{('min', 'max')[end]}", None, own.in_words(limit), own)
        least, most = limits
        return Sum(
            (rules[0], rules[1]),
            0 if least is None else bisect_left(range(NO_LIMIT), least - 1e-9, key=number.of_sum),
            NO_LIMIT if most is None else bisect_right(range(NO_LIMIT), most + 1e-9, key=number.of_sum) - 1,
            weights,
        )

    def _sums(self, shelf: Shelf) -> list[Sum]:
        """Returns the sums that the request limits, besides the size."""
        sums = []
        budget = self.request.budget or PriceRange()
        if budget != PriceRange():
            units = np.rint(np.nan_to_num(shelf.prices) * UNITS).astype(np.int64)
            price = partial(to_pay, discount=self.request.discount, settings=self.settings)
            number = Number("a price of {} {{}}", partial(price_text, settings=self.settings), price)
            self.budget = self._sum("budget", units, (budget.least, budget.most), number)
            sums.append(self.budget)
            self.bans |= {rule: np.isnan(shelf.prices) for rule in self.budget.rules if rule is not None}
        return sums

    def _groups(self, shelf: Shelf) -> Iterator[tuple[Limit, Integers]]:
        """Yields the limits of the number of items with a tag, and these items."""
        tags = self.request.tags
        for kind, counts in (("at_least", tags.at_least), ("at_most", tags.at_most)):
            for tag, count in counts.items():
                upper = kind == "at_most"
                escaped = repr(tag).replace("{", "{{").replace("}", "}}")
                words = f"{kind.replace('_', ' ')} {{}} items with the tag {escaped}"
                number = Number(words, value=count, upper=upper)
                text = f"no item with the tag {tag!r}" if upper and not count else number.in_words(count)
                rule = self._rule(kind, tag, text, number)
                limit = Limit((None, rule), 0, count) if upper else Limit((rule, None), count, NO_LIMIT)
                yield limit, _tagged(shelf, tag)
        for name in self.request.one_per:
            prefix, star = name[:-1], name.endswith("*")
            text = f"at most one item {'for each' if star else 'with the'} tag {name!r}"
            rule = self._rule("one_per", name, "no two items with the same tag" if name == "*" else text)
            matching = [tag for tag in shelf.tagged if tag.startswith(prefix)] if star else [name]
            if not matching:
                raise ConfigError(f"'one_per' is {name!r}, but no tag of an item begins with {prefix!r}")
            yield from ((Limit((None, rule), 0, 1), _tagged(shelf, tag)) for tag in matching)

    def allow_wholly_owned(self) -> None:
        """Allows bundles of which the user has all items. By default they are not designed, but this is not a
        rule of the request: if it allows no other bundles, it is not refused."""
        self.least[self._asked :] = 0

    # ── Checking ─────────────────────────────────────────────────────────────────────────────────

    def counts(self, items: Sequence[int]) -> Integers:
        """Returns the number of these items in each group."""
        return np.bincount(self.groups_of.all_of(items), minlength=len(self.groups))

    def inside(self, places: Integers) -> Lists:
        """Returns for each group the indices in `places` of the group's items."""
        here = Lists.of([self.groups_of[place] for place in places.tolist()])
        return here.inverse(len(self.groups))

    def hold(self, added: Items) -> bool:
        """Whether a bundle satisfies every rule, and differs enough from earlier bundles."""
        chosen = self.chosen(added)
        return self.satisfied(added) and all(
            len(other.intersection(chosen)) <= self.most_common(min(len(chosen), len(other)))
            for other in self.earlier
        )

    def satisfied(self, added: Items, price: float | None = None) -> bool:
        """Whether a bundle satisfies every rule. `price` is given for a bundle of the shop, because its price
        does not follow from the request. It is nan if unknown."""
        items, chosen = self.start + added, self.chosen(added)
        if not added or len(set(items)) < len(items):
            return False
        if not set(self.must) <= set(added) or not self.allowed[list(chosen)].all():
            return False
        if any(mask[list(self.fixed)].any() for mask in self.bans.values()):
            return False
        counts = self.counts(items)
        if (counts < self.least).any() or (counts > self.most).any():
            return False
        sums, budget = [self.size, *self.sums], self.request.budget
        if price is not None and budget is not None:
            sums = [each for each in sums if each is not self.budget]
            least, most = budget.least, budget.most
            if not (least or 0) - 1e-9 <= price <= (NO_LIMIT if most is None else most) + 1e-9:
                return False
        return all(each.least <= each.of(items) <= each.most for each in sums)

    def most_common(self, smaller: int) -> int:
        """Returns how many chosen items two bundles may share, if the smaller one has `smaller` of them."""
        return min(int((1 - self.request.apart) * smaller + 1e-9), smaller - 1)

    def chosen(self, added: Items) -> Items:
        """Returns the items that the search was free to choose. Only these are compared between bundles."""
        return tuple(item for item in added if item not in self.must)


def _tagged(shelf: Shelf, tag: str) -> Integers:
    if tag not in shelf.tagged:
        raise ConfigError(shelf.no_such_tag(tag))
    return np.unique(shelf.tagged[tag])  # an item may have a tag twice
