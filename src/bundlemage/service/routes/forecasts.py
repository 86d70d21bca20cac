"""Routes for forecasts: how many and which users would take a bundle that does not exist yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from bundlemage.campaigns.sample import SAMPLE
from bundlemage.core.segments import Segment
from bundlemage.live import Live
from bundlemage.progress import Progress
from bundlemage.service.answerer import check_catalogue, histories_of
from bundlemage.service.problems import answer_of
from bundlemage.service.routes.common import RequestId, SeesPeople, TheService, allow, check_in_model
from bundlemage.store.records import Owned
from bundlemage.store.repository import Store
from bundlemage.wire.design_answers import ForecastLine, ForecastOut
from bundlemage.wire.requests import BuyersIn, ScoreIn, SegmentIn

router = APIRouter(prefix="/v1", tags=["design"])
USERS_AT_A_TIME = 500
"""The number of users that are read from the store at a time. In between, other requests get their turn."""
ROWS_AT_A_TIME = 10_000
"""The number of rows of a list of buyers that are sent at a time."""
PROGRESS_EVERY = 0.5
"""Seconds between two lines of progress."""
LINES = "application/x-ndjson"
_LINE = '{"estimate": null, "progress": null, "forecast": {"expected": 31.5}, "problem": null}\n'
_STREAMED: dict[int | str, Any] = {
    200: {
        "description": "The forecast. With `stream=true`: lines of JSON, each of them a `ForecastLine`.",
        "content": {LINES: {"schema": {"type": "string"}, "example": _LINE}},
    }
}
_EXAMPLE = '"user_id","chance"\n"u0077",0.41\n'
_CSV: dict[int | str, Any] = {
    200: {
        "description": "A table with the columns user_id and chance.",
        "content": {
            "text/csv": {"schema": {"type": "string"}, "example": '"user_id","chance"\n"u0077",0.41\n'}
        },
    }
}


@router.post("/bundles:score", response_model=ForecastOut, **allow("read", 409, 413, 504, also=_STREAMED))
async def score(
    body: ScoreIn,
    service: TheService,
    request_id: RequestId,
    request: Request,
    sees_people: SeesPeople,
    stream: Annotated[
        bool, Query(description="Send an estimate first, then the progress, then the exact forecast.")
    ] = False,
) -> Any:
    """Forecast how many and which users would take a new bundle, and which item would improve it.

    All users with a history are considered, or those of a segment. The price does not affect the number of
    buyers, only the revenue. With 'sample', an estimate is answered within a second or two. The exact
    forecast may take some minutes in a large shop: GET /v1/work says how far it is. To cancel it, close the
    connection. With `stream=true` the answer has lines of JSON (`ForecastLine`): the estimate, the progress,
    the forecast. 'people' is a list of persons, so it is empty for a key of the role 'read'.
    """
    sample = body.sample or (SAMPLE if stream else None)
    exact = partial(_forecast, service.store, body, None, request_id, sees_people)
    if sample is None:
        return await service.at_length("forecast", request, exact)
    estimate = partial(_forecast, service.store, body, sample, request_id, sees_people)
    # An estimate has a lane of its own, so that it does not wait for an exact forecast.
    first = await service.at_length("estimate", request, estimate)
    if not stream:
        return first
    if not first.sampled:
        return _streaming(_lines([ForecastLine(forecast=first)]), LINES)
    return _streaming(_estimate_and_forecast(first, service, request, exact), LINES)


@router.post("/bundles:buyers", response_class=Response, **allow("write", 409, 413, 504, also=_CSV))
async def buyers(body: BuyersIn, service: TheService, request: Request) -> Response:
    """List the users who would take a new bundle, with their chances, as CSV. The likeliest come first.

    The list has all users above the threshold of the forecast, or with at least 'least_chance'. It is a list
    of persons, so a key of role 'write' is needed. To cancel it, close the connection.
    """

    def work(live: Live, progress: Progress) -> pa.Table:
        _check(live, body.items)
        return live.buyers(
            body.items,
            among=segment_of(body.segment),
            least_chance=body.least_chance,
            users=partial(everyone, live, service.store),
            count=service.store.user_count(),
            progress=progress,
        )

    table = await service.at_length("forecast", request, work)
    answer = _streaming(_csv(table), "text/csv")
    answer.headers["Content-Disposition"] = 'attachment; filename="buyers.csv"'
    return answer


def everyone(live: Live, store: Store) -> Iterator[Mapping[str, Owned]]:
    """Yields the histories of all users in the store, page by page: user id → history."""
    after = ""
    while users := store.user_ids(USERS_AT_A_TIME, after):
        after = users[-1]
        yield _with_history(live, store, users)


def some_of(live: Live, store: Store, users: Sequence[str]) -> Iterator[Mapping[str, Owned]]:
    """Yields the histories of these users, page by page. Users who were erased meanwhile are left out."""
    for start in range(0, len(users), USERS_AT_A_TIME):
        yield _with_history(live, store, users[start : start + USERS_AT_A_TIME])


def segment_of(segment: SegmentIn | None) -> Segment | None:
    """The segment of a request."""
    return None if segment is None else Segment(**segment.model_dump())


def _with_history(live: Live, store: Store, users: Sequence[str]) -> dict[str, Owned]:
    found = histories_of(live, store, users, in_order=False)
    return {name: owned for name, owned in found.items() if owned.items or owned.bundles}


def _check(live: Live, items: Sequence[str]) -> None:
    check_catalogue(live, items=items)
    check_in_model(live, items)


def _forecast(
    store: Store,
    body: ScoreIn,
    sample: int | None,
    request_id: str,
    sees_people: bool,
    live: Live,
    progress: Progress,
) -> ForecastOut:
    """The exact forecast, or an estimate from a sample. With few users, an estimate is exact."""
    _check(live, body.items)
    users, of, listed = partial(everyone, live, store), None, None
    if sample is None:
        count = store.user_count()
    else:
        names, whole = store.sample_of_users(sample)
        users, count = partial(some_of, live, store, names), len(names)
        of = whole if whole > count else None
        if of is not None and body.segment is not None and 0 < len(body.segment.users or ()) <= SAMPLE:
            listed = partial(some_of, live, store, list(dict.fromkeys(body.segment.users or ())))
    forecast = live.score_bundle(
        body.items,
        body.price,
        discount=body.discount,
        k=body.k,
        among=segment_of(body.segment),
        users=users,
        of=of,
        listed=listed,
        count=count,
        progress=progress,
    )
    known = vars(forecast) if sees_people else {**vars(forecast), "people": ()}
    return ForecastOut(**known, request_id=request_id, model_version=live.record.version)


async def _estimate_and_forecast(
    estimate: ForecastOut,
    service: TheService,
    request: Request,
    exact: Callable[[Live, Progress], ForecastOut],
) -> AsyncIterator[bytes]:
    """Yields the lines of a streamed forecast. If the caller leaves, the work is stopped."""
    yield _line(ForecastLine(estimate=estimate))
    task = asyncio.create_task(service.at_length("forecast", request, exact))
    try:
        while not (await asyncio.wait([task], timeout=PROGRESS_EVERY))[0]:
            for each in service.lanes.work():
                if (each.kind, each.request_id) == ("forecast", estimate.request_id):
                    yield _line(ForecastLine(progress=each))
        try:
            line = ForecastLine(forecast=task.result())
        except Exception as error:
            problem = json.loads(bytes((await answer_of(request, error)).body))
            line = ForecastLine.model_validate({"problem": problem})
        yield _line(line)
    finally:
        task.cancel()


async def _lines(lines: Sequence[ForecastLine]) -> AsyncIterator[bytes]:
    for each in lines:
        yield _line(each)


def _line(line: ForecastLine) -> bytes:
    return line.model_dump_json(exclude_none=False).encode() + b"\n"


async def _csv(table: pa.Table) -> AsyncIterator[bytes]:
    for start in range(0, max(1, len(table)), ROWS_AT_A_TIME):
        part = BytesIO()
        options = pa_csv.WriteOptions(include_header=start == 0)
        pa_csv.write_csv(table.slice(start, ROWS_AT_A_TIME), part, options)
        yield part.getvalue()


def _streaming(content: AsyncIterator[bytes], kind: str) -> StreamingResponse:
    """An answer that is sent in parts. A proxy such as nginx must not hold the parts back."""
    return StreamingResponse(content, media_type=kind, headers={"X-Accel-Buffering": "no"})
