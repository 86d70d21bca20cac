"""What the service answers, as plain values, and how they are made from its JSON."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_origin, get_type_hints, overload

T = TypeVar("T")


class Several(ABC, Generic[T]):
    """An answer that is used like the list in it: `for bundle in client.recommend("u0007")`."""

    @property
    @abstractmethod
    def _all(self) -> tuple[T, ...]: ...

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        return self._all[place]


# ── Recommendations ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Known:
    """How much of a history the model went by."""

    items: int
    bundles: int
    not_in_model: int
    """Things newer than the model, which it passed over."""


@dataclass(frozen=True)
class Part:
    """An item inside a bundle."""

    id: str
    title: str | None
    price: float | None
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Ranked:
    id: str
    title: str | None
    price: float | None
    tags: tuple[str, ...]
    score: float
    """A probability over all candidates; for `popular` a share of all sales; for similar bundles a cosine."""
    rank: int
    source: Literal["model", "popular"]


@dataclass(frozen=True)
class RankedBundle(Ranked):
    discount: float | None
    """A fraction: 0.2 is 20% off."""
    items: tuple[Part, ...] | None = None
    """With `details=True`."""


@dataclass(frozen=True)
class RankedItem(Ranked):
    stock: int | None


@dataclass(frozen=True)
class Answered:
    request_id: str
    """Given to `record`, it tells which answer a purchase came from."""
    model_version: str


@dataclass(frozen=True)
class BundlesFor(Answered, Several[RankedBundle]):
    """Bundles for someone, the best first."""

    user_id: str | None
    history: Known
    bundles: tuple[RankedBundle, ...]

    @property
    def _all(self) -> tuple[RankedBundle, ...]:
        return self.bundles


@dataclass(frozen=True)
class ItemsFor(Answered, Several[RankedItem]):
    """Items that complete a bundle for someone, the best first."""

    user_id: str | None
    history: Known
    items: tuple[RankedItem, ...]

    @property
    def _all(self) -> tuple[RankedItem, ...]:
        return self.items


@dataclass(frozen=True)
class SimilarBundles(Answered, Several[RankedBundle]):
    """Bundles like one, the most like it first."""

    bundles: tuple[RankedBundle, ...]

    @property
    def _all(self) -> tuple[RankedBundle, ...]:
        return self.bundles


@dataclass(frozen=True)
class Gate(Answered):
    """How far a user's items and bundles each speak; the two add up to 1."""

    user_id: str
    items: float
    bundles: float


# ── The shop ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Item:
    id: str
    title: str | None
    price: float | None
    tags: tuple[str, ...]
    stock: int | None
    withdrawn: bool
    in_model: bool
    """Whether the model that serves knows it, or it came later."""


@dataclass(frozen=True)
class Bundle:
    id: str
    title: str | None
    price: float | None
    discount: float | None
    tags: tuple[str, ...]
    items: tuple[Part, ...]
    withdrawn: bool
    recommendable: bool
    """Whether it can be recommended now."""
    expected_sales: float | None = None
    """How often it is expected to sell, if that was said."""
    sells_like: str | None = None
    """The bundle that it is expected to sell like, if one was named."""


@dataclass(frozen=True)
class ItemPage(Several[Item]):
    items: tuple[Item, ...]
    total: int
    """How many there are on all pages."""

    @property
    def _all(self) -> tuple[Item, ...]:
        return self.items


@dataclass(frozen=True)
class BundlePage(Several[Bundle]):
    bundles: tuple[Bundle, ...]
    total: int
    """How many there are on all pages."""

    @property
    def _all(self) -> tuple[Bundle, ...]:
        return self.bundles


@dataclass(frozen=True)
class TagCount:
    tag: str
    count: int


@dataclass(frozen=True)
class Tags:
    """The tags of what is sold, the most frequent first."""

    items: tuple[TagCount, ...]
    bundles: tuple[TagCount, ...]


@dataclass(frozen=True)
class User:
    """What a user has, oldest first."""

    id: str
    items: tuple[Item, ...]
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True)
class UserSummary:
    id: str
    items: int
    bundles: int


@dataclass(frozen=True)
class UserPage(Several[UserSummary]):
    users: tuple[UserSummary, ...]
    next: str | None
    """To go on, as `after`; None at the end."""

    @property
    def _all(self) -> tuple[UserSummary, ...]:
        return self.users


@dataclass(frozen=True)
class Recorded:
    """What became of interactions that were recorded."""

    new: int
    known: int
    """Those that were there before."""
    replayed: bool
    """Whether an earlier try had been carried out already, and this is its outcome."""
    request_id: str


# ── The model ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Model:
    version: str
    name: str
    published_at: datetime | None
    serving: bool
    metrics: Mapping[str, Any]
    problem: str | None = None
    """Why it could not be loaded, if it was tried."""


@dataclass(frozen=True)
class Models(Several[Model]):
    """Every model that was ever published, the newest first."""

    serving: str
    models: tuple[Model, ...]

    @property
    def _all(self) -> tuple[Model, ...]:
        return self.models


@dataclass(frozen=True)
class Reloaded:
    serving: str
    previous: str
    changed: bool


@dataclass(frozen=True)
class ServingModel:
    version: str
    name: str
    title: str
    trained_on: str
    metrics: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    """Epoch by epoch: losses and validation."""


@dataclass(frozen=True)
class Exposure:
    """A bundle's share in all sales, and in all that was shown."""

    id: str
    title: str | None
    sales_share: float
    shown_share: float


@dataclass(frozen=True)
class Latency:
    """Of recent recommendations, in milliseconds; None before the first."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class ServedAnswers:
    since: datetime
    answers: int
    taken: int
    """Bundles taken by someone to whom they had been shown before."""


@dataclass(frozen=True)
class Insights:
    model: ServingModel
    popularity: tuple[Exposure, ...]
    left_out: int
    latency: Latency
    served: ServedAnswers


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of a request."""

    field: str
    message: str


# ── From JSON ────────────────────────────────────────────────────────────────────────────────────


def made(kind: type[T], value: Any) -> T:
    """A value of one of the classes above, or a ValueError, KeyError or TypeError where it is none.

    Fields that are not known are passed over: the service may be newer than the client.
    """
    return cast(T, _maker(cast(Any, kind))(value))


@cache
def _maker(kind: Any) -> Callable[[Any], Any]:
    """How JSON becomes a value of a type; worked out once for each."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _object_maker(cast(type, kind))
    if origin is tuple:
        each = _maker(arguments[0])
        return lambda values: tuple(map(each, values))
    if origin is types.UnionType:  # every union here is with None
        (inner,) = (_maker(argument) for argument in arguments if argument is not type(None))
        return lambda value: None if value is None else inner(value)
    if kind is datetime:
        return datetime.fromisoformat
    return _as_it_is


def _object_maker(kind: type) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    needed = [(field.name, _maker(hints[field.name])) for field in fields(kind) if field.default is MISSING]
    optional = [
        (field.name, _maker(hints[field.name])) for field in fields(kind) if field.default is not MISSING
    ]

    def make(value: Any) -> Any:
        given = {name: maker(value[name]) for name, maker in needed}
        given |= {name: maker(value[name]) for name, maker in optional if name in value}
        return kind(**given)

    return make


def _as_it_is(value: Any) -> Any:
    return value
