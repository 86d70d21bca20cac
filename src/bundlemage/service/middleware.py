"""The work before and after every route. All of it is in one ASGI layer, because each layer costs time.

Before the route, it sets a request id, reads the path, checks the rate and size limits, refuses writes from
pages of other sites, and identifies the caller. After the route, it adds security headers, answers unexpected
errors, counts the request and writes one line to the log.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bundlemage.service import logs
from bundlemage.service.metrics import NO_ROUTE
from bundlemage.service.paths import is_text, path_of
from bundlemage.service.problems import ApiError, answer_of
from bundlemage.service.security import is_own_origin, use_proxy_headers

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_API = "/v1/"
_LOGIN = "/v1/session"
_STATIC = "/static"
_LOGIN_BYTES = 4096
_MOST_LISTS = 100_000
"""Maximum number of lists and objects in a JSON body. They take the longest to read: 0.1 s for a megabyte."""
_CLIENT_LEFT = 499  # not a standard status, but commonly used


def content_policy(image_schemes: Iterable[str] = ()) -> str:
    """The header Content-Security-Policy. `image_schemes`: `http` or `https`, if images come from there."""
    images = " ".join(["'self'", "data:", *(f"{scheme}:" for scheme in sorted(image_schemes))])
    return (
        f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


_PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
_POLICY = b"content-security-policy"
SECURITY_HEADERS = (
    (_POLICY, content_policy().encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # `no-referrer` would also remove the Origin of a form's POST
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", _PERMISSIONS.encode()),
)
_NO_STORE = (b"cache-control", b"no-store")
_REVALIDATE = (b"cache-control", b"no-cache")  # browsers keep it, but check its ETag for changes


class Frame:
    """The ASGI layer around the app. It uses `app.state.service`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        service = scope["app"].state.service
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if service.settings.trust_proxy:
            use_proxy_headers(scope, headers)
        read = path_of(scope)
        path: str = scope["path"] if read is None else read
        if path != scope["path"]:
            scope = {**scope, "path": path}  # a copy, because the server may not expect the stand-ins
        if b"range" in headers:  # ignored: the framework would answer a wrong range in plain text
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"range"]
        request, status = Request(scope), 0
        request_id = request.state.request_id = _request_id(headers)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers_of_route = message.get("headers", ())
                caching = _caching(path, status, headers_of_route)
                identity = (b"x-request-id", request_id.encode())
                own_policy = any(name == _POLICY for name, _ in headers_of_route)
                security = SECURITY_HEADERS[1:] if own_policy else SECURITY_HEADERS
                message["headers"] = [*headers_of_route, *security, *caching, identity]
            await send(message)

        try:
            service.security.admit(scope, headers)
            _check_text(read, scope)
            limit = self._check(scope, headers, service)
            if path.startswith(_API) and path != _LOGIN:
                # This is done here, because the route would parse the whole body before it checks the caller.
                await service.security.identify(request)
            if b"content-length" in headers or b"transfer-encoding" in headers:
                receive = _limited(receive, limit)
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            if status:  # a part of the answer was sent, so the server must close the connection
                logs.failure("failed", error, request_id)
                raise
            answer = await answer_of(request, error)
            await answer(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - started
            route, method = _template(scope, path), scope["method"]
            status = status or _CLIENT_LEFT
            service.metrics.request(route, method, status, seconds)
            fields = {"request_id": request_id, "method": method, "route": route, "status": status}
            fields |= {"ms": round(1000 * seconds, 2), "key": getattr(request.state, "caller", None)}
            level = logging.ERROR if status >= 500 else logging.INFO
            logs.log.log(level, "request", extra={"fields": fields})

    def _check(self, scope: Scope, headers: dict[bytes, bytes], service: Any) -> int:
        """Returns the maximum size of the body. Raises an ApiError if the header Content-Length is above it,
        if a page of another site sent the request, or after too many logins. Nothing of the body has been
        read yet."""
        origin, limit = headers.get(b"origin"), service.settings.body_limit
        if origin is not None and scope["method"] not in _HARMLESS and not is_own_origin(origin, headers):
            raise ApiError(
                403,
                "From another site",
                "A page of another site sent this request. From a browser, only the service's own page may "
                "change data. If this is its own page, the proxy must pass on the Host header.",
            )
        if scope["path"] == _LOGIN:
            limit = min(limit, _LOGIN_BYTES)
            if scope["method"] == "POST":
                service.security.count_login(scope)
        length = headers.get(b"content-length")
        if length is not None and int(length) > limit:
            raise _too_large(f"{limit:,} bytes")
        return int(limit)


def _check_text(path: str | None, scope: Scope) -> None:
    if path is None or not is_text(scope["query_string"]):
        detail = "The path or the query is not UTF-8. Write such characters as %XX, in UTF-8."
        raise ApiError(422, "Invalid request", detail)


def _too_large(most: str) -> ApiError:
    return ApiError(
        413, "Body too large", f"The body of this request may have at most {most}. Send smaller requests."
    )


def _limited(receive: Receive, limit: int) -> Receive:
    """Wrap `receive`: it refuses a body of more than `limit` bytes, or with too many lists and objects."""
    seen = lists = 0

    async def counted() -> Message:
        nonlocal seen, lists
        message = await receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            seen += len(body)
            lists += body.count(b"[") + body.count(b"{")
            if seen > limit:
                raise _too_large(f"{limit:,} bytes")
            if lists > _MOST_LISTS:
                raise _too_large(f"{_MOST_LISTS:,} lists and objects")
        return message

    return counted


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The id that the caller sent, if it is valid, so that both sides' logs match; otherwise a new id."""
    sent = headers.get(b"x-request-id")
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent.decode("ascii")
    return secrets.token_hex(8)


def _caching(path: str, status: int, headers: Any) -> tuple[tuple[bytes, bytes], ...]:
    """The Cache-Control header to add, if there is none. Browsers may cache only pages and static files."""
    kind = b""
    for name, value in headers:
        if name == b"cache-control":
            return ()
        if name == b"content-type":
            kind = value
    if status < 400 and (path.startswith(_STATIC) or kind.startswith(b"text/html")):
        return (_REVALIDATE,)
    return (_NO_STORE,)


def _template(scope: Scope, path: str) -> str:
    """The route's template, for logs and metrics. There are too many paths, and they may contain user ids."""
    if path.startswith(f"{_STATIC}/"):
        return _STATIC
    template = getattr(scope.get("route"), "path_format", None)
    return template if isinstance(template, str) and template else NO_ROUTE
