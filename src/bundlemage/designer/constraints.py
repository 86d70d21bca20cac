"""A request as arrays over a shop's items: what may be added, what must hold, and whether it does."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Mask, Shelf
from bundlemage.designer.money import UNITS, to_pay
from bundlemage.errors import ConfigError
from bundlemage.wire.design import DesignRequest, PriceRange, Rule
from bundlemage.wire.requests import MOST_ITEMS

Items: TypeAlias = tuple[int, ...]
Integers: TypeAlias = npt.NDArray[np.int64]

NO_LIMIT = 2**60


@dataclass(frozen=True)
class Lists:
    """Lists of whole numbers, one after the other: quicker to look up than a sparse matrix."""

    values: Integers
    edges: Integers

    @classmethod
    def of(cls, lists: Sequence[Integers]) -> Lists:
        values = np.concatenate([*lists, np.zeros(0, np.int64)]).astype(np.int64)
        return cls(values, np.cumsum([0, *map(len, lists)]))

    def __getitem__(self, number: int) -> Integers:
        return self.values[self.edges[number] : self.edges[number + 1]]

    def all_of(self, numbers: Iterable[int]) -> Integers:
        """Several lists as one."""
        return np.concatenate([*(self[number] for number in numbers), np.zeros(0, np.int64)])

    def turned(self, count: int) -> Lists:
        """For each of so many values, the lists that it is in."""
        order = np.argsort(self.values, kind="stable")
        lists = np.repeat(np.arange(len(self.edges) - 1), np.diff(self.edges))
        sizes = np.bincount(self.values, minlength=count)
        return Lists(lists[order], np.cumsum([0, *sizes]))


@dataclass(frozen=True)
class Group:
    """Items of which a bundle has at least and at most so many."""

    rule: int
    members: Integers
    least: int
    most: int


class Rules:
    """All conditions of one request. Items are positions; `start` is what is in the bundle already."""

    def __init__(self, request: DesignRequest, shelf: Shelf, gone: Mask, owned: Integers) -> None:
        self.request = request
        self.rules: list[Rule] = []
        self.items = len(shelf.ids)
        self.start: Items = tuple(shelf.ids.positions(request.start).tolist())
        must = [name for name in request.must if name not in request.start]
        self.must: Items = tuple(shelf.ids.positions(must).tolist())
        self.sold = ~gone
        self.sold[list(self.start)] = False  # it is there already
        self._check_must(must, gone)
        if len(self.start) >= MOST_ITEMS:
            raise ConfigError(
                f"'start' has {len(self.start)} items; a bundle has at most {MOST_ITEMS}, and one is added"
            )
        self.size = (request.size.least, request.size.most)
        money = request.budget or PriceRange()
        self.budget = (money.least, money.most)
        self.bans: dict[int, Mask] = {}
        """What a rule keeps out altogether: by the number of the rule."""
        self.size_min = self._rule("size_min", None, f"at least {_items(self.size[0])}")
        self.size_max = self._rule("size_max", None, f"at most {_items(self.size[1])}")
        self._take_budget(request, shelf)
        self.must_rules = {
            place: self._rule("must", name, f"the item {name!r} in it")
            for name, place in zip(must, self.must, strict=True)
        }
        if request.forbid:
            named = ", ".join(map(repr, request.forbid[:3])) + (", …" if len(request.forbid) > 3 else "")
            rule = self._rule("forbid", None, f"nothing that is forbidden ({named})")
            self.bans[rule] = self._mask(shelf.ids.positions(shelf.ids.known(request.forbid)))
        self.groups = [*self._tag_groups(request, shelf), *self._groups_of_one(request, shelf)]
        in_stock = request.in_stock if request.in_stock is not None else shelf.tells_stock
        if in_stock:
            self.bans[self._rule("in_stock", None, "only what is in stock")] = ~shelf.in_stock
        if request.not_owned and len(owned):
            rule = self._rule("not_owned", None, "only what the user does not have")
            self.bans[rule] = self._mask(owned)
        self._exempt_start()
        self._finish()

    # ── Taking a request apart ───────────────────────────────────────────────────────────────────

    def _rule(self, kind: str, key: str | None, text: str) -> int:
        self.rules.append(Rule(kind, key, text))
        return len(self.rules) - 1

    def _mask(self, places: npt.ArrayLike) -> Mask:
        mask = np.zeros(self.items, bool)
        mask[np.asarray(places, np.int64)] = True
        return mask

    def _check_must(self, must: Sequence[str], gone: Mask) -> None:
        for name, place in zip(must, self.must, strict=True):
            if gone[place]:
                raise ConfigError(
                    f"'must' names the item {name!r}, which is withdrawn: it is not sold any more"
                )

    def _take_budget(self, request: DesignRequest, shelf: Shelf) -> None:
        least, most = self.budget
        self.off = request.discount
        self.budget_min = self.budget_max = -1
        self.units = np.zeros(self.items, np.int64)
        """What each item costs; 0 where that does not matter."""
        self.spending = (0, NO_LIMIT)
        """The list prices that a bundle's may lie between."""
        if least is None and most is None:
            return
        unpriced = np.isnan(shelf.prices)
        self.units = np.rint(np.nan_to_num(shelf.prices) * UNITS).astype(np.int64)
        if least is not None:
            self.budget_min = self._rule("budget_min", None, f"a price of at least {least:,.2f}")
            self.bans[self.budget_min] = unpriced
        if most is not None:
            self.budget_max = self._rule("budget_max", None, f"a price of at most {most:,.2f}")
            self.bans[self.budget_max] = unpriced
        self.spending = (
            0 if least is None else self._fewest_units(least),
            NO_LIMIT if most is None else self._most_units(most),
        )

    def price(self, units: int) -> float:
        """What a bundle of that list price costs."""
        return to_pay(units, self.off)

    def _most_units(self, most: float) -> int:
        return bisect_right(range(NO_LIMIT), most + 1e-9, key=self.price) - 1

    def _fewest_units(self, least: float) -> int:
        return bisect_left(range(NO_LIMIT), least - 1e-9, key=self.price)

    def _tag_groups(self, request: DesignRequest, shelf: Shelf) -> list[Group]:
        groups = []
        for tag, count in request.tags.at_least.items():
            rule = self._rule("at_least", tag, f"at least {_items(count)} with the tag {tag!r}")
            groups.append(Group(rule, _tagged(shelf, tag), count, NO_LIMIT))
        for tag, count in request.tags.at_most.items():
            text = (
                f"at most {_items(count)} with the tag {tag!r}" if count else f"nothing with the tag {tag!r}"
            )
            groups.append(Group(self._rule("at_most", tag, text), _tagged(shelf, tag), 0, count))
        return groups

    def _groups_of_one(self, request: DesignRequest, shelf: Shelf) -> list[Group]:
        groups = []
        for name in request.one_per:
            rule = self._rule("one_per", name, f"at most one item for each tag {name!r}")
            if not name.endswith("*"):
                groups.append(Group(rule, _tagged(shelf, name), 0, 1))
                continue
            meant = [tag for tag in shelf.tagged if tag.startswith(name[:-1])]
            if not meant:
                raise ConfigError(f"'one_per' is {name!r}, and no tag of an item begins so")
            groups += [Group(rule, _tagged(shelf, tag), 0, 1) for tag in meant]
        return groups

    def _exempt_start(self) -> None:
        for rule, mask in self.bans.items():
            if self.rules[rule].kind in ("in_stock", "not_owned") and mask[list(self.start)].any():
                self.bans[rule] = mask & ~self._mask(self.start)

    def _finish(self) -> None:
        self.allowed = self.sold.copy()
        """What may be added when every rule holds."""
        for mask in self.bans.values():
            self.allowed &= ~mask
        self.allowed[list(self.must)] = False  # they are in from the beginning
        self.fixed: Items = self.start + self.must
        self.membership = Lists.of([group.members for group in self.groups])
        """The items of each group."""
        self.groups_of = self.membership.turned(self.items)
        """The groups that each item counts in."""
        self.least = np.array([group.least for group in self.groups], np.int64)
        self.most = np.array([group.most for group in self.groups], np.int64)

    # ── Checking ─────────────────────────────────────────────────────────────────────────────────

    def counts(self, items: Sequence[int]) -> Integers:
        """How many of some items are in each group."""
        return np.bincount(self.groups_of.all_of(items), minlength=len(self.groups))

    def limits(self, group: int) -> tuple[int, int]:
        return int(self.least[group]), int(self.most[group])

    def inside(self, places: Integers) -> Lists:
        """For each group which of some items are in it, by their number among these."""
        here = Lists.of([self.groups_of[place] for place in places.tolist()])
        return here.turned(len(self.groups))

    def spent(self, items: Sequence[int]) -> int:
        return int(self.units[list(items)].sum())

    def hold(self, added: Items, earlier: Sequence[Items] = ()) -> bool:
        """Whether a bundle keeps every rule, and differs enough from earlier ones."""
        items = self.start + added
        chosen = [item for item in added if item not in self.must]
        if not added or not self.size[0] <= len(items) <= self.size[1] or len(set(items)) < len(items):
            return False
        if not set(self.must) <= set(added) or not self.allowed[chosen].all():
            return False
        if any(mask[list(self.fixed)].any() for mask in self.bans.values()):
            return False
        counts = self.counts(items)
        if (counts < self.least).any() or (counts > self.most).any():
            return False
        if not self.spending[0] <= self.spent(items) <= self.spending[1]:
            return False
        return all(
            len(set(chosen) & set(other)) <= self.most_common(min(len(chosen), len(other)))
            for other in earlier
        )

    def most_common(self, smaller: int) -> int:
        """How many chosen items two bundles may have in common, by the number of those in the smaller."""
        return min(int((1 - self.request.apart) * smaller + 1e-9), smaller - 1)

    def chosen(self, added: Items) -> Items:
        """What was free to choose: that by which bundles differ."""
        return tuple(item for item in added if item not in self.must)


def _tagged(shelf: Shelf, tag: str) -> Integers:
    found = shelf.tagged.get(tag)
    if found is None:
        close = get_close_matches(tag, list(shelf.tagged), n=3)
        hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        raise ConfigError(f"no item has the tag {tag!r}.{hint}")
    return np.unique(found)  # an item may have been given a tag twice


def _items(count: int) -> str:
    return f"{count:,} item" if count == 1 else f"{count:,} items"
