"""A real PostgreSQL for tests, started from the system's own package and thrown away afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

USER, PASSWORD = "shop", "s3cret"
_SECONDS_TO_START = 60


class NotInstalledError(Exception):
    """PostgreSQL cannot run here; the message says why."""


def _binaries() -> Path | None:
    def version(folder: Path) -> float:
        return float(folder.parent.name)

    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version)
    if packaged:
        return packaged[-1]
    found = shutil.which("initdb")
    return Path(found).parent if found else None


def _unprivileged() -> dict[str, Any]:
    """The server refuses to run as root: where the tests do, it runs as the package's own user."""
    if os.getuid() != 0:
        return {}
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise NotInstalledError(
            "running as root, and there is no user 'postgres' to run PostgreSQL as"
        ) from None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[bytes], binaries: Path, port: int, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    ready = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port), "-d", "postgres"]
    while subprocess.run(ready, check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _initialise(folder: Path, binaries: Path, account: dict[str, Any]) -> None:
    password_file = folder / "password"
    password_file.write_text(PASSWORD)
    if account:
        for path in (folder, password_file):
            os.chown(path, account["user"], account["group"])
    command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", USER, f"--pwfile={password_file}"]
    command += ["-A", "scram-sha-256", "--locale=C", "--encoding=UTF8", "--no-sync"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **account)


@contextmanager
def running_server() -> Iterator[str]:
    """The URL of a running server, without a database. Raises NotInstalledError."""
    binaries = _binaries()
    if binaries is None:
        raise NotInstalledError("PostgreSQL is not installed: apt-get install postgresql")
    account = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="bundlemage-postgres-"))
    port = _free_port()
    try:
        _initialise(folder, binaries, account)
        command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-p", str(port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        log = folder / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, **account)
        try:
            _wait(server, binaries, port, log)
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)  # its "fast" shutdown: clients are sent away
            server.wait(timeout=_SECONDS_TO_START)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    name = f"shop_{uuid4().hex}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{server}/{name}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running server, without a database; skips where PostgreSQL is not installed."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_server())
        except NotInstalledError as error:
            pytest.skip(str(error))
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of a database of its own, empty."""
    pytest.importorskip("psycopg")
    return new_database(postgres_server)
