"""Requests over connections that are kept, tried again where that is safe, and errors in words."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from bundlemage.client.answers import FieldError, made
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.wire.design import Change, Rule

_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 5.0
_LONGEST_WAIT_ASKED_FOR: Final = 60.0
"""A Retry-After above this is told to the caller, who may have better things to do than sleep."""
_TRY_AGAIN: Final = {429, 502, 503}
"""Too many requests, busy, and a proxy whose service is away."""
_MOST_IDLE: Final = 64
_KEY = re.compile(r"[\x21-\x7e]+")
# In all of these the connection is gone; whether the request was carried out is not known.
_LOST = (ConnectionError, http.client.HTTPException, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class ServiceError(BundleMageError):
    """The service refused a request, or did not answer it."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        title: str | None = None,
        detail: str | None = None,
        request_id: str | None = None,
        errors: Sequence[FieldError] = (),
        conflict: Sequence[Rule] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; None where there was no answer."""
        self.title = title
        """The kind of problem, in words."""
        self.detail = detail
        """What was found, what is expected, what to do."""
        self.request_id = request_id
        """Also in the service's log."""
        self.errors = tuple(errors)
        """The fields of the request that are wrong, with status 422."""
        self.conflict = tuple(conflict)
        """Of an impossible design: the smallest set of rules that cannot hold together."""
        self.changes = tuple(changes)
        """Of an impossible design: each by itself makes it possible; the smallest first."""


@dataclass(frozen=True)
class Response:
    status: int
    reason: str
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class _Request:
    method: str
    target: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout: float


class Transport:
    """Sends requests to one service. Any number of threads may use it: each takes a connection for itself.

    Everything that is sent may be sent twice, as the service carries it out once: reading, PUT and DELETE by
    nature, interactions by their Idempotency-Key. So a lost connection is no reason to give up.
    """

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{url!r} is no address of a service; write it as https://bundles.example.org")
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "a service's address has no name and password in it; give the key as key='bm_…'"
            )
        if key is not None and not _KEY.fullmatch(key):
            raise ConfigError("the key has characters that no key has, such as a space or the end of a line")
        if timeout <= 0 or retries < 0:
            raise ConfigError(
                f"timeout={timeout} and retries={retries}: a timeout is above 0 s, retries are not below 0"
            )
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._host, self._port = parts.hostname, _port(url)
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout = timeout
        self._retries = retries
        self._headers = {"Accept": "application/json", "User-Agent": "bundlemage-client"}
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
        """The answer of the service if it is a good one; else a ServiceError.

        `work` is how many seconds the service is known to work on such a thing, beside the timeout.
        """
        target = self._prefix + path + (f"?{urlencode(query, doseq=True)}" if query else "")
        sent = None if body is None else json.dumps(body).encode("ascii")
        all_headers = {**self._headers, **(headers or {})}
        if sent is not None:
            all_headers["Content-Type"] = "application/json"
        request = _Request(method, target, sent, all_headers, self._timeout + work)
        response = self._answered(request)
        if not 200 <= response.status < 300:
            raise self._refusal(response)
        return response

    def _answered(self, request: _Request) -> Response:
        """An answer of any status, after as many tries as there may be."""
        for retry in range(self._retries + 1):
            last = retry == self._retries
            wait = min(_FIRST_WAIT * 2**retry, _LONGEST_WAIT) * random.uniform(0.5, 1)
            try:
                response = self._once(request)
            except TimeoutError as error:  # not tried again: whoever gave a timeout wants to go on after it
                raise self._silence(f"no answer within {request.timeout:g} s", request.method) from error
            except ssl.SSLCertVerificationError as error:
                raise ServiceError(
                    f"{self.address}: its certificate is not trusted ({error.verify_message}). For one of "
                    "your own authority, let the environment variable SSL_CERT_FILE name the authority's file"
                ) from error
            except (*_LOST, OSError) as error:
                if last:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise self._silence(reason, request.method, tries=retry + 1) from error
            else:
                if response.status not in _TRY_AGAIN or last:
                    return response
                asked = _seconds(response.headers.get("retry-after"))
                if asked is not None and asked > _LONGEST_WAIT_ASKED_FOR:
                    return response
                wait = wait if asked is None else asked + random.uniform(0, 0.25)
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _once(self, request: _Request) -> Response:
        """Ask over a kept connection; if the service has closed it meanwhile, at once over a new one."""
        kept = self._kept()
        if kept is not None:
            try:
                return self._over(kept, request)
            except _LOST:
                pass
        return self._over(self._new(), request)

    def _over(self, connection: http.client.HTTPConnection, request: _Request) -> Response:
        connection.timeout = request.timeout  # for one that is still to be opened
        if connection.sock is not None:
            connection.sock.settimeout(request.timeout)
        try:
            connection.request(request.method, request.target, request.body, dict(request.headers))
            answer = connection.getresponse()
            content = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._keep(connection)
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, answer.reason, named, content)

    def _kept(self) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._closed:
                raise ConfigError("this client is closed; make a new one")
            if self._process != os.getpid():  # a fork: these connections are the parent's as well
                self._process, self._idle = os.getpid(), []
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _new(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)

    def _silence(self, reason: str, method: str, tries: int = 1) -> ServiceError:
        tried = f" ({tries} tries)" if tries > 1 else ""
        unsure = (
            "" if method == "GET" else " Whether this was carried out is not known; it is safe to repeat."
        )
        return ServiceError(
            f"{self.address}: {reason}{tried}.{unsure} Is 'bundlemage serve' running there, and is the "
            "address right?"
        )

    def _refusal(self, response: Response) -> ServiceError:
        try:
            problem = response.json()
            errors = tuple(made(FieldError, each) for each in problem.get("errors", ()))
            conflict = tuple(made(Rule, each) for each in problem.get("conflict", ()))
            changes = tuple(made(Change, each) for each in problem.get("changes", ()))
            title, detail, request_id = problem["title"], problem["detail"], problem["request_id"]
        except (ValueError, KeyError, TypeError, AttributeError):
            moved = response.headers.get("location")
            hint = f"it points to {moved}" if moved else "these are not the words of a BundleMage service"
            return ServiceError(
                f"{self.address} answers {response.status} {response.reason}: {hint}. Check the address, and "
                "what stands before the service",
                status=response.status,
                title=response.reason,
                request_id=response.headers.get("x-request-id"),
            )
        return ServiceError(
            f"{title}: {detail} (status {response.status}, request {request_id})",
            status=response.status,
            title=title,
            detail=detail,
            request_id=request_id,
            errors=errors,
            conflict=conflict,
            changes=changes,
        )


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigError(f"{url!r}: a port is a number from 0 to 65535") from None


def _seconds(header: str | None) -> float | None:
    """Of Retry-After; a date, which the service never sends, counts as nothing."""
    return float(header) if header is not None and header.isdecimal() else None
