"""Logs: one JSON object per line on stderr, without personal data.

The line of a request has the route's template and never the path, which may contain a user's id. The line of
an error has its type and its trace, and its message only if the settings allow it. The trace of each kind
of error is logged at most once a minute, because in an outage all requests fail in the same way.
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
    """Formats a log record as a JSON object, with the entries of the record's attribute `fields`."""

    def __init__(self, messages_of_errors: bool = False, worker: int | None = None) -> None:
        super().__init__()
        self.messages_of_errors, self.worker = messages_of_errors, worker

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        if self.worker is not None:
            line["worker"] = self.worker
        fields = record.__dict__.get("fields")
        if fields:
            line.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            traced = not record.__dict__.get("untraced")
            line["error"] = [self._described(error, traced) for error in _chain(record.exc_info[1])]
        return _encode(line)

    def _described(self, error: BaseException, traced: bool) -> dict[str, Any]:
        """The fields of one error. The trace begins with the outermost call."""
        description: dict[str, Any] = {"type": _type_of(error)}
        if self.messages_of_errors:
            description["message"] = str(error)
        if traced:
            frames = traceback.extract_tb(error.__traceback__)
            description["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return description


class Traces:
    """Decides which traces to log: for each kind of error, at most one every `seconds` seconds."""

    def __init__(self, seconds: float = 60.0, most_kinds: int = 200) -> None:
        self._seconds = seconds
        self._most_kinds = most_kinds
        self._shown: dict[Hashable, tuple[float, str, int]] = {}
        """For each kind: time and request id of the last logged trace, and how many were left out since."""
        self._lock = threading.Lock()

    def look(self, kind: Hashable, request_id: str, now: float) -> tuple[str | None, int]:
        """Returns two values: the id of the request whose log line has the same trace (None if this trace
        must be logged), and the number of traces left out since the last logged one."""
        with self._lock:
            at, first, left_out = self._shown.pop(kind, (-math.inf, "", 0))
            again = now - at >= self._seconds
            self._shown[kind] = (now, request_id, 0) if again else (at, first, left_out + 1)
            if len(self._shown) > self._most_kinds:
                del self._shown[
                    next(iter(self._shown))
                ]  # the kind that has not occurred for the longest time
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


def configure(*, debug: bool = False, stream: TextIO | None = None, worker: int | None = None) -> None:
    """Write the logs of the service and its server to stderr as JSON lines.

    Start the server with `log_config=None, access_log=False`, because its own access log contains paths and
    addresses. `debug` also logs the messages of errors. `worker` is the number of this worker process.
    """
    _traces.clear()  # the new stream does not contain the earlier traces
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(messages_of_errors=debug, worker=worker))
    for name in (SERVICE, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def failure(event: str, error: BaseException, request_id: str) -> None:
    """Log an error that only the operator of the service can fix."""
    # Errors with the same types and the same raising lines are of one kind.
    kind = tuple(
        (_type_of(each), str(traceback.extract_tb(each.__traceback__, limit=-1))) for each in _chain(error)
    )
    same_as, left_out = _traces.look(kind, request_id, time.monotonic())
    fields: dict[str, Any] = {"request_id": request_id}
    if isinstance(error, StoreError):  # its message, such as "disk full", never contains stored data
        fields["reason"] = str(error)
    if same_as is not None:
        fields["same_as"] = same_as
    elif left_out:
        fields["traces_left_out"] = left_out
    log.error(event, exc_info=error, extra={"fields": fields, "untraced": same_as is not None})
