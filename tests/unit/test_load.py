"""The load generator of the benchmarks: what it counts as answered, refused, failed, and unknown."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.load import Latencies, Load, Plan, merged

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Answer = Callable[[int, bytes], bytes | None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server that answers the numbered requests as told; None closes the connection."""
    number, counting = 0, threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def head(self) -> bytes:
            lines = b""
            while (line := self.rfile.readline()) not in (b"", b"\r\n"):
                lines += line
            return lines

        def handle(self) -> None:
            nonlocal number
            while head := self.head():
                length = re.search(rb"content-length: (\d+)", head.lower())
                body = self.rfile.read(int(length[1])) if length else b""
                if b"/v1/bundles?" in head:
                    known = json.dumps({"bundles": [{"id": "b1"}]}).encode()
                    text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(known), known)
                    self.wfile.write(text)
                    return
                with counting:
                    number += 1
                    told = answer(number, body)
                if told is None:
                    return
                self.wfile.write(told)
                if b"connection: close" in told:
                    return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()


def asked(answer: Answer, enough: int, **plan: float) -> Load:
    """The load after some requests."""

    def counted(number: int, body: bytes) -> bytes | None:
        load.stopped = number >= enough
        return answer(number, body)

    with server(counted) as address:
        load = Load(Plan(address, 240, **plan))  # type: ignore[arg-type]
        load.run()
    return load


def test_answers_refusals_and_failures_are_counted_apart() -> None:
    def answer(number: int, _: bytes) -> bytes | None:
        if number % 10 == 1:
            return b"HTTP/1.1 503 Busy\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
        if number % 10 == 2:
            return b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"
        if number % 10 == 3:
            return None
        return GOOD

    outcome = asked(answer, enough=200, connections=4).outcome
    figures = outcome.figures()
    assert outcome.requests >= 200
    assert figures["reads"]["requests"] == len(outcome.reads) > 100
    assert figures["refused"]["requests"] == len(outcome.refusals) >= 18
    assert set(figures["errors"]) == {"status 500", "connection lost"}
    assert figures["errors"]["status 500"] >= 18
    assert figures["writes"]["requests"] == 0


def test_a_refused_connection_of_a_closed_loop_waits_as_it_was_told() -> None:
    arrived: list[float] = []

    def answer(number: int, _: bytes) -> bytes:
        arrived.append(time.perf_counter())
        busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
        return busy if number == 1 else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    load = asked(answer, 2, connections=1)
    assert (len(load.outcome.refused), len(load.outcome.reads)) == (1, 1)
    assert arrived[1] - arrived[0] >= 1


def test_each_write_is_acknowledged_or_unknown_or_refused_for_good() -> None:
    seen: list[str] = []

    def answer(number: int, body: bytes) -> bytes | None:
        seen.append(json.loads(body)["interactions"][0]["user_id"])
        return (GOOD, b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", None)[number % 3]

    outcome = asked(answer, enough=90, connections=3, writes=1.0).outcome
    acknowledged, unknown = set(outcome.acknowledged), set(outcome.unknown)
    refused = outcome.errors["status 404"]
    assert not acknowledged & unknown
    assert len(acknowledged) + len(unknown) + refused == len(seen) == len(set(seen))
    assert {f"load-{number}" for number in acknowledged | unknown} <= set(seen)
    assert min(len(acknowledged), len(unknown), refused) >= 29


def test_an_open_loop_counts_the_time_that_a_request_waited_for_a_connection() -> None:
    first_two = threading.Semaphore(2)

    def answer(number: int, _: bytes) -> bytes:
        if first_two.acquire(blocking=False):
            threading.Event().wait(0.2)
        return GOOD

    outcome = asked(answer, enough=60, connections=1, rate=500).outcome
    # One connection was held for 0.4 s: the requests that were due meanwhile waited for it.
    assert sum(seconds > 0.1 for seconds in outcome.reads) > 20


def test_an_open_loop_does_not_send_what_waited_too_long() -> None:
    first = threading.Semaphore(1)

    def answer(number: int, _: bytes) -> bytes:
        if first.acquire(blocking=False):
            threading.Event().wait(0.5)
        return GOOD

    outcome = asked(answer, enough=30, connections=1, rate=200, patience=0.1, writes=1.0).outcome
    # One connection was held for 0.5 s, and 100 requests were due meanwhile.
    assert outcome.errors["no free connection"] > 50
    assert set(outcome.errors) == {"no free connection"}
    assert not outcome.unknown  # nobody has seen them


def test_nobody_listens() -> None:
    with server(lambda *_: GOOD) as address:
        pass
    load = Load(Plan(address, 0.3, connections=2))
    assert set(load.run().errors) == {"connection refused"}


def test_figures() -> None:
    figures = Latencies.of([number / 1000 for number in range(1, 101)], during=2.0)
    assert figures == Latencies(100, 50.0, 50.0, 90.0, 99.0, 100.0)
    one = asked(lambda *_: GOOD, enough=20).outcome
    both = merged([one, one])
    assert both.requests == 2 * one.requests
    assert abs(both.figures()["per_second"] - one.figures()["per_second"]) < 1e-6
