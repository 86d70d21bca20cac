"""Turns errors into answers with problem details (RFC 9457), and describes them in the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from reprlib import Repr
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Mount

from bundlemage import errors
from bundlemage.service import logs
from bundlemage.wire.answers import FieldError, ProblemOut
from bundlemage.wire.design import Change, ImpossibleDesignError, Rule, Step
from bundlemage.wire.requests import MOST_ERRORS

MEDIA_TYPE = "application/problem+json"
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 60
# The errors of BundleMage whose messages callers may see, with the status and the title of the answer.
_OURS: dict[type, tuple[int, str]] = {
    errors.UnknownIdError: (422, "Unknown id"),
    errors.OutOfTimeError: (422, "No answer in time"),
    errors.UnknownThingsError: (422, "Unknown id"),
    errors.ExistsError: (412, "Is there already"),
    errors.IdempotencyError: (422, "Idempotency key used twice"),
    errors.UnstorableError: (422, "Not possible"),
    errors.ConfigError: (422, "Not possible"),
    errors.DataError: (422, "Not possible"),
    ImpossibleDesignError: (422, "Impossible design"),
    errors.UnsupportedError: (409, "Not with this model"),
    errors.MissingExtraError: (409, "Not installed"),
    errors.ArtifactError: (409, "Model cannot be read"),
    errors.SupersededError: (409, "Superseded"),
    errors.BusyError: (503, "Busy"),
}


class ApiError(HTTPException):
    """A refused request. It is an HTTPException, because the framework never replaces these by other errors,
    not even while it reads the body. `members` are additional fields of the answer."""

    def __init__(
        self, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.title = title
        self.members = members

    def problem(self, request_id: str) -> dict[str, Any]:
        """The fields of the answer."""
        problem = ProblemOut(
            type=f"urn:bundlemage:problem:{self.title.lower().replace(' ', '-')}",
            title=self.title,
            status=self.status_code,
            detail=self.detail,
            request_id=request_id,
            **self.members,
        )
        return problem.model_dump(exclude_unset=True)


_UNEXPECTED = ApiError(
    500, "Internal error", "The service failed to answer. The log has the reason under this request's id."
)
# Callers must not see the message of a StoreError, because it names hosts and files.
_UNAVAILABLE = ApiError(
    503,
    "Store unavailable",
    "The store does not answer. Try again. If this was a write, use the same Idempotency-Key, because the "
    "write may have taken place.",
    {"Retry-After": "2"},
)


def newer_than_the_model(what: str) -> ApiError:
    """The refusal for an item or bundle that is newer than the model. `what` begins the message,
    for example "the item 'x' is"."""
    return ApiError(
        409,
        "Not in the model",
        f"{what} newer than the model, so the model knows nothing about it; 'bundlemage retrain' trains a "
        "model that does",
    )


async def answer_of(request: Request, error: Exception) -> Response:
    """Returns the answer to any error. If callers may not see its message, the error is logged."""
    request_id = request.state.request_id
    if isinstance(error, ApiError):
        refusal = error
    elif isinstance(error, RequestValidationError):
        refusal = _from_validation(error)
    elif isinstance(error, HTTPException):
        refusal = _from_http(request, error)
    elif (ours := _from_ours(error)) is not None:
        refusal = ours
    else:
        logs.failure("failed", error, request_id)
        refusal = _UNAVAILABLE if isinstance(error, errors.StoreError) else _UNEXPECTED
    # Plain ASCII, because text quoted from a request may not be valid UTF-8.
    content = json.dumps(refusal.problem(request_id)).encode("ascii")
    return Response(content, refusal.status_code, refusal.headers, MEDIA_TYPE)


def _from_ours(error: Exception) -> ApiError | None:
    """Convert an error of BundleMage to a refusal; None if callers may not see its message."""
    for kind in type(error).__mro__:  # the most specific class first
        if kind in _OURS:
            status, title = _OURS[kind]
            headers = {"Retry-After": "1"} if status == 503 else None
            # Only an ImpossibleDesignError has these.
            names = ("conflict", "smallest", "changes")
            members = {name: getattr(error, name) for name in names if hasattr(error, name)}
            return ApiError(status, title, str(error), headers, **members)
    return None


def _from_http(request: Request, error: HTTPException) -> ApiError:
    """Convert an error of the framework to one of our refusals."""
    status = error.status_code
    if status == 404:
        path = request.scope["path"]
        hint = " In an id, write / as %2F." if path.startswith("/v1/") and path.count("/") > 3 else ""
        return ApiError(404, "No such route", f"There is no such route; GET /openapi.json lists all.{hint}")
    if status == 405:
        # A path may have several routes, but the framework names the methods of only one. A static file has
        # no such route.
        methods = {
            method: None
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
            for route in request.app.routes
            if not isinstance(route, Mount)
            and route.matches({**request.scope, "method": method})[0] is Match.FULL
        }
        allowed = ", ".join(methods) or "GET, HEAD"
        detail = f"This route does not answer {request.method}. It answers {allowed}."
        return ApiError(405, "Wrong method", detail, {"Allow": allowed})
    if status == 400:  # the body is not text; report it like invalid JSON
        return ApiError(422, "Invalid request", "body: cannot be read; JSON in UTF-8 is expected")
    return ApiError(status, HTTPStatus(status).phrase, str(error.detail), error.headers)


def _from_validation(error: RequestValidationError) -> ApiError:
    """A refusal that lists the wrong fields, with the given values and what is expected."""
    faults = error.errors()
    fields = [_field_error(fault) for fault in faults[:MOST_ERRORS]]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if len(faults) >= MOST_ERRORS:  # the check stopped here
        more = " (and more)"
    return ApiError(422, "Invalid request", f"{fields[0].field}: {fields[0].message}{more}", errors=fields)


def _field_error(fault: Mapping[str, Any]) -> FieldError:
    place, *path = fault["loc"]
    kind, value = fault["type"], fault.get("input")
    # The path of a field, such as `interactions[2].user_id`. Long names from callers are cut.
    steps = (f"[{step}]" if isinstance(step, int) else f".{step:.60}" for step in path)
    field = "".join(steps).removeprefix(".") or str(place)
    if kind == "json_invalid":
        reason = fault.get("ctx", {}).get("error", "")
        field, message = "body", f"is no JSON ({reason} at character {path[0]})"
    elif kind == "missing":
        message = f"is missing; it is a required part of the {place}"
    elif kind == "extra_forbidden":
        message = f"is not a field of this {place}; leave it out"
    elif (words := errors.limit_or_type_in_words(fault)) is not None:
        message = f"is {errors.in_short(value)}{words}"
    else:
        message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        if isinstance(value, bytes):
            message += "; was the header Content-Type: application/json sent?"
        if path[-1:] != ["key"]:  # the key of a login is never repeated
            message += f"; found {_shorten.repr(value)}"
    return FieldError(field=field, message=message)


def install(app: FastAPI) -> None:
    """Make the app answer every error with a problem, and describe problems in its OpenAPI document."""
    for kind in (HTTPException, RequestValidationError, errors.BundleMageError):
        app.add_exception_handler(kind, answer_of)
    plain_document = app.openapi

    @cache  # every request with a query string looks up its parameters in the document
    def document() -> dict[str, Any]:
        described = plain_document()
        for operation in (each for path in described["paths"].values() for each in path.values()):
            # The first sentence of the docstring; FastAPI would take the name of the function.
            sentence = re.split(r"\.\s", operation.get("description", ""), maxsplit=1)[0]
            operation["summary"] = " ".join(sentence.split()).removesuffix(".") or operation["summary"]
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        problem = ProblemOut.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"), ProblemOut=problem)
        return described

    app.openapi = document  # type: ignore[method-assign]


def _documented(meaning: str, example: ApiError) -> dict[str, Any]:
    """A refusal in the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemOut"}
    content = {"schema": schema, "example": example.problem("5f1c9a3e7b2d4860")}
    return {"description": meaning, "content": {MEDIA_TYPE: content}}


# For each status: the title of its example, and its meaning.
_MEANINGS = {
    401: ("Key needed", "No key, or a wrong one."),
    403: ("Role too weak", "The key's role is too weak, or the request comes from another site."),
    404: ("Not found", "Nothing has this id."),
    409: ("Not with this model", "Not possible in the current state."),
    412: ("Is there already", "The id is already in use, and the request has 'If-None-Match: *'."),
    413: ("Body too large", "The body is too large."),
    422: ("Invalid request", "Something in the request is wrong."),
    429: ("Too many requests", "Too many requests; the header Retry-After says when to ask again."),
    500: ("Internal error", "The service failed."),
    503: ("Store unavailable", "Busy, or the store does not answer; try again."),
    504: ("Took too long", "The work took longer than the service allows, and was stopped."),
}


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for the OpenAPI document. 422 and 500 are always added to `codes`."""
    meanings = {status: _MEANINGS[status] for status in sorted({*codes, 422, 500})}
    return {
        status: _documented(meaning, ApiError(status, title, meaning))
        for status, (title, meaning) in meanings.items()
    }


def impossible_design() -> dict[str, Any]:
    """The refusal (status 422) for an impossible design, for the OpenAPI document."""
    # The rules here all have a key, because null values are dropped from the document.
    rules = [
        Rule("must", "g0022", "the item 'g0022' in the bundle"),
        Rule("at_most", "Seafaring", "no item with the tag 'Seafaring'"),
    ]
    text = "with at most 1 instead of 0 items with the tag 'Seafaring'"
    example = _from_ours(ImpossibleDesignError(rules, [Change((Step("at_most", "Seafaring", 1.0),), text)]))
    assert example is not None
    return _documented(
        "Something in the request is wrong, or no bundle meets all conditions. In the second case, "
        "'conflict' says why, and 'changes' says what would help.",
        example,
    )
