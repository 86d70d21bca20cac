"""Routes of `/v1/session`: the web pages log in with a key, and log out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, SecretStr

from bundlemage.service.problems import ApiError, responses
from bundlemage.service.routes.common import TheService
from bundlemage.service.security import COOKIE, session_token
from bundlemage.store.records import Role
from bundlemage.wire.answers import Out
from bundlemage.wire.requests import Body

router = APIRouter(prefix="/v1/session", tags=["session"])


class SessionOut(Out):
    """Whether the page must log in, and the caller's role."""

    login_required: bool
    """Whether the service has keys."""
    role: Role | None
    """The caller's role; null if the caller is not logged in."""


class LoginIn(Body):
    """The key of a caller who logs in."""

    key: SecretStr = Field(min_length=1, max_length=200)
    """The complete text of the key."""


@router.get("", responses=responses(403, 429, 503))
async def session(request: Request, service: TheService) -> SessionOut:
    """Whether a login is needed, and the caller's role. This route needs no key: the page calls it first."""
    role: Role | None = None
    try:
        role = (await service.security.identify(request)).role
    except ApiError as error:
        if error.status_code != 401:
            raise
    return SessionOut(login_required=await service.security.keys_are_on(), role=role)


@router.post("", status_code=204, responses=responses(401, 403, 409, 413, 422, 429, 503))
async def log_in(request: Request, service: TheService, login: LoginIn) -> Response:
    """Check the key, and set a cookie that replaces it until the session ends."""
    security = service.security
    if not await security.keys_are_on():
        raise ApiError(409, "No login", "The service has no keys, so no login is needed.")
    token = await security.log_in(login.key.get_secret_value())
    answer = Response(status_code=204)
    lifetime = int(3600 * service.settings.session_hours)
    answer.set_cookie(COOKIE, token, max_age=lifetime, **_cookie_rules(request))
    return answer


@router.delete("", status_code=204, responses=responses(403, 429, 503))
async def log_out(request: Request, service: TheService) -> Response:
    """End the session of the cookie. Without a cookie, nothing happens."""
    token = session_token(request)
    if token is not None:
        await service.security.log_out(token)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, **_cookie_rules(request))
    return answer


def _cookie_rules(request: Request) -> dict[str, Any]:
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.url.scheme == "https"}
