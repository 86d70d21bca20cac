"""The limits of the server, with real sockets: what a caller may send, hold and wait for."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bundlemage.service.load import FEW, Load
from bundlemage.service.server import Connection, make_server
from bundlemage.service.settings import Settings
from bundlemage.store.repository import Store
from tests.service.running import copied as whole_copy
from tests.service.running import inside
from tests.service.small_service import OUTPUT, Running, copied, serving
from tests.waiting import wait_until

# So that on a busy machine only those tests meet a deadline that set one.
PATIENT: dict[str, Any] = {
    "head_timeout_s": 600,
    "body_timeout_s": 600,
    "idle_timeout_s": 600,
    "write_timeout_s": 600,
}
READ = "/v1/users/u0007/bundles"
POST = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("template") / "shop.db"
    Store.open(f"sqlite:///{database}").close()
    return database


class Waiting:
    """The route /v1/wait, whose requests are answered when a test says so."""

    def __init__(self) -> None:
        self.entered = 0
        self.go_on = threading.Event()

    async def __call__(self) -> dict[str, str]:
        self.entered += 1
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        return {"status": "waited"}


Start = Callable[..., tuple[Running, Waiting]]


@pytest.fixture
def start(template: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a server with some settings. It has two more routes: /v1/wait and /v1/large."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> tuple[Running, Waiting]:
            chosen = Settings(**{"rate_limit": 1e6, **PATIENT, **settings})
            running = stack.enter_context(serving(copied(template, tmp_path), chosen, seconds_believed=5.0))
            waiting = Waiting()
            stack.callback(waiting.go_on.set)
            running.app.get("/v1/wait")(waiting.__call__)
            running.app.get("/v1/large")(lambda: Response(b"x" * 32_000_000))
            return running, waiting

        yield begin


@pytest.fixture(scope="module")
def plain(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the default limits of sizes."""
    with serving(copied(template, tmp_path_factory.mktemp("plain")), Settings(**PATIENT)) as running:
        yield running


@contextmanager
def connected(running: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        yield connection


def get(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def rest(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def one(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer: its status, its headers and its body."""
    status, headers = one_head(connection)
    body = b""
    while len(body) < int(headers["content-length"]):
        body += connection.recv(int(headers["content-length"]) - len(body))
    return status, headers, body


def one_head(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer; an answer to a HEAD request has nothing else."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        part = connection.recv(1)
        assert part, f"closed after {received!r}"
        received += part
    first, *lines = received.decode().strip().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)


def check_problem(answer: bytes, status: int, *words: str) -> None:
    """The answer is a problem with this status, and its connection is closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"content-type: application/problem+json" in head
    told = json.loads(body)
    assert told["status"] == status
    assert told["type"].startswith("urn:bundlemage:problem:")
    assert f"x-request-id: {told['request_id']}".encode() in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"x-content-type-options: nosniff" in head
    for word in words:
        assert word in told["detail"]


def endless(running: Running, beginning: bytes, part: bytes) -> bytes:
    """The answer to a request that never ends. At most 64 MB of it are sent."""
    with connected(running) as connection:
        connection.sendall(beginning)
        for _ in range(64_000_000 // len(part)):
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(part)
            if select.select([connection], [], [], 0)[0]:
                return rest(connection)
    raise AssertionError("64 MB were read without an answer")


def refused(running: Running, status: int) -> float:
    """The number of requests that were refused with this status, by the metrics."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(running.service.metrics.exposition().decode())
        for sample in family.samples
        if sample.name == "bundlemage_requests_total"
        and (sample.labels["route"], sample.labels["status"]) == ("(none)", str(status))
    )


# ── Sizes ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("beginning", "part", "status"),
    [
        (b"GET /" + b"a" * 10, b"a" * 65536, 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"a" * 65536, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"a" * 1001, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 10, b"a" * 65536, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X-Again: x\r\n" * 1000, 431),
        (b"\r\n", b"\r\n" * 32768, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ", b"a" * 65536, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X-Again: x\r\n" * 1000, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2;", b"a" * 65536, 431),
    ],
    ids=["url", "header", "slow header", "name", "headers", "lines", "trailer", "trailers", "extension"],
)
def test_what_has_no_end_is_refused(plain: Running, beginning: bytes, part: bytes, status: int) -> None:
    check_problem(endless(plain, beginning, part), status, "32,768 bytes")


def test_a_head_may_be_as_large_as_the_limit_and_no_larger(plain: Running) -> None:
    def padded(size: int) -> bytes:
        return get("/healthz", more=f"X-Long: {'a' * (size - len(get('/healthz', more='X-Long: ')) - 2)}\r\n")

    assert len(padded(32768)) == 32768
    with connected(plain) as connection:
        connection.sendall(padded(32768) + padded(32768))
        assert [one(connection)[0], one(connection)[0]] == [200, 200]
        connection.sendall(padded(32769))
        check_problem(rest(connection), 431)


def test_a_request_may_have_a_hundred_headers(plain: Running) -> None:
    with connected(plain) as connection:
        connection.sendall(get("/healthz", more="X-Again: x\r\n" * 99))
        assert one(connection)[0] == 200
        connection.sendall(get("/healthz", more="X-Again: x\r\n" * 100))
        check_problem(rest(connection), 431, "100 headers")


def test_empty_lines_before_a_request_are_parsed_at_once(
    plain: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, they would hold up everybody."""
    parsed: list[bytes] = []
    parse = Connection._parse

    def counted(connection: Connection, data: bytes) -> None:
        parsed.append(data)
        parse(connection, data)

    monkeypatch.setattr(Connection, "_parse", counted)
    with connected(plain) as connection:
        for _ in range(2):
            connection.sendall(b"\r\n" * 10_000 + get("/healthz"))
            assert one(connection)[0] == 200
    assert b"".join(parsed) == (b"\r\n" * 10_000 + get("/healthz")) * 2
    assert len(parsed) < 100


def test_a_trailer_is_no_header(start: Start) -> None:
    running, _ = start()
    running.key("read")
    trailer = f"Authorization: Bearer {running.key('write')}\r\n".encode()
    with connected(running) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + trailer + b"\r\n")
        assert one(connection)[0] == 401
        connection.sendall(get("/healthz"))
        assert one(connection)[0] == 200


def test_what_is_not_http_is_a_problem(plain: Running) -> None:
    before = refused(plain, 400)
    check_problem(plain.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400)
    check_problem(plain.raw(POST + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n"), 400)
    check_problem(plain.raw(b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400)
    assert refused(plain, 400) == before + 2  # the second one was counted with its route


@pytest.mark.parametrize("rest_of_body", [b"nothing\r\n", b"0\r\nX-Long: " + b"a" * 40_000])
def test_a_request_is_answered_once_even_if_the_rest_of_its_body_is_wrong(
    start: Start, rest_of_body: bytes
) -> None:
    """A second answer would be taken for that of the next request."""
    running, _ = start()
    with connected(running) as connection:
        connection.sendall(POST + b"Authorization: Bearer wrong\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert one(connection)[0] == 401
        connection.sendall(rest_of_body)
        assert rest(connection) == b""


# ── Several requests on one connection ───────────────────────────────────────────────────────────


def test_requests_that_come_before_their_turn_take_no_memory_and_are_answered(start: Start) -> None:
    running, waiting = start()
    count = 3000
    with connected(running) as connection:
        connection.sendall(get("/v1/wait") + get(READ) * count)
        wait_until(lambda: waiting.entered, "the first request")
        with running.client() as client:  # by now, the server has read what follows
            assert client.get("/healthz").status_code == 200
        assert sum(type(thing) is RequestResponseCycle for thing in gc.get_objects()) < 20
        waiting.go_on.set()
        received = b""
        while received.count(b"HTTP/1.1 200 OK\r\n") < count + 1:
            part = connection.recv(65536)
            assert part
            received += part


def test_what_is_sent_before_its_turn_without_end_is_not_read(start: Start) -> None:
    running, waiting = start()
    with connected(running) as connection:
        connection.sendall(get("/v1/wait"))
        wait_until(lambda: waiting.entered, "the first request")
        connection.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64_000_000:
                sent += connection.send(get(READ) * 1000)
        assert sent < 64_000_000
        (held,) = (len(each._held) for each in running.server.server_state.connections)  # type: ignore[union-attr]
        assert held <= 256 * 1024


def test_a_request_after_chunks_is_answered_or_the_connection_is_closed(plain: Running) -> None:
    body = b"2\r\n{}\r\n0\r\n\r\n"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n" + body
    with connected(plain) as connection:
        for _ in range(3):
            connection.sendall(chunked)
            assert one(connection)[0] == 200
        connection.sendall(chunked + get("/healthz"))
        assert rest(connection).count(b"HTTP/1.1 200 OK\r\n") == 1


def test_ordinary_requests_on_one_connection(plain: Running) -> None:
    body = b'{"names": ["a"]}'
    with connected(plain) as connection:
        for _ in range(2):
            connection.sendall(get(READ))
            assert one(connection)[0] == 200
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            connection.sendall(body)
            assert one(connection)[::2] == (200, b'{"k":10,"names":1}')
            # Two requests in a row, the first with a body; the end of the second comes later.
            both = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + get(READ)
            connection.sendall(both[:-1])
            assert one(connection)[0] == 200
            connection.sendall(both[-1:])
            assert one(connection)[0] == 200
            connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            for part in (b"8\r\n{", b'"names"\r\n', b"8\r\n: [", b'"a"]}\r\n', b"0\r", b"\n\r\n"):
                connection.sendall(part)
            assert one(connection)[::2] == (200, b'{"k":10,"names":1}')
            connection.sendall(get("/missing", "HEAD"))
            assert one_head(connection)[0] == 404
        connection.sendall(get("/healthz", more="Connection: Upgrade\r\nUpgrade: h2c\r\n") + b"PRI *")
        assert rest(connection).startswith(b"HTTP/1.1 200")


def test_a_caller_who_waits_to_be_told_to_continue(start: Start) -> None:
    running, _ = start()
    head = POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n"
    with connected(running) as connection:
        connection.sendall(head + b"\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert one(connection)[0] == 200
        # Who is refused does not send the body, so the next bytes must not be taken for it.
        connection.sendall(head + b"Authorization: Bearer wrong\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 401")


def test_a_stopping_server_answers_what_it_has_begun(start: Start) -> None:
    running, waiting = start()
    with connected(running) as connection, connected(running) as idle:
        idle.sendall(get("/healthz"))
        assert one(idle)[0] == 200
        connection.sendall(get("/v1/wait"))
        wait_until(lambda: waiting.entered, "the request")
        running.server.should_exit = True
        assert rest(idle) == b""
        waiting.go_on.set()
        assert rest(connection).startswith(b"HTTP/1.1 200")


# ── Deadlines ────────────────────────────────────────────────────────────────────────────────────


def hurry(running: Running, **deadlines: float) -> None:
    """Shorten deadlines of open connections. A busy machine may take long to send what a test needs first."""
    limits = running.server.limits
    limits.settings = limits.settings.model_copy(update=deadlines)


def open_connections(running: Running) -> list[Any]:
    return list(running.server.server_state.connections)


def test_half_a_head_and_nothing_at_all(start: Start) -> None:
    running, _ = start()
    with connected(running) as half, connected(running) as silent:
        half.sendall(b"GET / HTTP/1.1\r\nHost:")
        wait_until(lambda: {each.url for each in open_connections(running)} == {b"", b"/"}, "half a head")
        hurry(running, head_timeout_s=0.2)
        check_problem(rest(half), 408, "600 s")
        assert rest(silent) == b""
    assert refused(running, 408) == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_half_a_body(start: Start, framing: bytes) -> None:
    running, _ = start()
    with connected(running) as connection:
        connection.sendall(POST + framing + b"\r\n\r\n")
        wait_until(lambda: any(each.cycle for each in open_connections(running)), "the head")
        connection.sendall(b"5\r\n{")
        hurry(running, head_timeout_s=0.2)
        check_problem(rest(connection), 408, "600 s")
    wait_until(lambda: not running.server.server_state.connections, "the end of the connection")


@pytest.mark.parametrize(
    ("framing", "part"), [(b"Content-Length: 999999", b" "), (b"Transfer-Encoding: chunked", b"1\r\n \r\n")]
)
def test_a_body_that_comes_byte_by_byte(start: Start, framing: bytes, part: bytes) -> None:
    running, _ = start(body_timeout_s=0.7, head_timeout_s=60)
    with connected(running) as connection:
        connection.sendall(POST + framing + b"\r\n\r\n")
        while not select.select([connection], [], [], 0.02)[0]:
            connection.sendall(part)
        check_problem(rest(connection), 408, "0.7 s")


def test_a_body_that_is_not_needed_has_a_deadline_too(start: Start) -> None:
    running, _ = start(body_timeout_s=0.3)
    with connected(running) as connection:
        connection.sendall(get("/missing", more="Content-Length: 999999\r\n"))
        assert one(connection)[0] == 404
        assert rest(connection) == b""


def test_an_idle_connection_is_closed(start: Start) -> None:
    running, _ = start(idle_timeout_s=0.2)
    with connected(running) as connection:
        connection.sendall(get("/healthz"))
        assert one(connection)[0] == 200
        assert rest(connection) == b""


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_a_caller_who_does_not_read_is_disconnected(start: Start, more: str) -> None:
    running, _ = start(write_timeout_s=0.2)
    with connected(running) as connection:
        connection.sendall(get("/v1/large", more=more))
        wait_until(lambda: running.server.server_state.total_requests, "the answer")
        wait_until(lambda: not running.server.server_state.connections, "the end of the connection")


# ── Connections ──────────────────────────────────────────────────────────────────────────────────


def test_idle_connections_make_room_for_new_ones(start: Start) -> None:
    running, waiting = start(connection_limit=8)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        first = stack.enter_context(connected(running))
        first.sendall(get("/v1/wait"))
        wait_until(lambda: waiting.entered, "the request")
        silent = [stack.enter_context(connected(running)) for _ in range(20)]
        with running.client() as client:
            assert client.get(READ).status_code == 200
        assert rest(silent[0]) == b""  # closed to make room
        wait_until(lambda: len(running.server.server_state.connections) <= 8, "room")
        answer = pool.submit(one, first)
        waiting.go_on.set()
        assert answer.result()[0] == 200  # a request is never given up for another one


def test_callers_who_do_not_read_make_room_for_new_ones(start: Start) -> None:
    running, _ = start(connection_limit=3)
    state = running.server.server_state
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(running)).sendall(get("/v1/large"))
        wait_until(lambda: state.total_requests == 3, "the answers")
        new = [stack.enter_context(connected(running)) for _ in range(3)]
        for connection in new:
            connection.sendall(get("/healthz"))
            assert one(connection)[0] == 200
        wait_until(lambda: len(state.connections) == 3, "room")


def test_busy_connections_leave_room_for_health_checks(start: Start) -> None:
    running, waiting = start(connection_limit=8)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(running)).sendall(get("/v1/wait"))
        wait_until(lambda: waiting.entered == 8, "the requests")
        for path in ("/healthz", "/readyz"):
            with connected(running) as connection:
                connection.sendall(get(path))
                assert one(connection)[0] in (200, 404)  # the small service has no /readyz
        with connected(running) as connection:
            connection.sendall(get(READ))
            answer = rest(connection)
            check_problem(answer, 503)
            assert b"\r\nretry-after: 1\r\n" in answer


def test_new_callers_do_not_wait_for_each_other(start: Start) -> None:
    """uvloop accepts one connection in each round of its loop. Here, a round never ends by itself."""
    running, _ = start()
    rounds = 0
    loop, go_on = run_in_server(running)

    def turn() -> None:
        nonlocal rounds
        rounds += 1
        go_on.wait(60)
        if len(running.server.server_state.connections) < 60:
            loop.call_soon(turn)

    loop.call_soon_threadsafe(turn)
    wait_until(lambda: rounds, "the first round")
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connected(running))  # the system accepts them for now
        go_on.set()
        wait_until(lambda: len(running.server.server_state.connections) == 60, "the connections")
    assert rounds < 20


def test_a_stopping_server_does_not_wait_for_a_caller_whom_it_just_accepted(start: Start) -> None:
    running, _ = start()
    loop, arrived = run_in_server(running)
    (listener,), stopping = running.server.servers, threading.Event()

    def stop() -> None:
        stopping.set()
        arrived.wait(60)
        listener._accept()  # type: ignore[attr-defined]
        listener.close()

    loop.call_soon_threadsafe(stop)
    assert stopping.wait(60)
    with connected(running) as connection:
        arrived.set()
        assert rest(connection) == b""


def run_in_server(running: Running) -> tuple[asyncio.AbstractEventLoop, threading.Event]:
    """The loop of a server, and an event for a test that stops it."""
    loops: list[asyncio.AbstractEventLoop] = []

    @running.app.get("/v1/loop")
    async def loop() -> None:
        loops.append(asyncio.get_running_loop())

    with running.client() as client:
        client.get("/v1/loop")
    wait_until(lambda: not running.server.server_state.connections, "the end of the connection")
    return loops[0], threading.Event()


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (100_000, 4000),
        (1024, 1024 - 100 - 64 - 256),  # less those being accepted, those for health checks, and other files
        (256, 128),  # the default of macOS
    ],
)
def test_the_files_that_the_system_allows_limit_the_connections(
    plain: Running, monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    server = make_server(plain.app, Settings(), plain.service.metrics)
    assert server.limits.most_connections == connections


# ── Overload ─────────────────────────────────────────────────────────────────────────────────────


def test_a_burst_is_refused_as_far_as_it_would_wait(start: Start) -> None:
    # Before anything was measured, the server assumes a millisecond for each answer.
    running, waiting = start(queue_target_s=0.02)
    with ExitStack() as stack, running.client() as client:
        burst = [stack.enter_context(connected(running)) for _ in range(60)]
        for connection in burst:
            connection.sendall(get("/v1/wait"))
        refusals = wait_for_refusals(burst, 39)
        wait_until(lambda: waiting.entered == 21, "the others")
        for connection in refusals:
            status, headers, body = one(connection)
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(body)["title"] == "Busy"
            assert "connection" not in headers
        assert client.get("/healthz").status_code == 200  # never refused
        assert client.post("/v1/ask", json={}).status_code == 200  # reading holds up no writing
        assert client.post("/v1/recommend", json={}).status_code == 503
        with connected(running) as other:
            other.sendall(get(READ, "HEAD"))
            assert one_head(other)[0] == 503
            other.sendall(get("/healthz"))
            assert one(other)[0] == 200  # nothing of the answer to HEAD is left over
        waiting.go_on.set()
        for connection in set(burst) - set(refusals):
            assert one(connection)[0] == 200
        assert client.post("/v1/recommend", json={}).status_code == 404  # there is no such route here
        for connection in refusals:  # the same connection is answered when there is room
            connection.sendall(get(READ))
            assert one(connection)[0] == 200
    assert refused(running, 503) == 41
    wait_until(lambda: sum(logged_refusals()) >= 41, "the log")
    assert len(logged_refusals()) < 20  # not a line for each


def logged_refusals() -> list[int]:
    """The counts of status 503 in the log."""
    lines = (json.loads(line) for line in OUTPUT.getvalue().splitlines())
    return [line["statuses"].get("503", 0) for line in lines if line["event"] == "refused"]


def wait_for_refusals(connections: list[socket.socket], count: int) -> list[socket.socket]:
    """The connections that have been answered, once there are `count` of them."""

    def answered() -> list[socket.socket]:
        return select.select(connections, [], [], 0)[0]

    wait_until(lambda: len(answered()) >= count, f"{count} answers")
    assert len(answered()) == count
    return answered()


def test_a_caller_who_ignores_refusals_is_not_read_on(start: Start) -> None:
    running, waiting = start(queue_target_s=0.001)
    with ExitStack() as stack:
        for _ in range(FEW):
            stack.enter_context(connected(running)).sendall(get("/v1/wait"))
        wait_until(lambda: waiting.entered == FEW, "the requests")
        with connected(running) as connection:
            connection.sendall(get(READ) * 1000)
            assert rest(connection).count(b"HTTP/1.1 503 ") < 120
        waiting.go_on.set()


def test_requests_whose_body_has_not_come_do_not_count(start: Start) -> None:
    running, _ = start(queue_target_s=0.001)
    with ExitStack() as stack, running.client() as client:
        for _ in range(FEW + 5):
            stack.enter_context(connected(running)).sendall(POST + b"Content-Length: 10\r\n\r\n{")
        assert client.get(READ).status_code == 200
    assert refused(running, 503) == 0


def test_requests_that_need_no_body_count_even_if_it_has_not_come(start: Start) -> None:
    running, waiting = start(queue_target_s=0.001)
    with ExitStack() as stack, running.client() as client:
        for _ in range(FEW):
            request = get("/v1/wait", more="Content-Length: 10\r\n")
            stack.enter_context(connected(running)).sendall(request)
        wait_until(lambda: waiting.entered == FEW, "the requests")
        assert client.get(READ).status_code == 503
        waiting.go_on.set()
        wait_until(lambda: not running.server.limits.reads.in_progress, "the answers")
        assert client.get(READ).status_code == 200


def test_a_model_that_is_stuck_lets_others_know(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"queue_target_s": 0.2, "answer_timeout_s": 300, **PATIENT}
    with (
        inside(sample_model, whole_copy(sample_database, tmp_path), **settings) as running,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as stack,
    ):
        go_on = threading.Event()
        stack.callback(go_on.set)
        answerer = running.service.answerer
        stuck = pool.submit(lambda: asyncio.run(answerer.on_live(lambda _: go_on.wait(300))))
        wait_until(lambda: answerer.batcher.busy_for() > 0.2, "a long batch")
        port = int(running.url.rpartition(":")[2])
        address = ("127.0.0.1", port)
        burst = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(40)]
        for connection in burst:
            connection.sendall(get(READ))
        refusals = wait_for_refusals(burst, 40 - FEW)
        assert {one(connection)[0] for connection in refusals} == {503}
        with running.client() as client:
            assert client.get("/healthz").status_code == 200
        go_on.set()
        assert stuck.result()
        assert {one(connection)[0] for connection in set(burst) - set(refusals)} == {200}


def test_the_expected_time_follows_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("bundlemage.service.load.time", SimpleNamespace(monotonic=lambda: now))
    load = Load()
    for _ in range(100):
        load.begin()
    assert load.wait() == pytest.approx(0.1)  # a millisecond each, until there is a measurement
    for _ in range(5000):
        now += 0.01
        load.begin()
        load.end()
    assert load.wait() == pytest.approx(1.0, rel=0.01)
    for _ in range(5000):
        now += 0.002
        load.begin()
        load.end()
    assert load.wait() == pytest.approx(0.2, rel=0.01)
    for _ in range(95):
        load.end()
    assert load.wait() == 0.0
    now += 1000  # time without requests is not counted
    for _ in range(95):
        load.begin()
    for _ in range(20):
        now += 0.002
        load.begin()
        load.end()
    assert 0.1 < load.wait() < 0.3


def test_all_who_need_the_same_look_up_share_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all requests in progress read the store when what was cached expires."""
    running, _ = start()
    key, store = running.key("read"), running.service.store
    calls, go_on = [], threading.Event()
    look_up = store.key

    def slowly(identity: str) -> Any:
        calls.append(identity)
        assert go_on.wait(60)
        return look_up(identity)

    monkeypatch.setattr(store, "key", slowly)
    with ExitStack() as stack:
        callers = [stack.enter_context(connected(running)) for _ in range(10)]
        for connection in callers:
            connection.sendall(get(READ, more=f"Authorization: Bearer {key}\r\n"))
        wait_until(lambda: running.server.limits.reads.in_progress == 10, "the requests")
        go_on.set()
        assert [one(connection)[0] for connection in callers] == [200] * 10
    assert len(calls) == 1
