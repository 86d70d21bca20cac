"""Who the users are, what they have, and what they take."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from bundlemage.service.answerer import Serving
from bundlemage.service.answers import bundle_out, item_out
from bundlemage.service.problems import ApiError, responses
from bundlemage.service.routes.common import Limit, RequestId, TheService, UserId
from bundlemage.service.security import Writer, require
from bundlemage.store.records import Bundle, InteractionRecord, Item
from bundlemage.wire.answers import UserLine, UserOut, UserPage, Written
from bundlemage.wire.requests import ID_PATTERN, InteractionIn, InteractionsIn

router = APIRouter(prefix="/v1", tags=["users"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A text of your own, new for each request. Sent again with the same key, a request is "
        "not carried out again: the first answer comes back.",
        examples=["order-4711"],
    ),
]


@router.get("/users", dependencies=[Depends(require("read"))], responses=responses(401, 403, 422, 429, 503))
def users(
    service: TheService,
    search: Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="How ids begin.")] = "",
    limit: Limit = 50,
    after: Annotated[
        str, Query(max_length=200, pattern=rf"^({ID_PATTERN})?$", description="An answer's 'next'.")
    ] = "",
) -> UserPage:
    """The users who have anything, in the order of their ids."""
    page = service.store.users(search, limit, after)
    following = page[-1].id if len(page) == limit else None
    return UserPage(users=tuple(map(UserLine.model_validate, page)), next=following)


@router.get(
    "/users/{user_id:id}",
    dependencies=[Depends(require("read"))],
    responses=responses(401, 403, 404, 422, 429, 503),
)
async def user(user_id: UserId, service: TheService) -> UserOut:
    """What a user has."""

    def work(serving: Serving) -> UserOut:
        live, owned = serving.live, service.store.histories([user_id])[user_id]
        if not owned.items and not owned.bundles:
            raise ApiError(
                404, "No such user", f"the user {user_id!r} has nothing yet, so nothing is known of them"
            )
        stock = live.stock
        return UserOut(
            id=user_id,
            items=tuple(item_out(stock.items.get(name) or Item(name), live) for name in owned.items),
            bundles=tuple(
                bundle_out(stock.bundles.get(name) or Bundle(name, ()), live) for name in owned.bundles
            ),
        )

    return await service.answerer.on_live(work)


@router.delete(
    "/users/{user_id:id}",
    status_code=204,
    dependencies=[Depends(require("write"))],
    responses=responses(401, 403, 404, 422, 429, 503),
)
def erase(user_id: UserId, service: TheService) -> None:
    """Erase everything that is stored of a user. (A model that learned from it keeps what it learned.)"""
    service.answerer.write_shown()  # or what was served to them a moment ago would be written afterwards
    if not service.store.erase_user(user_id):
        raise ApiError(404, "No such user", f"nothing is stored of the user {user_id!r}")


@router.post("/interactions", responses=responses(401, 403, 404, 413, 422, 429, 503))
def interactions(
    body: InteractionsIn,
    service: TheService,
    request_id: RequestId,
    response: Response,
    principal: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Written:
    """Who took what; all of it or nothing. On disk when answered, and in the very next recommendation."""
    recorded = service.store.add_interactions(
        [_interaction(each) for each in body.interactions],
        idempotency_key=idempotency_key,
        caller=principal.caller,
    )
    if recorded.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    else:
        service.metrics.wrote(recorded.new)
    return Written(**vars(recorded), request_id=request_id)


def _interaction(given: InteractionIn) -> InteractionRecord:
    kind, thing = ("item", given.item_id) if given.item_id is not None else ("bundle", given.bundle_id)
    assert thing is not None
    return InteractionRecord(
        given.user_id, "item" if kind == "item" else "bundle", thing, given.at, given.request_id
    )
