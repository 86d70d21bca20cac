"""Reads tables or queries of a database. SQLAlchemy is imported only when it is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bundlemage.data.splits import Source
from bundlemage.errors import DataError, MissingExtraError
from bundlemage.readers.assemble import TableData, assemble
from bundlemage.readers.columns import VECTORS, Columns, resolve
from bundlemage.readers.facts import FACTS, Chunk
from bundlemage.readers.values import Codebook

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnClause, Connection, CursorResult, Inspector, Select

_DATABASES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "duckdb")
_URL = re.compile(rf"({'|'.join(_DATABASES)})(\+\w+)?://", re.IGNORECASE)
_QUERY = re.compile(r"\s*\(?\s*(select|with)\b", re.IGNORECASE)
_ROWS_AT_ONCE = 50_000
_CONNECT_SECONDS = 10


def matches(location: str) -> bool:
    """Whether this is the URL of a database."""
    return _URL.match(location) is not None


def read_sql(
    url: str,
    user_item: str = "user_item",
    user_bundle: str = "user_bundle",
    bundle_item: str = "bundle_item",
    items: str | None = None,
    bundles: str | None = None,
    item_vectors: str | None = None,
    events: Mapping[str, float] | None = None,
) -> Source:
    """Read a database. Each table is given as a name (`table`, `schema.table`) or as a SELECT query.

    `items`, `bundles` and `item_vectors` are the catalogue. By default (None) the tables of these names are
    read if they exist; an empty text leaves them out. `events` are the weights of types of events, such as
    `{"view": 0.2, "buy": 1}`. Returns the data; raises `DataError` with every problem.
    """
    sources = {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}
    optional = {"items": items, "bundles": bundles, VECTORS: item_vectors}
    address = _address(url)
    name = Path(address.database or "database").stem
    with _connected(address) as (connection, inspector):
        for table, source in optional.items():
            if source or (source is None and inspector.has_table(table)):
                sources[table] = source or table
        return assemble(
            sources, lambda table: _read(connection, inspector, table, sources[table]), name, events=events
        )


def _address(url: str) -> URL:
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise MissingExtraError("sql", "Reading a database") from error
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # the URL is not shown: it may hold a password
        fix = "Write it as postgresql://user:password@host:5432/database or sqlite:///path/to/file.db"
        raise DataError.of("bad-url", "the database", "the URL cannot be understood", fix) from None
    if address.drivername in ("postgres", "postgresql"):
        address = address.set(drivername="postgresql+psycopg")
    if address.get_backend_name() == "sqlite":
        name = address.database or ":memory:"
        # Otherwise SQLite would create an empty database of this name.
        if name != ":memory:" and not name.startswith("file:") and not Path(name).exists():
            raise DataError.of("no-such-path", name, "there is no such database file", "Check the path")
    return address


@contextmanager
def _connected(address: URL) -> Iterator[tuple[Connection, Inspector]]:
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

    where = address.render_as_string(hide_password=True)
    set_timeout = address.drivername.endswith("+psycopg") and "connect_timeout" not in address.query
    try:
        engine = create_engine(
            address, connect_args={"connect_timeout": _CONNECT_SECONDS} if set_timeout else {}
        )
    except (NoSuchModuleError, ImportError) as error:
        driver = getattr(error, "name", None)
        if driver == "psycopg":
            raise MissingExtraError("sql", "Reading PostgreSQL") from error
        message = f"the driver {driver!r} of this database is not installed"
        if isinstance(error, NoSuchModuleError):
            message = f"{address.drivername!r} is not a known kind of database"
        fix = "Install the driver that the SQLAlchemy documentation names for it, or use PostgreSQL or SQLite"
        raise DataError.of("missing-driver", where, message, fix) from None
    try:
        try:
            connection = engine.connect()
            inspector = inspect(connection)
            inspector.has_table("user_item")  # SQLite opens its file only for the first query
        except SQLAlchemyError as error:
            message = f"the database does not answer: {_reason(error, address)}"
            fix = "Check the address, the name and the password, and that the server is running"
            # `from None` hides the cause, which may show the password.
            raise DataError.of("unreachable", where, message, fix) from None
        with connection:
            yield connection, inspector
    finally:
        engine.dispose()


def _reason(error: Exception, address: URL) -> str:
    text = " ".join(str(getattr(error, "orig", None) or error).split())
    return text.replace(str(address.password), "***") if address.password else text


def _read(connection: Connection, inspector: Inspector, table: str, source: str) -> TableData:
    from sqlalchemy.exc import SQLAlchemyError

    where = f"{table} query" if _QUERY.match(source) else source
    try:
        if _QUERY.match(source):
            # no_parameters: colons and percent signs in the query are not placeholders.
            options = {"stream_results": True, "no_parameters": True}
            with connection.exec_driver_sql(source, execution_options=options) as result:
                return _collect(result, resolve(table, list(result.keys()), where), where)
        query, columns = _selected(inspector, table, source)
        with connection.execute(query, execution_options={"stream_results": True}) as result:
            return _collect(result, columns, where)
    except SQLAlchemyError as error:
        connection.rollback()  # PostgreSQL refuses further queries in a failed transaction
        message = f"the database refuses it: {_reason(error, connection.engine.url)}"
        fix = "Try it in the database's own shell, and correct it"
        raise DataError.of("failing-query", where, message, fix, value=source) from None


def _selected(inspector: Inspector, table: str, source: str) -> tuple[Select[Any], Columns]:
    """Returns a query for the needed columns of the database's table `source`, and where they are in it."""
    from sqlalchemy import column, select
    from sqlalchemy import table as sql_table

    schema, _, name = source.rpartition(".")
    if not inspector.has_table(name, schema=schema or None):
        names = sorted(
            [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        )
        listed = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
        message = f"there is no such table; the database has {listed or 'none'}"
        fix = f"Name the right one for {table!r}, or give a SELECT"
        raise DataError.of("missing-table", source, message, fix, value=source)
    names = [info["name"] for info in inspector.get_columns(name, schema=schema or None)]
    columns = resolve(table, names, source)
    needed: list[ColumnClause[Any]] = [column(names[position]) for position in columns.positions.values()]
    # SQLAlchemy quotes the names. No name can be read as SQL.
    return select(*needed).select_from(sql_table(name, schema=schema or None)), columns.selected()


def _collect(result: CursorResult[Any], columns: Columns, where: str) -> TableData:
    """Returns the table, read in batches. Each distinct value is stored once; rows store its number."""
    books = {column: Codebook() for column in columns.positions if column not in FACTS}
    facts: dict[str, list[Chunk]] = {column: [] for column in columns.positions if column in FACTS}
    for batch in result.yield_per(_ROWS_AT_ONCE).partitions():
        for column, book in books.items():
            book.add(row[columns.positions[column]] for row in batch)
        for column, chunks in facts.items():
            chunks.append(_chunk([row[columns.positions[column]] for row in batch]))
    coded = {column: book.coded() for column, book in books.items()}
    return TableData(where, coded, lambda row: (where, row + 1), facts, columns.problems, columns.aliases)


def _chunk(values: list[Any]) -> Chunk:
    """Returns values as an Arrow array, or as they are if they have several types: SQLite allows that."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return values
