"""The whole service for tests: as the command in a process of its own, or inside the test's process."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import pytest

from bundlemage.recommender import Recommender
from bundlemage.service.app import Service, create_server, open_service
from bundlemage.service.security import make_key
from bundlemage.service.settings import Settings
from bundlemage.store.records import Role
from bundlemage.store.repository import Store
from tests.cli.run import run
from tests.forked import Forked, start_forked
from tests.made_once import made_once
from tests.waiting import wait_until

SECONDS_TO_START = 90
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
PROBLEM = "application/problem+json"


# ── Models and databases, made once for all test processes ───────────────────────────────────────


def _train(place: Path, *settings: str) -> None:
    arguments = [part for setting in ("embedding_dim=64", *settings) for part in ("--set", setting)]
    run("train", "--model", "bundlemage", "-o", place, "--overwrite", "--device", "cpu", *arguments)


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the sample shop. It is everybody's: copy it to change it."""
    return made_once(tmp_path_factory, "sample-model", _train)


@pytest.fixture(scope="session")
def second_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same shop, which answers otherwise."""
    return made_once(tmp_path_factory, "second-model", lambda place: _train(place, "epochs=20", "seed=7"))


@pytest.fixture(scope="session")
def recommender(sample_model: Path) -> Recommender:
    return Recommender.load(sample_model, device="cpu")


@pytest.fixture(scope="session")
def sample_database(tmp_path_factory: pytest.TempPathFactory, sample_model: Path) -> Path:
    """A SQLite file that has taken over the sample shop. It is everybody's: `copied` gives you your own."""

    def make(place: Path) -> None:
        store = Store.open(f"sqlite:///{place}")
        store.import_dataset(Recommender.load(sample_model, device="cpu").dataset)
        store.close()

    return made_once(tmp_path_factory, "sample.db", make)


def copied(database: Path, folder: Path) -> str:
    """The URL of a copy, without migrating and importing once more."""
    return f"sqlite:///{shutil.copy(database, folder / 'shop.db')}"


# ── Running it ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class Running:
    """A service that answers."""

    url: str
    db: str

    def client(self, key: str | None = None, **settings: Any) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(**{"base_url": self.url, "headers": headers, "timeout": 30, **settings})


@dataclass
class Command(Running):
    """`bundlemage serve` in a process of its own."""

    process: Forked
    errors: Path = field(repr=False)

    def kill(self) -> None:
        """As the kernel would: nothing is flushed, nothing is closed."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return self.errors.read_text()


@contextmanager
def command(model: Path | None, db: str, *options: str) -> Iterator[Command]:
    """The command on a free port, until the block ends."""
    arguments = [*([str(model)] if model else []), "--db", db, "--port", "0", *options]
    with tempfile.TemporaryDirectory(prefix="bundlemage-serve-") as folder:
        errors = Path(folder) / "stderr"
        with errors.open("w") as output:
            process = start_forked(["serve", *arguments], stdout=PIPE, stderr=output.fileno())
        watch = threading.Timer(SECONDS_TO_START, process.kill)  # or a silent one would be read from forever
        watch.start()
        try:
            assert process.stdout is not None
            address = next(filter(None, map(_ADDRESS.search, process.stdout)), None)
            watch.cancel()
            assert address is not None, f"it did not start:\n{errors.read_text()[-3000:]}"
            running = Command(address[0], db, process, errors)
            wait_until(lambda: _answers(running), "an answer")
            yield running
        finally:
            watch.cancel()
            process.terminate()
            try:
                process.wait(timeout=20)
            finally:
                process.kill()
                process.wait()


def _answers(running: Running) -> bool:
    try:
        return httpx.get(f"{running.url}/readyz", timeout=30).is_success
    except httpx.TransportError:
        return False


@dataclass
class Inside(Running):
    """The service in this process, so that a test can look into it."""

    service: Service
    stop: Callable[[], None]
    """Tell the server to stop. It does not wait until the server has stopped."""

    @property
    def store(self) -> Store:
        return self.service.store


@contextmanager
def inside(model: Path | None, db: str, **settings: Any) -> Iterator[Inside]:
    """The same app on a real server in a thread, which starts sooner than a process does."""
    service = open_service(Settings(model=model, db=db, **settings), Store.open(db))
    server = create_server(service)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), "the server")
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Inside(address, db, service, partial(setattr, server, "should_exit", True))
        finally:
            server.should_exit = True
            thread.join(timeout=30)


# ── What tests say again and again ───────────────────────────────────────────────────────────────


def new_key(store: Store, role: Role) -> str:
    text, key = make_key(role, "a test")
    store.add_key(key)
    return text


def problem(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The answer's problem details, which are of this status and say these words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    told: dict[str, Any] = answer.json()
    assert told["status"] == status
    assert told["type"].startswith("urn:bundlemage:problem:")
    assert told["title"]
    assert told["request_id"] == answer.headers["x-request-id"]
    for word in words:
        assert word in told["detail"], told
    return told


def ok(answer: httpx.Response, status: int = 200) -> Any:
    """The answer's JSON."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def ids(answer: httpx.Response, kind: str = "bundles") -> list[str]:
    return [each["id"] for each in ok(answer)[kind]]
