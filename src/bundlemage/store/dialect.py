"""Where the SQL of SQLite and of PostgreSQL differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    Table,
    Text,
    any_,
    bindparam,
    cast,
    func,
    select,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.selectable import TableValuedAlias

_INSERTED_AT_ONCE: Final = 20_000


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


def one_of(column: Column[Any], parameter: str, for_sqlite: bool) -> ColumnElement[bool]:
    """Whether a column is one of many values. These are one parameter, so that the statement is cached."""
    if for_sqlite:
        values = func.json_each(bindparam(parameter, type_=Text)).table_valued("value")
        return column.in_(select(values.c.value))
    return column == any_(bindparam(parameter, type_=ARRAY(Text)))


def listed(values: Iterable[str], for_sqlite: bool) -> str | list[str]:
    """Values as a parameter for `one_of`."""
    return json.dumps(list(values)) if for_sqlite else list(values)


def elements(column: Column[Any], for_sqlite: bool) -> TableValuedAlias:
    """The texts of a JSON list, as rows with the column `value`, for a lateral join."""
    text = type_coerce(column, Text)
    if for_sqlite:
        return func.json_each(text).table_valued("value", joins_implicitly=True)
    return func.json_array_elements_text(cast(text, JSON)).table_valued("value", joins_implicitly=True)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert rows, except those that exist already. Returns the number of new rows."""
    statement = _insert(connection, table).on_conflict_do_nothing()
    return connection.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount


def insert_or_replace(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row, or update the row with the same key."""
    insert = _insert(connection, table)
    key = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.c if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=values), row)


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if is_sqlite(connection) else postgresql.insert(table)


def count_rows(connection: Connection, tables: Iterable[Table]) -> None:
    """Update PostgreSQL's statistics at once, because it plans queries with them."""
    if not is_sqlite(connection):
        for table in tables:
            connection.exec_driver_sql(f'ANALYZE "{table.name}"')


def insert_many(
    connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> Iterator[int]:
    """Insert millions of rows the fastest way, without SQLAlchemy. Yields the size of each batch."""
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
