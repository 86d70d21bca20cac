"""The HTML pages, and the OpenAPI document."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from bundlemage.service.problems import ApiError
from bundlemage.service.security import require

router = APIRouter(include_in_schema=False)
HERE = Path(str(files("bundlemage.service"))) / "pages"
PAGES = {"": "index", "builder": "builder", "insights": "insights", "login": "login"}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}


@router.get("/openapi.json", dependencies=[Depends(require("read"))])
async def openapi(request: Request) -> dict[str, Any]:
    described: dict[str, Any] = request.app.openapi()
    return described


@router.get("/static/{name}")
async def static(name: str) -> Response:
    file = _static_files().get(name)
    if file is None:
        raise ApiError(404, "Not found", "there is no such file")
    return FileResponse(file, media_type=TYPES[file.suffix])


@lru_cache(1)
def _static_files() -> dict[str, Path]:
    """The files by name, so that a request can reach no other file."""
    return {file.name: file for file in (HERE / "static").iterdir() if file.suffix in TYPES}


@router.head("/{page}")
@router.get("/{page}")
async def page(page: str, request: Request) -> Response:
    return await _page(page, request)


@router.head("/")
@router.get("/")
async def shop(request: Request) -> Response:
    return await _page("", request)


async def _page(name: str, request: Request) -> Response:
    """A page; or a redirect to the login page for a caller without a key."""
    if name not in PAGES:
        raise ApiError(404, "Not found", "there is no such page; there are /, /builder and /insights")
    if name != "login":
        try:
            await request.app.state.service.security.identify(request)
        except ApiError as refusal:
            if refusal.status_code != 401:
                raise
            wanted = f"{request.url.path}?{request.url.query}".removesuffix("?")
            return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)
    return FileResponse(HERE / f"{PAGES[name]}.html", media_type="text/html; charset=utf-8")
