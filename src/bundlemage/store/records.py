"""What goes into the store and comes out of it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from bundlemage.core.history import History

Role = Literal["read", "write", "admin"]


@dataclass(frozen=True)
class Item:
    """An item of the catalogue. What is not known is None."""

    id: str
    title: str | None = None
    price: float | None = None
    tags: tuple[str, ...] = ()
    stock: int | None = None
    withdrawn: bool = False


@dataclass(frozen=True)
class Bundle:
    """A bundle of the catalogue, with its items in the order in which they were given."""

    id: str
    items: tuple[str, ...]
    title: str | None = None
    price: float | None = None
    discount: float | None = None
    """A fraction: 0.2 is 20% off."""
    tags: tuple[str, ...] = ()
    withdrawn: bool = False
    expected_sales: float | None = None
    """How often it is expected to sell: it is ranked so by a model that is older than it."""
    sells_like: str | None = None
    """In place of a number, a bundle that sells as often."""


@dataclass(frozen=True)
class State:
    """What a reader must know to be up to date; asked for again and again, so it is one cheap query."""

    catalogue: int
    """Grows with every change of the catalogue."""
    model: str | None
    """The version of the model that is to serve."""


@dataclass(frozen=True)
class CatalogueChange:
    """Items and bundles that changed after some version; after version 0, all of them."""

    version: int
    items: Sequence[Item]
    bundles: Sequence[Bundle]


@dataclass(frozen=True)
class Owned(History):
    """What a user has, by ids, oldest first."""

    items: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interaction:
    """A user took an item or a bundle."""

    user_id: str
    kind: Literal["item", "bundle"]
    thing_id: str
    at: datetime | None = None
    """With a time zone; None: now."""
    request_id: str | None = None
    """The answer that it came from, where it is known."""


@dataclass(frozen=True)
class Recorded:
    """What became of interactions."""

    new: int
    known: int
    """Those that were there before: a user has a thing or has it not."""
    replayed: bool = False
    """Whether the same idempotency key had been answered before; nothing was written now."""


@dataclass(frozen=True)
class UserSummary:
    id: str
    items: int
    bundles: int


@dataclass(frozen=True)
class Sales:
    """How many users have each item and each bundle; what nobody has is not there."""

    items: Mapping[str, int]
    bundles: Mapping[str, int]


@dataclass(frozen=True)
class Served:
    """An answer that was given, for attribution."""

    request_id: str
    kind: Literal["bundles", "items"]
    user_id: str | None
    model: str
    ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True)
class ServedSummary:
    """Answers since some time."""

    answers: int
    shown: Mapping[str, int]
    """How often each bundle was in an answer."""
    taken: int
    """Interactions with a bundle by a user to whom it had been shown before."""
    cut_at: datetime | None = None
    """Where there were more answers than are looked at: the time of the first that counts."""


@dataclass(frozen=True)
class ModelRecord:
    """A model that served, serves, or is to serve."""

    version: str
    path: str
    name: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None


@dataclass(frozen=True)
class Key:
    """An API key; of its secret only a digest is kept."""

    id: str
    role: Role
    name: str
    digest: bytes
    created_at: datetime
    revoked_at: datetime | None = None
