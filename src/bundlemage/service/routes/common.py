"""What routes share: the service behind them, who asks, and how an answer is put together."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Path, Query, Request
from starlette.convertors import PathConvertor, register_url_convertor

from bundlemage.core.filters import Filter
from bundlemage.live import Question
from bundlemage.service.answerer import Answer, Serving
from bundlemage.service.answers import ranked_bundle, ranked_item
from bundlemage.service.problems import ApiError
from bundlemage.store.records import Owned, Served
from bundlemage.wire.answers import BundlesFor, ItemsFor, Known
from bundlemage.wire.requests import Filtered, Id, K, Price, Tag, UserOrHistory, Where

if TYPE_CHECKING:
    from bundlemage.service.app import Service


class _AnyId(PathConvertor):
    """`{user_id:id}`: ids with slashes; with line breaks, too, so that they are refused. In the framework's
    own `path` one at the end would get lost, and the request would mean another thing."""

    regex = "(?s:.*)"


register_url_convertor("id", _AnyId())

# Dependencies that only look something up are async: FastAPI runs others in a thread, one hop each.


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
Search = Annotated[
    str, Query(max_length=200, pattern=r"^[^\x00]*$", description="A part of the title or id.")
]
Limit = Annotated[int, Query(ge=1, le=500)]
_EVERYTHING = Where()
Offset = Annotated[int, Query(ge=0, lt=2**31)]


async def where_of_query(
    tags: Annotated[list[Tag], Query(max_length=100, description="At least one of these.")] = [],  # noqa: B006
    min_price: Annotated[Price | None, Query()] = None,
    max_price: Annotated[Price | None, Query()] = None,
    in_stock: Annotated[bool, Query(description="Only what can be sold.")] = False,
    exclude: Annotated[  # a URL may be only so long
        list[Id], Query(max_length=100, description="None of these ids; POST /v1/recommend takes more.")
    ] = [],  # noqa: B006
) -> Where:
    return Where(tags=tags, min_price=min_price, max_price=max_price, in_stock=in_stock, exclude=exclude)


WhereOfQuery = Annotated[Where, Depends(where_of_query)]


def filter_of(where: Where) -> Filter | None:
    """The filter of a request; None without conditions, so that all such requests share one batch."""
    return None if where == _EVERYTHING else Filter(**where.model_dump())


def owned_of(someone: UserOrHistory) -> Owned | None:
    """The history in a request, each id once; None for a user whose history the store keeps."""
    if someone.history is None:
        return None
    items, bundles = someone.history.items, someone.history.bundles
    return Owned(tuple(dict.fromkeys(items)), tuple(dict.fromkeys(bundles)))


def unknown(kind: str, name: str) -> ApiError:
    return ApiError(404, f"No such {kind}", f"There is no {kind} {name!r}: PUT /v1/{kind}s/ID adds one.")


async def bundles_for(
    service: Service, request_id: str, someone: Filtered, k: int, *, details: bool
) -> BundlesFor:
    told = await _told(service, request_id, someone, k, None)
    live = told.serving.live
    bundles = tuple(ranked_bundle(answer, live, details=details) for answer in told.recommendations)
    return BundlesFor(**about(told.serving, request_id, someone, told.known), bundles=bundles)


async def items_for(
    service: Service, request_id: str, someone: Filtered, partial: tuple[str, ...], k: int
) -> ItemsFor:
    told = await _told(service, request_id, someone, k, partial)
    items = tuple(ranked_item(answer, told.serving.live) for answer in told.recommendations)
    return ItemsFor(**about(told.serving, request_id, someone, told.known), items=items)


async def _told(
    service: Service, request_id: str, someone: Filtered, k: int, partial: tuple[str, ...] | None
) -> Answer:
    """An answer, counted and remembered."""
    begun = time.perf_counter()
    user = owned_of(someone) if someone.user_id is None else someone.user_id
    question = Question(user or Owned(), k, filter_of(someone.where), someone.include_owned, partial)
    told = await service.answerer.ask(question)
    found = told.recommendations
    service.metrics.answered(time.perf_counter() - begun, Counter(answer.source for answer in found))
    service.answerer.shown(
        Served(
            request_id,
            "bundles" if partial is None else "items",
            someone.user_id,
            told.serving.record.version,
            tuple(answer.id for answer in found),
            datetime.now(UTC),
        )
    )
    return told


def about(serving: Serving, request_id: str, someone: UserOrHistory, known: Known) -> dict[str, Any]:
    """What every answer for someone says of itself."""
    return {
        "request_id": request_id,
        "model_version": serving.record.version,
        "user_id": someone.user_id,
        "history": known,
    }
