"""Work that only one process at a time may do on a store, however long it takes; others read and write on."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from bundlemage.errors import BusyError, StoreError
from bundlemage.store.connections import Database


@contextmanager
def alone(database: Database, work: str) -> Iterator[None]:
    """`BusyError` where another is at it. The lock goes with the process, also with one that is killed."""
    taking_it = _beside_the_file(database, work) if database.is_sqlite else _by_the_server(database, work)
    with taking_it:
        yield


@contextmanager
def _beside_the_file(database: Database, work: str) -> Iterator[None]:
    """SQLite's own lock, on an empty file beside the store: so the store itself stays free, on any system."""
    path = Path(f"{database.address.database}.{work}.lock")
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _cannot_lock(path, error) from None
    with closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise _busy(database, work) from None
            raise _cannot_lock(path, error) from None
        yield


@contextmanager
def _by_the_server(database: Database, work: str) -> Iterator[None]:
    """An advisory lock, on a connection that does nothing else and has no transaction open."""
    digest = hashlib.sha256(f"bundlemage {work}".encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    with database.read() as connection:
        if not connection.execute(select(func.pg_try_advisory_lock(number))).scalar():
            raise _busy(database, work)
        try:
            yield
        finally:
            # A connection that was lost has taken the lock with it.
            with suppress(SQLAlchemyError):
                connection.execute(select(func.pg_advisory_unlock(number)))


def _busy(database: Database, work: str) -> BusyError:
    return BusyError(
        f"{database.url}: {work} is under way there already. Wait until it is done, and try again"
    )


def _cannot_lock(path: Path, error: sqlite3.Error) -> StoreError:
    return StoreError(f"{path}: {error}. Allow this user to read and write the file and its folder")
