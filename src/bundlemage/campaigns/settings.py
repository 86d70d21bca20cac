"""What a campaign is asked to do, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Filter
from bundlemage.core.history import Id
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError

Reserve: TypeAlias = Literal["shown", "expected"]
Value: TypeAlias = Literal["sales", "takings"]
Format: TypeAlias = Literal["parquet", "jsonl"]


@dataclass(frozen=True)
class Campaign:
    """Bundles for many users at once, under limits that all of them share."""

    per_user: int = 1
    """How many bundles one user is shown at most."""
    where: Filter = field(default_factory=Filter)
    stock: bool = False
    """Whether each item's stock is a limit."""
    shown_at_most: int | None = None
    """How many users one bundle is shown to at most."""
    different_at_most: int | None = None
    """How many different bundles are shown at most, all users together."""
    budget: float | None = None
    """What the discounts may cost: the list price of the items, times the discount, for each bundle shown."""
    reserve: Reserve = "shown"
    """`shown`: what is shown takes a whole unit of stock and its whole discount, so nothing can be sold that
    is not there. `expected`: only by the chance that it is bought."""
    value: Value = "sales"
    """What is to be as high as possible: expected sales, or `takings`, expected sales times price."""
    format: Format = "parquet"
    part_users: int = 8192
    """How many users are in one file, which is also what is lost at most when the work is cut off."""
    seed: int = 0
    """Of the sample of users by which prices are learned."""

    def __post_init__(self) -> None:
        for name, optional in (
            ("per_user", False),
            ("shown_at_most", True),
            ("different_at_most", True),
            ("part_users", False),
        ):
            given = getattr(self, name)
            whole = isinstance(given, int) and not isinstance(given, bool)
            if not (given is None and optional) and not (whole and given >= 1):
                raise ConfigError(f"a campaign's {name!r} is {given!r}; a whole number from 1 up is wanted")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"a campaign's 'seed' is {self.seed!r}; a whole number from 0 up is wanted")
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget >= 0):
            raise ConfigError(f"a campaign's 'budget' is {self.budget!r}; an amount from 0 up is wanted")
        for name, known in (("reserve", Reserve), ("value", Value), ("format", Format)):
            if getattr(self, name) not in get_args(known):
                choices = " or ".join(map(repr, get_args(known)))
                raise ConfigError(f"a campaign's {name!r} is {getattr(self, name)!r}; it is {choices}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "where": self.where.to_json()}


def campaign_settings(**given: Any) -> Campaign:
    """Settings by name, or which one there is not."""
    known = [each.name for each in fields(Campaign)]
    for name in given:
        if name not in known:
            raise ConfigError(f"a campaign has no setting {name!r}; it has: {', '.join(known)}")
    return Campaign(**given)


def campaign_users(shop: Shop, users: Iterable[Id] | None) -> npt.NDArray[np.int64]:
    """Positions of these users, or of all, in the order in which they are served."""
    if users is None:
        return np.arange(len(shop.dataset.users))
    if isinstance(users, str):
        raise ConfigError(f"give a list of users, not one text: write [{users!r}]")
    names = list(map(str, users))
    if not names:
        raise ConfigError("the list of users is empty: give at least one, or none at all for everyone")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"the user {name!r} is in the list twice; each is served once")
        seen.add(name)
    return shop.dataset.users.positions(names).astype(np.int64)


@dataclass(frozen=True)
class CampaignSummary:
    """What a campaign comes to. Values are sums over all that is shown."""

    users: int
    with_nothing: int
    """Users who are shown nothing."""
    by_popularity: int
    """Users with no history, for whom a bundle's chance is its share of all sales."""
    shown: int
    value: float
    """What was to be as high as possible: `sales` or `takings`."""
    sales: float
    takings: float | None
    """None where some bundle that is shown has no known price."""
    unconstrained: float
    """The value if every user had their best bundles, without any limit."""
    bound: float
    """No plan within the limits has a higher value."""
    share_of_unconstrained: float | None
    share_of_bound: float | None
    chances: Literal["calibrated", "softmax"]
    """`softmax`: the model has no calibration, so chances are its probabilities among all bundles."""
    left_out: int
    """Bundles left out as their price or discount is not known."""
    different: int
    """How many different bundles are shown."""
    limits: dict[str, dict[str, Any]]
    """How far each limit that was asked for is used."""
    parts: int
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
