"""HTTP requests over reused connections, with retries and clear error messages."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.wire.answers import FieldError, ProblemOut
from bundlemage.wire.design import Change, Rule

_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 5.0
_LONGEST_RETRY_AFTER: Final = 60.0
"""If the service's Retry-After is longer than this many seconds, the request fails without a retry."""
_TRY_AGAIN: Final = {429, 502, 503}
"""Statuses after which a request is repeated: too many requests, bad gateway, service unavailable."""
_MOST_IDLE: Final = 64  # connections
_KEY = re.compile(r"[\x21-\x7e]+")
# Errors that mean a lost connection. The service may or may not have carried out the request.
_LOST = (ConnectionError, http.client.HTTPException, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class ServiceError(BundleMageError):
    """The service refused a request, or did not answer it."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        title: str | None = None,
        request_id: str | None = None,
        problem: ProblemOut | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; None if there was no answer."""
        self.title = problem.title if problem else title
        """The kind of problem, in a few words."""
        self.detail = problem.detail if problem else None
        """What is wrong, what is expected, and what to do."""
        self.request_id = problem.request_id if problem else request_id
        """The id of the request, which is also in the service's log."""
        self.errors: tuple[FieldError, ...] = problem.errors if problem else ()
        """With status 422: the fields of the request that are wrong."""
        self.conflict: tuple[Rule, ...] = problem.conflict if problem else ()
        """For an impossible design: rules that exclude each other, all of which are needed for this."""
        self.smallest = problem.smallest if problem else True
        """For an impossible design: whether no set with fewer rules than `conflict` excludes itself."""
        self.changes: tuple[Change, ...] = problem.changes if problem else ()
        """For an impossible design: changes, smallest first. Each change alone makes the design possible."""


_Request: TypeAlias = tuple[str, str, bytes | None, dict[str, str]]
"""The method, the path with the query, the body and the headers."""
Response: TypeAlias = tuple[http.client.HTTPResponse, bytes]
"""The response and its body, which has been read."""


def _json(body: Any) -> bytes:
    """A body as JSON. Numbers may be of any type, such as those of NumPy."""

    def number(value: Any) -> int | float:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real | Decimal):
            return float(value)
        raise TypeError(f"{value!r:.200} is a {type(value).__name__}")

    try:
        return json.dumps(body, default=number).encode("ascii")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the request cannot be written as JSON: {error}. Use text, numbers, lists and dicts"
        ) from None


class Transport:
    """Sends requests to one service. Any number of threads may use it: each request takes its own connection.

    Every request is safe to repeat: GET, PUT and DELETE are idempotent, and interactions have an
    Idempotency-Key. So a request is sent again if its connection is lost.
    """

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(
                f"{url!r} is not the address of a service; write it like https://bundles.example.org"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "the address must not contain a user name or a password; pass the key as key='bm_…'"
            )
        if key is not None and not _KEY.fullmatch(key):
            raise ConfigError("a key has only printable ASCII characters and no spaces")
        if timeout <= 0 or retries < 0:
            raise ConfigError(
                f"timeout={timeout} and retries={retries}: timeout must be above 0 s, and retries 0 or more"
            )
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._prefix = parts.path.rstrip("/")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigError(f"{url!r}: a port is a number from 0 to 65535") from None
        self._connect: Callable[[], http.client.HTTPConnection]
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            self._connect = partial(http.client.HTTPSConnection, host, port, context=tls)
        else:
            self._connect = partial(http.client.HTTPConnection, host, port)
        self._timeout = timeout
        self._retries = retries
        self._headers = {"Accept": "application/json", "User-Agent": "bundlemage-client"}
        self._headers["Content-Type"] = "application/json"
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        work: float = 0.0,
    ) -> Response:
        """Send a request and return the response, or raise a ServiceError if it is an error.

        `work` is the number of seconds that the service may work on the request, in addition to the timeout.
        """
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")
        sent = None if body is None else _json(body)
        request = (method, target, sent, {**self._headers, **(headers or {})})
        response, content = self._with_retries(request, self._timeout + work)
        if not 200 <= response.status < 300:
            raise self._refusal(response, content)
        return response, content

    def lines(
        self, path: str, body: Any, *, query: Mapping[str, str], headers: Mapping[str, str], work: float
    ) -> Generator[bytes, None, None]:
        """Send a POST request once, on a connection of its own. Yields the lines of the answer as they come.

        Raises a ServiceError if the answer is an error or breaks off. Closing the iterator closes the
        connection. `work` is as in `ask`.
        """
        target, timeout = f"{self._prefix}{path}?{urlencode(query)}", self._timeout + work
        connection = self._connect()
        connection.timeout = timeout
        try:
            connection.request("POST", target, _json(body), {**self._headers, **headers})
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise self._refusal(response, response.read())
            while line := response.readline():
                yield line
        except TimeoutError as error:
            raise self._no_answer(f"no answer within {timeout:g} s", "POST") from error
        except (*_LOST, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._no_answer(reason, "POST") from error
        finally:
            connection.close()

    def _with_retries(self, request: _Request, timeout: float) -> Response:
        """Send a request, with retries, and return the response whatever its status is."""
        for retry in range(self._retries + 1):
            last = retry == self._retries
            wait = min(_FIRST_WAIT * 2**retry, _LONGEST_WAIT) * random.uniform(0.5, 1)
            try:
                response = self._once(request, timeout)
            except TimeoutError as error:  # no retry: the caller expects a result within the timeout
                raise self._no_answer(f"no answer within {timeout:g} s", request[0]) from error
            except ssl.SSLCertVerificationError as error:
                raise ServiceError(
                    f"{self.address}: its certificate is not trusted ({error.verify_message}). If your own "
                    "authority issued it, set the environment variable SSL_CERT_FILE to the authority's file"
                ) from error
            except (*_LOST, OSError) as error:
                if last:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise self._no_answer(reason, request[0], tries=retry + 1) from error
            else:
                pause = response[0].headers.get("retry-after", "")
                seconds = float(pause) if pause.isdecimal() else None  # the service never sends a date
                if response[0].status not in _TRY_AGAIN or last or (seconds or 0) > _LONGEST_RETRY_AFTER:
                    return response
                wait = wait if seconds is None else seconds + random.uniform(0, 0.25)
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _once(self, request: _Request, timeout: float) -> Response:
        """Send a request over an idle connection. If the service has closed it, use a new connection."""
        with self._lock:
            if self._closed:
                raise ConfigError("this client is closed; create a new one")
            if self._process != os.getpid():  # after a fork, the parent process still uses these connections
                self._process, self._idle = os.getpid(), []
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            with suppress(*_LOST):
                return self._over(idle, request, timeout)
        return self._over(self._connect(), request, timeout)

    def _over(self, connection: http.client.HTTPConnection, request: _Request, timeout: float) -> Response:
        connection.timeout = timeout  # for a connection that is not open yet
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(*request)
            answer = connection.getresponse()
            content = answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            keep = not answer.will_close and not self._closed and len(self._idle) < _MOST_IDLE
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        return answer, content

    def _no_answer(self, reason: str, method: str, tries: int = 1) -> ServiceError:
        tried = f" ({tries} tries)" if tries > 1 else ""
        unsure = (
            "" if method == "GET" else " It is unknown whether this was carried out; it is safe to repeat."
        )
        return ServiceError(
            f"{self.address}: {reason}{tried}.{unsure} Is 'bundlemage serve' running there, and is the "
            "address right?"
        )

    def _refusal(self, response: http.client.HTTPResponse, content: bytes) -> ServiceError:
        try:
            problem = ProblemOut.model_validate_json(content)
        except ValueError:
            moved = response.headers.get("location")
            hint = f"it points to {moved}" if moved else "this is not the answer of a BundleMage service"
            return ServiceError(
                f"{self.address} answers {response.status} {response.reason}: {hint}. Check the address, and "
                "any proxy in front of the service",
                status=response.status,
                title=response.reason,
                request_id=response.headers.get("x-request-id"),
            )
        return refusal_of(problem)


def refusal_of(problem: ProblemOut) -> ServiceError:
    """The error for a problem that the service reports."""
    text = f"{problem.title}: {problem.detail} (status {problem.status}, request {problem.request_id})"
    return ServiceError(text, status=problem.status, problem=problem)
