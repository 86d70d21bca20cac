"""The store: the database of the live service, with its published models, API keys and sessions.

Opening it creates or updates its tables.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final

from sqlalchemy import Connection, MetaData, String, delete, func, insert, inspect, select, update
from sqlalchemy.schema import Column, CreateColumn, PrimaryKeyConstraint, Table

from bundlemage.errors import StoreError, SupersededError
from bundlemage.store.catalogue import CatalogueStore
from bundlemage.store.connections import Database
from bundlemage.store.histories import HistoryStore
from bundlemage.store.models import clock, insert_or_replace, keys, metadata, models, sessions
from bundlemage.store.records import Key, ModelRecord, check_ids, check_time, is_id

NEWEST: Final = 5
"""The version of the tables in `store.models`. Version 2 added `erased`. Version 3 added the
expected sales of bundles. Version 4 added costs and images. Version 5 added descriptions and vectors of
items, and the weights and types of interactions."""
LOCK_NUMBER: Final = 6_235_118_047  # of the PostgreSQL advisory lock for creating and updating tables
VERSION: Final = Table(
    "bundlemage_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="bundlemage_version_pkc"),
)
"""One row: the version of the tables in this database."""


class AnyModel(Enum):
    """`Store.publish(…, instead_of=AnyModel.ANY)`: it does not matter which model was published before."""

    ANY = "any"


class Store(CatalogueStore, HistoryStore):
    """A database with the service's data. The base classes have the methods for the catalogue and the users.

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

    def beside(self, connections: int) -> Store:
        """Return a store of the same database with this number of connections of its own.

        It is for work that must never wait until others return theirs. It is closed with this store.
        """
        self._beside.append(self._database.beside(connections))
        return Store(self._beside[-1])

    def publish(self, record: ModelRecord, *, instead_of: str | AnyModel | None = AnyModel.ANY) -> None:
        """Write a model's record, or replace it, and select this model for serving.

        If `instead_of` is given but is not the version selected until now, `SupersededError` is raised. None
        stands for no version: nothing was published yet.
        """
        check_ids("model", [record.version])
        published_at = record.published_at or datetime.now(UTC)
        check_time(published_at)
        row = {**vars(record), "metrics": dict(record.metrics), "published_at": published_at}
        with self._database.write() as connection:
            serving = connection.scalar(select(clock.c.model).with_for_update())  # locks out other publishers
            if not isinstance(instead_of, AnyModel) and serving != instead_of:
                raise SupersededError(serving, instead_of)
            insert_or_replace(connection, models, row)
            connection.execute(update(clock).values(model=record.version))

    def select_model(self, version: str) -> bool:
        """Select a published model for serving. Returns False if it has no record any more."""
        if not is_id(version):
            return False
        with self._database.write() as connection:
            connection.scalar(select(clock.c.model).with_for_update())  # locks out `forget_model`
            if connection.scalar(select(models.c.version).where(models.c.version == version)) is None:
                return False
            connection.execute(update(clock).values(model=version))
            return True

    def models(self) -> list[ModelRecord]:
        """Return all published models, newest first."""
        newest = select(models).order_by(models.c.published_at.desc(), models.c.version.desc())
        return [ModelRecord(**row) for row in self._rows(newest)]

    def model(self, version: str) -> ModelRecord | None:
        """Return a published model; None if the version is unknown."""
        rows = self._rows(select(models).where(models.c.version == version)) if is_id(version) else []
        return ModelRecord(**rows[0]) if rows else None

    def forget_model(self, version: str) -> bool:
        """Delete a model's record. Returns False if this model is selected for serving, and keeps it then."""
        with self._database.write() as connection:
            if connection.scalar(select(clock.c.model).with_for_update()) == version:
                return False
            connection.execute(delete(models).where(models.c.version == version))
            return True

    def add_key(self, key: Key) -> None:
        """Write a new API key."""
        check_ids("key", [key.id])
        check_time(key.created_at)
        with self._database.write() as connection:
            connection.execute(insert(keys).values(vars(key)))

    def key(self, key_id: str) -> Key | None:
        """Return an API key, even if it is revoked; None if the id is unknown."""
        rows = self._rows(select(keys).where(keys.c.id == key_id)) if is_id(key_id) else []
        return Key(**rows[0]) if rows else None

    def keys(self) -> list[Key]:
        """Return all API keys, also revoked ones, oldest first."""
        return [Key(**row) for row in self._rows(select(keys).order_by(keys.c.created_at, keys.c.id))]

    def has_keys(self) -> bool:
        """Whether the store has a key that is not revoked."""
        return bool(self._rows(select(keys.c.id).where(keys.c.revoked_at.is_(None)).limit(1)))

    def revoke_key(self, key_id: str) -> bool:
        """Revoke a key and end its sessions. Returns False if the key is unknown."""
        if self.key(key_id) is None:
            return False
        still_valid = (keys.c.id == key_id, keys.c.revoked_at.is_(None))  # keeps the time of the first call
        with self._database.write() as connection:
            connection.execute(update(keys).where(*still_valid).values(revoked_at=datetime.now(UTC)))
            connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
        return True

    def add_session(self, digest: bytes, key_id: str, expires_at: datetime) -> None:
        """Write a session of the web page, and delete expired sessions. `digest` is its token's digest."""
        check_time(expires_at)
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires_at <= datetime.now(UTC)))
            connection.execute(insert(sessions).values(digest=digest, key_id=key_id, expires_at=expires_at))

    def session(self, digest: bytes) -> Key | None:
        """Return the API key of a session; None if the session has expired or the key is revoked."""
        valid = (
            sessions.c.digest == digest,
            sessions.c.expires_at > datetime.now(UTC),
            keys.c.revoked_at.is_(None),
        )
        rows = self._rows(select(keys).join(sessions).where(*valid))
        return Key(**rows[0]) if rows else None

    def end_session(self, digest: bytes) -> None:
        """Delete a session."""
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.digest == digest))


def _bring_up_to_date(database: Database) -> None:
    """Create or update the tables. Raises `StoreError` if another program or a newer version created them."""
    with database.read() as connection:
        if _version(connection) == NEWEST:
            return
    # `patient`: another process that updates the tables may take long.
    with database.write(patient=True) as connection:
        if not database.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(LOCK_NUMBER)))
        version = _version(connection)
        if version > NEWEST:
            raise StoreError(
                f"{database.url}: its tables have version {version}, but this program knows only versions up "
                f"to {NEWEST}. A newer bundlemage created them: update this one"
            )
        existing = set(inspect(connection).get_table_names())
        # A SQLite file must be ours alone. A PostgreSQL database can be shared if table names differ.
        foreign = sorted(existing if database.is_sqlite else existing & set(metadata.tables))
        if version == 0 and foreign:
            raise StoreError(
                f"{database.url}: another program has its tables here: {', '.join(foreign[:5])}. "
                "Give the store a database of its own"
            )
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


def _add_what_is_missing(connection: Connection) -> None:
    """Create missing tables, and add missing columns and indexes to tables of an earlier version.

    So far, new versions only added these. Other changes would need their own code here.
    """
    VERSION.create(connection, checkfirst=True)
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        existing = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in existing:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f'ALTER TABLE "{table.name}" ADD COLUMN {definition}')
        for index in sorted(table.indexes, key=str):
            index.create(connection, checkfirst=True)
