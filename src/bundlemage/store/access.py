"""Published models, API keys and sessions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from bundlemage.errors import SupersededError
from bundlemage.store.checks import check_ids, check_time, is_id
from bundlemage.store.dialect import insert_or_replace
from bundlemage.store.models import clock, keys, models, sessions
from bundlemage.store.records import Key, ModelRecord


def publish(connection: Connection, record: ModelRecord, instead_of: str | None) -> None:
    check_ids("model", [record.version])
    serving = connection.scalar(select(clock.c.model).with_for_update())  # nobody else publishes from here on
    if instead_of is not None and serving != instead_of:
        raise SupersededError(serving, instead_of)
    published_at = record.published_at or datetime.now(UTC)
    check_time(published_at)
    row = {**vars(record), "metrics": dict(record.metrics), "published_at": published_at}
    insert_or_replace(connection, models, row)
    connection.execute(update(clock).values(model=record.version))


def all_models(connection: Connection) -> list[ModelRecord]:
    newest = select(models).order_by(models.c.published_at.desc(), models.c.version.desc())
    return [_model(row) for row in connection.execute(newest)]


def model(connection: Connection, version: str) -> ModelRecord | None:
    if not is_id(version):
        return None
    row = connection.execute(select(models).where(models.c.version == version)).one_or_none()
    return None if row is None else _model(row)


def add_key(connection: Connection, key: Key) -> None:
    check_ids("key", [key.id])
    check_time(key.created_at)
    connection.execute(insert(keys).values(vars(key)))


def key(connection: Connection, key_id: str) -> Key | None:
    if not is_id(key_id):
        return None
    row = connection.execute(select(keys).where(keys.c.id == key_id)).one_or_none()
    return None if row is None else _key(row)


def all_keys(connection: Connection) -> list[Key]:
    return [_key(row) for row in connection.execute(select(keys).order_by(keys.c.created_at, keys.c.id))]


def has_keys(connection: Connection) -> bool:
    return (
        connection.execute(select(keys.c.id).where(keys.c.revoked_at.is_(None)).limit(1)).first() is not None
    )


def revoke_key(connection: Connection, key_id: str) -> bool:
    """A key that is revoked already keeps its time."""
    found = key(connection, key_id)
    if found is not None and found.revoked_at is None:
        connection.execute(update(keys).where(keys.c.id == key_id).values(revoked_at=datetime.now(UTC)))
        connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
    return found is not None


def add_session(connection: Connection, digest: bytes, key_id: str, expires_at: datetime) -> None:
    check_time(expires_at)
    connection.execute(delete(sessions).where(sessions.c.expires_at <= datetime.now(UTC)))
    connection.execute(insert(sessions).values(digest=digest, key_id=key_id, expires_at=expires_at))


def session(connection: Connection, digest: bytes) -> Key | None:
    valid = (
        sessions.c.digest == digest,
        sessions.c.expires_at > datetime.now(UTC),
        keys.c.revoked_at.is_(None),
    )
    row = connection.execute(select(keys).join(sessions).where(*valid)).one_or_none()
    return None if row is None else _key(row)


def end_session(connection: Connection, digest: bytes) -> None:
    connection.execute(delete(sessions).where(sessions.c.digest == digest))


def _model(row: Row[Any]) -> ModelRecord:
    return ModelRecord(row.version, row.path, row.name, row.metrics, row.published_at)


def _key(row: Row[Any]) -> Key:
    return Key(row.id, row.role, row.name, row.digest, row.created_at, row.revoked_at)
