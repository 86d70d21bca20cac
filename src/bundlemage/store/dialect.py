"""Functions for the SQL that differs between SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Dialect, Table, Text, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeDecorator, TypeEngine

_INSERTED_AT_ONCE: Final = 20_000


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


class _Texts(TypeDecorator[Any]):
    """The type of one parameter with several texts: an array in PostgreSQL, JSON in SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return sa.ARRAY(Text()) if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return list(value) if dialect.name == "postgresql" else json.dumps(list(value))


class one_of(FunctionElement[bool]):  # noqa: N801  (it is used like a function)
    """SQL: whether a column is in a list of values. The list is one parameter, so the statement is cached."""

    type = sa.Boolean()
    inherit_cache = True

    def __init__(self, column: Column[Any], parameter: str) -> None:
        super().__init__(column, sa.bindparam(parameter, type_=_Texts))

    def self_group(self, against: Any = None) -> Any:
        """Return the condition as it is. SQLAlchemy would add `= 1` for SQLite, which then reads all rows."""
        return self


@compiles(one_of, "sqlite")
def _one_of_in_sqlite(element: one_of, compiler: Any, **more: Any) -> str:
    column, values = (compiler.process(clause, **more) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(one_of, "postgresql")
def _one_of_in_postgresql(element: one_of, compiler: Any, **more: Any) -> str:
    column, values = (compiler.process(clause, **more) for clause in element.clauses)
    return f"{column} = ANY ({values})"


def elements(column: Column[Any], for_sqlite: bool) -> TableValuedAlias:
    """Expands a column with JSON lists of texts into rows with the column `value`, for a lateral join."""
    text = sa.type_coerce(column, Text)
    if for_sqlite:
        return func.json_each(text).table_valued("value", joins_implicitly=True)
    return func.json_array_elements_text(sa.cast(text, sa.JSON)).table_valued("value", joins_implicitly=True)


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that do not exist yet. Returns the number of inserted rows."""
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
    """Update PostgreSQL's statistics of these tables now, so that it plans good queries."""
    if not is_sqlite(connection):
        for table in tables:
            connection.exec_driver_sql(f'ANALYZE "{table.name}"')


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
