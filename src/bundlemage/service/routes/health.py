"""Routes for monitoring: whether the process runs, whether it can answer, and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from bundlemage.service.problems import responses
from bundlemage.service.routes.common import TheService, allow
from bundlemage.wire.answers import Health

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=responses(429))
async def healthz() -> Health:
    """Always answers "ok": the process runs."""
    return Health(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=responses(429, 503))
async def readyz(service: TheService) -> Health:
    """Answers "ok" if the store answers and a model serves. A result is reused for one second."""
    await service.readiness.result(lambda: service.answerer.on_live(lambda _: None))
    return Health(status="ok")


_PLAIN = {"schema": {"type": "string"}, "example": "bundlemage_interactions_total 2.0"}
_METRICS = {"content": {"text/plain": _PLAIN}, "description": "Prometheus' text format."}


@router.get("/metrics", response_class=Response, **allow("read", also={200: _METRICS}))
async def metrics(service: TheService) -> Response:
    """Counters and times for Prometheus."""
    record = service.answerer.serving.record
    service.metrics.serves(record.version, record.name)
    return Response(service.metrics.exposition(), media_type=service.metrics.CONTENT_TYPE)
