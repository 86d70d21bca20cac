"""The client: a method for each thing that the service does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

from bundlemage.client.answers import (
    Bundle,
    BundlePage,
    BundlesFor,
    Gate,
    Insights,
    Item,
    ItemPage,
    ItemsFor,
    Models,
    Recorded,
    Reloaded,
    SimilarBundles,
    Tags,
    User,
    UserPage,
    made,
)
from bundlemage.client.asking import HistoryOf, Id, Where, conditions, ids, listed, someone
from bundlemage.client.designs import Designs, Explanations, Forecast
from bundlemage.client.transport import Response, ServiceError, Transport
from bundlemage.errors import ConfigError
from bundlemage.wire.design import SERVED_SECONDS, DesignRequest

T = TypeVar("T")
_OF_A_USER: Final = ("/bundles", "/gate")
_OF_A_BUNDLE: Final = ("/similar",)


@dataclass(frozen=True)
class Interaction:
    """A user took an item, or a bundle."""

    user: Id
    item: Id | None = None
    bundle: Id | None = None
    at: datetime | None = None
    """When, with a time zone; None: now."""
    request_id: str | None = None
    """The answer from which it was taken."""


class Client:
    """Asks a live service. Make one and keep it: its connections are kept, and any thread may use it.

    `timeout` is how many seconds the service may be silent, beside those that it may work on a design. A
    request is tried again up to `retries` times, with longer and longer pauses, when the connection is lost
    or the service has too much to do; nothing is carried out twice for it. What fails is a `ServiceError`.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections. It cannot be used afterwards."""
        self._transport.close()
        self._probe.close()

    # ── Recommendations ──────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user: Id | HistoryOf,
        k: int = 10,
        *,
        where: Where | None = None,
        include_owned: bool = False,
        details: bool = False,
    ) -> BundlesFor:
        """The bundles that fit a user best, or anyone whose history is given.

        A history is `{"items": […], "bundles": […]}`. With `details` each bundle comes with its items.
        """
        asked = {**someone(user), "k": k, "include_owned": include_owned, "details": details}
        return self._post(BundlesFor, "/v1/recommend", {**asked, "where": conditions(where)})

    def complete(
        self,
        user: Id | HistoryOf,
        items: Sequence[Id] = (),
        k: int = 5,
        *,
        where: Where | None = None,
        include_owned: bool = False,
    ) -> ItemsFor:
        """The items that best complete a bundle for someone; with no items, how to begin one."""
        asked = {**someone(user), "k": k, "include_owned": include_owned, "items": ids("items", items)}
        return self._post(ItemsFor, "/v1/complete", {**asked, "where": conditions(where)})

    def similar(
        self, bundle: Id, k: int = 10, *, where: Where | None = None, details: bool = False
    ) -> SimilarBundles:
        """The bundles that are most like one. Here `where` takes no `among`."""
        asked = conditions(where)
        if "among" in asked:
            raise ConfigError("similar bundles cannot be asked for among some; leave 'among' out")
        query = {**asked, "k": k, "details": details}
        return self._get(SimilarBundles, f"{_path('bundles', bundle)}/similar", query)

    def gate(self, user: Id) -> Gate:
        """How far a user's items and bundles each speak when the model mixes them."""
        return self._get(Gate, f"{_path('users', user)}/gate")

    # ── Designing ────────────────────────────────────────────────────────────────────────────────

    def design(self, user: Id | HistoryOf, **wishes: Any) -> Designs:
        """Designs whole bundles for a user. `bundlemage.wire.design.DesignRequest` lists the wishes.

        >>> client.design("u0007", start=["g0022"], size=(3, 5), budget=40, tags={"at least": {"Horror": 1}})

        Where no bundle is possible, the ServiceError's `conflict` names what cannot hold together, and its
        `changes` what would make it possible.
        """
        wished = DesignRequest.of(**wishes).model_dump(mode="json", exclude_unset=True)
        return self._long(Designs, "/v1/design", {**someone(user), **wished})

    def explain(
        self,
        user: Id | HistoryOf,
        *,
        bundles: Sequence[Id] | None = None,
        item: Id | None = None,
        items: Sequence[Id] = (),
    ) -> Explanations:
        """Why each of some bundles is for someone; or why an item, as an addition to `items`."""
        asked = someone(user)
        if bundles is not None:
            asked["bundles"] = ids("bundles", bundles)
        if item is not None:
            asked["item"] = str(item)
        if items:
            asked["items"] = ids("items", items)
        return self._long(Explanations, "/v1/explain", asked)

    def score_bundle(
        self, items: Sequence[Id], price: float | None = None, *, discount: float | None = None, k: int = 10
    ) -> Forecast:
        """Who would take a bundle that does not exist yet, how many they are, and what would make them more.

        The model does not know of prices: a price, or a discount on the items' prices, turns buyers into
        takings.
        """
        body = {"items": ids("items", items), "price": price, "discount": discount, "k": k}
        return self._long(Forecast, "/v1/bundles:score", body)

    # ── Who took what ────────────────────────────────────────────────────────────────────────────

    def record(
        self,
        user: Id,
        *,
        item: Id | None = None,
        bundle: Id | None = None,
        at: datetime | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Recorded:
        """Tell that a user took an item or a bundle. When this returns, it is on disk and counts.

        `request_id` is that of the answer from which it was taken. An `idempotency_key`, such as the number
        of an order, tells the service that a later call is the same once more; without one each call gets
        a key of its own, which all its tries share.
        """
        told = Interaction(user, item, bundle, at, request_id)
        return self.record_many([told], idempotency_key=idempotency_key)

    def record_many(
        self, interactions: Sequence[Interaction], *, idempotency_key: str | None = None
    ) -> Recorded:
        """Tell of several at once, at most 10,000: all of them are recorded, or none."""
        key = uuid4().hex if idempotency_key is None else idempotency_key
        if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise ConfigError(f"an idempotency key is of printable ASCII characters, and not {key[:40]!r}")
        body = {"interactions": [_told(interaction) for interaction in interactions]}
        answer = self._transport.ask("POST", "/v1/interactions", body=body, headers={"Idempotency-Key": key})
        return self._made(Recorded, answer)

    def user(self, user: Id) -> User:
        """What a user has."""
        return self._get(User, _path("users", user, _OF_A_USER))

    def users(self, search: str = "", *, limit: int = 50, after: str = "") -> UserPage:
        """The users who have anything and whose ids begin with a text, in the order of their ids."""
        return self._get(UserPage, "/v1/users", {"search": search, "limit": limit, "after": after})

    def erase_user(self, user: Id) -> bool:
        """Erase everything that is stored of a user; False: nothing is."""
        try:
            self._transport.ask("DELETE", _path("users", user))
        except ServiceError as error:
            if error.status == 404 and error.title == "No such user":
                return False
            raise
        return True

    # ── The catalogue ────────────────────────────────────────────────────────────────────────────

    def item(self, item: Id) -> Item:
        """An item, also if it was withdrawn."""
        return self._get(Item, _path("items", item))

    def items(
        self, search: str = "", *, tag: str | None = None, limit: int = 50, offset: int = 0
    ) -> ItemPage:
        """The items that are sold, by title; `search` is a part of the title or id."""
        return self._get(ItemPage, "/v1/items", _page(search, tag, limit, offset))

    def put_item(
        self,
        item: Id,
        *,
        title: str | None = None,
        price: float | None = None,
        tags: Sequence[str] = (),
        stock: int | None = None,
    ) -> Item:
        """Add an item, or replace all that is known of it. One that was withdrawn is sold again."""
        body = {"title": title, "price": price, "tags": listed("tags", tags), "stock": stock}
        return self._made(Item, self._transport.ask("PUT", _path("items", item), body=body))

    def change_item(self, item: Id, **changes: Any) -> Item:
        """Change some of `title`, `price`, `tags` and `stock`, and leave the rest."""
        return self._made(Item, self._transport.ask("PATCH", _path("items", item), body=changes))

    def withdraw_item(self, item: Id) -> None:
        """Sell it no more, nor bundles with it. Histories keep it; `put_item` brings it back."""
        self._transport.ask("DELETE", _path("items", item))

    def bundle(self, bundle: Id) -> Bundle:
        """A bundle, also if it was withdrawn."""
        return self._get(Bundle, _path("bundles", bundle, _OF_A_BUNDLE))

    def bundles(
        self, search: str = "", *, tag: str | None = None, limit: int = 50, offset: int = 0
    ) -> BundlePage:
        """The bundles that are sold, by title; `search` is a part of the title or id."""
        return self._get(BundlePage, "/v1/bundles", _page(search, tag, limit, offset))

    def put_bundle(
        self,
        bundle: Id,
        items: Sequence[Id],
        *,
        title: str | None = None,
        price: float | None = None,
        discount: float | None = None,
        tags: Sequence[str] = (),
        expected_sales: float | None = None,
        sells_like: Id | None = None,
    ) -> Bundle:
        """Add a bundle of items of the catalogue, or replace one. It may be in the very next answer.

        While it is newer than the model, it is ranked as if it had sold `expected_sales` times, or as often
        as the bundle that it `sells_like`; if neither is said, as the model credits every new bundle.
        """
        body: dict[str, Any] = {"items": ids("items", items), "title": title, "price": price}
        body |= {"discount": discount, "expected_sales": expected_sales}
        body |= {"sells_like": None if sells_like is None else str(sells_like)}
        answer = self._transport.ask(
            "PUT", _path("bundles", bundle), body={**body, "tags": listed("tags", tags)}
        )
        return self._made(Bundle, answer)

    def change_bundle(self, bundle: Id, **changes: Any) -> Bundle:
        """Change some of `items`, `title`, `price`, `discount`, `tags`, `expected_sales` and `sells_like`."""
        return self._made(Bundle, self._transport.ask("PATCH", _path("bundles", bundle), body=changes))

    def withdraw_bundle(self, bundle: Id) -> None:
        """Recommend it no more. Histories keep it; `put_bundle` brings it back."""
        self._transport.ask("DELETE", _path("bundles", bundle))

    def tags(self) -> Tags:
        """The tags of what is sold, the most frequent first."""
        return self._get(Tags, "/v1/tags")

    # ── The service ──────────────────────────────────────────────────────────────────────────────

    def models(self) -> Models:
        """The models that were ever published, the newest first."""
        return self._get(Models, "/v1/models")

    def reload(self, version: str | None = None) -> Reloaded:
        """Serve what the served folder holds now, or an earlier version."""
        return self._post(Reloaded, "/v1/models/reload", {} if version is None else {"version": version})

    def insights(self) -> Insights:
        """How good the model is, what it shows against what sells, how fast it answers."""
        return self._get(Insights, "/v1/insights")

    def healthy(self) -> bool:
        """Whether the service lives. Asked once, without trying again."""
        return self._is_ok("/healthz")

    def ready(self) -> bool:
        """Whether its store answers and a model serves. Asked once, without trying again."""
        return self._is_ok("/readyz")

    def _is_ok(self, path: str) -> bool:
        try:
            told = self._probe.ask("GET", path).json()
        except (ServiceError, ValueError):
            return False
        return isinstance(told, dict) and told.get("status") == "ok"

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    def _get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        return self._made(kind, self._transport.ask("GET", path, query=query))

    def _post(self, kind: type[T], path: str, body: Any) -> T:
        return self._made(kind, self._transport.ask("POST", path, body=body))

    def _long(self, kind: type[T], path: str, body: Any) -> T:
        return self._made(kind, self._transport.ask("POST", path, body=body, work=SERVED_SECONDS))

    def _made(self, kind: type[T], answer: Response) -> T:
        try:
            return made(kind, answer.json())
        except (ValueError, KeyError, TypeError) as error:
            raise ServiceError(
                f"{self.url} answers {answer.status} with something that is no answer of BundleMage. Check "
                "the address, and that client and service are of the same version",
                status=answer.status,
                request_id=answer.headers.get("x-request-id"),
            ) from error


def _path(kind: str, name: Id, refused: tuple[str, ...] = ()) -> str:
    """Where a thing is. Its id may have any characters, also a slash."""
    text = str(name)
    if text.endswith(refused):  # of an empty tuple: never
        raise ConfigError(
            f"the service cannot be asked for {text!r}: an id's end is not {' or '.join(refused)}"
        )
    try:
        return f"/v1/{kind}/{quote(text, safe='')}"
    except UnicodeEncodeError:
        raise ConfigError(f"the id {text!r} is no text: it has half of a character") from None


def _page(search: str, tag: str | None, limit: int, offset: int) -> dict[str, Any]:
    return {"search": search, "limit": limit, "offset": offset} | ({} if tag is None else {"tag": tag})


def _told(interaction: Interaction) -> dict[str, Any]:
    named = {
        "user_id": str(interaction.user),
        "item_id": None if interaction.item is None else str(interaction.item),
        "bundle_id": None if interaction.bundle is None else str(interaction.bundle),
        "at": None if interaction.at is None else interaction.at.isoformat(),
        "request_id": interaction.request_id,
    }
    return {name: value for name, value in named.items() if value is not None}
