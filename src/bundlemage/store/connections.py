"""Connections to the store's database: reading, writing, locking, and error messages."""

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

from sqlalchemy import URL, Connection, Engine, RowMapping, Select, create_engine, event, func, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from bundlemage.errors import BusyError, StoreError

_CONNECT_SECONDS: Final = 10
_BUSY_SECONDS: Final = 30
_STATEMENT_SECONDS: Final = 8
"""Time limit for a PostgreSQL statement, unless the caller lifts it, and for the wait for a connection."""
MOST_CONNECTIONS: Final = 15
"""Maximum number of connections in a pool."""
_LOCK_SECONDS: Final = 7
"""Time limit for a PostgreSQL writer that waits for a lock. It is shorter than the limit for a statement, so
the error message names the lock."""
_LOST_AFTER: Final = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds; the others are seconds
}
"""These detect a lost PostgreSQL server after 15 to 20 s. The defaults would take hours."""
_LARGEST_LOG: Final = 64 * 2**20
"""After a large change, such as an import, SQLite shrinks its log to this number of bytes."""
_BEGIN: Final = "bundlemage_begin"
"""Execution option: the statement that begins a SQLite transaction. Without it there is no transaction."""

_WRITING_FOR_LONG: Final = (
    "Another process has been writing for a long time: wait until it is done, and try again"
)
_HINTS: Final = {
    "locked": _WRITING_FOR_LONG,
    "lock timeout": _WRITING_FOR_LONG,
    "statement timeout": f"It took over {_STATEMENT_SECONDS} s, or waited for another writer: find out what "
    "keeps the database busy, and try again",
    "not a database": "Give the path of a database that bundlemage created, or of a new file",
    "malformed": "The file is damaged: put a backup in its place",
    "readonly": "Allow this user to write to the file and to its folder",
    "unable to open": "Allow this user to read and write the file and its folder",
    "full": "Make room on the disk",
    "permission denied": "Give the user in the URL the right to create and use tables in this database",
    "password": "Check the name and the password in the URL",
    "FATAL:  database": "Create the database first, for example with createdb, or correct the URL",
}


class Database:
    """Pools of connections, used with `read`, `snapshot` or `write`. Every failure raises `StoreError`, or
    `BusyError` if all connections stay in use for too long."""

    def __init__(self, url: str | URL, most_connections: int = MOST_CONNECTIONS) -> None:
        self.address = _address(url)
        kind = self.address.get_backend_name()
        self.url = self.address.set(drivername=kind).render_as_string(hide_password=True)
        self.is_sqlite = kind == "sqlite"
        self._writing = threading.Lock()
        if self.is_sqlite:
            _make_file(Path(str(self.address.database)))
            engine = _sqlite_engine(self.address, most_connections)
            self._read: Engine = engine
            self._snapshot: Engine = engine.execution_options(**{_BEGIN: "BEGIN"})
            self._write: Engine = engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            with self._clear_errors():
                self._use_write_ahead_log()
        else:
            # Two pools: writers that wait for each other must not use up the connections of readers.
            engine = _postgresql_engine(self.address, most_connections)
            self._read = engine.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
            self._write = _postgresql_engine(self.address, most_connections)

    def beside(self, most_connections: int) -> Database:
        """Return the same database with pools of its own. Callers of one never wait for callers of the other,
        except to write to SQLite."""
        other = Database(self.address, most_connections)
        other._writing = self._writing
        return other

    def close(self) -> None:
        self._read.dispose()
        self._write.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yields a connection for a single statement that reads."""
        with self._clear_errors(), self._read.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self, *, long: bool = False) -> Iterator[Connection]:
        """Yields a connection for several reads that see the same state. `long` lifts the time limit."""
        with self._clear_errors(), self._snapshot.connect() as connection:
            self._lift(connection, ["statement_timeout"] if long else [])
            yield connection

    @contextmanager
    def write(self, *, long: bool = False, patient: bool = False) -> Iterator[Connection]:
        """Yields a connection for changes. At the end all changes are on disk; after an error, none are.

        In PostgreSQL, `long` lifts the time limit. `patient` also waits for other writers without limit.
        """
        with self._clear_errors(), self._in_turn(), self._write.begin() as connection:
            self._lift(connection, ["statement_timeout"] * (long or patient) + ["lock_timeout"] * patient)
            yield connection

    def _lift(self, connection: Connection, limits: Iterable[str]) -> None:
        """Lift these time limits of a PostgreSQL connection until the transaction ends."""
        for limit in () if self.is_sqlite else limits:
            connection.exec_driver_sql(f"SET LOCAL {limit} = 0")

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Let one thread at a time write to SQLite. With SQLite's own lock, waiting threads would poll."""
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
    def _clear_errors(self) -> Iterator[None]:
        """Replace errors of the driver by a `StoreError` with a hint."""
        try:
            yield
        except PoolTimeoutError:
            raise BusyError(
                f"all connections to the store were in use for {_STATEMENT_SECONDS} s: try again in a second"
            ) from None
        except (SQLAlchemyError, self._driver_error) as error:
            # Do not chain the error: it may contain a password or personal data.
            raise self._failure(str(getattr(error, "orig", None) or error)) from None

    @property
    def _driver_error(self) -> type[Exception]:
        driver: Any = self._read.dialect.dbapi
        return driver.Error  # type: ignore[no-any-return]

    def _failure(self, reason: str) -> StoreError:
        first_line = (reason.strip().splitlines() or ["the database gives no reason"])[0]
        if self.address.password:
            first_line = first_line.replace(str(self.address.password), "***")
        hints = [hint for part, hint in _HINTS.items() if part in first_line]
        check = "the path" if self.is_sqlite else "the address, and that the server is running"
        return StoreError(f"{self.url}: {first_line}. {hints[0] if hints else f'Check {check}'}")

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """Hold a lock for work that only one process at a time may do, such as `retrain`.

        Raises `BusyError` if another process holds the lock. The lock does not block readers or writers. It
        is released when the process ends, even if the process is killed.
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
        """Locks an empty SQLite file next to the store, not the store. Yields whether it has the lock."""
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
        """Takes a PostgreSQL advisory lock on a separate connection. Yields whether it has the lock."""
        digest = hashlib.sha256(f"bundlemage {work}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        with self.read() as connection:
            taken = bool(connection.scalar(func.pg_try_advisory_lock(number).select()))
            try:
                yield taken
            finally:
                if taken:
                    with suppress(SQLAlchemyError):  # if the connection is lost, so is the lock
                        connection.execute(func.pg_advisory_unlock(number).select())

    def empty_log(self) -> bool:
        """Empty SQLite's log, which may contain erased data. Returns False if another connection is reading
        or writing. It does not wait, because that would block all other writers."""
        if not self.is_sqlite:
            return True
        with self.read() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            try:
                busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
            return not busy

    def _use_write_ahead_log(self) -> None:
        """Switch SQLite to a write-ahead log: writers do not block readers. The file keeps this setting."""
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
    """Base class of the parts of `Store`. Each part has the methods for one subject."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url
        """The database's URL without the password, for messages."""
        self.alone = database.alone
        """`with store.alone("retrain"):` ensures that only one process at a time does this work."""
        self._beside: list[Database] = []

    def close(self) -> None:
        """Close all connections."""
        for database in (self._database, *self._beside):
            database.close()

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        """The rows of a query, as mappings from column names to values."""
        with self._database.read() as connection:
            return connection.execute(query).mappings().all()


def _address(url: str | URL) -> URL:
    hint = "Write sqlite:///path/to/store.db or postgresql://user:password@host:5432/database"
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # the error may contain a password, so it is not shown
        raise StoreError(f"the URL of the store cannot be understood. {hint}") from None
    if address.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    if address.drivername != "sqlite":
        raise StoreError(f"the store must be SQLite or PostgreSQL, and not {address.drivername!r}. {hint}")
    path = address.database
    if not path or path == ":memory:" or path.startswith("file:"):
        raise StoreError(f"{url}: the store must be a file, not memory, to keep its data. {hint}")
    # An absolute path stays valid if the process changes its working folder.
    return address.set(database=str(Path(path).absolute()))


def _make_file(path: Path) -> None:
    """Create a file that only its owner can read: it has purchases. SQLite's log gets the same rights."""
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {str(path.parent)!r}. Create it, or correct the path")
    if path.is_dir():
        raise StoreError(f"{path}: this is a folder. Give the path of a file, such as {path / 'store.db'}")
    try:
        # A file that exists is not opened here, because closing it would release all locks that this process
        # has on it. Another process that ends would then remove the log, as if nobody else used the file, and
        # the latest writes would be lost.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}. {_HINTS['unable to open']}") from None


def _pool(most_connections: int) -> dict[str, Any]:
    """The options of a pool of connections. A third of them stay open while nobody needs them."""
    kept = max(1, most_connections // 3)
    return {
        "pool_size": kept,
        "max_overflow": most_connections - kept,
        "pool_timeout": _STATEMENT_SECONDS,
    }


def _sqlite_engine(address: URL, most_connections: int) -> Engine:
    # isolation_level None: only `begin` below starts transactions, never the driver.
    engine = create_engine(
        address,
        hide_parameters=True,
        connect_args={"isolation_level": None, "timeout": _BUSY_SECONDS},
        **_pool(most_connections),
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


def _postgresql_engine(address: URL, most_connections: int) -> Engine:
    options = {"connect_timeout": _CONNECT_SECONDS, **_LOST_AFTER}
    engine = create_engine(
        address,
        hide_parameters=True,
        connect_args={name: value for name, value in options.items() if name not in address.query},
        pool_pre_ping=True,  # replaces connections that were lost while in the pool
        **_pool(most_connections),
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
