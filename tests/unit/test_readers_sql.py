"""A database by URL: SQLite, and a real PostgreSQL where one is installed."""

from __future__ import annotations

import sqlite3
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy

from bundlemage.errors import DataError, MissingExtraError
from bundlemage.readers import sql
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.sql import matches, read_sql
from tests.postgres_server import PASSWORD

ANN, BOB = uuid.UUID(int=1), uuid.UUID(int=2)
ROWS: dict[str, list[dict[str, Any]]] = {
    "user_item": [{"user_id": ANN, "item_id": 1}, {"user_id": BOB, "item_id": 20}],
    "user_bundle": [{"user_id": ANN, "bundle_id": "b:1 100%"}, {"user_id": BOB, "bundle_id": "b2"}],
    "bundle_item": [{"bundle_id": "b:1 100%", "item_id": 20}, {"bundle_id": "b2", "item_id": 1}],
}


def fill(url: str, rows: dict[str, list[dict[str, Any]]], schema: str | None = None) -> None:
    """Make the tables with a type for each column: UUIDs, whole numbers, text, decimals."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    kinds: dict[str, Any] = {
        "user_id": sqlalchemy.Uuid(),
        "item_id": sqlalchemy.BigInteger(),
        "price": sqlalchemy.Numeric(10, 2),
    }
    metadata = sqlalchemy.MetaData(schema=schema)
    made = {
        name: sqlalchemy.Table(
            name, metadata, *(sqlalchemy.Column(c, kinds.get(c, sqlalchemy.Text())) for c in content[0])
        )
        for name, content in rows.items()
    }
    with engine.begin() as connection:
        if schema:
            connection.execute(sqlalchemy.schema.CreateSchema(schema))
        metadata.create_all(connection)
        for name, content in rows.items():
            connection.execute(made[name].insert(), content)
    engine.dispose()


def sqlite_shop(folder: Path, *extra: str) -> str:
    connection = sqlite3.connect(folder / "shop.db")
    connection.executescript(
        """
        create table user_item (user_id, item_id); insert into user_item values ('ann', 1), ('bob', 20);
        create table user_bundle (user_id, bundle_id); insert into user_bundle values ('ann', 'b1');
        create table bundle_item (bundle_id, item_id); insert into bundle_item values ('b1', 1), ('b1', 20);
        """
    )
    for statement in extra:
        connection.executescript(statement)
    connection.commit()
    connection.close()
    return f"sqlite:///{folder}/shop.db"


def expected_fingerprint() -> str:
    frames = {
        name: pa.table({column: [str(row[column]) for row in rows] for column in rows[0]})
        for name, rows in ROWS.items()
    }
    return read_frames(**frames).dataset.fingerprint()


def problems(*arguments: Any, **named: Any) -> list[tuple[str, str]]:
    with pytest.raises(DataError) as raised:
        read_sql(*arguments, **named)
    return [(problem.kind, problem.where) for problem in raised.value.problems]


@pytest.mark.parametrize(
    "location", ["sqlite:///shop.db", "postgresql://h/d", "postgres://h/d", "mysql+x://h/d"]
)
def test_knows_the_url_of_a_database(location: str) -> None:
    assert matches(location)


@pytest.mark.parametrize(
    "location", ["shop", "shop/sqlite", "C://shop", "https://example.org/x", "/data/shop"]
)
def test_knows_what_is_no_database(location: str) -> None:
    assert not matches(location)


def test_sqlite(tmp_path: Path) -> None:
    dataset = read_sql(sqlite_shop(tmp_path)).dataset
    assert dataset.name == "shop"
    assert dataset.users.ids == ("ann", "bob")
    assert dataset.items.ids == ("1", "20")
    assert dataset.catalogue is None


def test_postgres(postgres_url: str) -> None:
    fill(postgres_url, ROWS)
    assert read_sql(postgres_url).dataset.fingerprint() == expected_fingerprint()
    short = postgres_url.replace("postgresql:", "postgres:")
    assert read_sql(short).dataset.fingerprint() == expected_fingerprint()


def test_postgres_tables_of_a_schema_whose_name_needs_quotes(postgres_url: str) -> None:
    fill(postgres_url, ROWS, schema='My "Shop"')
    places: Any = {table: f'My "Shop".{table}' for table in ROWS}
    assert read_sql(postgres_url, **places).dataset.fingerprint() == expected_fingerprint()


def test_postgres_queries_with_colons_and_percent_signs(postgres_url: str) -> None:
    fill(postgres_url, ROWS)
    dataset = read_sql(
        postgres_url,
        user_item="select user_id::text, item_id, ' :x %s' as note from user_item",
        user_bundle="  WITH mine AS (SELECT * FROM user_bundle WHERE bundle_id LIKE 'b%') SELECT * FROM mine",
    ).dataset
    assert dataset.fingerprint() == expected_fingerprint()


def test_postgres_rows_are_streamed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(postgres_url, ROWS)
    monkeypatch.setattr(sql, "_ROWS_AT_ONCE", 1000)
    seen: list[str] = []
    collect = sql._collect

    def spy(result: Any, columns: Any, where: str) -> Any:
        seen.append(type(result.cursor).__name__)
        return collect(result, columns, where)

    monkeypatch.setattr(sql, "_collect", spy)
    many = "select md5((n % 7000)::text) as user_id, n % 50 as item_id from generate_series(1, 9000) as n"
    with_query = "with many as (select * from bundle_item) select * from many"
    dataset = read_sql(postgres_url, user_item=many, bundle_item=with_query).dataset
    assert len(dataset.users) == 7002
    assert seen == ["ServerCursor"] * 3


def test_postgres_one_failure_does_not_hide_the_next(postgres_url: str) -> None:
    fill(postgres_url, {"user_item": ROWS["user_item"]})
    assert problems(postgres_url, user_bundle="select nothing", bundle_item="absent") == [
        ("failing-query", "user_bundle query"),
        ("missing-table", "absent"),
    ]


def test_postgres_decimal_prices(postgres_url: str) -> None:
    fill(postgres_url, ROWS | {"items": [{"item_id": 20, "name": "Frost", "price": "9.99"}]})
    catalogue = read_sql(postgres_url).dataset.catalogue
    assert catalogue is not None
    assert catalogue.items["price"].to_pylist() == [None, 9.99]


def test_postgres_never_shows_the_password(postgres_url: str) -> None:
    wrong = postgres_url.replace(PASSWORD, "hunter2")
    with pytest.raises(DataError) as raised:
        read_sql(wrong)
    assert [problem.kind for problem in raised.value.problems] == ["unreachable"]
    assert "hunter2" not in str(raised.value)
    assert "password authentication failed" in str(raised.value)
    assert raised.value.__cause__ is None


def test_no_server_there() -> None:
    with pytest.raises(DataError) as raised:
        read_sql("postgresql://shop:hunter2@127.0.0.1:1/shop")
    assert [problem.kind for problem in raised.value.problems] == ["unreachable"]
    assert "postgresql+psycopg://shop:***@127.0.0.1:1/shop: the database does not answer" in str(raised.value)


def test_the_catalogue_is_found_by_itself_named_or_left_out(tmp_path: Path) -> None:
    url = sqlite_shop(
        tmp_path,
        "create table items (id, title, price); insert into items values (1, 'Frost', 5), (20, 1984, '2.50')",
        "create table other (bundle_id, discount); insert into other values ('b1', 0.5)",
    )
    catalogue = read_sql(url, bundles="other").dataset.catalogue
    assert catalogue is not None
    assert catalogue.items["title"].to_pylist() == ["Frost", "1984"]
    assert catalogue.items["price"].to_pylist() == [5.0, 2.5]
    assert catalogue.bundles["discount"].to_pylist() == [0.5]
    assert read_sql(url, items="").dataset.catalogue is None


def test_a_view_is_a_table(tmp_path: Path) -> None:
    url = sqlite_shop(
        tmp_path, 'create view "the view" as select user_id as uid, item_id as sku from user_item'
    )
    assert read_sql(url, user_item="the view").dataset.fingerprint() == read_sql(url).dataset.fingerprint()


def test_sqlite_values_of_several_types_in_one_column(tmp_path: Path) -> None:
    url = sqlite_shop(tmp_path, "insert into user_item values (7, 1.0), ('7', '1'), ('zoe', 20)")
    assert read_sql(url).dataset.users.ids == ("7", "ann", "bob", "zoe")


def test_an_id_described_once_as_number_and_once_as_text_is_described_twice(tmp_path: Path) -> None:
    url = sqlite_shop(
        tmp_path, "create table items (id, title); insert into items values (1, 'a'), ('1', 'b'), (20, 'c')"
    )
    source = read_sql(url)
    assert [(problem.kind, problem.line) for problem in source.warnings] == [
        ("column-alias", None),
        ("duplicate-catalogue-id", 2),
    ]
    assert source.dataset.item_title(0) == "a"


def test_bad_ids_are_named_with_their_row(tmp_path: Path) -> None:
    url = sqlite_shop(tmp_path, "insert into user_item values (null, 1), ('zoe', 2.5)")
    assert problems(url) == [("missing-id", "user_item"), ("bad-id-type", "user_item")]
    with pytest.raises(DataError, match=r"user_item:4: 'item_id' holds 2.5, a float"):
        read_sql(url)


def test_a_table_name_is_only_ever_a_name(tmp_path: Path) -> None:
    url = sqlite_shop(tmp_path)
    attack = 'user_item"; drop table user_item; --'
    assert problems(url, user_item=attack) == [("missing-table", attack)]
    assert read_sql(url).dataset.users.ids == ("ann", "bob")


def test_a_missing_table_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        read_sql(sqlite_shop(tmp_path), user_item="purchases", items="goods")
    assert str(raised.value) == (
        "purchases: there is no such table; the database has bundle_item, user_bundle, user_item. "
        "Name the right one for 'user_item', or give a SELECT\n"
        "goods: there is no such table; the database has bundle_item, user_bundle, user_item. "
        "Name the right one for 'items', or give a SELECT"
    )


@pytest.mark.parametrize(
    ("user_item", "kind"),
    [
        ("select user_id from user_item", "unknown-column"),
        ("select user_id, item_id from nowhere", "failing-query"),
        ("select user_id, item_id, user_id from user_item", "ambiguous-column"),
    ],
)
def test_a_query_that_does_not_serve(user_item: str, kind: str, tmp_path: Path) -> None:
    assert problems(sqlite_shop(tmp_path), user_item=user_item) == [(kind, "user_item query")]


def test_users_may_have_no_single_items(tmp_path: Path) -> None:
    found = read_sql(sqlite_shop(tmp_path), user_item="select user_id, item_id from user_item where 0")
    assert [(problem.kind, problem.severity) for problem in found.warnings] == [("no-rows", "warning")]
    assert found.dataset.user_item.nnz == 0
    assert found.dataset.user_bundle.nnz == 1


def test_an_absent_sqlite_file_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    assert problems(f"sqlite:///{path}") == [("no-such-path", str(path))]
    assert not path.exists()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but long enough to be taken for one " * 20)
    with pytest.raises(DataError, match="file is not a database"):
        read_sql(f"sqlite:///{tmp_path}/notes.db")


def test_an_empty_database_misses_all_three() -> None:
    assert problems("sqlite://") == [("missing-table", name) for name in ROWS]


@pytest.mark.parametrize("url", ["postgresql://shop:hunter2@host:port/x", "shop:hunter2@", ""])
def test_a_bad_url_is_not_repeated(url: str) -> None:
    with pytest.raises(DataError) as raised:
        read_sql(url)
    assert [problem.kind for problem in raised.value.problems] == ["bad-url"]
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ["mysql+nodriver://u:hunter2@h/d", "nosuch://u:hunter2@h/d"])
def test_an_unknown_driver(url: str) -> None:
    with pytest.raises(DataError) as raised:
        read_sql(url)
    assert [problem.kind for problem in raised.value.problems] == ["missing-driver"]
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("package", ["sqlalchemy", "psycopg"])
def test_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"bundlemage\[sql\]"):
        read_sql("postgresql://shop@127.0.0.1:1/shop")
