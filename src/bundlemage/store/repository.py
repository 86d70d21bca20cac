"""The store: the database of the live service. Opening it creates or updates its tables."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, MetaData, String, delete, func, insert, inspect, select
from sqlalchemy.schema import Column, CreateColumn, PrimaryKeyConstraint, Table

from bundlemage.errors import StoreError
from bundlemage.store.access import AccessStore
from bundlemage.store.catalogue import CatalogueStore
from bundlemage.store.connections import Database
from bundlemage.store.histories import HistoryStore
from bundlemage.store.models import clock, metadata
from bundlemage.store.served import ServedStore
from bundlemage.store.training_data import DatasetStore

NEWEST: Final = 3
"""The version of the tables in `store.models`. Version 2 added `erased`, and 3 bundles' expected sales."""
LOCK_NUMBER: Final = 6_235_118_047
VERSION: Final = Table(
    "bundlemage_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="bundlemage_version_pkc"),
)
"""One row: the version of the tables in this database."""


class Store(CatalogueStore, HistoryStore, ServedStore, AccessStore, DatasetStore):
    """A database with the service's data. Each base class has the methods for one subject.

    A store can be used by several threads. When a method returns, its changes are on disk. Methods raise
    `StoreError` if the database fails, and its subclass `UnstorableError` for a value that cannot be stored.
    """

    @classmethod
    def open(cls, url: str) -> Store:
        """Open `sqlite:///path.db` or `postgresql://…`, and return the store. A missing file is created.

        The tables are created or updated. Several processes may open the same database at the same time.
        """
        database = Database(url)
        try:
            _bring_up_to_date(database)
        except BaseException:
            database.close()
            raise
        return cls(database)


def _bring_up_to_date(database: Database) -> None:
    """Create or update the tables. Raises `StoreError` if another program or a newer version created them."""
    with database.read() as connection:
        if _version(connection) == NEWEST:
            return
    # This waits for other processes without a limit, in SQLite until no other process writes.
    with database.write(patient=True) as connection:
        if not database.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(LOCK_NUMBER)))
        version = _version(connection)
        _check(database, connection, version)
        _add_what_is_missing(connection)
        if version == 0:
            connection.execute(insert(clock).values(id=1, catalogue=0))
        connection.execute(delete(VERSION))
        connection.execute(insert(VERSION).values(version_num=str(NEWEST)))


def _version(connection: Connection) -> int:
    """The version of the tables; 0 if there are none."""
    if not inspect(connection).has_table(VERSION.name):
        return 0
    return int(connection.scalar(select(VERSION.c.version_num)) or 0)


def _check(database: Database, connection: Connection, version: int) -> None:
    if version > NEWEST:
        raise StoreError(
            f"{database.url}: its tables have version {version}, and this program knows {NEWEST} at most. "
            "A newer bundlemage made them: update this one"
        )
    existing = set(inspect(connection).get_table_names())
    # A SQLite file has one owner. In PostgreSQL, programs can share a database if table names differ.
    strangers = sorted(existing if database.is_sqlite else existing & set(metadata.tables))
    if version == 0 and strangers:
        raise StoreError(
            f"{database.url}: another program has its tables here: {', '.join(strangers[:5])}. "
            "Give the store a database of its own"
        )


def _add_what_is_missing(connection: Connection) -> None:
    """Create missing tables, and add missing columns to tables of an earlier version.

    So far, new versions only added tables and columns. Other changes would need their own code here.
    """
    VERSION.create(connection, checkfirst=True)
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        existing = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in existing:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f'ALTER TABLE "{table.name}" ADD COLUMN {definition}')
