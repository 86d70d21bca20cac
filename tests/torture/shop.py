"""A shop that is tortured: its models, its database, its keys, and the command that serves it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.serving import end_group, free_port
from bundlemage import sample_shop
from bundlemage.live import record_of
from bundlemage.recommender import Recommender
from bundlemage.service.security import make_key
from bundlemage.store.records import ModelRecord, Role
from bundlemage.store.repository import Store
from tests.forked import Forked, start_forked

SECONDS_TO_START = 120
ROLES: tuple[Role, ...] = ("read", "write", "admin")


class EndedError(Exception):
    """The service ended by itself."""


def train(folder: Path, count: int) -> list[Path]:
    """Small models of the sample shop that answer differently."""
    places = [folder / f"model-{number}" for number in range(count)]
    for seed, place in enumerate(places):
        settings: dict[str, Any] = {"embedding_dim": 16, "epochs": 1, "seed": seed, "device": "cpu"}
        Recommender(**settings).fit(sample_shop().dataset, progress=False).save(place)
    return places


@dataclass
class Shop:
    """The service is started and killed through this object. It listens on the same port each time."""

    folder: Path
    db: str
    models: list[Path]
    keys: dict[Role, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: Forked | None = None
    starts: int = 0

    @property
    def records(self) -> list[ModelRecord]:
        return [record_of(model) for model in self.models]

    @property
    def logs(self) -> list[Path]:
        """What each start of the service wrote to stderr."""
        return [self.folder / f"log-{number:04}" for number in range(1, self.starts + 1)]

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = Store.open(self.db)
        try:
            yield store
        finally:
            store.close()

    def create_keys(self) -> None:
        with self.store() as store:
            for role in ROLES:
                self.keys[role], key = make_key(role, "torture")
                store.add_key(key)

    def publish_all(self) -> None:
        """Write all models to the store. The first one is published last, so it serves."""
        with self.store() as store:
            for record in reversed(self.records):
                store.publish(record)

    def start(self) -> None:
        """Start the command in a process group of its own. It may not answer yet."""
        self.starts += 1
        arguments = ["serve", self.models[0], "--db", self.db, "--port", self.port]
        arguments += ["--rate-limit", 1_000_000, *self.options]
        with self.logs[-1].open("wb") as log:
            nothing = os.open(os.devnull, os.O_WRONLY)
            try:
                self.process = start_forked(
                    arguments, self.folder, stdout=nothing, stderr=log.fileno(), before=os.setsid
                )
            finally:
                os.close(nothing)

    def wait_until_ready(self) -> None:
        """Return when the service answers. Raises EndedError if it ends instead."""
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                raise EndedError(f"exit code {self.process.returncode}:\n{self.last_words()}")
            with suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/readyz")[0] == 200:
                    return
            time.sleep(0.02)
        raise EndedError(f"no answer of /readyz within {SECONDS_TO_START} s:\n{self.last_words()}")

    def last_words(self) -> str:
        return self.logs[-1].read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """SIGKILL for the command and its workers, as the kernel would do it: nothing is flushed."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        end_group(self.process.pid, signal.SIGKILL)  # the group is there as soon as the process has begun
        self.process.wait(60)

    def stop(self) -> int:
        """SIGTERM. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.kill()

    def memory_mb(self) -> float:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        role: Role | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One request on a connection of its own: the status, and the answer's JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS_TO_START)
        try:
            sent = None if body is None else json.dumps(body)
            all_headers = {**self.authorization(role), **(headers or {})}
            if sent is not None:
                all_headers["Content-Type"] = "application/json"
            connection.request(method, path, sent, all_headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def authorization(self, role: Role | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[role]}"} if role in self.keys else {}


def new_sqlite(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'shop.db'}"


def faults_of_log(path: Path, most: int = 20) -> list[str]:
    """The lines of a log that say that something failed. A refusal with 503 is not one of them."""
    found: list[str] = []
    with path.open(errors="replace") as lines:
        for line in lines:
            if len(found) == most:
                break
            if _is_fault(line):
                found.append(f"{path.name}: {line.strip()[:3000]}")
    return found


def _is_fault(line: str) -> bool:
    try:
        told = json.loads(line)
    except ValueError:
        return "Traceback" in line or "Error" in line
    if not isinstance(told, dict) or told.get("level") not in ("error", "critical"):
        return False
    return not (told.get("event") == "request" and told.get("status") == 503)
