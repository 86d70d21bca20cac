"""The records that the store reads and writes, and checks that their values are valid."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from bundlemage.core.history import History
from bundlemage.errors import UnstorableError
from bundlemage.wire.images import fault_of_image
from bundlemage.wire.requests import fault_of_id

Role = Literal["read", "write", "admin"]
LARGEST_STOCK: Final = 2**53  # training data has floats, which are exact up to here


@dataclass(frozen=True)
class Item:
    """An item of the catalogue. Unknown values are None."""

    id: str
    title: str | None = None
    price: float | None = None
    tags: tuple[str, ...] = ()
    stock: int | None = None
    withdrawn: bool = False
    cost: float | None = None
    """What the shop pays for it. It is confidential."""
    image_url: str | None = None
    description: str | None = None
    vector: bytes | None = None
    """Numbers that describe it to a model: float32, little-endian. All items' vectors have one length."""


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
    image_url: str | None = None


@dataclass(frozen=True)
class State:
    """Two versions. A reader compares them with the last ones to find out whether something changed."""

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
    times: tuple[Sequence[int], Sequence[int]] | None = None
    """The times of `items` and of `bundles` in microseconds since 1970, or `UNDATED`. None: not read."""

    def without_items(self, names: Collection[str]) -> Owned:
        """Returns the same history without some of its items."""
        kept = [place for place, name in enumerate(self.items) if name not in names]

        def of(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[place] for place in kept)

        return replace(
            self,
            items=of(self.items),
            item_weights=None if self.item_weights is None else of(self.item_weights),
            times=None if self.times is None else (of(self.times[0]), self.times[1]),
        )


@dataclass(frozen=True)
class InteractionRecord:
    """A user took an item or a bundle, looked at it, or rejected it."""

    user_id: str
    kind: Literal["item", "bundle"]
    thing_id: str
    at: datetime | None = None
    """The time, with a time zone; None means now."""
    request_id: str | None = None
    """The request id of the answer that recommended it, if known."""
    weight: float | None = None
    """Its strength. None is 1. What is below 1 is no purchase, and what is below 0 rejects the thing."""
    event: str | None = None
    """The type of event, such as `view`; None: a purchase, or a type that is not known."""


@dataclass(frozen=True)
class Entry:
    """An interaction that the store has, one for each pair of a user and an item or bundle."""

    thing_id: str
    at: datetime | None = None
    weight: float = 1.0
    """Below 1: no purchase. Below 0: the user returned or dislikes it."""
    event: str | None = None


@dataclass(frozen=True)
class InteractionsRecord:
    """Interactions that are written all together or not at all, such as those of one request."""

    interactions: Sequence[InteractionRecord]
    idempotency_key: str | None = None
    caller: str = ""
    """The idempotency keys of different callers do not affect each other."""


@dataclass(frozen=True)
class Recorded:
    """The result of writing interactions."""

    new: int
    known: int
    """The number of interactions that changed nothing. The store keeps one of each pair: the one that counts
    (see `HistoryStore.add_interactions`)."""
    replayed: bool = False
    """Whether the idempotency key was used before for the same interactions, so nothing was written."""


@dataclass(frozen=True)
class Sales:
    """The number of users who bought each item and each bundle. Numbers of 0 are left out."""

    items: Mapping[str, int]
    bundles: Mapping[str, int]
    by_month: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The number of dated purchases of bundles in each month, such as `2026-11`, in the order of time."""


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
    """The time of the first counted answer; None if all answers were counted."""


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


def vector_of(numbers: Iterable[float]) -> bytes:
    """Returns a vector in the form of `Item.vector`."""
    return np.fromiter(numbers, "<f4").tobytes()


def numbers_of(vector: bytes) -> npt.NDArray[np.float32]:
    """Returns the numbers of an `Item.vector`."""
    return np.frombuffer(vector, "<f4")


# ── Checks ───────────────────────────────────────────────────────────────────────────────────────


def is_id(name: str) -> bool:
    """Whether this is a valid id. Do not query other ids: a database may reject them."""
    return fault_of_id(name) is None


def check_ids(kind: str, names: Iterable[str]) -> None:
    """Raises `UnstorableError` for the first id that is not valid. `kind` names it in the message."""
    for name in names:
        fault = fault_of_id(name)
        if fault is not None:
            raise UnstorableError(f"the {kind} id {name[:60]!r} {fault}. Give the {kind} another id")


def check_thing(thing: Item | Bundle) -> None:
    """Raises `UnstorableError` if a field of an item or a bundle cannot be stored."""
    kind = "item" if isinstance(thing, Item) else "bundle"
    named = f"{kind} {thing.id!r}"
    check_ids(kind, [thing.id])
    texts = [("title", thing.title or ""), *(("tags", tag) for tag in thing.tags)]
    if isinstance(thing, Item):
        texts.append(("description", thing.description or ""))
    for name, text in texts:
        if any(letter == "\0" or unicodedata.category(letter) == "Cs" for letter in text):
            raise UnstorableError(f"{named} has {name!r} {text[:60]!r}, which is not text. Write it in UTF-8")
    _check_number(f"the price of {named}", thing.price)
    fault = fault_of_image(thing.image_url) if thing.image_url is not None else None
    if fault is not None:
        raise UnstorableError(f"{named} has 'image_url' {thing.image_url!r:.200}, which {fault}")
    if isinstance(thing, Item):
        _check_number(f"the stock of {named}", thing.stock, LARGEST_STOCK)
        _check_number(f"the cost of {named}", thing.cost)
        if thing.vector is not None and not (thing.vector and np.isfinite(numbers_of(thing.vector)).all()):
            raise UnstorableError(f"the vector of {named} is empty or has a number that is not finite")
        return
    check_ids("item", thing.items)
    _check_number(f"the discount of {named}", thing.discount, 1)
    _check_number(f"the expected sales of {named}", thing.expected_sales)
    if thing.sells_like is not None:
        check_ids("bundle", [thing.sells_like])
        if thing.sells_like == thing.id:
            raise UnstorableError(f"{named} must not sell like itself. Name another bundle")
        if thing.expected_sales is not None:
            raise UnstorableError(
                f"{named} has both 'expected_sales' and 'sells_like'. Give only one of them"
            )
    if len(set(thing.items)) < len(thing.items):
        twice = next(item for item in thing.items if thing.items.count(item) > 1)
        raise UnstorableError(f"{named} has the item {twice!r} twice. List each item once")


def check_event(event: InteractionRecord | Served) -> None:
    """Raises `UnstorableError` if an interaction or a served answer has an invalid id or time."""
    if isinstance(event, InteractionRecord):
        check_ids(event.kind, [event.thing_id])
    check_ids("request", [] if event.request_id is None else [event.request_id])
    check_ids("user", [] if event.user_id is None else [event.user_id])
    check_time(event.at)
    weight = event.weight if isinstance(event, InteractionRecord) else None
    if weight is not None and not (math.isfinite(weight) and weight != 0):
        raise UnstorableError(
            f"the weight of an interaction is {weight}; expected a number above 0, or below 0 for a rejection"
        )


def check_time(at: datetime | None) -> None:
    """Raises `UnstorableError` if a time has no time zone. None is allowed."""
    if at is not None and at.tzinfo is None:
        raise UnstorableError(f"the time {at.isoformat()} has no time zone. Write UTC as {at.isoformat()}Z")


def _check_number(what: str, value: float | None, most: float = math.inf) -> None:
    if value is not None and not (math.isfinite(value) and 0 <= value <= most):
        expected = "0 or more" if most == math.inf else f"from 0 to {most:,}"
        raise UnstorableError(f"{what} is {value}; expected a number {expected}, or nothing if it is unknown")
