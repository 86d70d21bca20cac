"""Routes for designed bundles, explanations, and forecasts for bundles that do not exist yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from fastapi import APIRouter, Request

from bundlemage.campaigns.estimates import randomly_chosen
from bundlemage.live import Live
from bundlemage.progress import Progress
from bundlemage.service.answerer import check_catalogue
from bundlemage.service.problems import impossible_design, newer_than_the_model
from bundlemage.service.routes.common import RequestId, TheService, about, allow, check_known_items, owned_of
from bundlemage.store.records import Owned
from bundlemage.store.repository import Store
from bundlemage.wire.design import DesignIn
from bundlemage.wire.design_answers import DesignedItem, DesignsFor, Explained, ExplanationsFor, ForecastOut
from bundlemage.wire.requests import ExplainIn, ScoreIn, UserOrHistory

router = APIRouter(prefix="/v1", tags=["design"])
USERS_AT_A_TIME = 500
"""The number of users that are read from the store at a time. In between, other requests get their turn."""
IDS_AT_A_TIME = 10_000
"""The number of ids of users that are read from the store at a time."""
IN_A_DESIGN = 10
"""Maximum number of reasons for each item of a design. It is small because a design has many items."""
IN_AN_EXPLANATION = 100
"""Maximum number of reasons in an explanation."""


@router.post("/design", **allow("read", 409, 413, 504, also={422: impossible_design()}))
async def design(body: DesignIn, service: TheService, request_id: RequestId, request: Request) -> DesignsFor:
    """Design whole bundles for a user. Each meets all conditions, and has a price, a score and reasons.

    This may take up to 'time_limit' seconds. If no bundle is possible, 'conflict' in the answer is the
    smallest set of conditions that exclude each other, and 'changes' lists ways to make a bundle possible.
    """

    def work(live: Live, progress: Progress) -> DesignsFor:
        needed = (*body.start, *body.must)
        check_catalogue(live, items=(*needed, *body.costs))
        _check_in_model(live, needed)
        owned = _owned(live, service.store, body)
        # Items that are newer than the model are never added, so their costs do not matter.
        costs = {name: cost for name, cost in body.costs.items() if live.in_model(name)}
        designs = live.design(
            owned,
            body.model_copy(update={"costs": costs}),
            users=partial(_some_users, service.store),
            progress=progress,
        )
        bundles = tuple(
            design.model_copy(update={"items": tuple(map(_shortened, design.items))}) for design in designs
        )
        facts = about(request_id, live, body, live.known_of(owned))
        return DesignsFor(**{**vars(designs), "bundles": bundles}, **facts)

    return await service.at_length("design", request, work)


@router.post("/explain", **allow("read", 409, 413, 504))
async def explain(
    body: ExplainIn, service: TheService, request_id: RequestId, request: Request
) -> ExplanationsFor:
    """Explain why bundles fit a user, or why an item fits a bundle.

    The model scores again without each item and bundle of the user's history in turn.
    """

    def work(live: Live, progress: Progress) -> ExplanationsFor:
        names = list(dict.fromkeys(body.bundles or ()))
        explained = () if body.item is None else (body.item,)
        check_catalogue(live, items=(*explained, *body.items), bundles=names)
        _check_in_model(live, explained)
        for name in names:
            check_known_items(live, live.stock.bundles[name])
        owned = _owned(live, service.store, body)
        if body.item is None:
            reasons = live.explain_bundles(owned, names, progress=progress)
            titles = [live.stock.bundles[name].title for name in names]
        else:
            reasons = [live.explain(owned, item=body.item, items=body.items)]
            names, titles = [body.item], [live.stock.items[body.item].title]
        explanations = tuple(
            Explained(id=name, title=title, why=why.shortened(IN_AN_EXPLANATION))
            for name, title, why in zip(names, titles, reasons, strict=True)
        )
        facts = about(request_id, live, body, live.known_of(owned))
        return ExplanationsFor(**facts, explanations=explanations)

    return await service.at_length("explain", request, work)


@router.post("/bundles:score", **allow("read", 409, 413, 504))
async def score(body: ScoreIn, service: TheService, request_id: RequestId, request: Request) -> ForecastOut:
    """Forecast how many and which users would take a new bundle, and which item would improve it.

    All users with a history are considered. The price does not affect the number of buyers, only the revenue.
    In a large shop this takes minutes: GET /v1/work says how far it is. To cancel it, close the connection.
    """

    def work(live: Live, progress: Progress) -> ForecastOut:
        check_catalogue(live, items=body.items)
        _check_in_model(live, body.items)
        forecast = live.score_bundle(
            body.items,
            body.price,
            discount=body.discount,
            k=body.k,
            users=partial(everyone, service.store),
            count=service.store.user_count(),
            progress=progress,
        )
        version = live.record.version
        return ForecastOut(**vars(forecast), request_id=request_id, model_version=version)

    return await service.at_length("forecast", request, work)


def everyone(store: Store) -> Iterator[Mapping[str, Owned]]:
    """Yields the histories of all users in the store, page by page: user id → history."""
    after = ""
    while users := store.user_ids(USERS_AT_A_TIME, after):
        after = users[-1]
        yield store.histories(users, in_order=False)


def _some_users(store: Store) -> tuple[list[Owned], int]:
    """Returns the histories of a random sample of the users, and the number of all users.

    The ids of all users are read, which takes about a second per million. Only users who are in the store now
    are sampled: the model's training users may have been erased since.
    """
    count = store.user_count()
    places, names = set(randomly_chosen(count).tolist()), list[str]()
    number, after = 0, ""
    while users := store.user_ids(IDS_AT_A_TIME, after):
        names += (name for place, name in enumerate(users, start=number) if place in places)
        number, after = number + len(users), users[-1]
    return list(store.histories(names).values()), count


def _shortened(item: DesignedItem) -> DesignedItem:
    return item if item.why is None else item.model_copy(update={"why": item.why.shortened(IN_A_DESIGN)})


def _owned(live: Live, store: Store, request: UserOrHistory) -> Owned:
    if request.user_id is not None:
        return store.histories([request.user_id])[request.user_id]
    owned = owned_of(request) or Owned()
    check_catalogue(live, owned.items, owned.bundles)
    return owned


def _check_in_model(live: Live, items: Sequence[str]) -> None:
    for name in items:
        if not live.in_model(name):
            raise newer_than_the_model(f"the item {name!r} is")
