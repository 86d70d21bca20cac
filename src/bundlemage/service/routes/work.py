"""Routes that show the progress of long requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from bundlemage.service.problems import ApiError
from bundlemage.service.routes.common import TheService, allow
from bundlemage.wire.answers import WorkList, WorkOut
from bundlemage.wire.requests import Id

router = APIRouter(prefix="/v1", tags=["design"])


@router.get("/work", **allow("read"))
async def work(service: TheService) -> WorkList:
    """The forecasts, designs, explanations and insights that wait or run now, and how far they are.

    A service of several processes answers for one of them: each process knows its own requests only.
    """
    return WorkList(work=tuple(service.lanes.work()))


@router.get("/work/{request_id}", **allow("read", 404))
async def work_of(
    request_id: Annotated[Id, Path(examples=["5f1c9a3e7b2d4860"])], service: TheService
) -> WorkOut:
    """How far a long request is. Its id is the X-Request-Id that its caller sent.

    A request that has ended is not found, nor one that another process of the service works on. To cancel a
    request, close its connection.
    """
    for each in service.lanes.work():
        if each.request_id == request_id:
            return each
    detail = f"No long request with the id {request_id!r} waits or runs here: it has ended, or never began."
    raise ApiError(404, "No such work", detail)
