"""Sends the fuzzer's requests to a running service, over several connections, and judges the answers."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.torture.shop import ROLES, Shop, faults_of_log
from tests.torture.wild import Sent, Wild, placeholder

HANGS_AFTER = 30.0
WAITED_FOR = 0.3
"""Bytes that may be no request get no answer. After this number of seconds, the caller closes its side."""
CALLERS = 8
PROBLEM = b"application/problem+json"
OF_THE_PARSER = (400, 408, 414, 431)
"""Statuses that the HTTP parser answers by itself, before there is a request."""
READERS = ("none", "wrong", "read", "read", "read", "read", "read", "read cookie")
WRITERS = ("none", "wrong", "read", "write", "write", "write", "admin", "admin", "admin", "admin cookie")
CANARY = "/v1/users/u0007/bundles?k=20&details=true"
MOST_FAULTS = 20

Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def kind(self) -> bytes:
        return self.headers.get(b"content-type", b"").partition(b";")[0]


@dataclass
class Fuzzed:
    """The result of fuzzing a service."""

    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory_mb: tuple[float, float] = (0.0, 0.0)


class _Reader:
    """Answers from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._got = b""

    def _more(self) -> None:
        part = self._connection.recv(65_536)
        if not part:
            raise EOFError
        self._got += part

    def _until(self, end: bytes) -> bytes:
        while end not in self._got:
            self._more()
        found, _, self._got = self._got.partition(end)
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._got) < count:
            self._more()
        found, self._got = self._got[:count], self._got[count:]
        return found

    def answer(self, method: str) -> Answer:
        """The next answer. Raises EOFError if the connection ends first, ValueError if it is no HTTP."""
        first, *lines = self._until(b"\r\n\r\n").split(b"\r\n")
        version, status, *_ = first.split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"not HTTP: {first[:100]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        number = int(status)
        if 100 <= number < 200:
            return self.answer(method)
        body = b""
        if method != "HEAD" and number not in (204, 304):
            if headers.get(b"transfer-encoding") == b"chunked":
                while size := int(self._until(b"\r\n"), 16):
                    body += self._exactly(size)
                    self._exactly(2)
                self._until(b"\r\n")
            elif b"content-length" in headers:
                body = self._exactly(int(headers[b"content-length"]))
            else:
                with suppress(EOFError):
                    while True:
                        self._more()
                body, self._got = self._got, b""
        return Answer(number, headers, body)


class Caller:
    """One connection after the other to a service."""

    def __init__(self, port: int, secrets: dict[bytes, bytes]) -> None:
        self._port = port
        self._secrets = secrets
        self._connection: socket.socket | None = None
        self._reader: _Reader | None = None

    def send(self, sent: Sent) -> list[Answer]:
        """The answers to a request. Raises TimeoutError if it hangs, EOFError if there is no answer."""
        data = sent.data
        if b"@" in data:
            for name, secret in self._secrets.items():
                data = data.replace(name, secret)
        if not sent.is_http:
            return self._send_once(data, sent.method)
        used = self._connection is not None
        try:
            return [self._send(data, sent.method)]
        except (EOFError, ConnectionError):
            self.close()
            if not used:
                raise
        return [self._send(data, sent.method)]  # an idle connection may be closed at any time

    def _send(self, data: bytes, method: str) -> Answer:
        if self._connection is None or self._reader is None:
            self._connection = self._connect()
            self._reader = _Reader(self._connection)
        try:
            self._connection.sendall(data)
        except ConnectionError:  # refused before everything was sent; the answer may have arrived
            answer = self._reader.answer(method)
            self.close()
            return answer
        answer = self._reader.answer(method)
        if answer.headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return answer

    def _send_once(self, data: bytes, method: str) -> list[Answer]:
        """All answers to bytes that may be no request. The service must end the connection."""
        answers = []
        with self._connect() as connection, suppress(ConnectionError, EOFError):
            reader = _Reader(connection)
            connection.sendall(data)
            select.select([connection], [], [], WAITED_FOR)
            connection.shutdown(socket.SHUT_WR)
            while True:
                answers.append(reader.answer(method))
        return answers

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=HANGS_AFTER)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reader = None


def fault_of(answer: Answer, method: str = "GET") -> str | None:
    """What is wrong with an answer; None if it is as documented."""
    status, problem = answer.status, answer.kind == PROBLEM
    if status >= 500 and status != 503:
        return f"status {status}"
    if status == 503 and not (problem and b"retry-after" in answer.headers):
        return "a 503 that is no problem with Retry-After"
    if status >= 400:
        if not problem:
            return None if _by_the_parser(answer) else f"status {status} as {answer.kind.decode('latin-1')!r}"
        if method == "HEAD":
            return None
    elif answer.kind != b"application/json" or method == "HEAD" or not answer.body:
        return None
    try:
        told = json.loads(answer.body)
    except ValueError:
        return f"status {status} with a body that is no JSON"
    if problem and (told.get("status") != status or not told.get("title") or not told.get("request_id")):
        return f"an incomplete problem of status {status}"
    return None


def _by_the_parser(answer: Answer) -> bool:
    return answer.status in OF_THE_PARSER and b"x-request-id" not in answer.headers


def fuzz(shop: Shop, requests: int, seed: int, say: Say, only: int | None = None) -> Fuzzed:
    """Send this number of requests to a running service. The first half only reads.

    If `only` is given, only the request with this number is sent.
    """
    fuzzed, document = Fuzzed(), shop.ask("GET", "/openapi.json", role="read")[1]
    secrets = _secrets(shop)
    before, memory = _meaning(shop), shop.memory_mb()
    for position, (wild, numbers) in enumerate(parts(document, requests, seed, only)):
        _send_all(shop, wild, numbers, secrets, fuzzed, say, requests)
        if position == 0 and (after := _meaning(shop)) != before:
            fuzzed.faults.append(f"reads changed the answer to {CANARY}:\n{before}\n{after}")
    if shop.ask("GET", "/readyz")[0] != 200 or shop.ask("GET", CANARY, role="read")[0] != 200:
        fuzzed.faults.append("the service does not answer any more")
    fuzzed.memory_mb = (memory, shop.memory_mb())
    code = shop.stop()
    if code not in (0, -15, 143):
        fuzzed.faults.append(f"the service ended with exit code {code}")
    fuzzed.faults += faults_of_log(shop.logs[-1])[:MOST_FAULTS]
    return fuzzed


def parts(
    document: dict[str, Any], requests: int, seed: int, only: int | None = None
) -> list[tuple[Wild, range]]:
    """The makers of requests, and the numbers for which they are called. Requests with an even number only
    read. So a request depends on its number and the seed alone, however many are sent."""
    makers = Wild(document, seed, READERS, writes=False), Wild(document, seed, WRITERS, writes=True)
    if only is not None:
        return [(wild, range(only, only + (only % 2 == part))) for part, wild in enumerate(makers)]
    return [(wild, range(part, requests, 2)) for part, wild in enumerate(makers)]


def _secrets(shop: Shop) -> dict[bytes, bytes]:
    """What the placeholders in requests stand for: the keys, and a login for each role."""
    found = {}
    for role in ROLES:
        found[placeholder("key", role)] = shop.keys[role].encode()
        found[placeholder("token", role)] = _logged_in(shop, shop.keys[role])
    for keyless in ("none", "wrong", *(f"{role} cookie" for role in ROLES)):  # a login may name them
        found[placeholder("key", keyless)] = b"bm_000000000000_" + b"A" * 43
    return found


def _logged_in(shop: Shop, key: str) -> bytes:
    """The token of the cookie of a new login."""
    body = json.dumps({"key": key}).encode()
    head = b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    caller = Caller(shop.port, {})
    data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    answer = caller.send(Sent(0, "login", "none", data, "POST"))[0]
    caller.close()
    if answer.status != 204:
        raise RuntimeError(f"the login answers {answer.status}: {answer.body!r}")
    return answer.headers[b"set-cookie"].split(b";")[0].partition(b"=")[2]


def _meaning(shop: Shop) -> Any:
    """The canary's answer without what differs each time."""
    status, told = shop.ask("GET", CANARY, role="read")
    told.pop("request_id", None)
    return status, told


def _send_all(
    shop: Shop,
    wild: Wild,
    numbers: range,
    secrets: dict[bytes, bytes],
    fuzzed: Fuzzed,
    say: Say,
    of: int,
) -> None:
    waiting, lock = iter(numbers), threading.Lock()

    def taken() -> Iterator[int]:
        while True:
            with lock:
                number = next(waiting, None)
                if number is None or len(fuzzed.faults) >= MOST_FAULTS:
                    return
                fuzzed.requests += 1
                if fuzzed.requests % 50 == 0:
                    say("fuzzing", fuzzed.requests, of)
            yield number

    def call() -> None:
        caller = Caller(shop.port, secrets)
        for number in taken():
            sent = wild(number)
            statuses, fault = judged(caller, sent)
            with lock:
                fuzzed.statuses.update(statuses)
                if fault is not None:
                    fuzzed.faults.append(f"{fault}\n  {sent}")
        caller.close()

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("fuzzing", fuzzed.requests, of)


def judged(caller: Caller, sent: Sent) -> tuple[list[str], str | None]:
    """Send a request. Returns what was answered, for counting, and what is wrong."""
    try:
        answers = caller.send(sent)
    except TimeoutError:
        caller.close()
        return ["hang"], f"no answer within {HANGS_AFTER:g} s"
    except (EOFError, ConnectionError) as error:
        caller.close()
        if len(sent.data) > 60_000:  # the service need not read all of it
            return ["cut off"], None
        return ["no answer"], f"no answer: {error!r}"
    except ValueError as error:
        caller.close()
        return ["no HTTP"], f"an answer that cannot be read: {error}"
    faults = (fault_of(answer, sent.method) for answer in answers)
    fault = next(filter(None, faults), None)
    if fault is not None:
        shown = next(answer for answer in answers if fault_of(answer, sent.method))
        fault += f": {shown.headers} {shown.body[:500]!r}"
    statuses = ["HTTP parser" if _by_the_parser(answer) else str(answer.status) for answer in answers] or [
        "closed"
    ]
    return statuses, fault
