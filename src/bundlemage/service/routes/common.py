"""Parts that routes share: options, parameters, and functions that turn a request into an answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import Depends, Path, Query, Request

from bundlemage.core.filters import Filter
from bundlemage.live import Live, Question
from bundlemage.service.answerer import Answer
from bundlemage.service.problems import ApiError, newer_than_the_model, responses
from bundlemage.service.security import ROLES, require
from bundlemage.store.records import Bundle, Item, Owned, Role, Served, numbers_of
from bundlemage.wire.answers import BundleOut, EntryOut, ItemOut, Known
from bundlemage.wire.requests import Filtered, Id, K, Price, Tag, UserOrHistory, Where
from bundlemage.wire.shop import BundleRules

if TYPE_CHECKING:
    from bundlemage.service.app import Service


T = TypeVar("T")


def allow(role: Role, *codes: int, also: dict[int | str, Any] | None = None) -> dict[str, Any]:
    """Returns options of a route: the role that a caller needs, and the answers for the OpenAPI document.

    `codes` are statuses of refusals, besides those of every such route. `also` describes other answers.
    """
    documented = {**responses(401, 403, 429, 503, *codes), **(also or {})}
    return {"dependencies": [Depends(require(role))], "responses": documented}


# These dependencies are async, because FastAPI would run a plain function in a thread.


async def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)


async def request_id_of(request: Request) -> str:
    return cast(str, request.state.request_id)


TheService = Annotated["Service", Depends(service_of)]
RequestId = Annotated[str, Depends(request_id_of)]
UserId = Annotated[Id, Path(examples=["u0007"])]
BundleId = Annotated[Id, Path(examples=["b0166"])]
ItemId = Annotated[Id, Path(examples=["g0022"])]
HowMany = Annotated[K, Query()]
_EVERYTHING = Where()


async def where_of_query(
    tags: Annotated[list[Tag], Query(max_length=100, description="At least one of these tags.")] = [],  # noqa: B006
    min_price: Annotated[Price | None, Query(description=Where.model_fields["min_price"].description)] = None,
    max_price: Annotated[Price | None, Query(description=Where.model_fields["max_price"].description)] = None,
    in_stock: Annotated[bool, Query(description="Only items and bundles in stock.")] = False,
    exclude: Annotated[  # the length of a URL is limited
        list[Id], Query(max_length=100, description="None of these ids; POST /v1/recommend takes more.")
    ] = [],  # noqa: B006
) -> Where:
    return Where(tags=tags, min_price=min_price, max_price=max_price, in_stock=in_stock, exclude=exclude)


async def may_write(request: Request) -> bool:
    """Whether the caller has the role `write` or `admin`. Others do not see costs and lists of persons."""
    return ROLES[request.state.principal.role] >= ROLES["write"]


SeesCosts = Annotated[bool, Depends(may_write)]
SeesPeople = Annotated[bool, Depends(may_write)]
WhereOfQuery = Annotated[Where, Depends(where_of_query)]


def filter_of(where: Where) -> Filter | None:
    """The filter of a request; None if it has no conditions, so that such requests share one batch."""
    return None if where == _EVERYTHING else Filter(**where.model_dump())


def owned_of(request: UserOrHistory) -> Owned | None:
    """The history in a request, without duplicate ids. None if the request names a user instead."""
    if request.history is None:
        return None
    items, bundles = request.history.items, request.history.bundles
    return Owned(tuple(dict.fromkeys(items)), tuple(dict.fromkeys(bundles)))


def unknown(kind: str, name: str) -> ApiError:
    """The refusal for an item or bundle that does not exist."""
    return ApiError(404, f"No such {kind}", f"There is no {kind} {name!r}: PUT /v1/{kind}s/ID adds one.")


def known(kind: str, name: str, things: Mapping[str, T]) -> T:
    """Returns the item or bundle with the id `name`. Raises an ApiError (404) if there is none."""
    thing = things.get(name)
    if thing is None:
        raise unknown(kind, name)
    return thing


# An answer takes the fields of its record that have the same names, and ignores the others. So these
# functions name a field only if it must be computed.


def item_out(item: Item, live: Live, costs: bool) -> ItemOut:
    """An item of the catalogue, with its cost only if `costs`."""
    length = None if item.vector is None else len(numbers_of(item.vector))
    facts = {**vars(item), "cost": item.cost if costs else None, "vector_length": length}
    return ItemOut(**facts, in_model=live.in_model(item.id))


def bundle_out(bundle: Bundle, live: Live) -> BundleOut:
    """A bundle of the catalogue, with its items."""
    facts = {**vars(bundle), "items": items_of(bundle, live)}
    return BundleOut(**facts, recommendable=live.recommendable(bundle))


def items_of(bundle: Bundle, live: Live) -> list[EntryOut]:
    """The items of a bundle, in the form of an answer."""
    items = (live.stock.items.get(name) or Item(name) for name in bundle.items)
    return [EntryOut.model_validate(item) for item in items]


def check_known_items(live: Live, bundle: Bundle) -> None:
    """Raise an ApiError (409) if the model knows none of the items of a bundle."""
    if not any(map(live.in_model, bundle.items)):
        raise newer_than_the_model(f"all items of the bundle {bundle.id!r} are")


def check_in_model(live: Live, items: Iterable[str]) -> None:
    """Raise an ApiError (409) if the model does not know one of the items."""
    for name in items:
        if not live.in_model(name):
            raise newer_than_the_model(f"the item {name!r} is")


async def answer_to(
    request: Filtered, k: int, partial: tuple[str, ...] | None, service: Service, request_id: str
) -> Answer:
    """Ask the model for `k` bundles, or for `k` items to add to `partial`. Counts and records the answer."""
    began = time.perf_counter()
    user = owned_of(request) if request.user_id is None else request.user_id
    rules = request.model_dump(include={*BundleRules.__annotations__})
    question = Question(user or Owned(), k, filter_of(request.where), partial=partial, **rules)
    answer = await service.answerer.ask(question)
    recommended = answer.recommendations
    service.metrics.answered(time.perf_counter() - began, Counter(each.source for each in recommended))
    service.answerer.shown(
        Served(
            request_id,
            "bundles" if partial is None else "items",
            request.user_id,
            answer.live.record.version,
            tuple(each.id for each in recommended),
            datetime.now(UTC),
        )
    )
    return answer


def about(request_id: str, live: Live, request: UserOrHistory, known: Known) -> dict[str, Any]:
    """The fields that every answer for a user or a history has."""
    return {
        "request_id": request_id,
        "model_version": live.record.version,
        "user_id": request.user_id,
        "history": known,
    }
