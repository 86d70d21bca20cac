"""Logs: one JSON object a line on stderr, without personal data.

A request is logged by its route's template, never by its path; an error by its type and the lines of code
that it passed, never by its message or values, unless the settings ask for messages.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

SERVICE = "bundlemage"
_LOGGERS = (SERVICE, "uvicorn", "uvicorn.error")
_encode = json.JSONEncoder(ensure_ascii=True, default=str).encode  # made once: `dumps` makes one each time

log = logging.getLogger(f"{SERVICE}.service")


class JsonLines(logging.Formatter):
    """A record as a JSON object. What stands in `fields` of a record becomes fields of the object."""

    def __init__(self, messages_of_errors: bool = False) -> None:
        super().__init__()
        self.messages_of_errors = messages_of_errors

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        fields = record.__dict__.get("fields")
        if fields:
            line.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._errors(record.exc_info[1])
        return _encode(line)

    def _errors(self, error: BaseException) -> list[dict[str, Any]]:
        """An error, then what caused it, each with where it passed, outermost first."""
        found: list[dict[str, Any]] = []
        current: BaseException | None = error
        while current is not None and len(found) < 8:
            kind = type(current)
            told: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
            if self.messages_of_errors:
                told["message"] = str(current)
            frames = traceback.extract_tb(current.__traceback__)
            told["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            found.append(told)
            hidden = None if current.__suppress_context__ else current.__context__
            current = current.__cause__ or hidden
        return found


def configure(*, debug: bool = False, stream: TextIO | None = None) -> None:
    """Send what the service and its server log to stderr as JSON lines.

    For a server that is started with `log_config=None, access_log=False`: its own access log has paths and
    addresses.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(messages_of_errors=debug))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"  # to "uvicorn"
        logger.setLevel(logging.INFO)
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False


def request_line(
    *, request_id: str, method: str, route: str, status: int, milliseconds: float, key: str | None
) -> None:
    """The one line of a request."""
    level = logging.ERROR if status >= 500 else logging.INFO
    if log.isEnabledFor(level):
        fields = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(milliseconds, 2),
            "key": key,
        }
        log.log(level, "request", extra={"fields": fields})


def failure(event: str, error: BaseException, request_id: str) -> None:
    """An error that the caller cannot mend, for whoever runs the service."""
    log.error(event, exc_info=error, extra={"fields": {"request_id": request_id}})
