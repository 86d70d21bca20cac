"""The application: `open_service` makes what is behind the routes, `create_app` puts the routes before it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from bundlemage import __version__
from bundlemage.errors import ArtifactError, BusyError, ConfigError, StoreError
from bundlemage.live import record_of
from bundlemage.recommender import Recommender
from bundlemage.service import problems
from bundlemage.service.answerer import Answerer, Serving
from bundlemage.service.metrics import Metrics
from bundlemage.service.middleware import Frame
from bundlemage.service.routes import catalogue, design, health, models, pages, recommend, session, users
from bundlemage.service.security import Security
from bundlemage.service.settings import Settings
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store

log = logging.getLogger("bundlemage.service")
P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, int], None]

LONG_AT_ONCE = 2
"""How many long pieces of work are done at the same time: they take CPU time from recommendations."""
LONG_WAITING = 16
"""How many more may wait for their turn."""

DESCRIPTION = """Bundles for people, items for bundles. What is posted counts in the very next answer.

Keys go into the header `Authorization: Bearer KEY`; `bundlemage keys create` makes them. Errors are
`application/problem+json` (RFC 9457)."""


@dataclass(frozen=True)
class Service:
    """All that routes need."""

    settings: Settings
    store: Store
    answerer: Answerer
    metrics: Metrics
    security: Security
    long_work: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(LONG_AT_ONCE))

    async def in_thread(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What waits for the store must not hold up the others."""
        return await to_thread.run_sync(lambda: work(*given, **named))

    async def at_length(self, work: Callable[[Serving], T], gone: Callable[[], Awaitable[bool]]) -> T:
        """What may take seconds, such as a design: in a thread, while recommendations go on; few at a time.

        `gone` says whether whoever asked has left: nobody need work for them when their turn comes.
        """
        if self.long_work.statistics().tasks_waiting >= LONG_WAITING:
            raise BusyError(f"{LONG_WAITING} designs and the like are waiting already: ask again in a second")
        patience = self.settings.answer_timeout_s
        with move_on_after(patience) as waiting:
            await self.long_work.acquire()
        if waiting.cancelled_caught:
            raise BusyError(f"what others asked for took over {patience:g} s: ask again in a second")
        try:
            if await gone():
                raise BusyError("whoever asked has gone")
            serving = await self.now()
            return await to_thread.run_sync(work, serving)
        finally:
            self.long_work.release()

    async def now(self) -> Serving:
        """Catalogue and model up to date. It never changes, so it may be looked at for long, in any thread,
        while the thread that asks the model goes on."""
        return await self.answerer.on_live(lambda serving: serving)

    def close(self) -> None:
        self.answerer.close()
        self.store.close()


def open_service(settings: Settings, store: Store, progress: Progress | None = None) -> Service:
    """A service on a store, which at first takes over what the model knows of the shop."""
    record = _to_serve(store, settings.model)
    if store.is_empty():
        _take_over(store, record, progress)
    try:
        answerer = Answerer(store, record, settings)
    except ArtifactError as error:
        record = _instead(record, settings.model, error)
        answerer = Answerer(store, record, settings)
    known = store.model(record.version)
    if store.state().model != record.version or known is None or known.path != record.path:
        store.publish(record)  # only now, as it serves
    metrics = Metrics(lambda: len(answerer.batcher))
    return Service(settings, store, answerer, metrics, Security(settings, store))


def _instead(record: ModelRecord, given: Path | None, error: ArtifactError) -> ModelRecord:
    """The model that is named, where the published one cannot be had: better an older one than none."""
    other = record_of(given) if given is not None else record
    if other.version == record.version:
        raise ArtifactError(
            f"{error}. It is the published model; to serve another, name it: "
            "'bundlemage serve MODEL --db URL'"
        ) from None
    log.warning("%s. It is the published model; %s serves in its place, and is published now", error, given)
    return other


def _take_over(store: Store, record: ModelRecord, progress: Progress | None) -> None:
    """What the model knows of the shop, into the store; unless another process was quicker."""
    try:
        store.import_dataset(Recommender.load(record.path, device="cpu").dataset, progress)
    except StoreError:
        if store.is_empty():
            raise


def _to_serve(store: Store, given: Path | None) -> ModelRecord:
    """The published model; or one that is given, if the store has never seen it.

    So a service that is started again with its first command goes on with what was published since; also
    where the first model is gone by then, or the published one lies in another place.
    """
    version = store.state().model
    published = store.model(version) if version is not None else None
    if given is None:
        if published is None:
            raise ConfigError(f"{store.url} has no model yet: name one, as in 'bundlemage serve MODEL'")
        return published
    try:
        record = record_of(given)
    except ArtifactError as error:
        if published is None:
            raise
        log.warning("%s. The published model %s serves", error, published.version)
        return published
    if published is None or record.version == published.version or store.model(record.version) is None:
        return record
    return published


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="BundleMage",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page comes from a CDN
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # an id may end in one
    )
    app.state.service = service
    problems.install(app)
    app.add_exception_handler(405, _wrong_method)
    for routes in (session, recommend, design, users, catalogue, models, health, pages):
        app.include_router(routes.router)
    app.add_middleware(Frame)
    return app


async def _wrong_method(request: Request, _: Exception) -> Response:
    """The framework names the methods of one route; the path may have several."""
    allowed = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        for route in request.app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    ]
    told = HTTPException(405, headers={"Allow": ", ".join(dict.fromkeys(allowed))})
    return problems.from_http(told, request.method).answer(request.state.request_id)
