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
    """A bundle of the catalogue. Its items keep the order in which they were written."""

    id: str
    items: tuple[str, ...]
    title: str | None = None
    price: float | None = None
    discount: float | None = None
    """A fraction: 0.2 is 20% off."""
    tags: tuple[str, ...] = ()
    withdrawn: bool = False
    expected_sales: float | None = None
    """The expected number of sales. A model trained before the bundle existed ranks it with this number."""
    sells_like: str | None = None
    """Instead of `expected_sales`: the id of a bundle that sells about as often."""


@dataclass(frozen=True)
class State:
    """Shows a reader whether something changed. It is read very often, with one cheap query."""

    catalogue: int
    """The version of the catalogue. Every change raises it."""
    model: str | None
    """The version of the model selected for serving."""


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
    """The time, with a time zone; None means now."""
    request_id: str | None = None
    """The request id of the answer that recommended it, if known."""


@dataclass(frozen=True)
class Recorded:
    """The result of writing interactions."""

    new: int
    known: int
    """The number of interactions that the store already had. It keeps one per user and item or bundle."""
    replayed: bool = False
    """Whether the idempotency key was used before for the same interactions, so nothing was written."""


@dataclass(frozen=True)
class Sales:
    """The number of users who have each item and each bundle. Numbers of 0 are left out."""

    items: Mapping[str, int]
    bundles: Mapping[str, int]


@dataclass(frozen=True)
class Served:
    """An answer of the service. It is kept to find out which purchases followed."""

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
    """The number of answers that contained each bundle."""
    taken: int
    """The number of user-bundle pairs in which the user took the bundle after an answer had shown it."""
    cut_at: datetime | None = None
    """The time of the first counted answer, if there were too many answers to count all."""


@dataclass(frozen=True)
class ModelRecord:
    """A published model."""

    version: str
    path: str
    name: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None


@dataclass(frozen=True)
class Key:
    """An API key. Only a digest of its secret is stored."""

    id: str
    role: Role
    name: str
    digest: bytes
    created_at: datetime
    revoked_at: datetime | None = None
