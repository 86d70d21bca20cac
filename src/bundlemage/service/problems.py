"""Errors become answers with problem details (RFC 9457), which the OpenAPI document describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from http import HTTPStatus
from reprlib import Repr
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bundlemage.errors import (
    ArtifactError,
    BundleMageError,
    BusyError,
    ConfigError,
    DataError,
    ExistsError,
    IdempotencyError,
    MissingExtraError,
    OutOfTimeError,
    StoreError,
    UnknownIdError,
    UnknownThingsError,
    UnstorableError,
    UnsupportedError,
)
from bundlemage.service import logs
from bundlemage.wire.answers import FieldError, ProblemOut
from bundlemage.wire.design import Change, ImpossibleDesignError, Rule, Step

MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 20
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 60
_SECRET_FIELDS = {"key"}


class ApiError(HTTPException):
    """A refused request. It is an HTTPException, because the framework passes these on from everywhere, also
    while it reads the body."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.title = title
        self.errors = tuple(errors)
        self.members: Mapping[str, Any] = members or {}
        """The fields that only this kind of problem has."""

    def answer(self, request_id: str) -> Response:
        """The problem as a response."""
        members = {"errors": list(self.errors), **self.members} if self.errors else self.members
        body = ProblemOut(
            type=_kind(self.title),
            title=self.title,
            status=self.status_code,
            detail=self.detail,
            request_id=request_id,
            **members,
        )
        shown = body.model_dump(exclude_unset=True)
        # Plain ASCII, because a text quoted from a request may not be valid in UTF-8.
        content = json.dumps(shown).encode("ascii")
        return Response(content, self.status_code, self.headers, MEDIA_TYPE)


def _kind(title: str) -> str:
    return f"urn:bundlemage:problem:{title.lower().replace(' ', '-')}"


IMPOSSIBLE_DESIGN = "Impossible design"
# The status and the title of the answer for each of our own errors.
_OURS: dict[type[BundleMageError], tuple[int, str]] = {
    UnknownIdError: (422, "Unknown id"),
    OutOfTimeError: (422, "No answer in time"),
    UnknownThingsError: (422, "Unknown id"),
    ExistsError: (412, "Is there already"),
    IdempotencyError: (422, "Idempotency key used twice"),
    UnstorableError: (422, "Not possible"),
    ConfigError: (422, "Not possible"),
    DataError: (422, "Not possible"),
    ImpossibleDesignError: (422, IMPOSSIBLE_DESIGN),
    UnsupportedError: (409, "Not with this model"),
    MissingExtraError: (409, "Not installed"),
    ArtifactError: (409, "Model cannot be read"),
}


def unexpected() -> ApiError:
    """The answer to an unexpected error. Only the log says what it was."""
    return ApiError(
        500,
        "Internal error",
        "The service failed to answer. The log has the reason under this request's id.",
    )


def unavailable() -> ApiError:
    """The answer if the store fails. Callers do not get its message, which names hosts and files."""
    return ApiError(
        503,
        "Store unavailable",
        "The store does not answer. Try again. If this was a write, use the same Idempotency-Key, because "
        "the write may have taken place.",
        headers={"Retry-After": "2"},
    )


def from_ours(error: BundleMageError) -> ApiError | None:
    """The answer to one of our errors; None if its message is not for callers."""
    for kind in type(error).__mro__:  # the nearest kind first
        if kind in _OURS:
            status, title = _OURS[kind]
            return ApiError(status, title, str(error), members=_members(error))
    if isinstance(error, BusyError):
        return ApiError(503, "Busy", str(error), headers={"Retry-After": "1"})
    return unavailable() if isinstance(error, StoreError) else None


def _members(error: BundleMageError) -> dict[str, Any]:
    if not isinstance(error, ImpossibleDesignError):
        return {}
    return {
        "conflict": [asdict(rule) for rule in error.conflict],
        "changes": [asdict(change) for change in error.changes],
    }


def newer_than_the_model(what: str) -> ApiError:
    """The answer if an item or a bundle is newer than the model. `what` is a subject with its verb."""
    return ApiError(
        409,
        "Not in the model",
        f"{what} newer than the model, so the model knows nothing about it; 'bundlemage retrain' trains a "
        "model that does",
    )


def answer_of(error: BundleMageError, request_id: str) -> Response:
    """One of our errors as an answer. An error whose message is not for callers is logged."""
    known = from_ours(error)
    if known is None or isinstance(error, StoreError):
        logs.failure("failed", error, request_id)
    return (known or unexpected()).answer(request_id)


def from_http(error: HTTPException, method: str) -> ApiError:
    """An error of the framework as one of our refusals."""
    if isinstance(error, ApiError):
        return error
    status, headers = error.status_code, error.headers
    if status == 404:
        return ApiError(
            404, "No such route", "There is no such route; GET /openapi.json lists all.", headers=headers
        )
    if status == 405:
        allowed = (headers or {}).get("Allow", "")
        expected = f" It answers {allowed}." if allowed else ""
        return ApiError(
            405, "Wrong method", f"This route does not answer {method}.{expected}", headers=headers
        )
    if status == 400:  # a body that is not text: for a caller the same as invalid JSON
        return ApiError(422, "Invalid request", "body: cannot be read; JSON in UTF-8 is expected")
    return ApiError(status, HTTPStatus(status).phrase, str(error.detail), headers=headers)


def from_validation(error: RequestValidationError) -> ApiError:
    """A refusal that lists every wrong field, with what was found and what is expected."""
    faults = error.errors()
    errors = [_field_error(fault) for fault in faults[:_MOST_ERRORS]]
    more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
    detail = f"{errors[0].field}: {errors[0].message}{more}"
    return ApiError(422, "Invalid request", detail, errors=errors)


def _field_error(fault: Mapping[str, Any]) -> FieldError:
    place, *path = fault["loc"]
    kind, message = fault["type"], str(fault["msg"])
    if kind == "json_invalid":
        reason = fault.get("ctx", {}).get("error", "")
        return FieldError(field="body", message=f"is no JSON ({reason} at character {path[0]})")
    field = _dotted(path) or str(place)
    if kind == "missing":
        return FieldError(field=field, message=f"is missing; it is a required part of the {place}")
    if kind == "extra_forbidden":
        return FieldError(field=field, message=f"is not a field of this {place}; leave it out")
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    value = fault.get("input")
    if path and str(path[-1]) in _SECRET_FIELDS:
        return FieldError(field=field, message=message)
    if isinstance(value, bytes):
        message += "; was the header Content-Type: application/json sent?"
    return FieldError(field=field, message=f"{message}; found {_shorten.repr(value)}")


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_short(str(step))}"
    return text.removeprefix(".")


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


def install(app: FastAPI) -> None:
    """Turn every error of the app into a problem answer, and describe these in its OpenAPI document."""

    async def on_error(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        if isinstance(error, BundleMageError):
            return answer_of(error, request_id)
        if isinstance(error, RequestValidationError):
            return from_validation(error).answer(request_id)
        assert isinstance(error, HTTPException)
        return from_http(error, request.method).answer(request_id)

    for kind in (HTTPException, RequestValidationError, BundleMageError):
        app.add_exception_handler(kind, on_error)
    plain_document = app.openapi

    @cache  # routes look up their parameters in it
    def document() -> dict[str, Any]:
        described = plain_document()
        schemas = described.setdefault("components", {}).setdefault("schemas", {})
        problem = ProblemOut.model_json_schema(ref_template=_REFERENCE)
        schemas.update(problem.pop("$defs", {}))
        schemas["ProblemOut"] = problem
        return described

    app.openapi = document  # type: ignore[method-assign]


_REFERENCE = "#/components/schemas/{model}"
# The meaning of each status, and the title and detail of an example.
_DOCUMENTED: dict[int, tuple[str, str, str]] = {
    401: ("No key, or a wrong one.", "Key needed", "Send a key: 'Authorization: Bearer bm_…'."),
    403: (
        "The key's role is too weak, or the request comes from another site.",
        "Role too weak",
        "This needs a key of role 'write'; this one has the role 'read'.",
    ),
    404: ("There is nothing with this id.", "Not found", "There is no bundle 'b9999'."),
    409: (
        "Not possible in the current state.",
        "Not with this model",
        "This model has no gate: it does not mix item and bundle history.",
    ),
    412: (
        "There is something with this id already, and the request has 'If-None-Match: *'.",
        "Is there already",
        "there is a bundle 'b0166' already, and the request says not to replace it",
    ),
    413: ("The body is too large.", "Body too large", "A request body may have at most 1,048,576 bytes."),
    422: (
        "Something in the request is wrong.",
        "Invalid request",
        "k: should be greater than or equal to 1; found 0",
    ),
    429: (
        "Too many requests; the header Retry-After says when to ask again.",
        "Too many requests",
        "Wait 1 s.",
    ),
    500: ("The service failed.", "Internal error", "The service failed to answer."),
    503: (
        "Busy, or the store does not answer; try again.",
        "Store unavailable",
        "The store does not answer.",
    ),
}


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """A route's refusals for the OpenAPI document. Every route has 422 and 500, so they need not be named."""
    return {status: _documented(status) for status in sorted({*codes, 422, 500})}


def with_impossible(route: dict[str, Any]) -> dict[str, Any]:
    """The options of a route whose status 422 may also say that a design is impossible."""
    # Rules with keys, because the document leaves null out of examples.
    rules = [
        Rule("must", "g0022", "the item 'g0022' in it"),
        Rule("at_most", "Seafaring", "nothing with the tag 'Seafaring'"),
    ]
    text = "with at most 1 instead of 0 items with the tag 'Seafaring'"
    error = ImpossibleDesignError(rules, [Change((Step("at_most", "Seafaring", 1.0),), text)])
    impossible = {
        "description": "Something in the request is wrong, or no bundle meets all conditions: then "
        "'conflict' and 'changes' say why, and what would help.",
        "content": _content(422, IMPOSSIBLE_DESIGN, str(error), _members(error)),
    }
    return {**route, "responses": {**route["responses"], 422: impossible}}


def _documented(status: int) -> dict[str, Any]:
    meaning, title, detail = _DOCUMENTED[status]
    members: dict[str, Any] = {}
    if status == 422:
        field, _, message = detail.partition(": ")
        members["errors"] = [{"field": field, "message": message}]
    return {"description": meaning, "content": _content(status, title, detail, members)}


def _content(status: int, title: str, detail: str, members: Mapping[str, Any]) -> dict[str, Any]:
    example = {
        "type": _kind(title),
        "title": title,
        "status": status,
        "detail": detail,
        "request_id": "5f1c9a3e7b2d4860",
        **members,
    }
    schema = {"$ref": _REFERENCE.format(model="ProblemOut")}
    return {MEDIA_TYPE: {"schema": schema, "example": example}}
