"""The store's published models, API keys and sessions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from bundlemage.errors import SupersededError
from bundlemage.store.checks import check_ids, check_time, is_id
from bundlemage.store.connections import StorePart
from bundlemage.store.dialect import insert_or_replace
from bundlemage.store.models import clock, keys, models, sessions
from bundlemage.store.records import Key, ModelRecord


class AccessStore(StorePart):
    def publish(self, record: ModelRecord, *, instead_of: str | None = None) -> None:
        """Register a model, or register it again, and make it the one to serve.

        With `instead_of` it raises `SupersededError` if another version than that one serves now.
        """
        check_ids("model", [record.version])
        published_at = record.published_at or datetime.now(UTC)
        check_time(published_at)
        row = {**vars(record), "metrics": dict(record.metrics), "published_at": published_at}
        with self._database.write() as connection:
            serving = connection.scalar(select(clock.c.model).with_for_update())  # nobody else publishes now
            if instead_of is not None and serving != instead_of:
                raise SupersededError(serving, instead_of)
            insert_or_replace(connection, models, row)
            connection.execute(update(clock).values(model=record.version))

    def models(self) -> list[ModelRecord]:
        """All published models, the newest first."""
        newest = select(models).order_by(models.c.published_at.desc(), models.c.version.desc())
        with self._database.read() as connection:
            return [ModelRecord(**row._mapping) for row in connection.execute(newest)]

    def model(self, version: str) -> ModelRecord | None:
        """A published model; None if there is no such version."""
        if not is_id(version):
            return None
        with self._database.read() as connection:
            row = connection.execute(select(models).where(models.c.version == version)).one_or_none()
            return None if row is None else ModelRecord(**row._mapping)

    def add_key(self, key: Key) -> None:
        """Write a new API key."""
        check_ids("key", [key.id])
        check_time(key.created_at)
        with self._database.write() as connection:
            connection.execute(insert(keys).values(vars(key)))

    def key(self, key_id: str) -> Key | None:
        """An API key, which may be revoked; None if there is no such id."""
        with self._database.read() as connection:
            return _key_of(connection, key_id)

    def keys(self) -> list[Key]:
        """All API keys, the oldest first, with the revoked ones."""
        with self._database.read() as connection:
            rows = connection.execute(select(keys).order_by(keys.c.created_at, keys.c.id))
            return [_key(row) for row in rows]

    def has_keys(self) -> bool:
        """Whether there is a key that is not revoked."""
        valid = select(keys.c.id).where(keys.c.revoked_at.is_(None)).limit(1)
        with self._database.read() as connection:
            return connection.execute(valid).first() is not None

    def revoke_key(self, key_id: str) -> bool:
        """Revoke a key and end its sessions. Returns False if there is no such key."""
        with self._database.write() as connection:
            key = _key_of(connection, key_id)
            if key is not None and key.revoked_at is None:  # a revoked key keeps its time
                this_one = keys.c.id == key_id
                connection.execute(update(keys).where(this_one).values(revoked_at=datetime.now(UTC)))
                connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
            return key is not None

    def add_session(self, digest: bytes, key_id: str, expires_at: datetime) -> None:
        """Write a session of the page. Expired sessions are deleted."""
        check_time(expires_at)
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires_at <= datetime.now(UTC)))
            connection.execute(insert(sessions).values(digest=digest, key_id=key_id, expires_at=expires_at))

    def session(self, digest: bytes) -> Key | None:
        """The key of a session; None if the session has expired or the key is revoked."""
        valid = (
            sessions.c.digest == digest,
            sessions.c.expires_at > datetime.now(UTC),
            keys.c.revoked_at.is_(None),
        )
        with self._database.read() as connection:
            row = connection.execute(select(keys).join(sessions).where(*valid)).one_or_none()
            return None if row is None else _key(row)

    def end_session(self, digest: bytes) -> None:
        """Delete a session."""
        with self._database.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.digest == digest))


def _key_of(connection: Connection, key_id: str) -> Key | None:
    if not is_id(key_id):
        return None
    row = connection.execute(select(keys).where(keys.c.id == key_id)).one_or_none()
    return None if row is None else _key(row)


def _key(row: Row[Any]) -> Key:
    return Key(**row._mapping)
