"""A database by URL: each table is named, or given as a query. SQLAlchemy is imported only when used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bundlemage.errors import DataError, MissingExtraError, Problem
from bundlemage.readers.assemble import Given, assemble
from bundlemage.readers.columns import TABLES, resolve
from bundlemage.readers.ids import Codebook
from bundlemage.readers.source import Source

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnClause, Connection, CursorResult, Engine, Inspector

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
) -> Source:
    """Three tables of a database, each by name (`table`, `schema.table`) or by a SELECT, to a dataset.

    `items` and `bundles` are read from the tables of those names if there are any; an empty text reads none.
    """
    places = {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}
    optional = {"items": items, "bundles": bundles}
    address = _address(url)
    tables: dict[str, Given] = {}
    problems: list[Problem] = []
    with _connected(address) as (connection, inspector):
        for table, place in optional.items():
            if place or (place is None and inspector.has_table(table)):
                places[table] = place or table
        for table, place in places.items():
            try:
                tables[table] = _read(connection, inspector, table, place)
            except DataError as error:
                problems += error.problems
    return assemble(tables, Path(address.database or "database").stem, problems)


def _address(url: str) -> URL:
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise MissingExtraError("sql", "Reading a database") from error
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # its text may hold a password, so it is not repeated
        raise DataError(
            Problem(
                "bad-url",
                "the database",
                "the URL cannot be understood",
                "Write it as postgresql://user:password@host:5432/database or sqlite:///path/to/file.db",
            )
        ) from None
    if address.drivername in ("postgres", "postgresql"):
        address = address.set(drivername="postgresql+psycopg")
    if address.get_backend_name() == "sqlite" and _is_absent_file(address.database):
        # SQLite would make a new, empty database of that name.
        raise DataError(
            Problem("no-such-path", str(address.database), "there is no such database file", "Check the path")
        )
    return address


def _is_absent_file(database: str | None) -> bool:
    if not database or database == ":memory:" or database.startswith("file:"):
        return False
    return not Path(database).exists()


def _engine(address: URL) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import NoSuchModuleError

    patience = {"connect_timeout": _CONNECT_SECONDS} if address.drivername.endswith("+psycopg") else {}
    patience = {} if "connect_timeout" in address.query else patience
    try:
        return create_engine(address, connect_args=patience)
    except NoSuchModuleError as error:
        message = f"{address.drivername!r} is no known kind of database"
        raise DataError(_no_driver(address, message)) from error
    except ImportError as error:
        if error.name == "psycopg":
            raise MissingExtraError("sql", "Reading PostgreSQL") from error
        message = f"the driver {error.name!r} of this database is not installed"
        raise DataError(_no_driver(address, message)) from error


def _no_driver(address: URL, message: str) -> Problem:
    return Problem(
        "missing-driver",
        address.render_as_string(hide_password=True),
        message,
        "Install the driver that the SQLAlchemy documentation names for it, or use PostgreSQL or SQLite",
    )


@contextmanager
def _connected(address: URL) -> Iterator[tuple[Connection, Inspector]]:
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    engine = _engine(address)
    try:
        try:
            connection = engine.connect()
            inspector = inspect(connection)
            inspector.has_table("user_item")  # SQLite looks at its file only when first asked something
        except SQLAlchemyError as error:
            raise DataError(
                Problem(
                    "unreachable",
                    address.render_as_string(hide_password=True),
                    f"the database does not answer: {_reason(error, address)}",
                    "Check the address, the name and the password, and that the server is running",
                )
            ) from None  # the cause may show the password
        with connection:
            yield connection, inspector
    finally:
        engine.dispose()


def _reason(error: Exception, address: URL) -> str:
    text = " ".join(str(getattr(error, "orig", None) or error).split())
    return text.replace(str(address.password), "***") if address.password else text


def _read(connection: Connection, inspector: Inspector, table: str, place: str) -> Given:
    from sqlalchemy.exc import SQLAlchemyError

    is_query = _QUERY.match(place) is not None
    where = f"{table} query" if is_query else place
    try:
        run = _run_query if is_query else _run_select
        with run(connection, inspector, table, place) as result:
            return _collect(result, table, where)
    except SQLAlchemyError as error:
        connection.rollback()  # PostgreSQL answers nothing more in a failed transaction
        raise DataError(
            Problem(
                "failing-query",
                where,
                f"the database refuses it: {_reason(error, connection.engine.url)}",
                "Try it in the database's own shell, and correct it",
                value=place,
            )
        ) from None


def _run_query(connection: Connection, _: Inspector, __: str, query: str) -> CursorResult[Any]:
    # Passed on as it is: colons and percent signs in it are the user's, not placeholders.
    options = {"stream_results": True, "no_parameters": True}
    return connection.exec_driver_sql(query, execution_options=options)


def _run_select(connection: Connection, inspector: Inspector, table: str, place: str) -> CursorResult[Any]:
    from sqlalchemy import column, select
    from sqlalchemy import table as sql_table

    schema, _, name = place.rpartition(".")
    if not inspector.has_table(name, schema=schema or None):
        raise DataError(_missing_table(inspector, table, place, schema or None))
    names = [found["name"] for found in inspector.get_columns(name, schema=schema or None)]
    needed: list[ColumnClause[Any]] = [
        column(names[position]) for position in resolve(table, names, place).values()
    ]
    # SQLAlchemy quotes the names, so that no name can be read as anything else.
    query = select(*needed).select_from(sql_table(name, schema=schema or None))
    return connection.execute(query, execution_options={"stream_results": True})


def _missing_table(inspector: Inspector, table: str, place: str, schema: str | None) -> Problem:
    names = sorted([*inspector.get_table_names(schema), *inspector.get_view_names(schema)])
    listed = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
    return Problem(
        "missing-table",
        place,
        f"there is no such table; the database has {listed or 'none'}",
        f"Name the right one for {table!r}, or give a SELECT",
        value=place,
    )


def _collect(result: CursorResult[Any], table: str, where: str) -> Given:
    """Rows come a batch at a time; ids are kept as small numbers, so that memory holds each id once."""
    found = resolve(table, list(result.keys()), where)
    layout = TABLES[table]
    books = {column: Codebook() for column in layout.ids}
    details: dict[str, list[Any]] = {column: [] for column in layout.details if column in found}
    for batch in result.yield_per(_ROWS_AT_ONCE).partitions():
        for column, book in books.items():
            book.add(row[found[column]] for row in batch)
        for column, values in details.items():
            values.extend(row[found[column]] for row in batch)
    ids = {column: book.coded() for column, book in books.items()}
    return Given(where, ids, _as_arrow(details))


def _as_arrow(details: Mapping[str, list[Any]]) -> dict[str, pa.ChunkedArray]:
    columns = {}
    for name, values in details.items():
        try:
            array = pa.array(values)
        except (pa.ArrowException, TypeError):  # SQLite lets a column hold values of several types
            array = pa.array([None if value is None else str(value) for value in values])
        columns[name] = pa.chunked_array([array])
    return columns
