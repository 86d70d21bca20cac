"""What a bundle costs: in one place, so that it costs the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

UNITS = 10_000
"""Parts of a unit of money in which prices are added up, exactly."""


def units_of(prices: Iterable[float]) -> int:
    return sum(round(price * UNITS) for price in prices)


def to_pay(units: int, discount: float) -> float:
    """A list price less the discount, in whole cents; half a cent counts as one."""
    return round(units / UNITS * (1 - discount) + 1e-9, 2)
