"""Routes about users: their histories and their interactions."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from bundlemage.live import Live
from bundlemage.service.problems import ApiError, responses
from bundlemage.service.routes.common import (
    RequestId,
    SeesCosts,
    TheService,
    UserId,
    allow,
    bundle_out,
    item_out,
)
from bundlemage.service.security import Writer
from bundlemage.store.records import Bundle, InteractionRecord, InteractionsRecord, Item
from bundlemage.wire.answers import UserOut, UserPage, Written
from bundlemage.wire.requests import ID_PATTERN, InteractionIn, InteractionsIn

router = APIRouter(prefix="/v1", tags=["users"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A unique text that you choose for each request. If you send a request again with the "
        "same key, it is not carried out again, and you get the first answer.",
        examples=["order-4711"],
    ),
]


@router.get("/users", **allow("read"))
def users(
    service: TheService,
    search: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Only ids that begin with this text.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    after: Annotated[
        str,
        Query(max_length=200, pattern=rf"^({ID_PATTERN})?$", description="The 'next' of the previous page."),
    ] = "",
) -> UserPage:
    """The users who have a history, ordered by id."""
    page = service.store.users(search, limit, after)
    following = page[-1].id if len(page) == limit else None
    return UserPage(users=tuple(page), next=following)


@router.get("/users/{user_id:id}", **allow("read", 404))
async def user(user_id: UserId, service: TheService, costs: SeesCosts) -> UserOut:
    """The items and bundles that a user has."""

    def work(live: Live) -> UserOut:
        owned = service.answerer.own_store.histories([user_id])[user_id]
        if not owned.items and not owned.bundles:
            raise ApiError(404, "No such user", f"the user {user_id!r} has no items and no bundles yet")
        items = (live.stock.items.get(name) or Item(name) for name in owned.items)
        bundles = (live.stock.bundles.get(name) or Bundle(name, ()) for name in owned.bundles)
        return UserOut(
            id=user_id,
            items=tuple(item_out(item, live, costs) for item in items),
            bundles=tuple(bundle_out(bundle, live) for bundle in bundles),
        )

    return await service.answerer.on_live(work)


@router.delete("/users/{user_id:id}", status_code=204, **allow("write", 404))
def erase(user_id: UserId, service: TheService) -> None:
    """Erase all stored data about a user. (A trained model keeps what it has learned from these data.)"""
    service.answerer.write_shown()  # otherwise recent answers to the user would be written later
    if not service.store.erase_user(user_id):
        raise ApiError(404, "No such user", f"nothing is stored about the user {user_id!r}")


@router.post("/interactions", responses=responses(401, 403, 404, 413, 429, 503))
async def interactions(
    body: InteractionsIn,
    service: TheService,
    request_id: RequestId,
    response: Response,
    principal: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Written:
    """Record all interactions on disk, or none if there is an error. They affect the next answer."""
    records = [_record(interaction) for interaction in body.interactions]
    recorded = await service.writer.write(InteractionsRecord(records, idempotency_key, principal.caller))
    if recorded.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    else:
        service.metrics.wrote(recorded.new)
    return Written(**vars(recorded), request_id=request_id)


def _record(interaction: InteractionIn) -> InteractionRecord:
    thing = interaction.item_id or interaction.bundle_id
    assert thing is not None
    kind: Literal["item", "bundle"] = "bundle" if interaction.item_id is None else "item"
    return InteractionRecord(interaction.user_id, kind, thing, interaction.at, interaction.request_id)
