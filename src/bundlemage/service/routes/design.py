"""Routes for designed bundles and explanations."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from bundlemage.campaigns.sample import SAMPLE
from bundlemage.live import Live
from bundlemage.progress import Progress
from bundlemage.service.answerer import check_catalogue, histories_of
from bundlemage.service.problems import impossible_design
from bundlemage.service.routes.common import (
    RequestId,
    SeesCosts,
    TheService,
    about,
    allow,
    check_in_model,
    check_known_items,
    owned_of,
)
from bundlemage.store.records import Owned
from bundlemage.store.repository import Store
from bundlemage.wire.design import DesignIn
from bundlemage.wire.design_answers import DesignedItem, DesignsFor, Explained, ExplanationsFor
from bundlemage.wire.requests import ExplainIn, UserOrHistory

router = APIRouter(prefix="/v1", tags=["design"])
IN_A_DESIGN = 10
"""Maximum number of reasons for each item of a design. It is small because a design has many items."""
IN_AN_EXPLANATION = 100
"""Maximum number of reasons in an explanation."""


@router.post("/design", **allow("read", 409, 413, 504, also={422: impossible_design()}))
async def design(
    body: DesignIn, service: TheService, request_id: RequestId, request: Request, own_costs: SeesCosts
) -> DesignsFor:
    """Design whole bundles for a user. Each meets all conditions, and has a price, a score and reasons.

    This may take up to 'time_limit' seconds. If no bundle is possible, 'conflict' in the answer has
    conditions that exclude each other, 'smallest' says whether it is the smallest such set, and 'changes'
    lists ways to make a bundle possible.
    """

    def work(live: Live, progress: Progress) -> DesignsFor:
        needed = (*body.start, *body.must)
        check_catalogue(live, items=(*needed, *body.costs))
        check_in_model(live, needed)
        owned = _owned(live, service.store, body)
        # Items that are newer than the model are never added, so their costs do not matter.
        costs = {name: cost for name, cost in body.costs.items() if live.in_model(name)}
        asked = body.model_copy(update={"costs": costs})
        # A request whose costs are all of newer items has costs, too: the catalogue's do not replace them.
        own = own_costs and not body.costs
        users = partial(_some_users, live, service.store)
        designs = live.design(owned, asked, users=users, progress=progress, own_costs=own)
        shortened = partial(_shortened, most=IN_A_DESIGN * body.details)
        bundles = tuple(
            design.model_copy(update={"items": tuple(map(shortened, design.items))}) for design in designs
        )
        facts = about(request_id, live, body, live.known_of(owned))
        return DesignsFor(**{**vars(designs), "bundles": bundles}, **facts)

    return await service.at_length("design", request, work)


@router.post("/explain", **allow("read", 409, 413, 504))
async def explain(
    body: ExplainIn, service: TheService, request_id: RequestId, request: Request
) -> ExplanationsFor:
    """Explain why bundles fit a user, or why an item fits a bundle.

    Each explanation is one sentence, and its evidence as codes. With details=true it has the numbers, too:
    the model scores again without each item and bundle of the user's history in turn.
    """

    def work(live: Live, progress: Progress) -> ExplanationsFor:
        names = list(dict.fromkeys(body.bundles or ()))
        explained = () if body.item is None else (body.item,)
        check_catalogue(live, items=(*explained, *body.items), bundles=names)
        check_in_model(live, explained)
        for name in names:
            check_known_items(live, live.stock.bundles[name])
        owned = _owned(live, service.store, body)
        words: Any = {"language": body.language, "to": body.to}
        if body.item is None:
            reasons = live.explain_bundles(owned, names, **words, progress=progress)
            titles = [live.stock.bundles[name].title for name in names]
        else:
            reasons = [live.explain(owned, item=body.item, items=body.items, **words)]
            names, titles = [body.item], [live.stock.items[body.item].title]
        explanations = tuple(
            Explained(id=name, title=title, why=why.shortened(IN_AN_EXPLANATION * body.details))
            for name, title, why in zip(names, titles, reasons, strict=True)
        )
        facts = about(request_id, live, body, live.known_of(owned))
        return ExplanationsFor(**facts, explanations=explanations)

    return await service.at_length("explain", request, work)


def _some_users(live: Live, store: Store) -> tuple[list[Owned], int]:
    """Returns the histories of a random sample of the users, and the number of all users. Only users who are
    in the store now are sampled: the model's training users may have been erased since."""
    names, count = store.sample_of_users(SAMPLE)
    return list(histories_of(live, store, names).values()), count


def _shortened(item: DesignedItem, most: int) -> DesignedItem:
    return item if item.why is None else item.model_copy(update={"why": item.why.shortened(most)})


def _owned(live: Live, store: Store, request: UserOrHistory) -> Owned:
    if request.user_id is not None:
        return histories_of(live, store, [request.user_id])[request.user_id]
    owned = owned_of(request) or Owned()
    check_catalogue(live, owned.items, owned.bundles)
    return owned
