"""Routes about users: their histories and their interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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
from bundlemage.store.records import Bundle, Entry, InteractionRecord, InteractionsRecord, Item
from bundlemage.wire.answers import FieldError, TakenBundle, TakenItem, UserOut, UserPage, Written
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
    """The items and bundles that a user bought, looked at or rejected."""

    def work(live: Live) -> UserOut:
        store, stock = service.answerer.own_store, live.stock
        items, bundles = (store.entries(kind, user_id) for kind in ("item", "bundle"))
        if not items and not bundles:
            raise ApiError(404, "No such user", f"the user {user_id!r} has no items and no bundles yet")

        def item(entry: Entry) -> TakenItem:
            found = stock.items.get(entry.thing_id) or Item(entry.thing_id)
            return TakenItem(**vars(item_out(found, live, costs)), **_taken(entry))

        def bundle(entry: Entry) -> TakenBundle:
            found = stock.bundles.get(entry.thing_id) or Bundle(entry.thing_id, ())
            return TakenBundle(**vars(bundle_out(found, live)), **_taken(entry))

        return UserOut(id=user_id, items=tuple(map(item, items)), bundles=tuple(map(bundle, bundles)))

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
    """Record all interactions on disk, or none if there is an error. They affect the next answer.

    One interaction counts for each user and item or bundle: the strongest. A later rejection takes its place
    until there is a later purchase or view. What changes nothing is counted as known.
    """
    types = service.answerer.serving.event_weights
    records = [_record(each, number, types) for number, each in enumerate(body.interactions)]
    recorded = await service.writer.write(InteractionsRecord(records, idempotency_key, principal.caller))
    if recorded.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    else:
        service.metrics.wrote(recorded.new)
    return Written(**vars(recorded), request_id=request_id)


def _record(interaction: InteractionIn, number: int, types: Mapping[str, float]) -> InteractionRecord:
    """Returns the record of an interaction. `types` are the types of events that the model has learned."""
    thing = interaction.item_id or interaction.bundle_id
    assert thing is not None
    kind: Literal["item", "bundle"] = "bundle" if interaction.item_id is None else "item"
    event, weight = interaction.event, -1.0 if interaction.rejected else interaction.weight
    if event is not None:
        weight = types.get(event)
        if not weight:
            raise _unknown_type(f"interactions[{number}].event", event, types)
    facts = (interaction.at, interaction.request_id, weight, event)
    return InteractionRecord(interaction.user_id, kind, thing, *facts)


def _unknown_type(field: str, event: str, types: Mapping[str, float]) -> ApiError:
    """The refusal of a type of event that the model has not learned, or that counts for nothing."""
    known = [name for name, weight in types.items() if weight]
    if event in types:
        message = (
            f"is {event!r}, which has the weight 0 in the serving model, so it says nothing: leave it out"
        )
    elif known:
        message = f"is {event!r}; expected one of {', '.join(map(repr, known))}, or 'weight' instead"
    else:
        message = (
            f"is {event!r}, but the serving model was trained without types of events. Give 'weight', such "
            "as 0.2, or 'rejected' instead, or train with --events view=0.2,buy=1,return=-1"
        )
    errors = [FieldError(field=field, message=message)]
    return ApiError(422, "Invalid request", f"{field}: {message}", errors=errors)


def _taken(entry: Entry) -> dict[str, Any]:
    """The fields of an answer that say how a user took something."""
    rejected = entry.weight < 0
    weight = None if rejected else entry.weight
    return {"at": entry.at, "weight": weight, "event": entry.event, "rejected": rejected}
