"""The client: one method for each request that the service answers."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from operator import index
from typing import Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

from bundlemage.client.transport import ServiceError, Transport, refusal_of
from bundlemage.errors import ConfigError
from bundlemage.wire.answers import (
    BundleOut,
    BundlePage,
    BundlesFor,
    Gate,
    Health,
    Insights,
    ItemOut,
    ItemPage,
    ItemsFor,
    Models,
    Out,
    Reloaded,
    SimilarBundles,
    Tags,
    UserOut,
    UserPage,
    WorkList,
    WorkOut,
    Written,
)
from bundlemage.wire.design import LONG_SECONDS, SERVED_SECONDS, DesignRequest
from bundlemage.wire.design_answers import DesignsFor, ExplanationsFor, ForecastLine, ForecastOut
from bundlemage.wire.requests import Audience, Body, HistoryOf, SegmentIn, Where
from bundlemage.wire.shop import OwnedRule, StockRule

Id: TypeAlias = str | int
"""An id is text or a whole number, which stands for its text. A UUID and a whole number of NumPy do, too."""
User: TypeAlias = Id | HistoryOf | Mapping[str, Any]
"""The id of a user, or a history: `{"items": […], "bundles": […]}`."""
Conditions: TypeAlias = Where | Mapping[str, Any] | None
"""Which items or bundles an answer may contain, such as `{"max_price": 40}`. `Where` lists the conditions."""
Answer = TypeVar("Answer", bound=Out)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IDS: Final = {"user_id", "item", "item_id", "bundle_id", "sells_like"}
_NAMES: Final = {
    "user": "user_id",
    "item": "item_id",
    "bundle": "bundle_id",
    "at": "at",
    "request_id": "request_id",
    "event": "event",
    "weight": "weight",
    "rejected": "rejected",
}
"""The fields of an interaction, and their names in the API. Dicts may use either."""
_LISTS: Final = {"items", "bundles", "exclude", "among", "tags", "users"}


@dataclass(frozen=True)
class Interaction:
    """A user took an item or a bundle, only looked at it, or rejected it."""

    user: Id
    item: Id | None = None
    bundle: Id | None = None
    at: datetime | None = None
    """The time, with a time zone; None: now."""
    request_id: str | None = None
    """The `request_id` of the answer that recommended the item or bundle."""
    event: str | None = None
    """The type of event, such as `view`, if the model was trained with types. None: a purchase."""
    weight: float | None = None
    """Instead of a type: the strength. 1 or more is a purchase, and less is not."""
    rejected: bool | None = None
    """Instead of a type: whether the user returned or dislikes it."""


class Client:
    """A client of a live service. Create one and keep it: it reuses connections, and is safe in any thread.

    `timeout` is the number of seconds to wait for an answer; a design may take up to 30 seconds more, and a
    forecast up to 120. A request is repeated up to `retries` times, with growing pauses, if the connection is
    lost or the service is busy; the service never carries out such a request twice. Every failure is a
    `ServiceError`. An argument that cannot be sent is a `ConfigError`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        key: str | None = None,
        timeout: float = 10,
        retries: int = 3,
    ) -> None:
        self._transport = Transport(url, key, timeout, retries)
        self._probe = Transport(url, None, timeout, retries=0)
        self.url = self._transport.address

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._transport.close()
        self._probe.close()

    # ── Recommendations ──────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user: User,
        k: int = 10,
        *,
        where: Conditions = None,
        owned: OwnedRule | None = None,
        stock: StockRule | None = None,
        diversity: float | None = None,
        match_popularity: float | None = None,
        details: bool = False,
    ) -> BundlesFor:
        """Return the `k` bundles that fit a user best. With `details` each bundle lists its items.

        `owned` (hide, demote or show) says what happens to what the user owns, and `stock` (hide, last or
        show) what happens to what is sold out. `diversity` (0 to 1) varies the list, and `match_popularity`
        (0 to 1) makes its mix of best sellers and others follow that of the user's own bundles. None: as the
        shop has set it.
        """
        steering = {"diversity": diversity, "match_popularity": match_popularity}
        rules = {"owned": owned, "stock": stock, **{name: w for name, w in steering.items() if w is not None}}
        body = {**_user(user), **_where(where), **rules, "k": k, "details": details}
        return self._post(BundlesFor, "/v1/recommend", body)

    def complete(
        self,
        user: User,
        items: Sequence[Id] = (),
        k: int = 5,
        *,
        where: Conditions = None,
        owned: OwnedRule | None = None,
        stock: StockRule | None = None,
    ) -> ItemsFor:
        """Return the `k` items that best complete a bundle for a user, or begin one if `items` is empty.
        `owned` and `stock` are as in `recommend`."""
        rules = {"owned": owned, "stock": stock}
        body = {**_user(user), **_where(where), **rules, "k": k, "items": items}
        return self._post(ItemsFor, "/v1/complete", body)

    def similar(
        self, bundle: Id, k: int = 10, *, where: Conditions = None, details: bool = False
    ) -> SimilarBundles:
        """Return the `k` bundles that are most similar to a bundle. `where` must not contain `among`."""
        query = {**_where(where)["where"], "k": k, "details": details}
        if "among" in query:
            raise ConfigError("'among' does not work for similar bundles; leave it out")
        return self._ask(SimilarBundles, "GET", f"{_path('bundles', bundle)}/similar", query=query)

    def gate(self, user: Id) -> Gate:
        """Return the weights that the model gives to a user's items and to the user's bundles."""
        return self._ask(Gate, "GET", f"{_path('users', user)}/gate")

    # ── Designs ──────────────────────────────────────────────────────────────────────────────────

    def design(
        self, user: User, *, request_id: str | None = None, details: bool = False, **wishes: Any
    ) -> DesignsFor:
        """Design whole bundles for a user. `bundlemage.wire.design.DesignRequest` lists the wishes. With
        `details`, the reasons of the items have their numbers.

        >>> client.design("u0007", start=["g0022"], size=(3, 5), budget=40, tags={"at least": {"Horror": 1}})

        If no bundle is possible, the ServiceError's `conflict` names the wishes that cannot hold together,
        and its `changes` say what would make a bundle possible. With a `request_id` of your own, `progress`
        in another thread says how far the design is.
        """
        body = DesignRequest.of(**wishes).model_dump(mode="json", exclude_unset=True)
        body |= {"details": details}
        return self._post(
            DesignsFor, "/v1/design", {**_user(user), **body}, headers=_named(request_id), work=SERVED_SECONDS
        )

    def explain(
        self,
        user: User,
        *,
        bundles: Sequence[Id] | None = None,
        item: Id | None = None,
        items: Sequence[Id] = (),
        language: str | None = None,
        to: Audience = "customer",
        details: bool = False,
    ) -> ExplanationsFor:
        """Explain why bundles fit a user, or why `item` fits the user as an addition to `items`.

        Each explanation has a sentence for the customer, or about them with `to="shop"`, in the language of
        the shop's locale or in `language`. With `details`, it has the numbers, too.
        """
        body = {**_user(user), "bundles": bundles, "item": item, "items": items}
        body |= {"language": language, "to": to, "details": details}
        return self._post(ExplanationsFor, "/v1/explain", body, work=SERVED_SECONDS)

    def score_bundle(
        self,
        items: Sequence[Id],
        price: float | None = None,
        *,
        discount: float | None = None,
        k: int = 10,
        segment: SegmentIn | Mapping[str, Any] | None = None,
        sample: int | None = None,
        on_estimate: Callable[[ForecastOut], object] | None = None,
        on_progress: Callable[[WorkOut], object] | None = None,
        request_id: str | None = None,
    ) -> ForecastOut:
        """Forecast which users would take a bundle that does not exist yet, and which item would improve it.

        The model ignores prices. A price, or a discount on the items' prices, is only used for the takings.
        `segment` limits the forecast to a part of the users, such as `{"tag": "Horror"}`. With `sample`, the
        forecast is an estimate from so many users, and takes a second or two.

        In a large shop the exact forecast may take minutes. With `on_estimate`, this function is first called
        with an estimate (from `sample` or 2,000 users), unless the shop has no more users than that. With
        `on_progress`, that function is called about twice a second. If one of them raises an error, the
        service stops the work. Such a request is not repeated if the connection is lost. With a `request_id`
        of your own, `progress` in another thread says how far the forecast is.
        """
        body: dict[str, Any] = {"items": items, "price": price, "discount": discount, "k": k}
        body["sample"] = sample
        body["segment"] = None if segment is None else _fields(segment)
        options: dict[str, Any] = {"headers": _named(request_id), "work": LONG_SECONDS}
        if on_estimate is None and on_progress is None:
            return self._post(ForecastOut, "/v1/bundles:score", body, **options)
        sent = _to_json({name: value for name, value in body.items() if value is not None})
        query = {"stream": "true"}
        with closing(self._transport.lines("/v1/bundles:score", sent, query=query, **options)) as lines:
            for text in lines:
                line = self._parsed(ForecastLine, text)
                if line.estimate is not None and on_estimate is not None:
                    on_estimate(line.estimate)
                if line.progress is not None and on_progress is not None:
                    on_progress(line.progress)
                if line.problem is not None:
                    raise refusal_of(line.problem)
                if line.forecast is not None:
                    return line.forecast
        raise ServiceError(f"{self.url} ended the answer before the forecast. Ask again")

    def buyers(
        self,
        items: Sequence[Id],
        *,
        segment: SegmentIn | Mapping[str, Any] | None = None,
        least_chance: float | None = None,
        request_id: str | None = None,
    ) -> list[tuple[str, float]]:
        """Return the users who would take a bundle that does not exist yet: their ids and their chances.

        The likeliest come first. The list has the users with at least `least_chance`, or above the threshold
        of the forecast if it is None. The key needs the role `write`.
        """
        body: dict[str, Any] = {"items": items, "least_chance": least_chance}
        body["segment"] = None if segment is None else _fields(segment)
        sent = _to_json({name: value for name, value in body.items() if value is not None})
        headers = {**_named(request_id), "Accept": "text/csv"}
        _, content = self._transport.ask(
            "POST", "/v1/bundles:buyers", body=sent, headers=headers, work=LONG_SECONDS
        )
        rows = csv.reader(StringIO(content.decode("utf-8"), newline=""))
        next(rows, None)
        return [(name, float(chance)) for name, chance in rows]

    def work(self) -> WorkList:
        """Return the designs, explanations and forecasts that wait or run, and how far they are.

        If the service has several processes, one of them answers, and it knows only its own.
        """
        return self._ask(WorkList, "GET", "/v1/work")

    def progress(self, request_id: str) -> WorkOut | None:
        """Return how far a design, an explanation or a forecast is. None if it has ended, or is unknown to
        the process that answers."""
        try:
            return self._ask(WorkOut, "GET", _path("work", request_id))
        except ServiceError as error:
            if error.status == 404 and error.title == "No such work":
                return None
            raise

    # ── Users ────────────────────────────────────────────────────────────────────────────────────

    def record(
        self,
        user: Id,
        *,
        item: Id | None = None,
        bundle: Id | None = None,
        at: datetime | None = None,
        request_id: str | None = None,
        event: str | None = None,
        weight: float | None = None,
        rejected: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        """Record that a user took an item or a bundle. It is stored on disk, and the next answer uses it.

        It is a purchase unless `event` (a type such as `view` that the model was trained with), `weight`
        (below 1: no purchase) or `rejected` (the user returned or dislikes it) says something else.
        `request_id` is the id of the answer that recommended it. Calls with the same `idempotency_key`, such
        as an order number, are recorded only once. Without a key, each call gets a new one, which its
        retries share.
        """
        interaction = Interaction(user, item, bundle, at, request_id, event, weight, rejected)
        return self.record_many([interaction], idempotency_key=idempotency_key)

    def record_many(
        self,
        interactions: Sequence[Interaction | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> Written:
        """Record up to 10,000 interactions: either all of them or none. An interaction may be a dict.

        >>> client.record_many([{"user": "u0007", "item": "g0022", "at": "2026-03-01T09:30:00+01:00"}])

        `at` is the time of the interaction, as a datetime with a time zone or as text in ISO 8601. Without
        it, the interaction happened now. Histories are ordered by it, so send it with old purchases.
        """
        key = uuid4().hex if idempotency_key is None else _id("the idempotency key", idempotency_key)
        if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise ConfigError(
                f"an idempotency key is printable ASCII without outer spaces; found {key[:40]!r}"
            )
        if isinstance(interactions, str | Mapping) or not isinstance(interactions, Iterable):
            raise ConfigError(f"interactions is a list: write [{interactions!r:.200}]")
        body = {"interactions": [_interaction(interaction) for interaction in interactions]}
        return self._post(Written, "/v1/interactions", body, headers={"Idempotency-Key": key})

    def user(self, user: Id) -> UserOut:
        """Return the items and bundles that a user bought, looked at or rejected."""
        return self._ask(UserOut, "GET", _path("users", user))

    def users(self, search: str = "", *, limit: int = 50, after: str = "") -> UserPage:
        """Return the users who have a history and whose ids begin with `search`, ordered by id. For the next
        page, set `after` to the `next` of this page."""
        query = {"search": search, "limit": limit, "after": after}
        return self._ask(UserPage, "GET", "/v1/users", query=query)

    def erase_user(self, user: Id) -> bool:
        """Erase everything that is stored about a user. Returns False if nothing was stored."""
        try:
            self._transport.ask("DELETE", _path("users", user))
        except ServiceError as error:
            if error.status == 404 and error.title == "No such user":
                return False
            raise
        return True

    # ── The catalogue ────────────────────────────────────────────────────────────────────────────

    def item(self, item: Id) -> ItemOut:
        """Return an item. It may be withdrawn."""
        return self._ask(ItemOut, "GET", _path("items", item))

    def items(
        self, search: str = "", *, tag: str | None = None, limit: int = 50, offset: int = 0
    ) -> ItemPage:
        """Return the items on sale, ordered by title; `search` is a part of the title or id."""
        query = {"search": search, "tag": tag, "limit": limit, "offset": offset}
        return self._ask(ItemPage, "GET", "/v1/items", query=query)

    def put_item(self, item: Id, **fields: Any) -> ItemOut:
        """Add an item with `title`, `description`, `price`, `tags`, `stock`, `cost`, `image_url` and
        `vector`, or replace all its fields. Each field may be left out. A withdrawn item is on sale again."""
        return self._ask(ItemOut, "PUT", _path("items", item), body=fields)

    def change_item(self, item: Id, **changes: Any) -> ItemOut:
        """Change some of `title`, `price`, `tags`, `stock`, `cost`, `image_url`, `description` and `vector`.
        The other fields stay as they are."""
        return self._ask(ItemOut, "PATCH", _path("items", item), body=changes)

    def withdraw_item(self, item: Id) -> None:
        """Stop selling an item and all bundles that contain it. Histories keep it; `put_item` restores it."""
        self._transport.ask("DELETE", _path("items", item))

    def bundle(self, bundle: Id) -> BundleOut:
        """Return a bundle. It may be withdrawn."""
        return self._ask(BundleOut, "GET", _path("bundles", bundle))

    def bundles(
        self, search: str = "", *, tag: str | None = None, limit: int = 50, offset: int = 0
    ) -> BundlePage:
        """Return the bundles on sale, ordered by title; `search` is a part of the title or id."""
        query = {"search": search, "tag": tag, "limit": limit, "offset": offset}
        return self._ask(BundlePage, "GET", "/v1/bundles", query=query)

    def put_bundle(self, bundle: Id, items: Sequence[Id], **fields: Any) -> BundleOut:
        """Add a bundle of items in the catalogue, or replace one. The next answer may already contain it.

        Its other fields are `title`, `price`, `discount`, `tags`, `image_url`, `expected_sales` and
        `sells_like`. A model that is older than the bundle ranks it as if it had sold `expected_sales` times,
        or as often as the bundle that it `sells_like`. Without either, the model uses its default for new
        bundles.
        """
        return self._ask(BundleOut, "PUT", _path("bundles", bundle), body={"items": items, **fields})

    def change_bundle(self, bundle: Id, **changes: Any) -> BundleOut:
        """Change some of `items`, `title`, `price`, `discount`, `tags`, `image_url`, `expected_sales` and
        `sells_like`."""
        return self._ask(BundleOut, "PATCH", _path("bundles", bundle), body=changes)

    def withdraw_bundle(self, bundle: Id) -> None:
        """Stop recommending a bundle. Histories keep it; `put_bundle` restores it."""
        self._transport.ask("DELETE", _path("bundles", bundle))

    def tags(self) -> Tags:
        """Return the tags of all items and bundles on sale, the most frequent first."""
        return self._ask(Tags, "GET", "/v1/tags")

    # ── The service ──────────────────────────────────────────────────────────────────────────────

    def models(self) -> Models:
        """Return all models that were ever published, the newest first."""
        return self._ask(Models, "GET", "/v1/models")

    def reload(self, version: str | None = None) -> Reloaded:
        """Serve the model that is now in the served folder, or an earlier version."""
        return self._post(Reloaded, "/v1/models/reload", {"version": version})

    def insights(self) -> Insights:
        """Return the model's quality, each bundle's share of sales and of answers, and the response times."""
        return self._ask(Insights, "GET", "/v1/insights")

    def healthy(self) -> bool:
        """Return whether the service is running. The request is not retried."""
        return self._is_ok("/healthz")

    def ready(self) -> bool:
        """Return whether the service's store responds and a model is loaded. The request is not retried."""
        return self._is_ok("/readyz")

    def _is_ok(self, path: str) -> bool:
        try:
            Health.model_validate_json(self._probe.ask("GET", path)[1])
        except (ServiceError, ValueError):
            return False
        return True

    def _post(self, kind: type[Answer], path: str, body: Mapping[str, Any], **options: Any) -> Answer:
        """Send a request. A field without a value is left out."""
        fields = {name: value for name, value in body.items() if value is not None}
        return self._ask(kind, "POST", path, body=fields, **options)

    def _ask(
        self,
        kind: type[Answer],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Answer:
        """Send a request and parse the answer. `options` are those of `Transport.ask`."""
        sent = None if body is None else _to_json(body)
        response, content = self._transport.ask(method, path, body=sent, **options)
        return self._parsed(kind, content, response.status, response.headers.get("x-request-id"))

    def _parsed(
        self, kind: type[Answer], content: bytes, status: int = 200, request_id: str | None = None
    ) -> Answer:
        try:
            return kind.model_validate_json(content)
        except ValueError as error:
            raise ServiceError(
                f"{self.url} answers {status} with a body that is not an answer of BundleMage. "
                "Check the address, and that the client and the service have the same version",
                status=status,
                request_id=request_id,
            ) from error


def _path(kind: str, name: Id) -> str:
    """The path of a user, an item or a bundle. The id may contain any characters, also a slash."""
    text = _id("the id", name)
    try:
        return f"/v1/{kind}/{quote(text, safe='')}"
    except UnicodeEncodeError:
        raise ConfigError(
            f"the id {text!r} is not valid text: it contains half of a surrogate pair"
        ) from None


def _named(request_id: str | None) -> dict[str, str]:
    """The header that gives a request an id of the caller's choice."""
    if request_id is None:
        return {}
    if not _REQUEST_ID.fullmatch(request_id := _id("the request id", request_id)):
        raise ConfigError(
            "a request id is 1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-'; found "
            f"{request_id[:80]!r}"
        )
    return {"X-Request-Id": request_id}


def _user(user: User) -> dict[str, Any]:
    """The field of a request that identifies the user: a user id or a history."""
    if isinstance(user, Body | Mapping):
        return {"history": _fields(user)}
    return {"user_id": _id("user", user, "text, a whole number or {'items': […], 'bundles': […]}")}


def _where(where: Conditions) -> dict[str, Any]:
    """The filter of a request. A condition without a value is left out."""
    if not isinstance(where, Body | Mapping | None):
        raise ConfigError(f"where is a dict such as {{'max_price': 40}}, and not {type(where).__name__}")
    conditions = _fields(where or {})
    return {"where": {name: value for name, value in conditions.items() if value is not None}}


def _fields(part: Body | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dict or a pydantic model."""
    return _to_json(part.model_dump(exclude_unset=True) if isinstance(part, Body) else part)


def _to_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts fields to JSON values: ids to strings, sequences to lists, times to ISO 8601."""
    return {name: _value(name, value) for name, value in fields.items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None:
        return None
    if name == "at" and not isinstance(value, str | int | float):
        raise ConfigError(
            f"at is {value!r}, a {type(value).__name__}; write a datetime with a time zone, or text in "
            "ISO 8601"
        )
    if name in _IDS:
        return _id(name, value)
    if name == "vector":
        return _numbers(name, value)
    if name not in _LISTS or isinstance(value, Mapping):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):  # a text would become a list of letters
        raise ConfigError(f"{name} is a list: write [{value!r}]")
    return [_id(f"an entry of {name}", entry) for entry in value]


def _numbers(name: str, values: Any) -> list[float]:
    """A list of numbers, also from an array of NumPy."""
    try:
        if not isinstance(values, str):
            return [float(number) for number in values]
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{name} is a list of numbers; found {values!r:.200}")


def _id(name: str, value: Any, expected: str = "text or a whole number") -> str:
    """An id as text. A float is refused, because its text may differ from what the shop writes."""
    if isinstance(value, str | UUID):
        return str(value)
    try:
        if not isinstance(value, bool):
            return str(index(value))
    except TypeError:
        pass
    raise ConfigError(f"{name} is {value!r:.200}, a {type(value).__name__}; expected {expected}")


def _interaction(interaction: Interaction | Mapping[str, Any]) -> dict[str, Any]:
    given = vars(interaction) if isinstance(interaction, Interaction) else interaction
    if not isinstance(given, Mapping) or not set(given) <= {*_NAMES, *_NAMES.values()}:
        raise ConfigError(
            f"an interaction is an Interaction or a dict with the keys {', '.join(_NAMES)}; found "
            f"{given!r:.200}"
        )
    fields = {_NAMES.get(name, name): value for name, value in given.items()}
    if len(fields) < len(given):
        twice = next(name for name, other in _NAMES.items() if name != other and {name, other} <= {*given})
        raise ConfigError(
            f"an interaction has both {twice!r} and {_NAMES[twice]!r}, which are the same: leave one out"
        )
    return _to_json({name: value for name, value in fields.items() if value is not None})
