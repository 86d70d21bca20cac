"""What every request passes on its way in and out: one plain ASGI layer, as each layer costs time.

In: a request id, the rate and size limits, the rule against writes from other sites, who asks. Out: security
headers, an answer to errors that nobody foresaw, one count and one line in the log.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bundlemage.errors import BundleMageError
from bundlemage.service import hosts, logs
from bundlemage.service.limits import limited, too_large
from bundlemage.service.problems import ApiError, answer_of, unexpected
from bundlemage.service.security import too_many

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_API = "/v1/"
_LOGIN = "/v1/session"
_STATIC = "/static"
_NO_ROUTE = "(none)"
_CLIENT_LEFT = 499  # there is no status for it; this one is in common use

_CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
_SECURITY_HEADERS = (
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # `no-referrer` would also take the Origin from a form's POST
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", _PERMISSIONS.encode()),
)
_NO_STORE = (b"cache-control", b"no-store")
_ASK_AGAIN = (b"cache-control", b"no-cache")  # keep it, but ask whether it is still the same (ETag)


class Frame:
    """The layer; `app.state.service` has what it works with."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        service = scope["app"].state.service
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["started"] = started
        path: str = scope["path"]
        status = 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message.get("headers", ())
                caching = _caching(path, status, own)
                identity = (b"x-request-id", request_id.encode())
                message["headers"] = [*own, *_SECURITY_HEADERS, *caching, identity]
            await send(message)

        try:
            try:
                self._admit(scope, headers, service)
                if path.startswith(_API) and path != _LOGIN:
                    # Here, as a route reads and parses the whole body before it asks who sent it.
                    await service.security.identify(Request(scope))
                if b"transfer-encoding" in headers:  # else the server itself stops at Content-Length
                    receive = limited(receive, service.settings.body_limit)
                await self.app(scope, receive, framed)
            except ApiError as refusal:
                await refusal.answer(request_id)(scope, receive, framed)
            except BundleMageError as error:  # of who asks; what a route raises is answered further in
                await answer_of(error, request_id)(scope, receive, framed)
            except Exception as error:
                logs.failure("failed", error, request_id)
                if status:  # half of an answer is out: the server must break the connection off
                    raise
                await unexpected().answer(request_id)(scope, receive, framed)
        finally:
            seconds = time.perf_counter() - started
            route, method = _template(scope, path), scope["method"]
            status = status or _CLIENT_LEFT
            service.metrics.request(route, method, status, seconds)
            logs.request_line(
                request_id=request_id,
                method=method,
                route=route,
                status=status,
                milliseconds=1000 * seconds,
                key=state.get("caller"),
            )

    def _admit(self, scope: Scope, headers: dict[bytes, bytes], service: Any) -> None:
        """Raise an ApiError for a request that is refused before anybody looks at it."""
        wait = service.security.admit(scope, headers, time.monotonic())
        if wait:
            raise too_many(wait, "Too many requests in a short time.")
        length = headers.get(b"content-length")
        if length is not None and int(length) > service.settings.body_limit:
            raise too_large(service.settings.body_limit)
        origin = headers.get(b"origin")
        if origin is None or scope["method"] in _HARMLESS:
            return
        if not hosts.is_own_origin(origin, headers, service.settings.trust_proxy):
            raise ApiError(
                403,
                "From another site",
                "A page of another site sent this request, and only the service's own page may change things "
                "from a browser. If this is its own page, the proxy before it must pass the Host header on.",
            )


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The caller's own id if it looks like one, so that logs of both can be joined; else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return secrets.token_hex(8)


def _caching(path: str, status: int, headers: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Nothing is kept but the page and its files."""
    kind = b""
    for name, value in headers:
        if name == b"cache-control":
            return ()
        if name == b"content-type":
            kind = value
    if status < 400 and (path.startswith(_STATIC) or kind.startswith(b"text/html")):
        return (_ASK_AGAIN,)
    return (_NO_STORE,)


def _template(scope: Scope, path: str) -> str:
    """The route as it was declared. A path itself may name a user, and there are endlessly many."""
    if path.startswith(f"{_STATIC}/"):
        return _STATIC
    template = getattr(scope.get("route"), "path_format", None)
    return template if isinstance(template, str) and template else _NO_ROUTE
