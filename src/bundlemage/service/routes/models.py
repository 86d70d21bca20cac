"""Routes about models: which one serves, how good and how fast it is, and how to change it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from bundlemage.live import Live, record_of
from bundlemage.progress import Progress
from bundlemage.service.problems import ApiError
from bundlemage.service.routes.common import RequestId, TheService, allow
from bundlemage.store.records import ServedSummary
from bundlemage.wire.answers import (
    Exposure,
    Insights,
    ModelLine,
    Models,
    MonthOut,
    Reloaded,
    ServedOut,
    ServingModel,
    ShopOut,
)
from bundlemage.wire.requests import ReloadIn

if TYPE_CHECKING:
    from bundlemage.service.app import Service

router = APIRouter(prefix="/v1", tags=["models"])
DAYS_OF_INSIGHT = 7
MOST_EXPOSURES = 2000
"""Maximum number of bundles in /insights. A chart cannot show more."""
MOST_MONTHS = 12
"""The number of months in /insights."""
BUNDLES_AT_A_TIME = 200
"""The number of bundles that are described at a time. In between, other requests get their turn."""


@router.get("/models", **allow("read"))
async def models(service: TheService) -> Models:
    """All models that were ever published, the newest first."""
    live = await service.now()
    serving, shop = live.record.version, ShopOut(**live.shop_settings.model_dump())
    published, failed = await run_in_threadpool(service.store.models), service.answerer.failed
    models = tuple(
        ModelLine(**vars(record), serving=record.version == serving, problem=failed.get(record.version))
        for record in published
    )
    return Models(serving=serving, shop=shop, models=models)


@router.post("/models/reload", **allow("admin", 404, 409, 413))
async def reload(service: TheService, body: ReloadIn | None = None) -> Reloaded:
    """Load the model from its folder again, or serve an earlier version. No request fails meanwhile.

    Without a version, it is refused (409) if another model was published since this one began to serve."""
    answerer = service.answerer
    before = answerer.serving.record
    version = body.version if body else None

    def load() -> None:
        if version is None:  # what another process has published meanwhile stays
            answerer.load(record_of(Path(before.path)), instead_of=before.version)
            return
        record = service.store.model(version)
        if record is None or not answerer.load(record):  # a retraining may remove it while it is loaded
            detail = f"there is no model {version!r}: GET /v1/models lists all models"
            raise ApiError(404, "No such model", detail)

    await run_in_threadpool(load)
    serving = (await service.now()).record.version
    return Reloaded(serving=serving, previous=before.version, changed=serving != before.version)


@router.get("/insights", response_model=Insights, **allow("read", 504))
async def insights(service: TheService, request_id: RequestId) -> Response:
    """The model's quality, each bundle's share of sales and of answers, and the response times.

    A result is reused for one second."""

    async def compute() -> bytes:
        live = await service.now()
        # The result is for all who ask, so the work goes on if the first of them leaves.
        nobody_leaves = asyncio.Event().wait()
        work = partial(_insights, service, live)
        return await service.lanes.run("insights", request_id, work, nobody_leaves)

    return Response(await service.insights.result(compute), media_type="application/json")


def _insights(service: Service, live: Live, progress: Progress) -> bytes:
    since = datetime.now(UTC) - timedelta(days=DAYS_OF_INSIGHT)
    service.answerer.write_shown()
    served = service.store.served_since(since)
    popularity, left_out = _exposures(live, served, progress)
    found = Insights(
        model=_described(live),
        popularity=popularity,
        left_out=left_out,
        latency=service.metrics.latency(),
        served=ServedOut(since=served.cut_at or since, answers=served.answers, taken=served.taken),
        months=tuple(
            MonthOut(month=month, purchases=purchases)
            for month, purchases in list(live.sales.by_month.items())[-MOST_MONTHS:]
        ),
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


def _exposures(live: Live, served: ServedSummary, progress: Progress) -> tuple[tuple[Exposure, ...], int]:
    """The bundles on sale with the largest shares of sales and of answers, and how many others there are.

    `progress` is called often: between its calls other requests have to wait (see `lanes`)."""
    names = sorted(bundle.id for bundle in live.stock.bundles.values() if not bundle.withdrawn)
    progress("bundles", 0, len(names))
    sales_shares = _shares(names, live.sales.bundles)
    progress("bundles", 0, len(names))
    shown_shares = _shares(names, served.shown)
    largest_first = np.argsort(-np.maximum(sales_shares, shown_shares), kind="stable")[:MOST_EXPOSURES]
    exposures = []
    for done, place in enumerate(largest_first.tolist()):
        if done % BUNDLES_AT_A_TIME == 0:
            progress("bundles", done, len(largest_first))
        name, sold, shown = names[place], sales_shares[place], shown_shares[place]
        title = live.stock.bundles[name].title
        exposures.append(Exposure(id=name, title=title, sales_share=float(sold), shown_share=float(shown)))
    return tuple(exposures), len(names) - len(exposures)


def _shares(names: Sequence[str], counts: Mapping[str, int]) -> npt.NDArray[np.float64]:
    """The share of each of these bundles in all counts. All shares are 0 if nothing was counted."""
    return np.fromiter(map(counts.get, names, repeat(0)), np.float64, len(names)) / (
        sum(counts.values()) or 1
    )
