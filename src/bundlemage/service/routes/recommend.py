"""Routes for recommendations: bundles for a user, items for a bundle, similar bundles."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from bundlemage.core.shop import Recommendation
from bundlemage.live import Live
from bundlemage.service.answerer import histories_of
from bundlemage.service.routes.common import (
    BundleId,
    HowMany,
    RequestId,
    TheService,
    UserId,
    WhereOfQuery,
    about,
    allow,
    answer_to,
    check_known_items,
    filter_of,
    items_of,
    known,
)
from bundlemage.wire.answers import BundlesFor, Gate, ItemsFor, RankedBundle, RankedItem, SimilarBundles
from bundlemage.wire.requests import CompleteIn, RecommendIn
from bundlemage.wire.shop import OwnedRule, StockRule, Weight

router = APIRouter(prefix="/v1", tags=["recommendations"])
Details = Annotated[bool, Query(description="Whether each bundle lists its items.")]


def ranked_bundle(answer: Recommendation, live: Live, *, details: bool) -> RankedBundle:
    """A recommended bundle. With `details`, its items are listed."""
    bundle = live.stock.bundles[answer.id]
    facts = {**vars(bundle), **vars(answer)}
    del facts["items"]  # a field that is not set is left out of the JSON
    if not facts["by_content"]:
        del facts["by_content"]
    if details:
        facts["items"] = items_of(bundle, live)
    return RankedBundle(**facts)


@router.get("/users/{user_id:id}/bundles", response_model_exclude_unset=True, **allow("read", 404, 409))
async def bundles_for_user(
    user_id: UserId,
    service: TheService,
    request_id: RequestId,
    where: WhereOfQuery,
    k: HowMany = 10,
    owned: Annotated[
        OwnedRule | None, Query(description=RecommendIn.model_fields["owned"].description)
    ] = None,
    stock: Annotated[
        StockRule | None, Query(description=RecommendIn.model_fields["stock"].description)
    ] = None,
    diversity: Annotated[
        Weight | None, Query(description=RecommendIn.model_fields["diversity"].description)
    ] = None,
    match_popularity: Annotated[
        Weight | None, Query(description=RecommendIn.model_fields["match_popularity"].description)
    ] = None,
    details: Details = False,
) -> BundlesFor:
    """The bundles that fit a user best. A user without a history gets the bundles that sell best."""
    body = RecommendIn(
        user_id=user_id,
        owned=owned,
        stock=stock,
        diversity=diversity,
        match_popularity=match_popularity,
        where=where,
        k=k,
        details=details,
    )
    return await recommend(body, service, request_id)


@router.post("/recommend", response_model_exclude_unset=True, **allow("read", 404, 409, 413))
async def recommend(body: RecommendIn, service: TheService, request_id: RequestId) -> BundlesFor:
    """The bundles that fit a user best. The request has the user's id or a history."""
    answer = await answer_to(body, body.k, None, service, request_id)
    live = answer.live
    bundles = tuple(ranked_bundle(each, live, details=body.details) for each in answer.recommendations)
    return BundlesFor(**about(request_id, answer.live, body, answer.known), bundles=bundles)


@router.post("/complete", **allow("read", 404, 409, 413))
async def complete(body: CompleteIn, service: TheService, request_id: RequestId) -> ItemsFor:
    """The items that best complete a bundle for a user. For an empty bundle: the best first items."""
    answer = await answer_to(body, body.k, tuple(dict.fromkeys(body.items)), service, request_id)
    stock = answer.live.stock.items
    items = tuple(RankedItem(**{**vars(stock[each.id]), **vars(each)}) for each in answer.recommendations)
    return ItemsFor(**about(request_id, answer.live, body, answer.known), items=items)


@router.get("/bundles/{bundle_id:id}/similar", response_model_exclude_unset=True, **allow("read", 404, 409))
async def similar(
    bundle_id: BundleId,
    service: TheService,
    request_id: RequestId,
    where: WhereOfQuery,
    k: HowMany = 10,
    details: Details = False,
) -> SimilarBundles:
    """The bundles that are most similar to a given bundle, according to the model."""

    def work(live: Live) -> SimilarBundles:
        check_known_items(live, known("bundle", bundle_id, live.stock.bundles))
        similar = live.similar(bundle_id, k, where=filter_of(where))
        bundles = tuple(ranked_bundle(each, live, details=details) for each in similar)
        return SimilarBundles(request_id=request_id, model_version=live.record.version, bundles=bundles)

    return await service.answerer.on_live(work)


@router.get("/users/{user_id:id}/gate", **allow("read", 404, 409))
async def gate(user_id: UserId, service: TheService, request_id: RequestId) -> Gate:
    """How much weight the model gives to a user's items and to their bundles."""

    def work(live: Live) -> Gate:
        share = live.gate(histories_of(live, service.answerer.own_store, [user_id])[user_id])
        return Gate(
            request_id=request_id,
            model_version=live.record.version,
            user_id=user_id,
            items=share,
            bundles=1 - share,
        )

    return await service.answerer.on_live(work)
