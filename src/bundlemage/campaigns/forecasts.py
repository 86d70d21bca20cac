"""What is foretold of a bundle that does not exist yet, as plain values, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import to_pay, units_of
from bundlemage.errors import ConfigError
from bundlemage.wire.requests import MOST_OFF


@dataclass(frozen=True)
class BundleItem:
    """An item of the bundle that is asked about."""

    id: str
    title: str | None
    price: float | None


@dataclass(frozen=True)
class Person:
    """Someone who may take the bundle."""

    id: str
    chance: float | None
    """None without a calibration."""
    score: float
    """The probability of the bundle among all of the shop's, as the model has it."""


@dataclass(frozen=True)
class Neighbour:
    """A bundle of the shop that is like it."""

    id: str
    title: str | None
    score: float
    """The cosine between the two."""
    price: float | None


@dataclass(frozen=True)
class Weakest:
    """The item that the bundle would miss least."""

    id: str
    title: str | None
    without: float | None
    """The expected audience of the bundle without it."""


@dataclass(frozen=True)
class Replacement:
    """What to put in the place of the weakest item."""

    id: str
    title: str | None
    price: float | None
    expected: float | None
    """The expected audience of the bundle with it instead."""


@dataclass(frozen=True)
class BundleForecast:
    """What a model says of a bundle that does not exist yet.

    Whoever has all its items already, by themselves or inside bundles, will not take it and is not counted.
    The model does not know of prices: a price turns buyers into takings, and changes nobody's mind.
    """

    items: tuple[BundleItem, ...]
    price: float | None
    list_price: float | None
    """The sum of the items' prices; None where some price is not known."""
    discount: float | None
    asked: int
    """How many people there are, those who have it all included."""
    expected: float | None
    """How many would take it, as the sum of everyone's chances; None without a calibration."""
    above: int | None
    """How many have a chance above the threshold."""
    threshold: float | None
    expected_takings: float | None
    people: tuple[Person, ...]
    nearest: tuple[Neighbour, ...]
    weakest: Weakest | None
    """None for a bundle of a single item."""
    replacement: Replacement | None
    """None where nothing that was tried does better than the weakest item."""
    note: str | None = None
    """What could not be told, and why."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Offer:
    """What a bundle costs, and how much less that is than its items by themselves."""

    price: float | None
    list_price: float | None
    discount: float | None

    @classmethod
    def of(cls, shop: Shop, inside: Sequence[int], price: float | None, discount: float | None) -> Offer:
        if price is not None and discount is not None:
            raise ConfigError("give the bundle's price or its discount, not both: one follows from the other")
        if price is not None and not (_is_number(price) and price >= 0):
            raise ConfigError(f"the bundle's price is {price!r}; a number from 0 up is wanted")
        if discount is not None and not (_is_number(discount) and 0 <= discount <= MOST_OFF):
            raise ConfigError(f"the discount is {discount!r}; a fraction from 0 to {MOST_OFF} is wanted")
        prices = [shop.item_shelf.facts(item).price for item in inside]
        known = [amount for amount in prices if amount is not None]
        if len(known) < len(prices):
            if discount is not None:
                name = shop.dataset.items[inside[prices.index(None)]]
                raise ConfigError(
                    f"a discount needs every item's price, and that of {name!r} is not known: give the "
                    "bundle's price instead"
                )
            return cls(price, None, None)
        list_price = to_pay(units_of(known), 0.0)
        if price is None:
            return cls(to_pay(units_of(known), discount or 0.0), list_price, discount or 0.0)
        return cls(price, list_price, 1 - price / list_price if list_price else None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
