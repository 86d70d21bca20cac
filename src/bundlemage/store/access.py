"""The store's published models, API keys and sessions."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, insert, select, update

from bundlemage.errors import SupersededError
from bundlemage.store.checks import check_ids, check_time, is_id
from bundlemage.store.connections import StorePart
from bundlemage.store.dialect import insert_or_replace
from bundlemage.store.models import clock, keys, models, sessions
from bundlemage.store.records import Key, ModelRecord


class AccessStore(StorePart):
    def publish(self, record: ModelRecord, *, instead_of: str | None = None) -> None:
        """Write a model's record, or replace it, and select this model for serving.

        `instead_of`: the version that must be selected now; otherwise `SupersededError` is raised.
        """
        check_ids("model", [record.version])
        published_at = record.published_at or datetime.now(UTC)
        check_time(published_at)
        row = {**vars(record), "metrics": dict(record.metrics), "published_at": published_at}
        with self._database.write() as connection:
            serving = connection.scalar(select(clock.c.model).with_for_update())  # locks out other publishers
            if instead_of is not None and serving != instead_of:
                raise SupersededError(serving, instead_of)
            insert_or_replace(connection, models, row)
            connection.execute(update(clock).values(model=record.version))

    def models(self) -> list[ModelRecord]:
        """Return all published models, newest first."""
        newest = select(models).order_by(models.c.published_at.desc(), models.c.version.desc())
        return [ModelRecord(**row) for row in self._rows(newest)]

    def model(self, version: str) -> ModelRecord | None:
        """Return a published model; None if the version is unknown."""
        rows = self._rows(select(models).where(models.c.version == version)) if is_id(version) else []
        return ModelRecord(**rows[0]) if rows else None

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
        still_valid = (keys.c.id == key_id, keys.c.revoked_at.is_(None))  # a second call keeps the first time
        with self._database.write() as connection:
            connection.execute(update(keys).where(*still_valid).values(revoked_at=datetime.now(UTC)))
            connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
        return True

    def add_session(self, digest: bytes, key_id: str, expires_at: datetime) -> None:
        """Write a session of the web page, and delete expired sessions. `digest` is that of its token."""
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
