"""Bundles for a person, items for a bundle, bundles like a bundle."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from bundlemage.service.answerer import Serving
from bundlemage.service.answers import ranked_bundle
from bundlemage.service.problems import ApiError, responses
from bundlemage.service.routes.common import (
    BundleId,
    HowMany,
    RequestId,
    TheService,
    UserId,
    WhereOfQuery,
    bundles_for,
    filter_of,
    items_for,
    unknown,
)
from bundlemage.service.security import require
from bundlemage.wire.answers import BundlesFor, Gate, ItemsFor, SimilarBundles
from bundlemage.wire.requests import CompleteIn, Filtered, RecommendIn

router = APIRouter(prefix="/v1", dependencies=[Depends(require("read"))], tags=["recommendations"])


@router.get(
    "/users/{user_id:id}/bundles",
    response_model_exclude_unset=True,
    responses=responses(401, 403, 404, 409, 422, 429, 503),
)
async def bundles_for_user(
    user_id: UserId,
    service: TheService,
    request_id: RequestId,
    where: WhereOfQuery,
    k: HowMany = 10,
    include_owned: Annotated[bool, Query(description="Also what they have already.")] = False,
    details: Annotated[bool, Query(description="Each bundle with its items.")] = False,
) -> BundlesFor:
    """The bundles that fit a user best. Someone of whom nothing is known gets what sells best."""
    someone = Filtered(user_id=user_id, include_owned=include_owned, where=where)
    return await bundles_for(service, request_id, someone, k, details=details)


@router.post(
    "/recommend",
    response_model_exclude_unset=True,
    responses=responses(401, 403, 404, 409, 413, 422, 429, 503),
)
async def recommend(body: RecommendIn, service: TheService, request_id: RequestId) -> BundlesFor:
    """The bundles that fit a user, or anyone whose history comes along."""
    return await bundles_for(service, request_id, body, body.k, details=body.details)


@router.post("/complete", responses=responses(401, 403, 404, 409, 413, 422, 429, 503))
async def complete(body: CompleteIn, service: TheService, request_id: RequestId) -> ItemsFor:
    """The items that best complete a bundle for someone; with no items, how to begin one."""
    return await items_for(service, request_id, body, tuple(dict.fromkeys(body.items)), body.k)


@router.get(
    "/bundles/{bundle_id:id}/similar",
    response_model_exclude_unset=True,
    responses=responses(401, 403, 404, 409, 422, 429, 503),
)
async def similar(
    bundle_id: BundleId,
    service: TheService,
    request_id: RequestId,
    where: WhereOfQuery,
    k: HowMany = 10,
    details: Annotated[bool, Query(description="Each bundle with its items.")] = False,
) -> SimilarBundles:
    """The bundles that are most like one, as the model sees them."""

    def work(serving: Serving) -> SimilarBundles:
        live = serving.live
        bundle = live.stock.bundles.get(bundle_id)
        if bundle is None:
            raise unknown("bundle", bundle_id)
        if not any(map(live.in_model, bundle.items)):
            raise ApiError(
                409,
                "Not in the model",
                f"the bundle {bundle_id!r} has only items that are newer than the model, which therefore "
                "cannot compare it with others; 'bundlemage retrain' makes a model that can",
            )
        similar = live.similar(bundle_id, k, where=filter_of(where))
        bundles = tuple(ranked_bundle(answer, live, details=details) for answer in similar)
        return SimilarBundles(request_id=request_id, model_version=serving.record.version, bundles=bundles)

    return await service.answerer.on_live(work)


@router.get("/users/{user_id:id}/gate", responses=responses(401, 403, 404, 409, 422, 429, 503))
async def gate(user_id: UserId, service: TheService, request_id: RequestId) -> Gate:
    """How far a user's items and bundles each speak when the model mixes them."""

    def work(serving: Serving) -> Gate:
        share = serving.live.gate(service.store.histories([user_id])[user_id])
        return Gate(
            request_id=request_id,
            model_version=serving.record.version,
            user_id=user_id,
            items=share,
            bundles=1 - share,
        )

    return await service.answerer.on_live(work)
