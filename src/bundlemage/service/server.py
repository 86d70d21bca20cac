"""The HTTP server: uvicorn, with limits on what a connection may send, hold and wait for.

The limits apply before the application sees a request. One object per connection (`Connection`) keeps them. A
sweep over all connections every half second checks the deadlines, so a request needs no timers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import cache
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bundlemage.service.load import Load, Refusals
from bundlemage.service.logs import log
from bundlemage.service.metrics import Metrics
from bundlemage.service.middleware import SECURITY_HEADERS
from bundlemage.service.problems import MEDIA_TYPE, ApiError
from bundlemage.service.settings import Settings

MOST_HEADERS = 100
RETRY_AFTER_S = 1
PAUSE_S = 0.5
"""Seconds for which nothing is read from a caller who ignores the header Retry-After."""
LINGER_S = 1.0
"""Seconds for which a refused connection stays open. If it were closed while the caller still sends, the
caller's system would discard the answer."""
MOST_DISCARDED = 1_000_000
"""Maximum number of bytes that are read from a refused connection in this time."""
FOR_HEALTH_CHECKS = 64
"""Number of connections that are accepted above the limit. They may send nothing but health checks."""
MOST_ACCEPTED_AT_ONCE = 100
OTHER_FILES = 256
"""Number of file descriptors that are left for the store, the models and the log."""
_TICKS_PER_SWEEP = 5  # of 0.1 s each
_END_OF_HEAD = b"\r\n\r\n"
_HEALTH_CHECKS = {b"/healthz", b"/readyz", b"/metrics"}
_FORECASTS = {b"/v1/bundles:score", b"/v1/bundles:buyers"}
_LONG = {b"/v1/design", b"/v1/explain", *_FORECASTS, b"/v1/insights", b"/v1/models/reload"}
"""Requests that may take seconds. Other requests do not wait for them, so they are not counted."""
_READING = {b"GET", b"HEAD"}
_READS = {b"/v1/recommend", b"/v1/complete", b"/v1/design", b"/v1/explain", *_FORECASTS}
"""Paths whose POST requests read, too. The model answers them, and not the thread that writes."""
_COUNTED, _REFUSAL = "bundlemage.counted", "bundlemage.refusal"
_NO_ID = "0" * 16  # replaced by the request's id

BUSY = ApiError(
    503,
    "Busy",
    "Too many requests are waiting: ask again in a second.",
    headers={"Retry-After": str(RETRY_AFTER_S)},
)
NOT_HTTP = ApiError(400, "Not HTTP", "This is not a valid HTTP/1.1 request.")


class Phase(Enum):
    """What a connection is doing."""

    HEAD = auto()
    """It waits for a request, or receives its first line and headers."""
    BODY = auto()
    ANSWER = auto()
    """The request was received, and the application answers it."""
    PAUSE = auto()
    """Nothing is read for a while, because requests were refused again and again."""
    CLOSING = auto()
    """What arrives is discarded. The connection is closed after the answer."""


class Limits:
    """The limits of a server, and what its connections share."""

    def __init__(self, settings: Settings, metrics: Metrics, reads: Load, writes: Load) -> None:
        self.settings = settings
        self.reads, self.writes = reads, writes
        self.refusals = Refusals(metrics)
        self.most_connections = _connections(settings.connection_limit)
        self.without_request: OrderedDict[Connection, None] = OrderedDict()
        """The connections on which no request is being answered. The first has been waiting the longest."""
        limit = f"{settings.head_limit:,} bytes"
        self.url_too_long = ApiError(
            414, "URL too long", f"The URL and the headers may have {limit} together. Send a body instead."
        )
        self.head_too_large = ApiError(
            431,
            "Headers too large",
            f"There may be {MOST_HEADERS} headers. The URL and the headers may have {limit} together, and so "
            "may trailers.",
        )
        self.late_head = ApiError(
            408, "Too slow", f"The headers did not arrive within {settings.head_timeout_s:g} s."
        )
        self.late_body = ApiError(
            408,
            "Too slow",
            f"The body did not arrive within {settings.body_timeout_s:g} s, or nothing arrived for "
            f"{settings.head_timeout_s:g} s. Send less at a time.",
        )


class Config(uvicorn.Config):
    """The configuration that uvicorn passes to each connection."""

    limits: Limits


class Server(uvicorn.Server):
    """A server that checks the deadlines of its connections."""

    config: Config

    def __init__(self, config: Config, on_stop: Callable[[], None]) -> None:
        """`on_stop` is called before the server waits for the open requests."""
        super().__init__(config)
        self.limits, self._on_stop = config.limits, on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if sockets is None or sys.platform == "win32":
            await super().startup(sockets)
            return
        for each in sockets:
            each.setblocking(False)
            each.listen(self.config.backlog)
        await super().startup([])  # everything but listening
        self.servers.extend(_Listener(self, each) for each in sockets)  # type: ignore[misc]

    def connect(self) -> Connection:
        """A new connection, before it has a socket."""
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.check_deadlines(now)
            self.limits.refusals.start_again()
        if counter % 10 == 0:
            self.limits.refusals.write_log()
        return await super().on_tick(counter)


def make_server(
    app: ASGIApp,
    settings: Settings,
    metrics: Metrics,
    reads: Load | None = None,
    writes: Load | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> Server:
    """The server of an app. `reads` and `writes` measure how long its requests wait. `on_stop` is called when
    the server stops, before it waits for the open requests."""
    limits = Limits(settings, metrics, reads or Load(), writes or Load())
    config = Config(
        _Counted(app),
        http=Connection,
        ws="none",  # web sockets are not used, and log lines about them would contain paths
        backlog=4096,  # the system may allow fewer
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=10,
    )
    config.limits = limits
    return Server(config, on_stop)


class _Listener:
    """Accepts connections on a socket. uvloop itself accepts one in each round of its loop. A round of a busy
    service takes 0.1 s, so hundreds of new callers would wait for many seconds."""

    def __init__(self, server: Server, listening: socket.socket) -> None:
        self._server, self._listening = server, listening
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._listen()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        while len(self._opening) < MOST_ACCEPTED_AT_ONCE:
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # for example: too many open files
                log.error("no connection is accepted for a second: %s", error)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(1, self._listen)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            _, connection = await self._loop.connect_accepted_socket(self._server.connect, accepted)
        except OSError:  # the caller has left already
            accepted.close()
        else:
            if self._closed:  # the server has told the other connections to end, but not this one
                connection.shutdown()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """There is nothing to wait for; an asyncio server has this method."""


class _Counted:
    """The application. When a request is answered, the count of requests in progress goes down."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. If the request is refused while its body is being read, reading raises the
        error."""

        async def receive_or_fail() -> Message:
            message = await receive()
            if _REFUSAL in scope:
                error: ApiError = scope[_REFUSAL]
                raise error.with_traceback(None)
            return message

        try:
            await self._app(scope, receive_or_fail, send)
        finally:
            if _COUNTED in scope:
                scope[_COUNTED].end()


class _Flow(FlowControl):
    """Reads nothing while `stopped`, also if the application asks for more of the body."""

    stopped = False

    def resume_reading(self) -> None:
        if not self.stopped:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A connection to a caller. It passes one request at a time to the application."""

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.limits = config.limits
        self.flow: _Flow
        self.access_log = False  # its lines would contain paths
        self.url = b""
        self._phase = Phase.HEAD
        self._since = 0.0
        """When the phase began; with `Phase.HEAD`: when the first byte of a request arrived."""
        self._answering = False
        """Whether the application answers a request. This may begin and end before the body has arrived."""
        self._only_health_checks = False
        self._load: Load | None = None
        """What must count the request; None if it is counted already, or is not to be counted."""
        self._pauses = False
        self._held = b""
        """What arrived after a request and before its answer."""
        self._end = b""
        """The last bytes of an incomplete head."""
        self._bytes = 0
        """Number of bytes of the head; with `Phase.BODY`: of what is not body, such as trailers; with
        `Phase.CLOSING`: of what was discarded."""
        self._left = 0
        """Number of bytes of the body that have not arrived yet; 0 without the header Content-Length."""
        self._heard_at = 0.0
        self._refused_at = -1e9
        self._unread_since = 0.0
        """Since when a part of an answer is unread; 0 if the caller has read everything."""

    # ── Opening and closing ──────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._since = self.loop.time()
        limits = self.limits
        if len(self.connections) > limits.most_connections:
            if not limits.without_request:
                self._only_health_checks = True
                if len(self.connections) > limits.most_connections + FOR_HEALTH_CHECKS:
                    self._phase = Phase.CLOSING
                    self._send(BUSY, close=True)
                    transport.close()
                return
            # `close` would wait for a caller who does not read the last answer.
            limits.without_request.popitem(last=False)[0].transport.abort()
        limits.without_request[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.without_request.pop(self, None)
        self._held = b""
        super().connection_lost(exc)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, and close the connection."""
        if self._answering:  # the application is reading the body, and gets the error instead
            self.scope[_REFUSAL] = error  # type: ignore[literal-required]
            self._phase = Phase.CLOSING
            self.cycle.message_event.set()
            return
        if self._phase is not Phase.BODY:  # otherwise the request has its answer already
            self._send(error, close=True)
        self._close()

    def _close(self) -> None:
        """Close the connection after a moment, in which the caller can read the answer."""
        self._phase, self._since, self._bytes = Phase.CLOSING, self.loop.time(), 0
        self.flow.stopped = False
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _send(self, error: ApiError, *, close: bool, head_only: bool = False, method: str = "") -> None:
        """Send an error without the application, and count it."""
        self.limits.refusals.count(error.status_code, method)
        head, body = _prepared(error)
        identity = secrets.token_hex(8).encode()
        dates = (b"%b: %b\r\n" % header for header in self.server_state.default_headers)
        closing = b"connection: close\r\n" if close else b""
        body = b"" if head_only else body.replace(_NO_ID.encode(), identity)
        self.transport.write(
            b"%b%bx-request-id: %b\r\n%b\r\n%b" % (head, b"".join(dates), identity, closing, body)
        )

    def check_deadlines(self, now: float) -> None:
        """Close the connection if the caller is too slow. This is called every half second."""
        settings, age = self.limits.settings, now - self._since
        if not self.transport.get_write_buffer_size():
            self._unread_since = 0.0
        elif not self._unread_since:
            self._unread_since = now
        elif now - self._unread_since > settings.write_timeout_s:
            self.transport.abort()
            return
        if self._phase is Phase.HEAD:
            if self._bytes:
                if age > settings.head_timeout_s:
                    self._refuse(self.limits.late_head)
            elif age > (settings.idle_timeout_s if self._had_request() else settings.head_timeout_s):
                self.transport.close()
        elif self._phase is Phase.BODY:
            if not self._answering:  # it was answered without the body
                if age > settings.body_timeout_s:
                    self.transport.abort()
            elif self.flow.read_paused or self.cycle.waiting_for_100_continue:
                self._heard_at = now  # the caller is not the slow one
            elif age > settings.body_timeout_s or now - self._heard_at > settings.head_timeout_s:
                self._refuse(self.limits.late_body)
        elif self._phase is Phase.PAUSE:
            if age > PAUSE_S:
                self._pauses = False
                self._wait_for_request()
        elif self._phase is Phase.CLOSING and not self._answering and age > LINGER_S:
            self.transport.abort()

    def _had_request(self) -> bool:
        return self.cycle is not None or self.headers is not None

    # ── Receiving ────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Give the parser one request at a time. What follows is held until the request is answered."""
        while data and self._phase is not Phase.CLOSING:
            if self._phase is Phase.HEAD:
                data = self._receive_head(data)
            elif self._phase is Phase.BODY:
                data = self._receive_body(data)
            elif self._phase is Phase.ANSWER:
                self._held += data
                self.flow.pause_reading()
                self.flow.stopped = True
                return
            else:  # the caller was refused and sends more, though this connection pauses
                self._close()
        if self._phase is Phase.CLOSING:
            self._bytes += len(data)
            if self._bytes > MOST_DISCARDED:
                self.flow.pause_reading()

    def _receive_head(self, data: bytes) -> bytes:
        """Parse a head, or a part of it. Returns what follows the head."""
        if not self._bytes:
            self._since = self.loop.time()
        seen = self._end + data  # the end of the head may be split
        # Empty lines may come before a request. Each pair of them looks like the end of a head.
        start = 0 if self.url else len(seen) - len(seen.lstrip(b"\r\n"))
        end = seen.find(_END_OF_HEAD, start)
        length = len(data) if end < 0 else end + len(_END_OF_HEAD) - len(self._end)
        self._end = seen[-3:] if end < 0 else b""
        left = self.limits.settings.head_limit - self._bytes
        self._bytes += length
        if length <= left:
            self._parse(data[:length])
            return data[length:]
        self._parse(data[:left])
        if self._phase is Phase.HEAD:
            long_url = len(self.url) > self.limits.settings.head_limit // 2
            self._refuse(self.limits.url_too_long if long_url else self.limits.head_too_large)
        return b""

    def _receive_body(self, data: bytes) -> bytes:
        """Parse a part of a body. Returns what follows the body, if the length of the body is known."""
        self._heard_at = self.loop.time()
        if self._left:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
        else:
            part, rest = data, b""
            self._bytes += len(data)
        self._parse(part)
        if self._phase is Phase.BODY and self._bytes > self.limits.settings.head_limit:
            self._refuse(self.limits.head_too_large)
        return rest

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is answered like any other. What follows may be another protocol.
            self._answer_last()
        except httptools.HttpParserError as error:
            if self._phase is not Phase.CLOSING:
                reason = error.__context__
                self._refuse(reason if isinstance(reason, ApiError) else NOT_HTTP)

    def _answer_last(self) -> None:
        """Read no further requests. Close the connection after the current answer."""
        if self._answering:
            self._phase = Phase.CLOSING
            self.cycle.keep_alive = False
        elif self._phase is not Phase.CLOSING:
            self._close()

    def on_message_begin(self) -> None:
        if self._phase is not Phase.HEAD:  # a second request follows a body without a known length
            self._answer_last()
            raise NOT_HTTP.with_traceback(None)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not Phase.HEAD:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self._left = int(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > MOST_HEADERS:
            raise self.limits.head_too_large.with_traceback(None)

    def on_headers_complete(self) -> None:
        path = self.url.partition(b"?")[0]
        if path not in _HEALTH_CHECKS:
            limits = self.limits
            if self._only_health_checks and len(self.connections) > limits.most_connections:
                raise BUSY.with_traceback(None)
            reads = path in _READS or self.parser.get_method() in _READING
            load = limits.reads if reads else limits.writes
            if load.wait() > limits.settings.queue_target_s:
                self._shed()
                return
            self._load = load if path not in _LONG else None
        else:
            self._load = None
        super().on_headers_complete()
        self._answering = True
        self.limits.without_request.pop(self, None)
        self._start_body()
        if self.parser.get_method() in _READING:
            self._count()  # it is answered even if it has a body that never arrives

    def _start_body(self) -> None:
        self._phase, self._bytes = Phase.BODY, 0
        self._since = self._heard_at = self.loop.time()

    def _shed(self) -> None:
        """Refuse a request because others wait. If there are many refusals, do not read for a while from a
        caller who does not wait as long as the header Retry-After said."""
        method = self.parser.get_method().decode("ascii")
        # A caller who waits for "100 Continue" may or may not send the body after a refusal.
        close = not self.parser.should_keep_alive() or self.expect_100_continue
        self._send(BUSY, close=close, head_only=method == "HEAD", method=method)
        now = self.loop.time()
        self._pauses = now - self._refused_at < RETRY_AFTER_S and self.limits.refusals.are_many()
        self._refused_at = now
        if close:
            self._close()
        else:
            self._start_body()

    def on_body(self, body: bytes) -> None:
        self._bytes = 0
        if self._answering and self._phase is Phase.BODY:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase is Phase.CLOSING:
            return
        if not self._answering:
            self._wait_for_request()
            return
        self._phase = Phase.ANSWER
        self._count()
        super().on_message_complete()

    def _count(self) -> None:
        if self._load:
            self._load.begin()
            self.scope[_COUNTED] = self._load  # type: ignore[literal-required]
            self._load = None

    def _wait_for_request(self) -> None:
        self._phase = Phase.PAUSE if self._pauses else Phase.HEAD
        self._since, self._bytes, self._left, self.url = self.loop.time(), 0, 0, b""
        if self._pauses:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._answering = False
        if self.transport.is_closing():
            return
        self.limits.without_request[self] = None
        if self._phase is Phase.CLOSING or (self._phase is Phase.BODY and self.expect_100_continue):
            self._close()
        elif self._phase is Phase.BODY:  # the rest of the body is discarded
            self.flow.resume_reading()
        else:
            self.flow.stopped = False
            self._wait_for_request()
            held, self._held = self._held, b""
            self.data_received(held)


@cache
def _prepared(error: ApiError) -> tuple[bytes, bytes]:
    """The head of an answer, without its last headers, and its body, with a request id of zeros."""
    body = json.dumps(error.problem(_NO_ID)).encode("ascii")
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **(error.headers or {})}
    lines = [f"HTTP/1.1 {error.status_code} {HTTPStatus(error.status_code).phrase}"]
    lines += [f"{name.lower()}: {value}" for name, value in headers.items()]
    lines += [f"{name.decode()}: {value.decode()}" for name, value in SECURITY_HEADERS]
    return "\r\n".join([*lines, "cache-control: no-store", ""]).encode(), body


def _connections(limit: int) -> int:
    """The maximum number of connections: `limit`, or less if the process may not open so many files."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY:
            reserved = MOST_ACCEPTED_AT_ONCE + FOR_HEALTH_CHECKS + OTHER_FILES
            limit = min(limit, max(files - reserved, files // 2))
    return max(1, limit)
