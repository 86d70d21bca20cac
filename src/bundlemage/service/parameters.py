"""Which parameters a route knows."""

from __future__ import annotations

from fastapi import Request

from bundlemage.service.problems import ApiError
from bundlemage.wire.answers import FieldError


def check_parameters(request: Request) -> None:
    """One that a route does not know is a mistake, and is said: '?max_prise=20' is not passed over."""
    if not request.scope["query_string"]:
        return
    described = request.app.openapi()["paths"].get(request.scope["route"].path_format)
    if described is None:  # a page, which reads them itself
        return
    documented = described.get(request.method.lower(), {}).get("parameters", ())
    known = [parameter["name"] for parameter in documented if parameter["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        message = f"is not a parameter of this route; it knows: {', '.join(known) or 'none'}"
        errors = [FieldError(field=name[:60], message=message) for name in unknown[:20]]
        raise ApiError(422, "Invalid request", f"{unknown[0][:60]!r} {message}", errors=errors)
