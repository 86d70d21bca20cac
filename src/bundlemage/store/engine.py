"""Connections to the store's database: how each kind of call begins, ends, and fails in words."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bundlemage.errors import StoreError

_CONNECT_SECONDS: Final = 10
_BUSY_SECONDS: Final = 30
_LARGEST_LOG: Final = 64 * 2**20
"""To how many bytes SQLite cuts its log back after something large, such as an import."""
_BEGIN: Final = "bundlemage_begin"
"""An execution option: the statement with which SQLite begins; None: each statement stands for itself."""

_HINTS: Final = {
    "locked": "Another process has been writing for long: wait until it is done, and try again",
    "not a database": "Give the path of a database that bundlemage made, or of a file that is not there yet",
    "malformed": "The file is damaged: put a backup in its place",
    "readonly": "Allow this user to write to the file and to its folder",
    "unable to open": "Allow this user to read and write the file and its folder",
    "full": "Make room on the disk",
    "permission denied": "Give the user in the URL the right to make and use tables in this database",
    "password": "Check the name and the password in the URL",
    "FATAL:  database": "Make the database first, for example by createdb, or correct the URL",
}


class Database:
    """A pool of connections, and the three ways to use one. Every failure is a `StoreError`."""

    def __init__(self, url: str) -> None:
        self.address = _address(url)
        kind = self.address.get_backend_name()
        self.url = self.address.set(drivername=kind).render_as_string(hide_password=True)
        self.is_sqlite = kind == "sqlite"
        self._writing = threading.Lock()
        if self.is_sqlite:
            _make_file(Path(str(self.address.database)))
            self._engine = _sqlite_engine(self.address)
            self._read: Engine = self._engine
            self._snapshot: Engine = self._engine.execution_options(**{_BEGIN: "BEGIN"})
            self._write: Engine = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            with self._failing_in_words():
                self._keep_a_log()
        else:
            self._engine = _postgresql_engine(self.address)
            self._read = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")
            self._write = self._engine

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """For one statement that reads."""
        with self._failing_in_words(), self._read.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """For several statements that must see one and the same state."""
        with self._failing_in_words(), self._snapshot.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """For changes: all of them are on disk when this ends, or none if it raises."""
        with self._failing_in_words(), self._in_turn(), self._write.begin() as connection:
            yield connection

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """SQLite has one writer at a time. Threads that queue here go on at once; its own lock would poll."""
        if not self.is_sqlite:
            yield
            return
        if not self._writing.acquire(timeout=_BUSY_SECONDS):
            raise self._failure("the database is locked")
        try:
            yield
        finally:
            self._writing.release()

    @contextmanager
    def _failing_in_words(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, self._driver_error) as error:
            # Not chained: a driver's error may show a password, or what was to be written.
            raise self._failure(str(getattr(error, "orig", None) or error)) from None

    @property
    def _driver_error(self) -> type[Exception]:
        driver: Any = self._engine.dialect.dbapi
        found: type[Exception] = driver.Error
        return found

    def _failure(self, reason: str) -> StoreError:
        first = (reason.strip().splitlines() or ["it gives no reason"])[0]
        if self.address.password:
            first = first.replace(str(self.address.password), "***")
        hints = [hint for part, hint in _HINTS.items() if part in first]
        where = "the path" if self.is_sqlite else "the address, and that the server is running"
        return StoreError(f"{self.url}: {first}. {hints[0] if hints else f'Check {where}'}")

    def write_log_anew(self) -> None:
        """So that SQLite's log does not keep what was erased, unless somebody reads at this moment."""
        if self.is_sqlite:
            with self.read() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def _keep_a_log(self) -> None:
        """Readers go on while one writes. Kept in the file itself, so it is asked for once."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                with self._engine.connect() as connection:
                    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar()
            except SQLAlchemyError as error:  # here SQLite does not wait for another who opens the file
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                continue
            if mode != "wal":
                raise self._failure(
                    f"the journal mode is {mode!r} where 'wal' was asked for, as on some network disks"
                )
            return


def _address(url: str) -> URL:
    wanted = "Write sqlite:///path/to/store.db or postgresql://user:password@host:5432/database"
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # its text may hold a password, so it is not repeated
        raise StoreError(f"the URL of the store cannot be understood. {wanted}") from None
    if address.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    if address.drivername != "sqlite":
        raise StoreError(f"the store is SQLite or PostgreSQL, and not {address.drivername!r}. {wanted}")
    path = address.database
    if not path or path == ":memory:" or path.startswith("file:"):
        raise StoreError(f"{url}: the store is kept in a file, so that it outlives the process. {wanted}")
    return address.set(database=str(Path(path).absolute()))  # also where the process changes its folder


def _make_file(path: Path) -> None:
    """A new file is for its owner alone, as it holds what people bought; SQLite gives its log the same."""
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {str(path.parent)!r}. Make it, or correct the path")
    if path.is_dir():
        raise StoreError(f"{path}: this is a folder. Give the path of a file, such as {path / 'store.db'}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}. {_HINTS['unable to open']}") from None


def _sqlite_engine(address: URL) -> Engine:
    # No statement begins a transaction by itself: `begin` below does, and says of which kind.
    engine = create_engine(
        address, hide_parameters=True, connect_args={"isolation_level": None, "timeout": _BUSY_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk before it is acknowledged
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_LOG}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(_BEGIN)
        if statement:
            connection.exec_driver_sql(statement)

    return engine


def _postgresql_engine(address: URL) -> Engine:
    patience = {} if "connect_timeout" in address.query else {"connect_timeout": _CONNECT_SECONDS}
    # A connection that was lost while it lay in the pool is replaced before it is used.
    engine = create_engine(address, hide_parameters=True, pool_pre_ping=True, connect_args=patience)

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.autocommit = True
        connection.execute("SET synchronous_commit = on")  # a server may be set to acknowledge earlier
        connection.execute("SET jit = off")  # compiling takes longer than any of these queries
        connection.autocommit = False

    return engine
