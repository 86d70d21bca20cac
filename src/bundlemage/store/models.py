"""The tables. `Store.open` creates them, and adds missing ones to databases of earlier versions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(TypeDecorator[datetime]):
    """A time, stored as microseconds since 1970 in UTC: exact, sortable, the same in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class Json(TypeDecorator[Any]):
    """JSON, stored as text: a database does not change it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def name_type() -> TypeEngine[str]:
    """Returns the column type of an id. Its collation makes PostgreSQL sort like SQLite and Python."""
    return String().with_variant(String(collation="C"), "postgresql")


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

clock = Table(
    "clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # one row, with the id 1
    Column("catalogue", BigInteger, nullable=False),
    Column("model", name_type(), ForeignKey("models.version")),
)
"""The catalogue's version, and the model selected for serving. Changes of the catalogue lock this row."""

items = Table(
    "items",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("title", Text),
    Column("price", Double),
    Column("tags", Json, nullable=False),
    Column("stock", BigInteger),
    Column("withdrawn", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False, index=True),
)

bundles = Table(
    "bundles",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("title", Text),
    Column("price", Double),
    Column("discount", Double),
    Column("tags", Json, nullable=False),
    Column("withdrawn", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False, index=True),
    Column("expected_sales", Double),
    Column("sells_like", name_type()),
)

bundle_item = Table(
    "bundle_item",
    metadata,
    Column("bundle_id", name_type(), ForeignKey("bundles.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("item_id", name_type(), ForeignKey("items.id"), nullable=False),
    sqlite_with_rowid=False,
)


def _history_table(thing: str) -> Table:
    """A table of users' items or bundles. Without row ids, SQLite stores the rows of a user together."""
    return Table(
        f"user_{thing}",
        metadata,
        Column("user_id", name_type(), primary_key=True),
        Column(f"{thing}_id", name_type(), ForeignKey(f"{thing}s.id"), primary_key=True, index=True),
        Column("at", Moment),  # null for imported datasets
        Column("request_id", Text),
        sqlite_with_rowid=False,
    )


user_item, user_bundle = _history_table("item"), _history_table("bundle")

served = Table(
    "served",
    metadata,
    # Request ids are no key: callers may repeat them. SQLite numbers rows only in an INTEGER column.
    Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("user_id", name_type(), index=True),
    Column("model", Text, nullable=False),
    Column("ids", Json, nullable=False),
    Column("at", Moment, nullable=False, index=True),
)

erased = Table(
    "erased",
    metadata,
    Column("digest", name_type(), primary_key=True),  # the SHA-256 of a user's id
    Column("at", Moment, nullable=False, index=True),
)

models = Table(
    "models",
    metadata,
    Column("version", name_type(), primary_key=True),
    Column("path", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("published_at", Moment, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("key_id", name_type(), ForeignKey("keys.id"), nullable=False),
    Column("expires_at", Moment, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", name_type(), primary_key=True),
    Column("key", name_type(), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("new", Integer, nullable=False),
    Column("known", Integer, nullable=False),
    Column("at", Moment, nullable=False, index=True),
)
