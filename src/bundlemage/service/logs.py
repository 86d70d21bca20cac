"""Logs: one JSON object a line on stderr, without personal data.

A request is logged by its route's template, never by its path; an error by its type and the lines of code
that it passed, never by its message or values, unless the settings ask for messages. Those lines are logged
once a minute for each kind of error: in an outage all requests fail alike.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any, TextIO

from bundlemage.errors import StoreError

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
            traced = not record.__dict__.get("untraced")
            line["error"] = [self._told(error, traced) for error in _chain(record.exc_info[1])]
        return _encode(line)

    def _told(self, error: BaseException, traced: bool) -> dict[str, Any]:
        """One error, and where it passed, outermost first."""
        told: dict[str, Any] = {"type": _type_of(error)}
        if self.messages_of_errors:
            told["message"] = str(error)
        if traced:
            frames = traceback.extract_tb(error.__traceback__)
            told["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return told


class Traces:
    """Which traces to log: of each kind of error the first, and then one in so many seconds."""

    def __init__(self, seconds: float = 60.0, most_kinds: int = 200) -> None:
        self._seconds = seconds
        self._most_kinds = most_kinds
        self._shown: dict[Hashable, tuple[float, str, int]] = {}
        """By kind: when the trace was last logged, for which request, and how many were left out since."""
        self._lock = threading.Lock()

    def look(self, kind: Hashable, request_id: str, now: float) -> tuple[str | None, int]:
        """The request whose trace stands for this one's too, or None where it is to be logged now; and how
        many were left out since the last."""
        with self._lock:
            at, first, left_out = self._shown.pop(kind, (-math.inf, "", 0))
            again = now - at >= self._seconds
            self._shown[kind] = (now, request_id, 0) if again else (at, first, left_out + 1)
            if len(self._shown) > self._most_kinds:
                del self._shown[next(iter(self._shown))]  # that which did not happen for longest
            return (None, left_out) if again else (first, left_out + 1)

    def clear(self) -> None:
        with self._lock:
            self._shown.clear()

    def __len__(self) -> int:
        return len(self._shown)


_traces = Traces()


def _chain(error: BaseException) -> list[BaseException]:
    """An error, then what caused it."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(found) < 8:
        found.append(current)
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden
    return found


def _type_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _kind_of(error: BaseException) -> Hashable:
    """Errors are alike that are of the same types and were raised at the same lines."""
    return tuple((_type_of(one), _raised_at(one)) for one in _chain(error))


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    at = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        at = (frame.f_code.co_filename, line)
    return at


def configure(*, debug: bool = False, stream: TextIO | None = None) -> None:
    """Send what the service and its server log to stderr as JSON lines.

    For a server that is started with `log_config=None, access_log=False`: its own access log has paths and
    addresses.
    """
    _traces.clear()  # they are not in this stream
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
    same_as, left_out = _traces.look(_kind_of(error), request_id, time.monotonic())
    fields: dict[str, Any] = {"request_id": request_id}
    if isinstance(error, StoreError):  # a full disk, a refused password: never what was to be written
        fields["reason"] = str(error)
    if same_as is not None:
        fields["same_as"] = same_as
    elif left_out:
        fields["traces_left_out"] = left_out
    log.error(event, exc_info=error, extra={"fields": fields, "untraced": same_as is not None})
