"""Bundles that are designed, reasons, and the audience of a bundle that does not exist yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fastapi import APIRouter, Depends, Request

from bundlemage.live import Live
from bundlemage.service.answerer import Serving, check_catalogue
from bundlemage.service.answers import IN_AN_EXPLANATION, designs_out, forecast_out
from bundlemage.service.problems import newer_than_the_model, responses, with_impossible
from bundlemage.service.routes.common import RequestId, TheService, about, owned_of
from bundlemage.service.security import require
from bundlemage.store.records import Owned
from bundlemage.store.repository import Store
from bundlemage.wire.design import DesignIn
from bundlemage.wire.design_answers import DesignsFor, Explained, ExplanationsFor, ForecastOut
from bundlemage.wire.requests import ExplainIn, ScoreIn, UserOrHistory

router = APIRouter(prefix="/v1", dependencies=[Depends(require("read"))], tags=["design"])
REFUSALS = responses(401, 403, 409, 413, 422, 429, 503)
PEOPLE_AT_A_TIME = 2000
"""How many users are read from the store together."""


@router.post("/design", responses=with_impossible(REFUSALS))
async def design(body: DesignIn, service: TheService, request_id: RequestId, request: Request) -> DesignsFor:
    """Whole bundles for someone, which keep every condition, each with its price, score and reasons.

    It may take up to 'time_limit' seconds. Where no bundle is possible, the problem's 'conflict' names the
    smallest set of conditions that cannot hold together, and 'changes' what would make it possible.
    """

    def work(serving: Serving) -> DesignsFor:
        live = serving.live
        needed = (*body.start, *body.must)
        check_catalogue(live, items=(*needed, *body.costs))
        _check_in_model(live, needed)
        owned = _owned(live, service.store, body)
        # What is newer than the model is added to no bundle, so what it costs does not matter.
        costs = {name: cost for name, cost in body.costs.items() if live.in_model(name)}
        found = live.design(owned, body.model_copy(update={"costs": costs}))
        return designs_out(found, about(serving, request_id, body, serving.live.known_of(owned)))

    return await service.at_length(work, request.is_disconnected)


@router.post("/explain", responses=REFUSALS)
async def explain(
    body: ExplainIn, service: TheService, request_id: RequestId, request: Request
) -> ExplanationsFor:
    """Why bundles are for someone; or why an item, as an addition to others.

    Each thing that they have is left out in turn, and the model asked again.
    """

    def work(serving: Serving) -> ExplanationsFor:
        live = serving.live
        names = list(dict.fromkeys(body.bundles or ()))
        one = () if body.item is None else (body.item,)
        check_catalogue(live, items=(*one, *body.items), bundles=names)
        _check_in_model(live, one)
        for name in names:
            if not any(map(live.in_model, live.stock.bundles[name].items)):
                raise newer_than_the_model(f"all items of the bundle {name!r} are")
        owned = _owned(live, service.store, body)
        if body.item is None:
            found = live.explain_bundles(owned, names)
            titles = [live.stock.bundles[name].title for name in names]
        else:
            found = [live.explain(owned, item=body.item, items=body.items)]
            names, titles = [body.item], [live.stock.items[body.item].title]
        explanations = tuple(
            Explained(id=name, title=title, why=why.shortened(IN_AN_EXPLANATION))
            for name, title, why in zip(names, titles, found, strict=True)
        )
        return ExplanationsFor(
            **about(serving, request_id, body, serving.live.known_of(owned)), explanations=explanations
        )

    return await service.at_length(work, request.is_disconnected)


@router.post("/bundles:score", responses=REFUSALS)
async def score(body: ScoreIn, service: TheService, request_id: RequestId, request: Request) -> ForecastOut:
    """Who would take a bundle that does not exist yet: how many, which people, and what would make them more.

    Asked are all users who have anything now. The model does not know of prices: a price turns buyers into
    takings.
    """

    def work(serving: Serving) -> ForecastOut:
        live = serving.live
        check_catalogue(live, items=body.items)
        _check_in_model(live, body.items)
        found = live.score_bundle(
            body.items, body.price, discount=body.discount, k=body.k, users=everyone(service.store)
        )
        return forecast_out(found, {"request_id": request_id, "model_version": serving.record.version})

    return await service.at_length(work, request.is_disconnected)


def everyone(store: Store) -> Callable[[], Iterator[Mapping[str, Owned]]]:
    """The users whom the store has, with what they have: whoever was erased is not among them."""

    def pages() -> Iterator[Mapping[str, Owned]]:
        after = ""
        while found := store.users(limit=PEOPLE_AT_A_TIME, after=after):
            after = found[-1].id
            yield store.histories([user.id for user in found])

    return pages


def _owned(live: Live, store: Store, someone: UserOrHistory) -> Owned:
    if someone.user_id is not None:
        return store.histories([someone.user_id])[someone.user_id]
    owned = owned_of(someone) or Owned()
    check_catalogue(live, owned.items, owned.bundles)
    return owned


def _check_in_model(live: Live, items: Sequence[str]) -> None:
    for name in items:
        if not live.in_model(name):
            raise newer_than_the_model(f"the item {name!r} is")
