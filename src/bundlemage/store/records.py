"""The values that the store reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from bundlemage.core.history import History

Role = Literal["read", "write", "admin"]


@dataclass(frozen=True)
class Item:
    """An item of the catalogue. Unknown values are None."""

    id: str
    title: str | None = None
    price: float | None = None
    tags: tuple[str, ...] = ()
    stock: int | None = None
    withdrawn: bool = False


@dataclass(frozen=True)
class Bundle:
    """A bundle of the catalogue, with its items in their given order."""

    id: str
    items: tuple[str, ...]
    title: str | None = None
    price: float | None = None
    discount: float | None = None
    """A fraction: 0.2 is 20% off."""
    tags: tuple[str, ...] = ()
    withdrawn: bool = False
    expected_sales: float | None = None
    """How often it is expected to sell. A model that is older than the bundle ranks it by this number."""
    sells_like: str | None = None
    """Instead of a number: a bundle that sells as often."""


@dataclass(frozen=True)
class State:
    """What a reader needs to be up to date. It is read very often, so it is one cheap query."""

    catalogue: int
    """Grows with every change of the catalogue."""
    model: str | None
    """The version of the model that is to serve."""


@dataclass(frozen=True)
class CatalogueChange:
    """The items and bundles that changed after a version; after version 0, all of them."""

    version: int
    items: Sequence[Item]
    bundles: Sequence[Bundle]


@dataclass(frozen=True)
class Owned(History):
    """The ids of the items and bundles that a user has, oldest first."""

    items: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()


@dataclass(frozen=True)
class InteractionRecord:
    """A user took an item or a bundle."""

    user_id: str
    kind: Literal["item", "bundle"]
    thing_id: str
    at: datetime | None = None
    """With a time zone; None: now."""
    request_id: str | None = None
    """The answer that recommended it, if known."""


@dataclass(frozen=True)
class Recorded:
    """The result of writing interactions."""

    new: int
    known: int
    """The number that the store had already: it keeps only one interaction of a user with a thing."""
    replayed: bool = False
    """Whether the idempotency key was used before for the same interactions. Nothing was written then."""


@dataclass(frozen=True)
class Sales:
    """The number of users of each item and each bundle. Things without users are left out."""

    items: Mapping[str, int]
    bundles: Mapping[str, int]


@dataclass(frozen=True)
class Served:
    """An answer of the service. It tells later which purchases followed from it."""

    request_id: str
    kind: Literal["bundles", "items"]
    user_id: str | None
    model: str
    ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True)
class ServedSummary:
    """Counts of the answers since a time."""

    answers: int
    shown: Mapping[str, int]
    """The number of answers with each bundle."""
    taken: int
    """The number of bundles that a user took after an answer had shown them the bundle."""
    cut_at: datetime | None = None
    """If there were too many answers to count: the time of the first one that was counted."""


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
