"""Asks a running service many times and measures how long its answers take: `python -m benchmarks.load URL`.

It has one thread with non-blocking sockets, which needs little CPU time for a request, so it can share two
cores with the service. Without a rate, each connection sends its next request when the last one is answered
(closed loop), or after a refusal as soon as the header Retry-After allows. With a rate, requests have fixed
times (open loop), and a latency counts from that time. So a service that hangs gets as many requests as
before, and the time for which they wait is counted.
"""

from __future__ import annotations

import json
import math
import random
import re
import select
import socket
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import typer
from rich import box
from rich.console import Console
from rich.table import Table

KEPT_OPEN = 3.0
"""Seconds after which an idle connection is not used again. The service closes one after 5 s."""
NOT_SENT = "no free connection"
_READ = b"GET /v1/users/c%07d/bundles?k=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_WRITE = (
    b"POST /v1/interactions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: (\d+)", re.IGNORECASE)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def user_id(number: int) -> str:
    """The id of a user whom the benchmarks ask for."""
    return f"c{number:07d}"


@dataclass(frozen=True)
class Plan:
    """What is asked, how often and by how many."""

    address: str
    seconds: float
    connections: int = 16
    """In an open loop: the largest number of connections."""
    rate: float | None = None
    """Requests per second of an open loop."""
    users: int = 100_000
    k: int = 10
    writes: float = 0.0
    """The share of requests that record that a new user took a bundle."""
    name: str = "load"
    """The users of writes are called `NAME-0`, `NAME-1` and so on."""
    seed: int = 0
    timeout: float = 10.0
    patience: float = 10.0
    """Seconds for which a request of an open loop waits for a free connection. Then it is not sent."""


@dataclass(frozen=True)
class Latencies:
    """Figures of one kind of answers, in milliseconds."""

    requests: int
    per_second: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Iterable[float], during: float) -> Latencies:
        ordered = sorted(seconds)

        def at(share: float) -> float:
            return 1000 * ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan

        return cls(len(ordered), len(ordered) / during, at(0.5), at(0.9), at(0.99), at(1.0))


@dataclass
class Outcome:
    """What happened to all requests. Times are those of `time.perf_counter`."""

    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time that asking took."""
    reads: array[float] = field(default_factory=lambda: array("d"))
    writes: array[float] = field(default_factory=lambda: array("d"))
    refused: array[float] = field(default_factory=lambda: array("d"))
    failures: list[tuple[float, str]] = field(default_factory=list)
    """Time and kind of each request that got no answer, or an answer that is neither good nor 503."""
    refusals: list[float] = field(default_factory=list)
    """The time of each 503."""
    acknowledged: list[int] = field(default_factory=list)
    """The numbers of the writes that the service confirmed."""
    unknown: list[int] = field(default_factory=list)
    """The numbers of the writes of which nobody knows whether they took place."""

    @property
    def requests(self) -> int:
        return len(self.reads) + len(self.writes) + len(self.refused) + len(self.failures)

    @property
    def errors(self) -> Counter[str]:
        return Counter(kind for _, kind in self.failures)

    def figures(self) -> dict[str, Any]:
        """The figures for a table or a JSON file."""
        during = self.ended - self.began
        kinds = {"reads": self.reads, "writes": self.writes, "refused": self.refused}
        return {
            "seconds": during,
            "requests": self.requests,
            "per_second": self.requests / during,
            **{name: asdict(Latencies.of(times, during)) for name, times in kinds.items()},
            "errors": dict(self.errors),
            "client_cpu_us": 1e6 * self.cpu / max(self.requests, 1),
        }


def merged(outcomes: Iterable[Outcome]) -> Outcome:
    """Several outcomes as one that lasted as long as all of them."""
    whole = Outcome()
    for each in outcomes:
        whole.ended += each.ended - each.began
        whole.cpu += each.cpu
        for name in ("reads", "writes", "refused", "failures", "refusals", "acknowledged", "unknown"):
            getattr(whole, name).extend(getattr(each, name))
    return whole


class _Connection:
    __slots__ = ("connected", "got", "idle_since", "need", "pending", "since", "socket", "write")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.connected = False
        self.pending = b""
        """What is still to be sent."""
        self.since = 0.0
        """The time from which the latency of the open request counts; 0 if there is none."""
        self.write = -1
        """The number of the write; -1 for a read."""
        self.got = b""
        self.need = 0
        """The bytes of the whole answer; 0 until its head is known."""
        self.idle_since = 0.0


class Load:
    """Sends the requests of a plan. `outcome` can be looked at while it runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcome = Outcome()
        self.stopped = False
        parts = urlsplit(plan.address)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.bundles = some_bundles(plan.address) if plan.writes else [b""]
        self._random = random.Random(plan.seed)
        self._written = 0
        self._sent = 0
        self._open: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._resting: deque[tuple[float, _Connection]] = deque()
        """Refused connections of a closed loop, and when each may ask again."""
        self._waiting = 0
        """The number of requests that have no answer yet."""
        self._retry_at = 0.0
        self._poll = select.epoll()

    def run(self) -> Outcome:
        """Ask until the time is over, then wait for the last answers."""
        plan, outcome = self.plan, self.outcome
        outcome.began, cpu = time.perf_counter(), time.thread_time()
        end = outcome.began + plan.seconds
        next_look = 0.0
        try:
            while True:
                now = time.perf_counter()
                if self.stopped or now >= end:
                    outcome.ended = outcome.ended or now
                    if not self._waiting:
                        return outcome
                else:
                    self._send_what_is_due(now)
                if now >= next_look:
                    next_look = now + 0.2
                    self._give_up_on_the_slow(now)
                for number, event in self._poll.poll(self._pause(now), 1024):
                    connection = self._open.get(number)
                    if connection is None:
                        continue
                    if event & ~select.EPOLLIN and not self._went_out(connection, event):
                        continue
                    if event & select.EPOLLIN:
                        self._came_in(connection)
        finally:
            outcome.cpu = time.thread_time() - cpu
            for connection in list(self._open.values()):
                self._close(connection)
            self._poll.close()

    def _pause(self, now: float) -> float:
        all_busy = not self._idle and len(self._open) >= self.plan.connections
        if self.plan.rate is None or self.stopped or all_busy:
            return 0.02
        return min(max(self._due() - now, 0.0), 0.02)

    def is_late(self) -> bool:
        """Whether requests of an open loop wait for a free connection."""
        return time.perf_counter() - self._due() > 0.1

    def _due(self) -> float:
        assert self.plan.rate is not None
        return self.outcome.began + self._sent / self.plan.rate

    def _send_what_is_due(self, now: float) -> None:
        if self.plan.rate is None:
            while self._resting and self._resting[0][0] <= now:
                self._idle.append(self._resting.popleft()[1])
            while self._idle or (len(self._open) < self.plan.connections and now >= self._retry_at):
                self._send(self._connection(now), time.perf_counter())
            return
        while (due := self._due()) <= now:
            if now - due > self.plan.patience:
                self.outcome.failures.append((now, NOT_SENT))
            elif self._idle or len(self._open) < self.plan.connections:
                self._send(self._connection(now), due)
            else:
                return
            self._sent += 1

    def _connection(self, now: float) -> _Connection:
        """An idle connection, the one that was used last, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < KEPT_OPEN:
                return connection
            self._close(connection)
        opened = socket.socket()
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(opened)
        opened.connect_ex(self._target)
        self._open[opened.fileno()] = connection
        self._poll.register(opened.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return connection

    def _send(self, connection: _Connection, since: float) -> None:
        """Send the next request."""
        plan = self.plan
        if plan.writes and self._random.random() < plan.writes:
            connection.write = number = self._written
            self._written += 1
            bundle = self.bundles[number % len(self.bundles)]
            body = b'{"interactions":[{"user_id":"%s-%d","bundle_id":"%s"}]}'
            body %= (plan.name.encode(), number, bundle)
            connection.pending = _WRITE % (len(body), body)
        else:
            connection.write = -1
            connection.pending = _READ % (int(self._random.random() * plan.users), plan.k)
        connection.since = since
        self._waiting += 1
        if connection.connected:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> bool:
        try:
            sent = connection.socket.send(connection.pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose(connection, "connection lost")
            return False
        connection.pending = connection.pending[sent:]
        if connection.pending:
            self._poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def _went_out(self, connection: _Connection, event: int) -> bool:
        """A connection was opened, can be written to, or failed. Returns whether it can still be used."""
        if not connection.connected:
            if connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._retry_at = time.perf_counter() + 0.05
                self._lose(connection, "connection refused")
                return False
            connection.connected = True
        if event & select.EPOLLOUT:
            if connection.pending and not self._flush(connection):
                return False
            if not connection.pending:
                self._poll.modify(connection.socket.fileno(), select.EPOLLIN)
        elif not event & select.EPOLLIN:
            self._lose(connection, "connection lost")
            return False
        return True

    def _came_in(self, connection: _Connection) -> None:
        try:
            part = connection.socket.recv(262_144)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._lose(connection, "connection lost")
            return
        got = connection.got = connection.got + part if connection.got else part
        if not connection.need:
            head = got.find(b"\r\n\r\n")
            if head < 0:
                return
            connection.need = head + 4 + _length(got[: head + 2])
        if len(got) >= connection.need:
            self._answered(connection, got)

    def _answered(self, connection: _Connection, got: bytes) -> None:
        now, outcome, since = time.perf_counter(), self.outcome, connection.since
        status, write = got[9:12], connection.write
        if not since:  # an answer to nothing
            self._lose(connection, "not an answer")
            return
        if status == b"200":
            (outcome.reads if write < 0 else outcome.writes).append(now - since)
            if write >= 0:
                outcome.acknowledged.append(write)
        elif status == b"503":
            outcome.refused.append(now - since)
            outcome.refusals.append(now)
            if write >= 0:
                outcome.unknown.append(write)
        else:
            outcome.failures.append((now, f"status {status.decode('ascii', 'replace')}"))
            if write >= 0 and status.startswith(b"5"):
                outcome.unknown.append(write)
        self._waiting -= 1
        connection.since, connection.got, connection.need = 0.0, b"", 0
        if status != b"200" and b"\r\nconnection: close" in got.lower():
            self._close(connection)
            return
        connection.idle_since = now
        if self.plan.rate is None and status == b"503":
            self._resting.append((now + _seconds_to_wait(got), connection))
        elif self.plan.rate is None and not self.stopped and now < outcome.began + self.plan.seconds:
            self._send(connection, now)
        else:
            self._idle.append(connection)

    def _give_up_on_the_slow(self, now: float) -> None:
        for connection in list(self._open.values()):
            if connection.since and now - connection.since > self.plan.timeout:
                self._lose(connection, "timeout")

    def _lose(self, connection: _Connection, kind: str) -> None:
        """Close a connection. If it has an open request, that counts as a failure."""
        if connection.since:
            self.outcome.failures.append((time.perf_counter(), kind))
            if connection.write >= 0:
                self.outcome.unknown.append(connection.write)
            self._waiting -= 1
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._open.pop(connection.socket.fileno(), None)
        if connection in self._idle:
            self._idle.remove(connection)
        self._resting = deque(each for each in self._resting if each[1] is not connection)
        connection.socket.close()


def _length(head: bytes) -> int:
    """The bytes of an answer's body. The service always says how many there are."""
    at = head.find(b"\r\ncontent-length: ")
    if at < 0:
        head = head.lower()
        at = head.find(b"\r\ncontent-length: ")
        if at < 0:
            return 0
    return int(head[at + 18 : head.index(b"\r", at + 2)])


def _seconds_to_wait(answer: bytes) -> float:
    """What the header Retry-After says; 0 without one."""
    found = _RETRY_AFTER.search(answer)
    return float(found[1]) if found else 0.0


def some_bundles(address: str) -> list[bytes]:
    """The ids of bundles that the service knows."""
    with urlopen(f"{address}/v1/bundles?limit=500", timeout=60) as answer:
        return [bundle["id"].encode() for bundle in json.load(answer)["bundles"]]


def table_of(rows: Iterable[tuple[str, dict[str, Any]]]) -> Table:
    """The figures of several outcomes, one line for each kind of answer."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column("answers", no_wrap=True)
    for name in ("requests", "per second", "p50 ms", "p90 ms", "p99 ms", "most ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, figures in rows:
        shown = iter([name])
        for kind in ("reads", "writes", "refused"):
            of = figures[kind]
            if of["requests"]:
                times = (f"{of[each]:,.1f}" for each in ("p50", "p90", "p99", "most"))
                counts = (f"{of['requests']:,}", f"{of['per_second']:,.0f}")
                table.add_row(next(shown, ""), kind, *counts, *times)
        for kind, count in figures["errors"].items():
            table.add_row(next(shown, ""), f"[red]{kind}[/]", f"{count:,}", *[""] * 5)
    return table


def main(
    address: Annotated[str, typer.Argument(help="Such as http://127.0.0.1:8000.")],
    seconds: Annotated[float, typer.Option(help="How long to ask.")] = 10,
    connections: Annotated[int, typer.Option(help="How many connections, at most.")] = 16,
    rate: Annotated[float | None, typer.Option(help="Requests per second, however slow the answers.")] = None,
    users: Annotated[int, typer.Option(help="The users c0000000, c0000001, … to ask for.")] = 100_000,
    k: Annotated[int, typer.Option(help="How many bundles each wants.")] = 10,
    writes: Annotated[float, typer.Option(help="The share of requests that write.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the requests, and part of the writers' names.")] = 0,
) -> None:
    """Ask a running service, and print how long its answers took."""
    name = f"load-{seed}-{time.time_ns()}"
    plan = Plan(address.rstrip("/"), seconds, connections, rate, users, k, writes, name, seed)
    figures = Load(plan).run().figures()
    console.print(table_of([(f"{connections} connections", figures)]))
    console.print(f"asking took {figures['client_cpu_us']:.0f} microseconds of CPU time for each request")
    raise typer.Exit(1 if figures["errors"] else 0)


if __name__ == "__main__":
    typer.run(main)
