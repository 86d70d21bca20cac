"""A small service with the real frame, store and server, but without a model."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from bundlemage import errors
from bundlemage.service import logs, problems
from bundlemage.service.metrics import Metrics
from bundlemage.service.middleware import Frame
from bundlemage.service.routes import session
from bundlemage.service.security import Principal, Security, Writer, make_key, require
from bundlemage.service.server import Server, make_server
from bundlemage.service.settings import Settings
from bundlemage.store.records import Role
from bundlemage.store.repository import Store

Reader = Annotated[Principal, Depends(require("read"))]
Admin = Annotated[Principal, Depends(require("admin"))]
OUTPUT = StringIO()
"""What is logged. Logging is the process's, so all servers of a test process share it."""
KINDS: dict[str, Exception] = {
    "unknown-id": errors.UnknownIdError("bundle", ["b1"], ["b2"]),
    "unknown-things": errors.UnknownThingsError("item", ["g1"]),
    "idempotency": errors.IdempotencyError("once"),
    "config": errors.ConfigError("no price is between them"),
    "unsupported": errors.UnsupportedError("this model has no gate"),
    "unstorable": errors.UnstorableError("an id with a control character"),
    "store": errors.StoreError("cannot reach postgresql://db.internal/shop"),
    "busy": errors.BusyError("2,000 questions are waiting already"),
    "device": errors.DeviceError("there is no cuda:7 on host-17"),
    "other": RuntimeError("the secret of u0007"),
}


@dataclass(frozen=True)
class Service:
    settings: Settings
    store: Store
    metrics: Metrics
    security: Security


class Where(BaseModel):
    model_config = ConfigDict(extra="forbid")
    max_price: float | None = None
    kind: Literal["item", "bundle"] = "item"


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")
    k: int = Field(10, ge=1, le=100)
    where: Where = Where()
    names: list[str] = []


def small_app(service: Service) -> FastAPI:
    app = FastAPI()
    app.state.service = service
    problems.install(app)
    app.include_router(session.router)
    app.add_middleware(Frame)

    @app.get("/v1/users/{user_id:id}/bundles", responses=problems.responses(401, 403, 422, 429))
    async def read(user_id: str, principal: Reader, k: int = 10) -> dict[str, Any]:
        return {"user_id": user_id, "k": k, "role": principal.role, "caller": principal.caller}

    @app.post("/v1/ask", responses=problems.responses(401, 403, 413, 422, 429))
    async def ask(question: Question, principal: Writer) -> dict[str, Any]:
        return {"k": question.k, "names": len(question.names)}

    @app.delete("/v1/everything")
    async def erase(principal: Admin) -> dict[str, str]:
        return {"caller": principal.caller}

    @app.get("/v1/raise/{kind}")
    async def fail(kind: str) -> None:
        raise KINDS[kind]

    @app.get("/v1/half")
    async def half() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            raise RuntimeError("the secret of u0007")

        return StreamingResponse(parts())

    @app.get("/healthz")
    async def healthz(request: Request) -> dict[str, str]:
        return {"request_id": request.state.request_id}

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse("<!doctype html><title>shop</title>")

    @app.get("/static/{name}")
    async def static(name: str) -> PlainTextResponse:
        return PlainTextResponse("body {}", headers={"ETag": '"1"'})

    return app


@dataclass(frozen=True)
class Running:
    """A server that answers, with what tests look at."""

    port: int
    service: Service
    app: FastAPI
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def key(self, role: Role) -> str:
        text, key = make_key(role, "a test")
        self.service.store.add_key(key)
        return text

    def revoke(self, text: str) -> None:
        assert self.service.store.revoke_key(text.split("_")[1])

    def lines(self, request_id: str, event: str = "request") -> list[dict[str, Any]]:
        """What was logged of a request; the line comes after the answer, so it is waited for."""
        deadline = time.monotonic() + 120
        while True:
            found = [json.loads(line) for line in OUTPUT.getvalue().splitlines()]
            of_it = [
                line for line in found if line.get("request_id") == request_id and line["event"] == event
            ]
            if of_it or time.monotonic() > deadline:
                return of_it
            time.sleep(0.01)

    def raw(self, request: bytes) -> bytes:
        """What the server answers to bytes that no client library would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request)
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := connection.recv(65536):
                    answer += part
            return answer


@contextmanager
def serving(
    database: Path, settings: Settings | None = None, *, seconds_believed: float = 0.0
) -> Iterator[Running]:
    """Serve on a free port, as the command does, until the block ends."""
    store = Store.open(f"sqlite:///{database}")
    settings = settings or Settings()
    service = Service(settings, store, Metrics(), Security(settings, store, None, seconds_believed))
    app = small_app(service)
    logs.configure(stream=OUTPUT)
    server = make_server(app, settings, service.metrics)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), OUTPUT.getvalue()
            time.sleep(0.01)
        try:
            yield Running(listening.getsockname()[1], service, app, server)
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            store.close()


def copied(template: Path, folder: Path) -> Path:
    """A database of its own, without migrating once more."""
    return Path(shutil.copy(template, folder / "shop.db"))
