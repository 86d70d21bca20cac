"""Logs: one JSON object per line on stderr, without personal data.

The line of a request has the route's template, never the path. The line of an error has its type and its
trace, never its message or values, unless the settings ask for messages. The trace of each kind of error is
logged once a minute, because in an outage all requests fail in the same way.
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
_encode = json.JSONEncoder(default=str).encode  # created once: `dumps` creates one each time

log = logging.getLogger(f"{SERVICE}.service")


class JsonLines(logging.Formatter):
    """A record as a JSON object. The entries of a record's `fields` become fields of the object."""

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
            line["error"] = [self._described(error, traced) for error in _chain(record.exc_info[1])]
        return _encode(line)

    def _described(self, error: BaseException, traced: bool) -> dict[str, Any]:
        """One error with its trace, outermost call first."""
        description: dict[str, Any] = {"type": _type_of(error)}
        if self.messages_of_errors:
            description["message"] = str(error)
        if traced:
            frames = traceback.extract_tb(error.__traceback__)
            description["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return description


class Traces:
    """Decides which traces to log: the first of each kind of error, and then one every `seconds`."""

    def __init__(self, seconds: float = 60.0, most_kinds: int = 200) -> None:
        self._seconds = seconds
        self._most_kinds = most_kinds
        self._shown: dict[Hashable, tuple[float, str, int]] = {}
        """By kind: the time of the last logged trace, its request, and the number left out since then."""
        self._lock = threading.Lock()

    def look(self, kind: Hashable, request_id: str, now: float) -> tuple[str | None, int]:
        """Returns the request whose trace is the same, or None if the trace is to be logged now; and how many
        traces were left out since the last one."""
        with self._lock:
            at, first, left_out = self._shown.pop(kind, (-math.inf, "", 0))
            again = now - at >= self._seconds
            self._shown[kind] = (now, request_id, 0) if again else (at, first, left_out + 1)
            if len(self._shown) > self._most_kinds:
                del self._shown[next(iter(self._shown))]  # the kind that happened longest ago
            return (None, left_out) if again else (first, left_out + 1)

    def clear(self) -> None:
        with self._lock:
            self._shown.clear()

    def __len__(self) -> int:
        return len(self._shown)


_traces = Traces()


def _chain(error: BaseException) -> list[BaseException]:
    """An error, followed by its causes."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 8:
        chain.append(current)
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden
    return chain


def _type_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _kind_of(error: BaseException) -> Hashable:
    """Errors are of one kind if their types and the lines that raised them are the same."""
    chain = _chain(error)
    return tuple((_type_of(one), str(traceback.extract_tb(one.__traceback__, limit=-1))) for one in chain)


def configure(*, debug: bool = False, stream: TextIO | None = None) -> None:
    """Write the logs of the service and its server to stderr as JSON lines.

    Start the server with `log_config=None, access_log=False`, because its own access log has paths and
    addresses.
    """
    _traces.clear()  # earlier traces are not in this stream
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(messages_of_errors=debug))
    for name in (SERVICE, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def failure(event: str, error: BaseException, request_id: str) -> None:
    """Log an error that only the operator of the service can fix."""
    same_as, left_out = _traces.look(_kind_of(error), request_id, time.monotonic())
    fields: dict[str, Any] = {"request_id": request_id}
    if isinstance(error, StoreError):  # such as a full disk; it never contains stored data
        fields["reason"] = str(error)
    if same_as is not None:
        fields["same_as"] = same_as
    elif left_out:
        fields["traces_left_out"] = left_out
    log.error(event, exc_info=error, extra={"fields": fields, "untraced": same_as is not None})
