"""Bundles that are designed, reasons, and the audience of a bundle that does not exist yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request

from bundlemage.errors import BundleMageError, BusyError
from bundlemage.live import Live
from bundlemage.service.answers import Known
from bundlemage.service.design_answers import (
    IN_AN_EXPLANATION,
    DesignsFor,
    Explained,
    ExplanationsFor,
    ForecastOut,
    designs_out,
    forecast_out,
    why_out,
)
from bundlemage.service.design_questions import DesignIn, ExplainIn, ScoreIn
from bundlemage.service.engine import Ask, Serving, _unknown
from bundlemage.service.problems import ApiError, newer_than_the_model, responses, with_impossible
from bundlemage.service.questions import Person
from bundlemage.service.routes.common import RequestId, TheService
from bundlemage.service.security import require
from bundlemage.store.records import Owned
from bundlemage.store.repository import Store

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
    brief = body.brief()

    def work(serving: Serving) -> DesignsFor:
        live = serving.live
        needed = (*brief.start, *brief.must)
        _check_catalogue(live, items=(*needed, *brief.costs))
        _check_in_model(live, needed)
        owned = _owned(live, service.store, body)
        # What is newer than the model is added to no bundle, so what it costs does not matter.
        costs = {name: cost for name, cost in brief.costs.items() if live.in_model(name)}
        try:
            found = live.design(owned, replace(brief, costs=costs))
        except BundleMageError as error:
            # The search gave up. That is no fault of the service, and the same again would end no better.
            if type(error) in (BundleMageError, BusyError):
                raise ApiError(422, "No bundle in time", str(error)) from error
            raise
        return designs_out(found, _of(serving, owned, request_id, body))

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
        _check_catalogue(live, items=(*one, *body.items), bundles=names)
        _check_in_model(live, one)
        for name in names:
            if not any(map(live.in_model, live.stock.bundles[name].items)):
                raise newer_than_the_model(f"all items of the bundle {name!r} are")
        owned = _owned(live, service.store, body)
        if body.item is None:
            found = live.explain_bundles(owned, names)
            titles = [live.stock.bundles[name].title for name in names]
        else:
            found = [live.explain_item(owned, body.item, body.items)]
            names, titles = [body.item], [live.stock.items[body.item].title]
        explanations = [
            Explained(id=name, title=title, why=why_out(why, IN_AN_EXPLANATION))
            for name, title, why in zip(names, titles, found, strict=True)
        ]
        return ExplanationsFor(**_of(serving, owned, request_id, body), explanations=explanations)

    return await service.at_length(work, request.is_disconnected)


@router.post("/bundles:score", responses=REFUSALS)
async def score(body: ScoreIn, service: TheService, request_id: RequestId, request: Request) -> ForecastOut:
    """Who would take a bundle that does not exist yet: how many, which people, and what would make them more.

    Asked are all users who have anything now. The model does not know of prices: a price turns buyers into
    takings.
    """

    def work(serving: Serving) -> ForecastOut:
        live = serving.live
        _check_catalogue(live, items=body.items)
        _check_in_model(live, body.items)
        found = live.score_bundle(
            everyone(service.store), body.items, price=body.price, discount=body.discount, k=body.k
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


def _owned(live: Live, store: Store, someone: Person) -> Owned:
    if someone.user_id is not None:
        return store.histories([someone.user_id])[someone.user_id]
    owned = someone.owned or Owned()
    _check_catalogue(live, owned.items, owned.bundles)
    return owned


def _check_catalogue(live: Live, items: Sequence[str] = (), bundles: Sequence[str] = ()) -> None:
    """As of what comes along with a recommendation: a typo is not passed over."""
    unknown = _unknown(live, Ask(None, Owned(tuple(items), tuple(bundles)), 0, None, False))
    if unknown is not None:
        raise unknown


def _check_in_model(live: Live, items: Sequence[str]) -> None:
    for name in items:
        if not live.in_model(name):
            raise newer_than_the_model(f"the item {name!r} is")


def _of(serving: Serving, owned: Owned, request_id: str, someone: Person) -> dict[str, Any]:
    """What an answer for someone says of itself."""
    live = serving.live
    items = sum(map(live.in_model, owned.items))
    held = (live.stock.bundles.get(name) for name in owned.bundles)
    bundles = sum(bundle is not None and any(map(live.in_model, bundle.items)) for bundle in held)
    newer = len(owned.items) + len(owned.bundles) - items - bundles
    return {
        "request_id": request_id,
        "model_version": serving.record.version,
        "user_id": someone.user_id,
        "history": Known(items=items, bundles=bundles, not_in_model=newer),
    }
