"""The web application. `open_service` opens the store and the model; `create_app` adds the routes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI, Request

from bundlemage import __version__
from bundlemage.errors import ArtifactError, ConfigError, StoreError, SupersededError, UnsupportedError
from bundlemage.live import Live, record_of
from bundlemage.progress import Progress, in_silence
from bundlemage.recommender import Recommender
from bundlemage.service import problems
from bundlemage.service.answerer import Answerer, load_live
from bundlemage.service.lanes import Kind, Lanes
from bundlemage.service.load import Load
from bundlemage.service.metrics import Metrics
from bundlemage.service.middleware import Frame
from bundlemage.service.routes import (
    catalogue,
    design,
    forecasts,
    health,
    models,
    pages,
    recommend,
    session,
    users,
    work,
)
from bundlemage.service.security import Security
from bundlemage.service.server import Server, make_server
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Shared
from bundlemage.service.shared_result import SharedResult
from bundlemage.service.writer import InteractionWriter
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store
from bundlemage.training.devices import resolve_device

log = logging.getLogger("bundlemage.service")
T = TypeVar("T")

SHARED_FOR = 1.0
"""Seconds for which a result of /readyz or /v1/insights is reused."""

DESCRIPTION = """Recommends bundles for users and items for bundles. Every change affects the next answer.

Send your key in the header `Authorization: Bearer KEY`. `bundlemage keys create` creates a key. Errors have
the format `application/problem+json` (RFC 9457). Besides the answers of each route, any request may get
400 (not HTTP), 408 (too slow), 414 or 431 (URL or headers too large), or 503 (too many are waiting)."""


@dataclass(frozen=True)
class Service:
    """Everything that the routes use."""

    settings: Settings
    store: Store
    answerer: Answerer
    writer: InteractionWriter
    metrics: Metrics
    security: Security
    lanes: Lanes
    readiness: SharedResult[None] = field(default_factory=lambda: SharedResult(SHARED_FOR))
    """For /readyz, which needs no key and so must be cheap."""
    insights: SharedResult[bytes] = field(default_factory=lambda: SharedResult(SHARED_FOR))
    """The JSON of /v1/insights, which counts thousands of answers."""

    async def at_length(self, kind: Kind, request: Request, work: Callable[[Live, Progress], T]) -> T:
        """Run `work`, which may take seconds or minutes, in the lane of its kind. Returns its result."""
        live = await self.now()
        request_id = request.state.request_id
        return await self.lanes.run(kind, request_id, lambda progress: work(live, progress), _left(request))

    async def now(self) -> Live:
        """The current catalogue and model. The object never changes, so any thread may read it."""
        return await self.answerer.on_live(lambda live: live)

    def close(self) -> None:
        """Stop answering and close the store."""
        self.lanes.close()
        self.answerer.close()
        self.writer.close()
        self.store.close()


async def _left(request: Request) -> None:
    """Ends when the caller disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def open_service(settings: Settings, store: Store, progress: Progress = in_silence) -> Service:
    """Return a service for a store. Imports the model's catalogue and histories if the store is empty."""
    return start_service(settings, store, open_live(settings, store, progress))


def start_service(settings: Settings, store: Store, live: Live, shared: Shared | None = None) -> Service:
    """Return a service that begins with a loaded model. It starts threads, so call it after forking."""
    shared = shared or Shared(settings)
    if (
        live.shop.device.type != resolve_device("auto").type
    ):  # a forked process cannot use the GPU of another one
        live = load_live(store, live.record, settings.shop)
    answerer = Answerer(store, live, settings, shared)
    metrics = Metrics(lambda: len(answerer.batcher), shared)
    security = Security(settings, store.beside(connections=3), shared)
    writer = InteractionWriter(store, settings)
    lanes = Lanes(settings.answer_timeout_s, settings.long_limit_s, answerer.batcher.busy_for)
    return Service(settings, store, answerer, writer, metrics, security, lanes)


def open_live(settings: Settings, store: Store, progress: Progress = in_silence) -> Live:
    """Load the model to serve, and publish it if it is not published yet."""
    before = store.state().model
    record, device = _to_serve(store, before, settings.model), "auto" if settings.workers == 1 else "cpu"
    if store.is_empty():
        try:
            store.import_dataset(Recommender.load(record.path, device="cpu").dataset, progress)
        except StoreError:
            if store.is_empty():  # otherwise another process has just imported it
                raise
    try:
        live = load_live(store, record, settings.shop, device)
    except (ArtifactError, UnsupportedError) as error:
        if record.version != before:  # a model that is named here for the first time
            raise
        other = record if settings.model is None else record_of(settings.model)
        if other.version == record.version:
            raise ArtifactError(
                f"{error}. This is the published model; to serve another, name it: "
                "'bundlemage serve MODEL --db URL'"
            ) from None
        log.warning(
            "%s. This was the published model; %s is now published and serves instead", error, settings.model
        )
        record, live = other, load_live(store, other, settings.shop, device)
    known = store.model(record.version)
    if before != record.version or known is None or known.path != record.path:
        try:
            store.publish(record, instead_of=before)  # only after it was loaded
        except SupersededError as error:  # the answerer serves the other model from the beginning
            log.warning("%s was published while the service started, and serves", error.serving)
    return live


def _to_serve(store: Store, version: str | None, named: Path | None) -> ModelRecord:
    """The model to serve: the published `version`, or the named model if it was never published.

    So a service that is restarted with its original command serves the model that was published last. If the
    named model cannot be read, for example because it was deleted, the published model serves.
    """
    published = store.model(version) if version is not None else None
    if named is None:
        if published is None:
            raise ConfigError(f"{store.url} has no model yet: name one, as in 'bundlemage serve MODEL'")
        return published
    try:
        record = record_of(named)
    except ArtifactError as error:
        if published is None:
            raise
        log.warning("%s. The published model %s serves instead", error, published.version)
        return published
    if published is None or record.version == published.version or store.model(record.version) is None:
        return record
    return published


def create_server(service: Service) -> Server:
    """The web application of a service, with its server."""
    reads, writes = Load(service.answerer.batcher.busy_for), Load(service.writer.batcher.busy_for)
    return make_server(
        create_app(service), service.settings, service.metrics, reads, writes, on_stop=service.lanes.stop
    )


def create_app(service: Service) -> FastAPI:
    """The web application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="BundleMage",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # that page loads scripts from a CDN; ours (`routes/pages.py`) does not
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # an id may end with a slash
    )
    app.state.service = service
    problems.install(app)
    for routes in (recommend, design, forecasts, users, catalogue, models, work, session, health, pages):
        app.include_router(routes.router)
    app.mount("/static", pages.STATIC)
    app.add_middleware(Frame)
    return app
