"""Routes of the HTML pages and of the OpenAPI document."""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

from bundlemage.service.middleware import content_policy
from bundlemage.service.problems import ApiError
from bundlemage.service.security import require

router = APIRouter(include_in_schema=False)
HERE = Path(str(files("bundlemage.service"))) / "pages"
PAGES = {"": "index", "builder": "builder", "insights": "insights", "docs": "docs", "login": "login"}
WITH_IMAGES = ("", "builder")
"""The pages that show images of items and bundles."""
WHOLE = {"Accept-Ranges": "none"}  # the frame drops the header Range


class _Files(StaticFiles):
    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(WHOLE)
        return response


STATIC = _Files(directory=HERE / "static", packages=[("fastapi_swagger", "resources")])
"""The files that the pages load, under /static: ours, and Swagger UI. Of the package that holds Swagger UI,
only these files are used, and none of its Python code."""
mimetypes.add_type("text/javascript", ".js")  # browsers need this type, and the system may use another


@router.get("/openapi.json", dependencies=[Depends(require("read"))])
async def openapi(request: Request) -> dict[str, Any]:
    described: dict[str, Any] = request.app.openapi()
    return described


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/{page}", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """Returns a page, or redirects to the login page if the caller needs a key."""
    name = request.path_params.get("page", "")
    if name not in PAGES:
        listed = "/, /builder, /insights and /docs"
        raise ApiError(404, "Not found", f"there is no such page; the pages are {listed}")
    if name != "login":
        try:
            await request.app.state.service.security.identify(request)
        except ApiError as refusal:
            if refusal.status_code != 401:
                raise
            target = f"{request.url.path}?{request.url.query}".removesuffix("?")
            return RedirectResponse(f"/login?next={quote(target, safe='')}", status_code=303)
    headers = dict(WHOLE)
    if name in WITH_IMAGES:
        schemes = request.app.state.service.answerer.serving.stock.image_schemes
        headers["Content-Security-Policy"] = content_policy(schemes)
    return FileResponse(HERE / f"{PAGES[name]}.html", headers=headers, media_type="text/html; charset=utf-8")
