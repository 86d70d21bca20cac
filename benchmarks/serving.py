"""The live service for benchmarks: a shop with many users, and the command in a process group of its own.

`python -m benchmarks.serving FOLDER` trains the models and fills the store. It runs as a command, so that a
benchmark can do it with the code of another checkout, too.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np
import typer

from benchmarks.load import user_id

ROOT = Path(__file__).parent.parent
SECONDS_TO_START = 120


# ── The shop ─────────────────────────────────────────────────────────────────────────────────────


def customers(count: int, seed: int = 0) -> Any:
    """The sample shop with many more users, each with most of what a user of the sample has."""
    from bundlemage import sample_shop
    from bundlemage.data.dataset import BundleDataset, Vocabulary, binary_matrix

    shop = sample_shop().dataset
    random = np.random.default_rng(seed)
    like = random.integers(0, len(shop.users), count)

    def drawn(matrix: Any) -> Any:
        rows = matrix[like]
        owners = np.repeat(np.arange(count), np.diff(rows.indptr))
        kept = random.random(len(owners)) > 0.1
        return binary_matrix(owners[kept], rows.indices[kept], rows.shape)

    return BundleDataset(
        drawn(shop.user_item),
        drawn(shop.user_bundle),
        shop.bundle_item,
        Vocabulary("user", [user_id(number) for number in range(count)]),
        shop.items,
        shop.bundles,
        shop.catalogue,
        "sample",
    )


def fill(
    folder: Path,
    db: Annotated[str, typer.Option(help="The URL of an empty database.")],
    users: Annotated[int, typer.Option(help="How many users the store gets.")] = 100_000,
    epochs: Annotated[int | None, typer.Option(help="Fewer for a trial.")] = None,
) -> None:
    """Train two models of the sample shop, fill the store, and publish both models, the first one last."""
    from bundlemage import Recommender, sample_shop
    from bundlemage.live import record_of
    from bundlemage.store.repository import Store

    models = [folder / "first", folder / "second"]
    settings: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    for seed, path in enumerate(models):
        Recommender(seed=seed, device="cpu", **settings).fit(sample_shop().dataset).save(path)
    store = Store.open(db)
    store.import_dataset(customers(users))
    records = [record_of(path) for path in models]
    for record in reversed(records):
        store.publish(record)
    store.close()
    (folder / "versions.json").write_text(json.dumps([record.version for record in records]))


# ── The command ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Serving:
    """A shop, and the command that serves it."""

    folder: Path
    db: str
    source: Path = ROOT
    """The checkout whose code runs."""
    workers: int | None = None
    port: int = 0
    versions: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        # The benchmarks are always those of this checkout.
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.source / "src"), str(ROOT)])}

    def fill(self, users: int, epochs: int | None) -> None:
        """Train the models and fill the store, with the code of `source`."""
        self.folder.mkdir(exist_ok=True)
        arguments: list[object] = ["benchmarks.serving", self.folder, "--db", self.db, "--users", users]
        if epochs is not None:
            arguments += ["--epochs", epochs]
        subprocess.run(self.command(*arguments), check=True, env=self.environment(), cwd=self.folder)
        self.versions = json.loads((self.folder / "versions.json").read_text())

    def start(self) -> None:
        """Start the command, in a new process group. It may not answer yet."""
        self.port = self.port or free_port()
        arguments: list[object] = ["bundlemage", "serve", self.folder / "first", "--db", self.db]
        arguments += ["--port", self.port, "--rate-limit", 1_000_000]
        if self.workers is not None:
            arguments += ["--workers", self.workers]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Whether it answers. Raises a RuntimeError if it has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            said = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the service ended with exit code {self.process.returncode}:\n{said}")
        try:
            with urlopen(f"{self.address}/readyz", timeout=SECONDS_TO_START) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not self.ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the service did not answer within {SECONDS_TO_START} s")
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """The process ids of the command and its workers."""
        assert self.process is not None
        return alive_in_group(self.process.pid)

    def memory(self) -> float:
        """Megabytes of all its processes. What they share is counted once."""
        kilobytes = 0
        for number in self.processes():
            try:
                text = Path(f"/proc/{number}/smaps_rollup").read_text()
            except OSError:
                continue
            found = re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)
            kilobytes += int(found[1]) if found else 0
        return kilobytes / 1024

    def reload(self, version: str) -> dict[str, Any]:
        """Let it serve another of its models."""
        body = json.dumps({"version": version}).encode()
        order = Request(f"{self.address}/v1/models/reload", body, {"Content-Type": "application/json"})
        for _ in range(30):
            try:
                with urlopen(order, timeout=60) as answer:
                    told: dict[str, Any] = json.load(answer)
                    return told
            except HTTPError as error:
                if error.code != 503:  # a busy service asks to try again
                    raise
                time.sleep(1)
        raise RuntimeError("the service was too busy to change its model")

    def kill(self) -> None:
        """SIGKILL for the command and its workers."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        finally:
            self.kill()

    def _end(self, number: int) -> None:
        if self.process is not None:
            end_group(self.process.pid, number)
            self.process.wait()


def alive_in_group(group: int) -> list[int]:
    """The ids of the processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(its_group) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return sorted(found)


def end_group(group: int, number: int) -> None:
    """Send a signal to all processes of a group, and wait until they have ended and their port is free."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)
    deadline = time.monotonic() + SECONDS_TO_START
    while alive_in_group(group):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of the group {group} did not end after signal {number}")
        time.sleep(0.01)


def free_port() -> int:
    """A port on which nobody listens. It is below those that the system gives to clients, so that no client
    gets it while the service restarts."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """A function that returns the URL of another empty database each time it is called.

    `kind` is `sqlite`, `postgresql` (a server of its own), or the URL of one empty database.
    """
    if kind == "sqlite":
        yield lambda: f"sqlite:///{folder / f'shop-{uuid4().hex[:8]}.db'}"
    elif kind == "postgresql":
        from tests.postgres_server import new_database, running_server

        with running_server() as server:
            yield lambda: new_database(server)
    else:
        yield iter([kind]).__next__


if __name__ == "__main__":
    typer.run(fill)
