"""Access control: API keys, sessions of the web pages, request limits, and access without keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from bundlemage.errors import ConfigError
from bundlemage.service.problems import ApiError
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Buckets, Shared
from bundlemage.store.records import Key, Role
from bundlemage.store.repository import Store
from bundlemage.wire.answers import FieldError

T = TypeVar("T")
COOKIE = "bundlemage_session"
ROLES: Final[dict[Role, int]] = {"read": 1, "write": 2, "admin": 3}
_KEY = re.compile(r"bm_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_NO_DIGEST = hashlib.sha256(b"").digest()  # compared if a key is unknown, so that the time is the same
_MOST_CACHED = 4096
_PROBES = {"/healthz", "/readyz"}
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")
_CREATE_A_KEY = "bundlemage keys create --role admin --db URL"


Headers = Mapping[bytes, bytes]


@dataclass(frozen=True)
class Principal:
    """The caller of a request."""

    role: Role
    caller: str
    """The id of the key; `local` if the service has no keys."""


LOCAL = Principal("admin", "local")
_Cache = dict[bytes, tuple[Principal, float]]
"""Maps the digest of a key or token to the caller and the time at which the entry expires."""


def make_key(role: Role, name: str = "") -> tuple[str, Key]:
    """Create a key. Returns its text, which is shown only once, and its record for the store."""
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"bm_{identity}_{secret}", Key(identity, role, name, _digest(secret), datetime.now(UTC))


def check_may_listen(host: str, has_keys: bool, trust_proxy: bool = False) -> None:
    """Raise a ConfigError if the service has no keys and other machines could reach it."""
    if has_keys or (is_loopback(host) and not trust_proxy):
        return
    place = f"on {host}" if not is_loopback(host) else "behind a proxy"
    raise ConfigError(
        f"the store has no API key. Without one, anyone who can reach the service {place} could read and "
        f"change everything. Create a key first: {_CREATE_A_KEY}; or listen on 127.0.0.1"
    )


class Security:
    """Identifies callers and limits their requests. Keys and sessions from the store are cached for some
    seconds, so a revoked key still works for that long. Use it on one event loop only."""

    def __init__(
        self, settings: Settings, store: Store, shared: Shared | None = None, seconds_cached: float = 5.0
    ) -> None:
        self.settings = settings
        self._store = store
        self._seconds_cached = seconds_cached
        self._shared = shared or Shared(settings)
        # Two caches, so that the token of a session is not accepted as a key.
        self._known_keys: _Cache = {}
        self._known_sessions: _Cache = {}
        self._keys_on: tuple[bool, float] = (True, 0.0)
        self._looked_up: dict[Hashable, asyncio.Task[Any]] = {}
        """The look-ups in the store that have not ended yet."""

    async def identify(self, request: Request) -> Principal:
        """Returns the caller of a request. The result is kept in `request.state`.

        A wrong key is refused even if no key is needed, because the sender expects it to be checked.
        """
        state = request.state
        if not hasattr(state, "principal"):
            state.principal = await self._identified(request)
            state.caller = state.principal.caller
        principal: Principal = state.principal
        return principal

    async def _identified(self, request: Request) -> Principal:
        scope = request.scope
        bearers = [value for name, value in scope["headers"] if name == b"authorization"]
        if bearers:
            scheme, _, text = bearers[0].decode("latin-1").partition(" ")
            if len(bearers) > 1:
                raise _unauthorised("The request has two Authorization headers; send one.")
            if scheme.lower() != "bearer":
                raise _unauthorised("The Authorization header is not 'Bearer KEY'.")
            principal = await self._cached(self._known_keys, text.strip(), self._verified)
            if principal is None:
                raise _unauthorised("The key is wrong or revoked.")
            return principal
        token = session_token(request)
        if token is not None:
            principal = await self._cached(self._known_sessions, token, self._session)
            if principal is not None:
                return principal
        if await self.keys_are_on():
            problem = "The login has expired. Log in again" if token else "This needs a key. Send one"
            raise _unauthorised(f"{problem}, or ask the operator of the service for a key.")
        self._check_local(dict(scope["headers"]))
        return LOCAL

    async def keys_are_on(self) -> bool:
        """Whether the service has keys. If it has, every request needs one."""
        on, until = self._keys_on
        now = time.monotonic()
        if now >= until:
            on = await self._together("keys", lambda: asyncio.to_thread(self._store.has_keys))
            self._keys_on = (on, now + self._seconds_cached)
        return on

    def count_login(self, scope: Mapping[str, Any]) -> None:
        """Count a login attempt. Raises an ApiError if the address has made too many. This is called before
        the body is read, so that an invalid body counts, too."""
        _count(self._shared.logins, caller_address(scope), "Too many login attempts.")

    async def log_in(self, text: str) -> str:
        """Start a session for a key. Returns the token for the cookie; the store keeps only its digest."""
        key = await self._verified(text.strip())
        if key is None:
            raise _unauthorised(
                "The key is wrong or revoked. It begins with bm_ and was shown once, when it was created."
            )
        token = secrets.token_urlsafe(32)
        expires = datetime.now(UTC) + timedelta(hours=self.settings.session_hours)
        await asyncio.to_thread(self._store.add_session, _digest(token), key.id, expires)
        return token

    async def log_out(self, token: str) -> None:
        """End a session."""
        digest = _digest(token)
        await asyncio.to_thread(self._store.end_session, digest)
        self._known_sessions.pop(
            digest, None
        )  # last: until the store ends it, a request could cache it again

    def admit(self, scope: Any, headers: Headers) -> None:
        """Count a request. Raises an ApiError if the caller has sent too many.

        A request counts for its key only if the cache of valid keys has this key. Otherwise it counts for
        the address. So an invented key does not use up the limit of a real key, and gets no separate limit.
        Health checks have their own limit, so that they do not fail when others send many requests.
        """
        known = self._known_keys.get(hashlib.sha256(headers.get(b"authorization", b"")[7:]).digest())
        probe = scope["path"] in _PROBES
        if known is not None and known[1] > time.monotonic() and not probe:
            caller = f"key {known[0].caller}"
        else:
            caller = caller_address(scope)
        buckets = self._shared.probes if probe else self._shared.requests
        _count(buckets, caller, "Too many requests in a short time.")

    def _check_local(self, headers: Headers) -> None:
        """Raise an ApiError unless the request comes from this machine. Without keys, all callers are admins.

        The Host header must be a local name: another site can point its own name at 127.0.0.1 and let a
        visitor's browser send requests. If other machines can reach the service, all callers are refused.
        """
        if not is_loopback(self.settings.host) or self.settings.trust_proxy:
            raise ApiError(
                403,
                "No key is left",
                "All API keys were revoked, and other machines can reach this service. "
                f"Create a key: {_CREATE_A_KEY}",
            )
        host = _AUTHORITY.fullmatch(requested_host(headers))
        if not host or not is_loopback(host[1]) or any(name in headers for name in _FORWARDED):
            raise ApiError(
                403,
                "Not from this machine",
                "Without API keys the service answers only its own machine, under a name such as localhost "
                f"and without a proxy. To allow other machines, create a key: {_CREATE_A_KEY}",
            )

    async def _cached(
        self, cache: _Cache, secret: str, look_up: Callable[[str], Coroutine[Any, Any, Key | None]]
    ) -> Principal | None:
        now, digest = time.monotonic(), _digest(secret)
        entry = cache.get(digest)
        if entry is not None and entry[1] > now:
            return entry[0]
        key = await self._together((look_up.__name__, digest), lambda: look_up(secret))
        if key is None:
            cache.pop(digest, None)
            return None
        if len(cache) >= _MOST_CACHED:
            cache.clear()
        principal = Principal(key.role, key.id)
        cache[digest] = (principal, now + self._seconds_cached)
        return principal

    async def _together(self, what: Hashable, look_up: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of a look-up in the store. Those who ask at the same time share one."""
        task = self._looked_up.get(what)
        if task is None:
            task = self._looked_up[what] = asyncio.create_task(look_up())
            task.add_done_callback(lambda _: self._looked_up.pop(what))
        return cast(T, await asyncio.shield(task))  # a caller who leaves must not cancel it for the others

    async def _session(self, token: str) -> Key | None:
        return await asyncio.to_thread(self._store.session, _digest(token))

    async def _verified(self, text: str) -> Key | None:
        """Returns the key with this text; None if it is wrong or revoked.

        A wrong secret takes the same time as an unknown id.
        """
        parts = _KEY.fullmatch(text)
        if parts is None:
            return None
        key = await asyncio.to_thread(self._store.key, parts[1])
        expected = key.digest if key is not None else _NO_DIGEST
        is_right = hmac.compare_digest(_digest(parts[2]), expected)
        return key if is_right and key is not None and key.revoked_at is None else None


def session_token(request: Request) -> str | None:
    """The token in the page's cookie, if it has the right form."""
    token = request.cookies.get(COOKIE)
    return token if token and _TOKEN.fullmatch(token) else None


def _count(buckets: Buckets, caller: str, reason: str) -> None:
    """Take a token from the caller's bucket. Raises an ApiError with `reason` if it is empty."""
    wait = buckets.take(caller, time.monotonic())
    if wait:
        seconds = str(max(1, math.ceil(wait)))
        raise ApiError(429, "Too many requests", f"{reason} Wait {seconds} s.", {"Retry-After": seconds})


class _Allowed(HTTPBearer):
    """A dependency that checks the caller's role. It is also the security scheme in the OpenAPI document: a
    separate scheme of the framework would make requests 50% slower."""

    def __init__(self, role: Role) -> None:
        super().__init__(
            scheme_name="key",
            bearerFormat="bm_ID_SECRET",
            description="A key from `bundlemage keys create`; or the cookie that POST /v1/session sets.",
        )
        self.role = role

    async def __call__(self, request: Request) -> Principal:  # type: ignore[override]
        security: Security = request.app.state.service.security
        principal = await security.identify(request)
        if ROLES[principal.role] < ROLES[self.role]:
            detail = f"This needs a key of role {self.role!r}; your key has the role {principal.role!r}."
            raise ApiError(403, "Role too weak", detail)
        _check_parameters(request)  # last, so that callers without the role learn nothing about the route
        return principal


require = lru_cache(_Allowed)
"""`require(role)` is a dependency that refuses callers without this role or a stronger one."""
Writer = Annotated[Principal, Depends(require("write"))]


def _check_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have, such as '?max_prise=20'."""
    if not request.scope["query_string"]:
        return
    described = request.app.openapi()["paths"].get(request.scope["route"].path_format)
    if described is None:  # a page: it reads its own parameters
        return
    documented = described.get(request.method.lower(), {}).get("parameters", ())
    known = [parameter["name"] for parameter in documented if parameter["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        message = f"is not a parameter of this route; it knows: {', '.join(known) or 'none'}"
        errors = [FieldError(field=name[:60], message=message) for name in unknown[:20]]
        raise ApiError(422, "Invalid request", f"{unknown[0][:60]!r} {message}", errors=errors)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _unauthorised(detail: str) -> ApiError:
    detail += " A key goes into the header 'Authorization: Bearer bm_…'."
    return ApiError(401, "Key needed", detail, {"WWW-Authenticate": "Bearer"})


# ── The sender and the target of a request ─────────────────────────────────────────────────────────


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether a host name or address (without a port) means this machine itself, such as localhost."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: these names never leave the machine
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def use_proxy_headers(scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
    """Replace the address, scheme and host of a request by those in the X-Forwarded headers of a proxy.

    If a header has several values, only the last one is used. The proxy wrote that one; the caller may have
    invented the others.
    """
    if forwarded := headers.get(b"x-forwarded-for"):
        scope["client"] = (_last(forwarded), 0)
    if scheme := headers.get(b"x-forwarded-proto"):
        scope["scheme"] = _last(scheme)
    if host := headers.get(b"x-forwarded-host"):
        headers[b"host"] = _last(host).encode("latin-1")


def requested_host(headers: Headers) -> str:
    """The host (and port) in the URL that the caller used."""
    return _last(headers.get(b"host", b"")).lower()


def is_own_origin(origin: bytes, headers: Headers) -> bool:
    """Whether the browser's Origin header names this service, so that its own page sent the request.

    The scheme is ignored: behind a TLS proxy the browser sees https, and the service sees http.
    """
    _, separator, authority = origin.decode("latin-1").lower().partition("://")
    return bool(separator) and authority == requested_host(headers)


def caller_address(scope: Mapping[str, Any]) -> str:
    """The caller's address for rate limits. For IPv6 it is the /64 network, which one caller usually owns."""
    client = scope.get("client")
    address = str(client[0]) if client else "unknown"
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    return parsed.exploded[:19] if parsed.ipv4_mapped is None else str(parsed.ipv4_mapped)


def _last(value: bytes) -> str:
    return value.decode("latin-1").rpartition(",")[2].strip()
