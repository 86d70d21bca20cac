"""Connections to the store's database: how each kind of call begins and ends, and its error messages."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    RowMapping,
    Select,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bundlemage.errors import BusyError, StoreError

_CONNECT_SECONDS: Final = 10
_BUSY_SECONDS: Final = 30
_STATEMENT_SECONDS: Final = 8
"""The longest time for a PostgreSQL statement that a caller waits for."""
_LOCK_SECONDS: Final = 7
"""The longest time that a PostgreSQL writer waits for another one. It is shorter than the time for a
statement, so that the error message names the lock."""
_LOST_AFTER: Final = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds; the others are seconds
}
"""A server that vanished silently is given up after 15 to 20 s; by default it would take hours."""
_LARGEST_LOG: Final = 64 * 2**20
"""SQLite cuts its log back to this many bytes after a large change, such as an import."""
_BEGIN: Final = "bundlemage_begin"
"""An execution option: the statement that begins a SQLite transaction; None: there is no transaction."""

_WRITING_FOR_LONG: Final = (
    "Another process has been writing for a long time: wait until it is done, and try again"
)
_HINTS: Final = {
    "locked": _WRITING_FOR_LONG,
    "lock timeout": _WRITING_FOR_LONG,
    "statement timeout": f"It took over {_STATEMENT_SECONDS} s, or waited for another writer: find out what "
    "keeps the database busy, and try again",
    "QueuePool": "All connections are in use: find out what keeps the database busy, and try again",
    "not a database": "Give the path of a database that bundlemage made, or of a new file",
    "malformed": "The file is damaged: put a backup in its place",
    "readonly": "Allow this user to write to the file and to its folder",
    "unable to open": "Allow this user to read and write the file and its folder",
    "full": "Make room on the disk",
    "permission denied": "Give the user in the URL the right to create and use tables in this database",
    "password": "Check the name and the password in the URL",
    "FATAL:  database": "Create the database first, for example with createdb, or correct the URL",
}


class Database:
    """Pools of connections, and three ways to use a connection. Every failure is a `StoreError`."""

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
            # Two pools, so that writers who wait for one another do not take connections from readers.
            engine = _postgresql_engine(self.address)
            self._read = engine.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
            self._write = _postgresql_engine(self.address)

    def close(self) -> None:
        self._read.dispose()
        self._write.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for one statement that reads."""
        with self._failing_in_words(), self._read.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self, *, long: bool = False) -> Iterator[Connection]:
        """A connection for several statements that see the same state. `long` lifts the time limit."""
        with self._failing_in_words(), self._snapshot.connect() as connection:
            self._lift(connection, ["statement_timeout"] if long else [])
            yield connection

    @contextmanager
    def write(self, *, long: bool = False, patient: bool = False) -> Iterator[Connection]:
        """A connection for changes: all of them are on disk when this ends, or none if it raises.

        In PostgreSQL `long` lifts the time limit, and `patient` also waits for other writers without limit.
        """
        with self._failing_in_words(), self._in_turn(), self._write.begin() as connection:
            self._lift(connection, ["statement_timeout"] * (long or patient) + ["lock_timeout"] * patient)
            yield connection

    def _lift(self, connection: Connection, limits: Iterable[str]) -> None:
        """Lift limits of a PostgreSQL connection until the transaction ends."""
        for limit in () if self.is_sqlite else limits:
            connection.exec_driver_sql(f"SET LOCAL {limit} = 0")

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """SQLite has one writer at a time. Threads that wait here go on at once; SQLite's own lock polls."""
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
            # Not chained: a driver's error may show a password or personal data.
            raise self._failure(str(getattr(error, "orig", None) or error)) from None

    @property
    def _driver_error(self) -> type[Exception]:
        driver: Any = self._read.dialect.dbapi
        return driver.Error  # type: ignore[no-any-return]

    def _failure(self, reason: str) -> StoreError:
        first = (reason.strip().splitlines() or ["it gives no reason"])[0]
        if self.address.password:
            first = first.replace(str(self.address.password), "***")
        hints = [hint for part, hint in _HINTS.items() if part in first]
        where = "the path" if self.is_sqlite else "the address, and that the server is running"
        return StoreError(f"{self.url}: {first}. {hints[0] if hints else f'Check {where}'}")

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """Hold a lock for work that only one process at a time may do, such as `retrain`.

        Raises `BusyError` if another process holds it. Readers and writers do not wait for it. The lock ends
        with the process, also if the process is killed.
        """
        lock = self._lock_beside_the_file(work) if self.is_sqlite else self._lock_on_the_server(work)
        with lock as taken:
            if not taken:
                raise BusyError(
                    f"{self.url}: {work} is under way there already. Wait until it is done, and try again"
                )
            yield

    @contextmanager
    def _lock_beside_the_file(self, work: str) -> Iterator[bool]:
        """SQLite's own lock on an empty file beside the store, so that the store itself stays free."""
        path = Path(f"{self.address.database}.{work}.lock")
        with ExitStack() as stack:
            try:
                connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
                stack.enter_context(closing(connection))
                connection.execute("BEGIN EXCLUSIVE")
                taken = True
            except sqlite3.Error as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise StoreError(f"{path}: {error}. {_HINTS['unable to open']}") from None
                taken = False
            yield taken

    @contextmanager
    def _lock_on_the_server(self, work: str) -> Iterator[bool]:
        """An advisory lock, on a connection that does nothing else and has no transaction open."""
        digest = hashlib.sha256(f"bundlemage {work}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        with self.read() as connection:
            taken = bool(connection.execute(select(func.pg_try_advisory_lock(number))).scalar())
            try:
                yield taken
            finally:
                if taken:
                    with suppress(SQLAlchemyError):  # a lost connection has released the lock
                        connection.execute(select(func.pg_advisory_unlock(number)))

    def write_log_anew(self) -> bool:
        """Empty SQLite's log, so that it does not keep erased data. Returns False if somebody reads or writes
        at this moment: waiting for them would hold up all other writers."""
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
        """Use a write-ahead log, so that readers go on while one writes. The file keeps this setting."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                with self._read.connect() as connection:
                    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar()
            except SQLAlchemyError as error:
                # Here SQLite itself does not wait for another process that opens the file.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                continue
            if mode != "wal":
                raise self._failure(f"the journal mode is {mode!r}, not 'wal', as on some network disks")
            return


class StorePart:
    """A part of the `Store`: methods about one subject."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url
        """The database's URL without the password, for messages."""
        self.alone = database.alone
        """`with store.alone("retrain"):` makes sure that only one process does this work."""

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        """The rows of a query by the names of its columns."""
        with self._database.read() as connection:
            return connection.execute(query).mappings().all()


def _address(url: str) -> URL:
    wanted = "Write sqlite:///path/to/store.db or postgresql://user:password@host:5432/database"
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # its text may contain a password, so it is not repeated
        raise StoreError(f"the URL of the store cannot be understood. {wanted}") from None
    if address.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    if address.drivername != "sqlite":
        raise StoreError(f"the store is SQLite or PostgreSQL, and not {address.drivername!r}. {wanted}")
    path = address.database
    if not path or path == ":memory:" or path.startswith("file:"):
        raise StoreError(f"{url}: the store must be a file, so that it outlives the process. {wanted}")
    # An absolute path stays the same if the process changes its folder.
    return address.set(database=str(Path(path).absolute()))


def _make_file(path: Path) -> None:
    """Only the owner may read a new file, as it contains purchases. SQLite gives its log the same rights."""
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {str(path.parent)!r}. Create it, or correct the path")
    if path.is_dir():
        raise StoreError(f"{path}: this is a folder. Give the path of a file, such as {path / 'store.db'}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}. {_HINTS['unable to open']}") from None


def _sqlite_engine(address: URL) -> Engine:
    # No statement begins a transaction by itself: `begin` below does.
    engine = create_engine(
        address, hide_parameters=True, connect_args={"isolation_level": None, "timeout": _BUSY_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk before it returns
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # erased data is overwritten
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
        pool_pre_ping=True,  # replaces a connection that was lost while it was in the pool
        pool_size=5,
        max_overflow=10,
        pool_timeout=_STATEMENT_SECONDS,
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.autocommit = True
        connection.execute("SET synchronous_commit = on")  # the server's default may be weaker
        connection.execute("SET jit = off")  # compiling takes longer than these queries
        connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
        connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        connection.autocommit = False

    return engine
