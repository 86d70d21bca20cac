"""For monitoring: whether the process runs, whether it can answer, and metrics."""

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
"""Seconds for which an answer of /readyz holds. It needs no key, so a flood of requests must end here."""


class SharedCheck:
    """The result of a check that anybody may ask for. However many ask, it runs once in `seconds`.

    An error is a result, too. For use on one event loop.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0

    async def result(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the check, or share the result of the last one. Raises what the check raised."""
        now = time.monotonic()
        if self._task is None or (self._task.done() and now >= self._until):
            self._until = now + self._seconds
            self._task = asyncio.create_task(check())
            # Reads the error, because asyncio would complain if all callers have left.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._task)  # a caller who leaves must not cancel it for the others


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=responses(429))
async def healthz() -> Health:
    """The process runs."""
    return Health(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=responses(429, 503))
async def readyz(request: Request, service: TheService) -> Health:
    """The store answers and a model serves, or did within the last second."""
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
