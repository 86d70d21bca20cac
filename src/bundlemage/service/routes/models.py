"""Routes about models: which one serves, how good and how fast it is, and how to change it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from bundlemage.live import Live, record_of
from bundlemage.service.problems import ApiError
from bundlemage.service.routes.common import TheService, allow
from bundlemage.store.records import ServedSummary
from bundlemage.store.repository import AnyModel
from bundlemage.wire.answers import Exposure, Insights, ModelLine, Models, Reloaded, ServedOut, ServingModel
from bundlemage.wire.requests import ReloadIn

if TYPE_CHECKING:
    from bundlemage.service.app import Service

router = APIRouter(prefix="/v1", tags=["models"])
DAYS_OF_INSIGHT = 7
MOST_EXPOSURES = 2000
"""Maximum number of bundles in /insights. A chart cannot show more."""


@router.get("/models", **allow("read"))
async def models(service: TheService) -> Models:
    """All models that were ever published, the newest first."""
    serving = (await service.now()).record.version
    published, failed = await run_in_threadpool(service.store.models), service.answerer.failed
    models = tuple(
        ModelLine(**vars(record), serving=record.version == serving, problem=failed.get(record.version))
        for record in published
    )
    return Models(serving=serving, models=models)


@router.post("/models/reload", **allow("admin", 404, 409, 413))
async def reload(service: TheService, body: ReloadIn | None = None) -> Reloaded:
    """Load the model from its folder again, or serve an earlier version. No request fails meanwhile.

    Without a version, it is refused (409) if another model was published since this one began to serve."""
    answerer = service.answerer
    before = answerer.serving.record
    version = body.version if body else None

    def load() -> None:
        record = record_of(Path(before.path)) if version is None else service.store.model(version)
        if record is None:
            detail = f"there is no model {version!r}: GET /v1/models lists all models"
            raise ApiError(404, "No such model", detail)
        # What another process has published meanwhile stays, unless the caller names a version.
        answerer.load(record, instead_of=before.version if version is None else AnyModel.ANY)

    await run_in_threadpool(load)
    serving = (await service.now()).record.version
    return Reloaded(serving=serving, previous=before.version, changed=serving != before.version)


@router.get("/insights", response_model=Insights, **allow("read"))
async def insights(service: TheService) -> Response:
    """The model's quality, each bundle's share of sales and of answers, and the response times.

    A result is reused for one second."""

    async def compute() -> bytes:
        return await run_in_threadpool(_insights, service, await service.now())

    return Response(await service.insights.result(compute), media_type="application/json")


def _insights(service: Service, live: Live) -> bytes:
    since = datetime.now(UTC) - timedelta(days=DAYS_OF_INSIGHT)
    service.answerer.write_shown()
    served = service.store.served_since(since)
    exposures = _exposures(live, served)
    found = Insights(
        model=_described(live),
        popularity=exposures[:MOST_EXPOSURES],
        left_out=len(exposures[MOST_EXPOSURES:]),
        latency=service.metrics.latency(),
        served=ServedOut(since=served.cut_at or since, answers=served.answers, taken=served.taken),
    )
    return found.model_dump_json().encode()


def _described(live: Live) -> ServingModel:
    recommender = live.recommender
    return ServingModel(
        version=live.record.version,
        name=recommender.model_name,
        title=recommender.model.title,
        trained_on=recommender.dataset.name,
        metrics=recommender.metrics,
        history=tuple(record.to_json() for record in recommender.history),
    )


def _exposures(live: Live, served: ServedSummary) -> tuple[Exposure, ...]:
    """The bundles on sale with their shares of sales and of answers. The largest share comes first."""
    sold, shown = sum(live.sales.bundles.values()) or 1, sum(served.shown.values()) or 1
    exposures = [
        Exposure(
            id=bundle.id,
            title=bundle.title,
            sales_share=live.sales.bundles.get(bundle.id, 0) / sold,
            shown_share=served.shown.get(bundle.id, 0) / shown,
        )
        for bundle in live.stock.bundles.values()
        if not bundle.withdrawn
    ]
    return tuple(sorted(exposures, key=lambda each: (-max(each.sales_share, each.shown_share), each.id)))
