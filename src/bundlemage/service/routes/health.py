"""For machines that watch: does it live, can it answer, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from bundlemage.service.limits import Kept
from bundlemage.service.problems import responses
from bundlemage.service.routes.common import TheService
from bundlemage.service.security import require
from bundlemage.wire.answers import Health

router = APIRouter(tags=["health"])

READY_FOR = 1.0
"""Seconds for which an answer of /readyz holds. It needs no key, so a flood of it must end here."""


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=responses(429))
async def healthz() -> Health:
    """The process lives."""
    return Health(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=responses(429, 503))
async def readyz(request: Request, service: TheService) -> Health:
    """The store answers and a model serves, or did within the last second."""
    state = request.app.state
    if not hasattr(state, "readiness"):
        state.readiness = Kept(READY_FOR)
    await state.readiness.outcome(lambda: service.answerer.on_live(lambda _: None))
    return Health(status="ok")


@router.get(
    "/metrics",
    dependencies=[Depends(require("read"))],
    response_class=Response,
    responses={
        200: {
            "content": {
                "text/plain": {"schema": {"type": "string"}, "example": "bundlemage_interactions_total 2.0"}
            },
            "description": "Prometheus' text.",
        },
        **responses(401, 403, 429),
    },
)
async def metrics(service: TheService) -> Response:
    """Counts and times for Prometheus."""
    record = service.answerer.serving.record
    service.metrics.serves(record.version, record.name)
    return Response(service.metrics.exposition(), media_type=service.metrics.CONTENT_TYPE)
