"""The answers of the service: recommendations, the catalogue, users, models, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, computed_field

from bundlemage.wire.design import Change, Rule
from bundlemage.wire.requests import add_examples
from bundlemage.wire.shop import ShopSettings

T = TypeVar("T")


class Out(BaseModel):
    """An answer, or a part of one. A client ignores unknown fields, because the service may be newer."""

    model_config = ConfigDict(
        frozen=True, from_attributes=True, use_attribute_docstrings=True, json_schema_extra=add_examples
    )


class Listing(Out, Generic[T]):
    """An answer that can be used like the list in it: `for bundle in client.recommend("u0007")`."""

    @property
    def _entries(self) -> tuple[T, ...]:
        return next(value for _, value in super().__iter__() if isinstance(value, tuple))

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        return self._entries[place]


# ── Recommendations ──────────────────────────────────────────────────────────────────────────────


class Known(Out):
    """The size of a user's history, and how much of it the model ignores."""

    items: int
    bundles: int
    not_in_model: int
    """The number of items and bundles that the model does not know, because they are newer. It ignores
    them."""


class EntryOut(Out):
    """An item or a bundle of the catalogue."""

    id: str
    title: str | None
    price: float | None
    tags: tuple[str, ...]
    image_url: str | None = None
    """The address of an image, if the shop has set one."""


class Ranked(EntryOut):
    score: float
    """The probability among all candidates. If the source is 'popular': the share of all sales. For similar
    bundles: the cosine similarity."""
    rank: int
    source: Literal["model", "popular"]


class RankedBundle(Ranked):
    """A bundle. Its `price` is its own, or else the sum of its items' prices minus its discount."""

    discount: float | None
    """A fraction: 0.2 is 20% off."""
    owned: tuple[str, ...]
    """The ids of its items that the user owns, bought alone or inside another bundle."""
    missing: tuple[str, ...]
    """The ids of its other items."""
    to_pay: float | None
    """What the user pays for the bundle. It depends on what the user owns if the shop has set so. null: the
    price of a needed item is unknown."""
    sold_out: tuple[str, ...]
    """The ids of its items that are sold out: their stock is known and 0."""
    by_content: tuple[str, ...] | None = None
    """The ids of its items that are newer than the model, which knows them by their title, tags and so on.
    Absent if there are none."""
    items: tuple[EntryOut, ...] | None = None
    """The items of the bundle, only with details=true."""


class RankedItem(Ranked):
    stock: int | None
    owned: bool
    """Whether the user owns the item, bought alone or inside a bundle."""
    sold_out: bool
    """Whether its stock is known and 0."""
    in_model: Literal[True, "by content"] = True
    """'by content' if the item is newer than the model, which knows it by its title, tags and so on."""


class Answered(Out):
    request_id: str
    """Send it with an interaction to say which answer recommended the item or bundle."""
    model_version: str


class ForUser(Answered):
    user_id: str | None
    history: Known


class BundlesFor(ForUser, Listing[RankedBundle]):
    """Bundles for a user, the best first."""

    bundles: tuple[RankedBundle, ...]


class ItemsFor(ForUser, Listing[RankedItem]):
    """Items that complete a bundle for a user, the best first."""

    items: tuple[RankedItem, ...]


class SimilarBundles(Answered, Listing[RankedBundle]):
    """Bundles that are similar to a given bundle, the most similar first."""

    bundles: tuple[RankedBundle, ...]


class Gate(Answered):
    """How much weight the model gives to a user's items and to their bundles. The weights add up to 1."""

    user_id: str
    items: float
    """The weight of the item history, 0 to 1."""
    bundles: float


# ── The shop ─────────────────────────────────────────────────────────────────────────────────────


class ItemOut(EntryOut):
    stock: int | None
    cost: float | None = None
    """What the shop pays for the item. It is null for the role read, and if it is unknown."""
    withdrawn: bool
    in_model: bool | Literal["by content"]
    """Whether the serving model knows the item. 'by content': nobody had the item when the model was trained,
    but the model knows it by its title, description, tags or vector. false: the item is newer than the model,
    and has none of these, or none that the model understands."""
    description: str | None = None
    vector_length: int | None = None
    """How many numbers the vector of the item has; null if it has no vector."""


class BundleOut(EntryOut):
    """A bundle of the catalogue. Its `price` is its own: null if it has none, also where recommendations show
    the sum of its items' prices."""

    discount: float | None
    """A fraction: 0.2 is 20% off."""
    items: tuple[EntryOut, ...]
    withdrawn: bool
    recommendable: bool
    """Whether the bundle can be recommended now. Neither the bundle nor any of its items may be withdrawn,
    and the model must know at least one of its items."""
    expected_sales: float | None = None
    """The number of sales that the shop expects of the bundle, if the shop has set it."""
    sells_like: str | None = None
    """The id of a bundle that should sell equally often, if the shop has set it."""


class ItemPage(Listing[ItemOut]):
    items: tuple[ItemOut, ...]
    total: int
    """The number of items on all pages."""


class BundlePage(Listing[BundleOut]):
    bundles: tuple[BundleOut, ...]
    total: int
    """The number of bundles on all pages."""


class TagCount(Out):
    tag: str
    count: int


class Tags(Out):
    """The tags of all items and bundles on sale, the most frequent first."""

    items: tuple[TagCount, ...]
    bundles: tuple[TagCount, ...]


class Taken(Out):
    """How a user took an item or a bundle."""

    at: datetime | None = None
    """The time; null if it is unknown, as for data that was imported without times."""
    weight: float | None = None
    """The strength: 1 or more is a purchase, and less a weaker event, such as a view. null if rejected."""
    event: str | None = None
    """The type of event, if the shop gave one."""
    rejected: bool = False
    """Whether the user returned or dislikes it."""


class TakenItem(ItemOut, Taken):
    """An item in the history of a user."""


class TakenBundle(BundleOut, Taken):
    """A bundle in the history of a user."""


class UserOut(Out):
    """The history of a user, oldest first: what the user bought, looked at or rejected."""

    id: str
    items: tuple[TakenItem, ...]
    bundles: tuple[TakenBundle, ...]


class UserLine(Out):
    """A user, with the numbers of their items and bundles."""

    id: str
    items: int
    bundles: int


class UserPage(Listing[UserLine]):
    users: tuple[UserLine, ...]
    next: str | None
    """Send it as 'after' to get the next page; null on the last page."""


class Written(Out):
    """The result of recording interactions."""

    new: int
    known: int
    """The number of interactions that changed nothing: they were recorded before, or something that counts
    more was, such as a purchase before a view."""
    replayed: bool
    """Whether a request with this idempotency key was answered before. If so, this is the earlier answer."""
    request_id: str


# ── The model ────────────────────────────────────────────────────────────────────────────────────


class ModelLine(Out):
    version: str
    name: str
    published_at: datetime | None
    serving: bool
    metrics: dict[str, Any]
    problem: str | None = None
    """The reason why the model could not be loaded; null if loading has not failed."""


class ShopOut(ShopSettings):
    """The settings of the shop: how prices are written, and how answers treat what users own."""

    model_config = ConfigDict(extra="ignore", json_schema_extra=add_examples)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def decimals(self) -> int:
        """The number of decimals of a price: 2 for EUR, 0 for JPY."""
        return super().decimals


class Models(Listing[ModelLine]):
    """All models that were ever published, the newest first."""

    serving: str
    shop: ShopOut
    """The settings of the shop with which the service answers."""
    models: tuple[ModelLine, ...]


class Reloaded(Out):
    serving: str
    previous: str
    changed: bool


class WorkOut(Out):
    """A long request that waits or runs: a forecast or its estimate, a design, an explanation or insights."""

    request_id: str
    """The id that the caller sent as X-Request-Id, or that the service chose."""
    kind: Literal["forecast", "estimate", "design", "explain", "insights"]
    state: Literal["waiting", "running"]
    stage: str | None
    """What is counted in `done` and `of`, such as 'users'. It is null until the work says so."""
    done: float
    of: float | None
    """The total of this stage; null if it is unknown."""
    seconds: float
    """The number of seconds since the request arrived."""
    seconds_left: float | None
    """Estimated number of seconds until this stage ends; null if it is unknown."""


class WorkList(Listing[WorkOut]):
    """The long requests of one process of the service, the oldest first."""

    work: tuple[WorkOut, ...]


class ServingModel(Out):
    version: str
    name: str
    title: str
    trained_on: str
    metrics: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    """The losses and validation results of each epoch."""


class Exposure(Out):
    """A bundle's share of all sales, and of all bundles shown in answers."""

    id: str
    title: str | None
    sales_share: float
    shown_share: float


class Latency(Out):
    """Response times of recent recommendations in milliseconds. They are null before the first request."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class ServedOut(Out):
    since: datetime
    answers: int
    taken: int
    """The number of recommended bundles that users took after the recommendation."""


class MonthOut(Out):
    month: str
    """Such as `2026-11`."""
    purchases: int


class Insights(Out):
    model: ServingModel
    popularity: tuple[Exposure, ...]
    """The bundles that sell most or are shown most."""
    left_out: int
    """The number of bundles that are not in `popularity`."""
    latency: Latency
    served: ServedOut
    months: tuple[MonthOut, ...]
    """The purchases of bundles in the last twelve months with a purchase. Those without a time are left
    out. They are counted every five minutes."""


class Health(Out):
    status: Literal["ok"]


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


class FieldError(Out):
    """What is wrong with one field of a request."""

    field: str
    """The path of the field, such as `where.max_price`."""
    message: str
    """What was found and what is expected."""


class ProblemOut(Out):
    """Why a request was refused (RFC 9457)."""

    type: str
    """The kind of problem, for programs: `urn:bundlemage:problem:…`."""
    title: str
    """The kind of problem, in words."""
    status: int = Field(ge=400, le=599)
    """The HTTP status."""
    detail: str
    """What was found, what is expected, and what to do."""
    request_id: str
    """The id of the request. It is also in the header X-Request-ID and in the log of the service."""
    errors: tuple[FieldError, ...] = ()
    """The fields that are wrong; only with status 422."""
    conflict: tuple[Rule, ...] = ()
    """Only for an impossible design: conditions that exclude each other, all of which are needed for this."""
    smallest: bool = True
    """Only for an impossible design: whether 'conflict' is the smallest set of conditions that exclude each
    other. False if there was no time to find out."""
    changes: tuple[Change, ...] = ()
    """Only for an impossible design: changes that each make a bundle possible, the smallest first."""
