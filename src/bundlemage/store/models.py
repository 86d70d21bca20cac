"""The tables, and the SQL that differs between SQLite and PostgreSQL.

`Store.open` creates the tables, and adds missing tables and columns to databases of earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Dialect, ForeignKey, Integer, Table, Text, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeDecorator, TypeEngine

from bundlemage.data.checked_json import parse

_INSERTED_AT_ONCE: Final = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The first moment of the year 1 in UTC. A time with a time zone may be a little earlier; it is read as this.
"""


class Moment(TypeDecorator[datetime]):
    """A time, stored as microseconds since 1970 in UTC: exact, sortable, the same in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + timedelta(microseconds=max(value, EARLIEST))


class Json(TypeDecorator[Any]):
    """JSON, stored as text, so that the database does not reformat it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class Metrics(Json):
    """The metrics of a model. If the stored text cannot be read, the reason is returned instead of metrics:
    one bad record must not hide the other models."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        try:
            metrics = parse(value or "{}")
        except ValueError as error:
            return {"unreadable": str(error)}
        return metrics if isinstance(metrics, dict) else {"unreadable": "it is not an object"}


def name_type() -> TypeEngine[str]:
    """Returns the column type of an id. Its collation makes PostgreSQL sort like SQLite and Python."""
    return sa.String().with_variant(sa.String(collation="C"), "postgresql")


metadata = sa.MetaData(
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
    Column("vector_length", Integer),
)
"""The catalogue's version, the model selected for serving, and the length of the items' vectors (null: none
had one yet). Changes of the catalogue lock this row."""

items = Table(
    "items",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("title", Text),
    Column("price", sa.Double),
    Column("tags", Json, nullable=False),
    Column("stock", BigInteger),
    Column("withdrawn", sa.Boolean, nullable=False),
    Column("version", BigInteger, nullable=False, index=True),
    Column("cost", sa.Double),
    Column("image_url", Text),
    Column("description", Text),
    Column("vector", sa.LargeBinary),  # float32 numbers, little-endian
)

bundles = Table(
    "bundles",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("title", Text),
    Column("price", sa.Double),
    Column("discount", sa.Double),
    Column("tags", Json, nullable=False),
    Column("withdrawn", sa.Boolean, nullable=False),
    Column("version", BigInteger, nullable=False, index=True),
    Column("expected_sales", sa.Double),
    Column("sells_like", name_type()),
    Column("image_url", Text),
)

bundle_item = Table(
    "bundle_item",
    metadata,
    Column("bundle_id", name_type(), ForeignKey("bundles.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("item_id", name_type(), ForeignKey("items.id"), nullable=False),
    sqlite_with_rowid=False,
)


IS_WEAK: Final = sa.text("weight < 1")
"""SQL: whether a row of a history is no purchase. A partial index has these rows."""


def _history_table(thing: str) -> Table:
    """A table of users' items or bundles. Without row ids, SQLite stores the rows of a user together."""
    table = Table(
        f"user_{thing}",
        metadata,
        Column("user_id", name_type(), primary_key=True),
        Column(f"{thing}_id", name_type(), ForeignKey(f"{thing}s.id"), primary_key=True, index=True),
        Column("at", Moment),  # null for imported datasets
        Column("request_id", Text),
        Column("weight", sa.Double),  # null is 1; below 1 it is no purchase; below 0 the user rejected it
        Column("event", Text),  # the type of event, such as view, if the shop gave one
        sqlite_with_rowid=False,
    )
    name = f"ix_user_{thing}_weak"
    sa.Index(name, table.c[f"{thing}_id"], sqlite_where=IS_WEAK, postgresql_where=IS_WEAK)
    return table


user_item, user_bundle = _history_table("item"), _history_table("bundle")

served = Table(
    "served",
    metadata,
    # Request ids are not unique: callers may repeat them. SQLite numbers rows only in an INTEGER column.
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
    Column("metrics", Metrics, nullable=False),
    Column("published_at", Moment, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", name_type(), primary_key=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", sa.LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", sa.LargeBinary, primary_key=True),
    Column("key_id", name_type(), ForeignKey("keys.id"), nullable=False),
    Column("expires_at", Moment, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", name_type(), primary_key=True),
    Column("key", name_type(), primary_key=True),
    Column("digest", sa.LargeBinary, nullable=False),
    Column("new", Integer, nullable=False),
    Column("known", Integer, nullable=False),
    Column("at", Moment, nullable=False, index=True),
)


# ── SQL that differs between SQLite and PostgreSQL ─────────────────────────────────────────────────


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


class one_of(FunctionElement[bool]):  # noqa: N801  (it is used like a function)
    """SQL: whether a column is in a list of values. The list is one parameter, so the statement is cached."""

    type = sa.Boolean()
    inherit_cache = True

    def __init__(self, column: Column[Any], parameter: str) -> None:
        super().__init__(column, sa.bindparam(parameter, type_=Json))

    def self_group(self, against: Any = None) -> Any:
        """Return the condition itself. SQLAlchemy would add `= 1` for SQLite, which then reads all rows."""
        return self


@compiles(one_of, "sqlite")
def _one_of_in_sqlite(element: one_of, compiler: Any, **more: Any) -> str:
    column, values = (compiler.process(clause, **more) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(one_of, "postgresql")
def _one_of_in_postgresql(element: one_of, compiler: Any, **more: Any) -> str:
    column, values = (compiler.process(clause, **more) for clause in element.clauses)
    return f"{column} = ANY (ARRAY(SELECT json_array_elements_text(CAST({values} AS json))))"


def elements(column: sa.ColumnElement[Any], for_sqlite: bool) -> TableValuedAlias:
    """Expands a column with JSON lists of texts into rows with the column `value`, for a lateral join."""
    text = sa.type_coerce(column, Text)
    if for_sqlite:
        return func.json_each(text).table_valued("value", joins_implicitly=True)
    return func.json_array_elements_text(sa.cast(text, sa.JSON)).table_valued("value", joins_implicitly=True)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that do not exist yet. Returns the number of inserted rows."""
    return written(connection, _insert_new(is_sqlite(connection), table), rows)


@cache  # building it takes longer than looking it up
def _insert_new(for_sqlite: bool, table: Table) -> sqlite.Insert | postgresql.Insert:
    return insert_into(for_sqlite, table).on_conflict_do_nothing()


def insert_into(for_sqlite: bool, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Returns an `INSERT` that may be given a rule for rows whose key exists."""
    return sqlite.insert(table) if for_sqlite else postgresql.insert(table)


def written(connection: Connection, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write rows. Returns the number of rows that were inserted or changed."""
    return connection.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount


def insert_or_replace(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or update the row with the same key."""
    insert = insert_into(is_sqlite(connection), table)
    key = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.c if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=values), row)


def insert_many(
    connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> Iterator[int]:
    """Insert very many rows fast, without SQLAlchemy. Yields the size of each batch when it is inserted."""
    batches = iter(rows)
    names = ", ".join(f'"{name}"' for name in columns)
    if is_sqlite(connection):
        statement = f'INSERT INTO "{table.name}" ({names}) VALUES ({", ".join("?" * len(columns))})'
        while batch := list(islice(batches, _INSERTED_AT_ONCE)):
            connection.exec_driver_sql(statement, batch)
            yield len(batch)
        return
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f'COPY "{table.name}" ({names}) FROM STDIN') as copy:
        while batch := list(islice(batches, _INSERTED_AT_ONCE)):
            for row in batch:
                copy.write_row(row)
            yield len(batch)
