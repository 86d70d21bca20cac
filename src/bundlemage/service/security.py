"""Who may do what: API keys, sessions of the page, and the rules where there are no keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from bundlemage.errors import ConfigError
from bundlemage.service import hosts
from bundlemage.service.limits import Buckets
from bundlemage.service.parameters import check_parameters
from bundlemage.service.problems import ApiError
from bundlemage.service.settings import Settings
from bundlemage.store.records import Key, Role
from bundlemage.store.repository import Store

COOKIE = "bundlemage_session"
ROLES: Final[dict[Role, int]] = {"read": 1, "write": 2, "admin": 3}
_KEY = re.compile(r"bm_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_NOBODYS_DIGEST = hashlib.sha256(b"").digest()
_MOST_REMEMBERED = 4096
_PROBES = {"/healthz", "/readyz"}
_PROBES_PER_SECOND = 50
_HOW_TO_MAKE_A_KEY = "bundlemage keys create --role admin --db URL"


@dataclass(frozen=True)
class Principal:
    """Who asks, as far as it matters."""

    role: Role
    caller: str
    """The id of the key; `local` where there are no keys."""

    def may(self, role: Role) -> bool:
        return ROLES[self.role] >= ROLES[role]


LOCAL = Principal("admin", "local")
_Known = dict[bytes, tuple[Principal, float]]
"""By the digest of what was sent: whose it is, and until when that is believed."""


def make_key(role: Role, name: str = "") -> tuple[str, Key]:
    """A new key: its text, which is shown once, and what the store keeps."""
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"bm_{identity}_{secret}", Key(identity, role, name, _digest(secret), datetime.now(UTC))


def check_may_listen(host: str, has_keys: bool, trust_proxy: bool = False) -> None:
    """Refuse to serve others than this machine's own users without keys."""
    if has_keys or (hosts.is_loopback(host) and not trust_proxy):
        return
    place = f"on {host}" if not hosts.is_loopback(host) else "behind a proxy"
    raise ConfigError(
        f"the store has no API key, and without one everybody who reaches the service {place} could read and "
        f"change everything. Make a key first: {_HOW_TO_MAKE_A_KEY}; or listen on 127.0.0.1"
    )


class Security:
    """Tells who asks. Keys and sessions are looked up in the store and then believed for some seconds, so a
    revoked key dies within that time. For use on one event loop."""

    def __init__(self, settings: Settings, store: Store, seconds_believed: float = 5.0) -> None:
        self.settings = settings
        self._store = store
        self._seconds_believed = seconds_believed
        self._rate = Buckets(settings.rate_limit, 2 * settings.rate_limit)
        self._logins = Buckets(settings.login_limit / 60, settings.login_limit)
        self._probes = Buckets(_PROBES_PER_SECOND, 2 * _PROBES_PER_SECOND)
        # Apart, or a session's token would be taken for a key.
        self._known_keys: _Known = {}
        self._known_sessions: _Known = {}
        self._keys_on: tuple[bool, float] = (True, 0.0)

    async def identify(self, request: Request) -> Principal:
        """Who asks; found once for each request, and noted with it.

        A wrong key is refused even where none is needed: whoever sends one relies on it.
        """
        state = request.state
        if not hasattr(state, "principal"):
            state.principal = await self._identified(request)
            state.caller = state.principal.caller
        found: Principal = state.principal
        return found

    async def _identified(self, request: Request) -> Principal:
        scope = request.scope
        bearers = [value for name, value in scope["headers"] if name == b"authorization"]
        if bearers:
            principal = await self._by_key(_bearer_text(bearers))
            if principal is None:
                raise _unauthorised("The key is wrong or revoked.")
            return principal
        token = session_token(request)
        principal = await self._by_session(token) if token else None
        if principal is not None:
            return principal
        if await self.keys_are_on():
            expired = "The login has ended. Log in again" if token else "This needs a key. Send one"
            raise _unauthorised(f"{expired}, or ask whoever runs the service for one.")
        self._check_local(dict(scope["headers"]))
        return LOCAL

    async def keys_are_on(self) -> bool:
        on, until = self._keys_on
        now = time.monotonic()
        if now >= until:
            on = await asyncio.to_thread(self._store.has_keys)
            self._keys_on = (on, now + self._seconds_believed)
        return on

    async def log_in(self, text: str, address: str) -> str:
        """A session for a key: the token for the cookie, of which only the digest is kept."""
        wait = self._logins.take(address, time.monotonic())
        if wait:
            raise too_many(wait, "Too many attempts to log in.")
        key = await self._verified(text.strip())
        if key is None:
            raise _unauthorised(
                "The key is wrong or revoked. It begins with bm_ and was shown once, when made."
            )
        token = secrets.token_urlsafe(32)
        expires = datetime.now(UTC) + timedelta(hours=self.settings.session_hours)
        await asyncio.to_thread(self._store.add_session, _digest(token), key.id, expires)
        return token

    async def log_out(self, token: str) -> None:
        digest = _digest(token)
        await asyncio.to_thread(self._store.end_session, digest)
        self._known_sessions.pop(digest, None)  # not before: it could be looked up once more meanwhile

    def admit(self, scope: Any, headers: hosts.Headers, now: float) -> float:
        """Count a request: 0, or the seconds after which it may come again.

        By key only if the key was found right some seconds ago. Anything else counts for the address, or
        anybody could use up the share of a key, or take a new share with every made-up key. Probes have a
        share of their own: one must not fail because its neighbour asks a lot.
        """
        if scope["path"] in _PROBES:
            return self._probes.take(self.address(scope, headers), now)
        credential = headers.get(b"authorization")
        if credential is not None:
            known = self._known_keys.get(hashlib.sha256(credential[7:]).digest())
            if known is not None and known[1] > now:
                return self._rate.take(f"key {known[0].caller}", now)
        return self._rate.take(self.address(scope, headers), now)

    def address(self, scope: Any, headers: hosts.Headers) -> str:
        return hosts.caller_address(scope, headers, self.settings.trust_proxy)

    def _check_local(self, headers: hosts.Headers) -> None:
        """Without keys everybody is admin, so only this machine's own users may ask, and only by its name.

        A foreign page can point a name of its own at 127.0.0.1 and have the visitor's browser ask; then Host
        is that name. A service that listens elsewhere and has lost its keys answers nobody.
        """
        if not hosts.is_loopback(self.settings.host) or self.settings.trust_proxy:
            raise _forbidden(
                "No key is left",
                "All API keys were revoked, and this service listens to others than its own machine. "
                f"Make a key: {_HOW_TO_MAKE_A_KEY}",
            )
        host = hosts.asked_host(headers, trust_proxy=False)
        if not hosts.is_loopback(hosts.without_port(host)) or hosts.was_forwarded(headers):
            raise _forbidden(
                "Not from this machine",
                "Without API keys the service answers only its own machine, under a name such as localhost "
                f"and without a proxy between. To be asked from elsewhere, make a key: {_HOW_TO_MAKE_A_KEY}",
            )

    async def _by_key(self, text: str) -> Principal | None:
        return await self._remembered(self._known_keys, _digest(text), lambda: self._verified(text))

    async def _by_session(self, token: str) -> Principal | None:
        digest = _digest(token)
        look_up = partial(asyncio.to_thread, self._store.session, digest)
        return await self._remembered(self._known_sessions, digest, look_up)

    async def _remembered(
        self, known: _Known, digest: bytes, look_up: Callable[[], Awaitable[Key | None]]
    ) -> Principal | None:
        now = time.monotonic()
        found = known.get(digest)
        if found is not None and found[1] > now:
            return found[0]
        key = await look_up()
        if key is None:
            known.pop(digest, None)
            return None
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        principal = Principal(key.role, key.id)
        known[digest] = (principal, now + self._seconds_believed)
        return principal

    async def _verified(self, text: str) -> Key | None:
        """The key of a text. An unknown id takes the same steps as a wrong secret."""
        parts = _KEY.fullmatch(text)
        if parts is None:
            return None
        key = await asyncio.to_thread(self._store.key, parts[1])
        expected = key.digest if key is not None else _NOBODYS_DIGEST
        right = hmac.compare_digest(_digest(parts[2]), expected)
        return key if right and key is not None and key.revoked_at is None else None


def session_token(request: Request) -> str | None:
    """The token of the page's cookie, if it looks like one of ours."""
    token = request.cookies.get(COOKIE)
    return token if token and _TOKEN.fullmatch(token) else None


def too_many(wait: float, reason: str) -> ApiError:
    seconds = max(1, -int(-wait // 1))  # rounded up
    return ApiError(
        429, "Too many requests", f"{reason} Wait {seconds} s.", headers={"Retry-After": str(seconds)}
    )


class _Allowed(HTTPBearer):
    """A dependency that lets callers of a role pass. It is itself the security scheme of the API's document:
    one that asked the framework's schemes first would take half as long again."""

    def __init__(self, role: Role) -> None:
        super().__init__(
            scheme_name="key",
            bearerFormat="bm_ID_SECRET",
            description="A key, made by `bundlemage keys create`; or the cookie that POST /v1/session sets.",
        )
        self.role = role

    async def __call__(self, request: Request) -> Principal:  # type: ignore[override]
        security: Security = request.app.state.service.security
        principal = await security.identify(request)
        if not principal.may(self.role):
            raise _forbidden(
                "Role too weak",
                f"This needs a key of role {self.role!r}; this one has the role {principal.role!r}.",
            )
        check_parameters(request)  # not before: strangers are told nothing of a route
        return principal


@lru_cache
def require(role: Role) -> Callable[..., Awaitable[Principal]]:
    """A dependency that lets only callers of a role pass, or of a stronger one."""
    return _Allowed(role)


Writer = Annotated[Principal, Depends(require("write"))]


def _bearer_text(values: list[bytes]) -> str:
    if len(values) > 1:
        raise _unauthorised("The request has two Authorization headers; send one.")
    scheme, _, text = values[0].decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise _unauthorised("The Authorization header is not 'Bearer KEY'.")
    return text.strip()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _unauthorised(detail: str) -> ApiError:
    return ApiError(
        401,
        "Key needed",
        f"{detail} A key goes into the header 'Authorization: Bearer bm_…'.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _forbidden(title: str, detail: str) -> ApiError:
    return ApiError(403, title, detail)
