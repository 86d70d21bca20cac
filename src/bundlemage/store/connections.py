"""Connections to the store's database: how each kind of call begins, ends, and fails in words."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bundlemage.errors import StoreError

_CONNECT_SECONDS: Final = 10
_BUSY_SECONDS: Final = 30
_STATEMENT_SECONDS: Final = 8
"""How long PostgreSQL may take for a statement that somebody waits for."""
_LOCK_SECONDS: Final = 7
"""How long a writer waits for another there; less than the above, so that the message can tell of it."""
_LOST_AFTER: Final = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds; the others are seconds
}
"""A server that vanished without a word is given up after 15 to 20 s; the system would take hours."""
_LARGEST_LOG: Final = 64 * 2**20
"""To how many bytes SQLite cuts its log back after something large, such as an import."""
_BEGIN: Final = "bundlemage_begin"
"""An execution option: the statement with which SQLite begins; None: each statement stands for itself."""

_WRITING_FOR_LONG: Final = "Another process has been writing for long: wait until it is done, and try again"
_HINTS: Final = {
    "locked": _WRITING_FOR_LONG,
    "lock timeout": _WRITING_FOR_LONG,
    "statement timeout": f"It took over {_STATEMENT_SECONDS} s, or waited for another who writes: look what "
    "keeps it busy, and try again",
    "QueuePool": "All connections are in use: look what keeps the database busy, and try again",
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
    """Pools of connections, and the three ways to use one. Every failure is a `StoreError`."""

    def __init__(self, url: str) -> None:
        self.address = _address(url)
        kind = self.address.get_backend_name()
        self.url = self.address.set(drivername=kind).render_as_string(hide_password=True)
        self.is_sqlite = kind == "sqlite"
        self._writing = threading.Lock()
        if self.is_sqlite:
            _make_file(Path(str(self.address.database)))
            engine = _sqlite_engine(self.address)
            self._read: Engine = engine
            self._snapshot: Engine = engine.execution_options(**{_BEGIN: "BEGIN"})
            self._write: Engine = engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            with self._failing_in_words():
                self._keep_a_log()
        else:
            # Two pools: writers who wait for one another take no connection from those who read.
            engine = _postgresql_engine(self.address)
            self._read = engine.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
            self._write = _postgresql_engine(self.address)

    def close(self) -> None:
        self._read.dispose()
        self._write.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """For one statement that reads."""
        with self._failing_in_words(), self._read.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self, *, long: bool = False) -> Iterator[Connection]:
        """For several statements that must see one and the same state; `long` ones take what they need."""
        with self._failing_in_words(), self._snapshot.connect() as connection:
            self._lift(connection, ["statement_timeout"] if long else [])
            yield connection

    @contextmanager
    def write(self, *, long: bool = False, patient: bool = False) -> Iterator[Connection]:
        """For changes: all of them are on disk when this ends, or none if it raises.

        In PostgreSQL `long` ones take what they need, and `patient` ones wait for others without end.
        """
        with self._failing_in_words(), self._in_turn(), self._write.begin() as connection:
            self._lift(connection, ["statement_timeout"] * (long or patient) + ["lock_timeout"] * patient)
            yield connection

    def _lift(self, connection: Connection, limits: Iterable[str]) -> None:
        """Limits of a PostgreSQL connection, until the transaction ends."""
        for limit in () if self.is_sqlite else limits:
            connection.exec_driver_sql(f"SET LOCAL {limit} = 0")

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
        driver: Any = self._read.dialect.dbapi
        found: type[Exception] = driver.Error
        return found

    def _failure(self, reason: str) -> StoreError:
        first = (reason.strip().splitlines() or ["it gives no reason"])[0]
        if self.address.password:
            first = first.replace(str(self.address.password), "***")
        hints = [hint for part, hint in _HINTS.items() if part in first]
        where = "the path" if self.is_sqlite else "the address, and that the server is running"
        return StoreError(f"{self.url}: {first}. {hints[0] if hints else f'Check {where}'}")

    def write_log_anew(self) -> bool:
        """So that SQLite's log does not keep what was erased. False: somebody reads or writes at this moment.

        To wait for them would hold up everyone else who writes.
        """
        if not self.is_sqlite:
            return True
        with self.read() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            try:
                busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
            return not busy

    def _keep_a_log(self) -> None:
        """Readers go on while one writes. Kept in the file itself, so it is asked for once."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                with self._read.connect() as connection:
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
    wanted = {"connect_timeout": _CONNECT_SECONDS, **_LOST_AFTER}
    engine = create_engine(
        address,
        hide_parameters=True,
        connect_args={name: value for name, value in wanted.items() if name not in address.query},
        pool_pre_ping=True,  # a connection that was lost while it lay in the pool is replaced before its use
        pool_size=5,
        max_overflow=10,
        pool_timeout=_STATEMENT_SECONDS,
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.autocommit = True
        connection.execute("SET synchronous_commit = on")  # a server may be set to acknowledge earlier
        connection.execute("SET jit = off")  # compiling takes longer than any of these queries
        connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
        connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        connection.autocommit = False

    return engine
