"""Routes for monitoring: whether the process runs, whether it can answer, and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response

from bundlemage.service.problems import responses
from bundlemage.service.routes.common import TheService, allow
from bundlemage.wire.answers import Health

router = APIRouter(tags=["health"])

READY_FOR = 1.0
"""Seconds for which a result of /readyz is reused. The route needs no key, so it must be cheap."""


class SharedCheck:
    """Shares the result of a check among many callers. The check runs at most once in `seconds`.

    Errors are shared, too. Use it on one event loop only.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0

    async def result(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the check, or reuse its last result. Raises the error of the check, if any."""
        now = time.monotonic()
        if self._task is None or (self._task.done() and now >= self._until):
            self._until = now + self._seconds
            self._task = asyncio.create_task(check())
            # Reads the error. Otherwise asyncio would warn if all callers have disconnected.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._task)  # a caller who disconnects must not cancel it for the others


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=responses(429))
async def healthz() -> Health:
    """Always answers "ok": the process runs."""
    return Health(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=responses(429, 503))
async def readyz(request: Request, service: TheService) -> Health:
    """Answers "ok" if the store answers and a model serves. A result is reused for one second."""
    state = request.app.state
    if not hasattr(state, "readiness"):
        state.readiness = SharedCheck(READY_FOR)
    await state.readiness.result(lambda: service.answerer.on_live(lambda _: None))
    return Health(status="ok")


_PLAIN = {"schema": {"type": "string"}, "example": "bundlemage_interactions_total 2.0"}
_METRICS = {"content": {"text/plain": _PLAIN}, "description": "Prometheus' text format."}


@router.get("/metrics", response_class=Response, **allow("read", also={200: _METRICS}))
async def metrics(service: TheService) -> Response:
    """Counters and times for Prometheus."""
    record = service.answerer.serving.record
    service.metrics.serves(record.version, record.name)
    return Response(service.metrics.exposition(), media_type=service.metrics.CONTENT_TYPE)
