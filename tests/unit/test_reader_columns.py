"""Other names of columns are accepted, and columns and files that are not used are named, by every reader."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.ingest import ingest
from bundlemage.readers.load import check, read
from bundlemage.readers.sql import read_sql
from bundlemage.sample.generate import sample_shop, write_shop
from tests.cli.run import BUNDLEMAGE, run
from tests.parted_tables import write_parts
from tests.real_data import real_data
from tests.shop_files import GOOD, ITEMS, write

Table = Mapping[str, list[Any]]
PLAIN: dict[str, Table] = {
    "user_item": {"user_id": ["ann", "ann", "bob"], "item_id": ["i1", "i2", "i2"]},
    "user_bundle": {"user_id": ["ann", "bob"], "bundle_id": ["b1", "b2"]},
    "bundle_item": {"bundle_id": ["b1", "b1", "b2"], "item_id": ["i1", "i2", "i2"]},
    "items": {
        "item_id": ["i1", "i2"],
        "title": ["Frost", "Ember"],
        "price": ["9.99", "5"],
        "tags": ["calm;blue", "red"],
        "stock": ["3", "0"],
        "cost": ["4.5", ""],
        "image_url": ["https://pictures.example/i1.jpg", "/pictures/i2.jpg"],
    },
    "bundles": {
        "bundle_id": ["b1", "b2"],
        "title": ["Winter", "Evening"],
        "discount": ["0.2", "0"],
        "image_url": ["", "http://pictures.example/b2.jpg"],
    },
}
OTHER_NAMES = {
    "user_item": {"user_id": "customer_id", "item_id": "SKU"},
    "user_bundle": {"user_id": "member_id", "bundle_id": "package id"},
    "bundle_item": {"bundle_id": "Bundle", "item_id": "game_id"},
    "items": {
        "item_id": "product_id",
        "title": "product_name",
        "price": "list_price",
        "tags": "genres",
        "stock": "qty",
        "cost": "Unit Cost",
        "image_url": "picture",
    },
    "bundles": {
        "bundle_id": "id",
        "title": "bundle_name",
        "discount": "Discounts",
        "image_url": "bundle image",
    },
}
EXTRA = {
    "user_item": {"shelf": ["1", "2", "3"], "when": ["2024", "2024", "2025"]},
    "user_bundle": {"order_id": ["1", "2"]},
    "bundle_item": {"position": ["1", "2", "3"]},
    "items": {"colour": ["red", "blue"], "currency": ["EUR", "EUR"]},
    "bundles": {"intent": ["gift", ""], "stock": ["1", "2"]},
}
"""Columns that are not used."""
MESSY: dict[str, Table] = {
    table: {OTHER_NAMES[table][column]: values for column, values in columns.items()} | EXTRA[table]
    for table, columns in PLAIN.items()
}


def as_csv(folder: Path, tables: Mapping[str, Table], delimiter: str = ",") -> None:
    folder.mkdir()
    for table, columns in tables.items():
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter)
        writer.writerows([columns.keys(), *zip(*columns.values(), strict=True)])
        (folder / f"{table}.{'tsv' if delimiter == chr(9) else 'csv'}").write_text(text.getvalue())


def as_parquet(folder: Path, tables: Mapping[str, Table]) -> None:
    folder.mkdir()
    for table, columns in tables.items():
        pq.write_table(pa.table(dict(columns)), folder / f"{table}.parquet")


def as_sqlite(path: Path, tables: Mapping[str, Table]) -> str:
    with sqlite3.connect(path) as database:
        for table, columns in tables.items():
            database.execute(f"create table {table} ({', '.join(repr(name) for name in columns)})")
            marks = ", ".join("?" * len(columns))
            database.executemany(
                f"insert into {table} values ({marks})", list(zip(*columns.values(), strict=True))
            )
    database.close()
    return f"sqlite:///{path}"


def every_way(folder: Path, tables: Mapping[str, Table]) -> dict[str, Source]:
    as_csv(folder / "csv", tables)
    as_csv(folder / "tsv", tables, "\t")
    as_parquet(folder / "parquet", tables)
    write_parts(folder / "parts", tables, 2)
    url = as_sqlite(folder / "shop.db", tables)
    queries: dict[str, Any] = {table: f"select * from {table}" for table in tables}
    arrow: dict[str, Any] = {table: pa.table(dict(columns)) for table, columns in tables.items()}
    polars: dict[str, Any] = {table: pl.DataFrame(frame) for table, frame in arrow.items()}
    return {
        **{form: read(folder / form) for form in ("csv", "tsv", "parquet", "parts")},
        "SQL": read_sql(url),
        "queries": read_sql(url, **queries),
        "pandas": read_frames(**{table: frame.to_pandas() for table, frame in arrow.items()}),
        "polars": read_frames(**polars),
        "Arrow": read_frames(**arrow),
    }


def told(problems: tuple[Problem, ...]) -> list[tuple[str, str, tuple[str, ...], str]]:
    """What is said, without the endings of the files."""
    return [(p.kind, p.where.split(".")[0].split("/")[0].split()[0], p.names, p.message) for p in problems]


def test_every_reader_accepts_the_same_names_and_says_the_same(tmp_path: Path) -> None:
    expected = read_frames(**{table: pa.table(dict(columns)) for table, columns in PLAIN.items()}).dataset
    sources = every_way(tmp_path, MESSY)
    assert expected.catalogue is not None
    for source in sources.values():
        assert source.dataset.fingerprint() == expected.fingerprint()
        assert source.dataset.catalogue is not None
        assert source.dataset.catalogue.items == expected.catalogue.items
        assert source.dataset.catalogue.bundles == expected.catalogue.bundles
        assert told(source.warnings) == told(sources["csv"].warnings)
    unused = [(p.where, p.names) for p in sources["csv"].warnings if p.kind == "unused-column"]
    assert unused == [
        ("user_item.csv", ("shelf", "when")),
        ("user_bundle.csv", ("order_id",)),
        ("bundle_item.csv", ("position",)),
        ("items.csv", ("currency",)),
        ("items.csv", ("colour",)),
        ("bundles.csv", ("intent", "stock")),
    ]
    notes = {p.where: p.names for p in sources["csv"].warnings if p.severity == "note"}
    assert notes["items.csv"] == (
        "product_id",
        "product_name",
        "list_price",
        "genres",
        "qty",
        "Unit Cost",
        "picture",
    )
    assert notes["bundle_item.csv"] == ("Bundle", "game_id")


def test_standard_names_are_read_in_silence(tmp_path: Path) -> None:
    for form, source in every_way(tmp_path, PLAIN).items():
        assert source.warnings == (), form
    write_shop(sample_shop(users=20, items=30, bundles=10).dataset, tmp_path / "sample", "csv")
    assert read(tmp_path / "sample").warnings == ()


@pytest.mark.parametrize("name", ["youshu/bgcn", "youshu/authors/mat", "steam/authors/mat"])
def test_public_data_is_read_in_silence(name: str) -> None:
    assert read(real_data(name)).warnings == ()


@pytest.mark.parametrize("form", ["csv", "parquet", "parts"])
def test_ingestion_says_the_same(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every_way(tmp_path, MESSY)
    expected = check(tmp_path / form)
    monkeypatch.setattr("bundlemage.readers.ingest._in_memory", None)  # it must not be needed
    assert list(ingest(str(tmp_path / form)).problems) == expected
    assert {problem.severity for problem in expected} == {"warning", "note"}


def test_parts_of_a_table_say_it_once(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", PLAIN | {"user_item": MESSY["user_item"]}, 3)
    found = [(problem.where, problem.kind, problem.more) for problem in check(tmp_path / "shop")]
    assert found == [
        ("user_item/part-0.parquet", "unused-column", 2),
        ("user_item/part-0.parquet", "column-alias", 2),
    ]


NAMES = [
    ("items", "title", "titles name Names product_name ITEM-NAME label"),
    ("items", "price", "prices list_price Unit_Price"),
    ("items", "tags", "tag category categories genre Genres"),
    ("items", "stock", "quantity qty inventory in_stock"),
    ("items", "item_id", "id item items item_ids product_id sku game_id"),
    ("bundles", "title", "name bundle_name"),
    ("bundles", "bundle_id", "id bundle bundles BundleIDs package_id"),
    ("user_item", "user_id", "user users user_ids uid customer_id member_id"),
    ("user_item", "item_id", "items"),
    ("bundle_item", "bundle_id", "bundles"),
]


@pytest.mark.parametrize(
    ("table", "column", "alias"),
    [(table, column, alias) for table, column, aliases in NAMES for alias in aliases.split()],
)
def test_another_name_is_read_and_noted(table: str, column: str, alias: str, tmp_path: Path) -> None:
    changed = {alias if name == column else name: values for name, values in PLAIN[table].items()}
    as_csv(tmp_path / "shop", PLAIN | {table: changed})
    as_csv(tmp_path / "plain", PLAIN)
    source = read(tmp_path / "shop")
    assert list(map(str, source.warnings)) == [
        f"{table}.csv: the column {alias!r} is read as {column!r}. Rename it if it means something else"
    ]
    expected = read(tmp_path / "plain").dataset
    assert source.dataset.fingerprint() == expected.fingerprint()
    assert source.dataset.catalogue is not None
    assert expected.catalogue is not None
    assert source.dataset.catalogue.items == expected.catalogue.items
    assert source.dataset.catalogue.bundles == expected.catalogue.bundles


def test_case_and_punctuation_need_no_note(tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv=ITEMS.replace("item_id,title,price", "ITEM ID, Title,Price"))
    assert check(tmp_path / "shop") == []


@pytest.mark.parametrize("real", ["title", "TITLE"])
def test_the_real_name_wins(real: str, tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv=f"item_id,name,{real}\ni1,no,Frost\ni2,no,Ember\ni3,no,Dusk\n")
    source = read(tmp_path / "shop")
    assert source.dataset.item_title(0) == "Frost"
    (warning,) = source.warnings
    assert (warning.kind, warning.names, warning.severity) == ("unused-column", ("name",), "warning")


@pytest.mark.parametrize(
    "names", ["label,product_name,name", "name,label,label", "Label,item_name,NAME", "label,Label,name"]
)
def test_of_two_other_names_of_an_optional_column_the_first_counts(names: str, tmp_path: Path) -> None:
    row = ["Frost" if name.lower() == "name" else "no" for name in names.split(",")]
    write(tmp_path / "shop", items_csv=f"item_id,{names}\ni1,{','.join(row)}\ni2,,,\ni3,,,\n")
    source = read(tmp_path / "shop")
    assert source.dataset.item_title(0) == "Frost"
    warnings = [warning for warning in source.warnings if warning.severity == "warning"]
    assert "name" not in {warning.names[0].lower() for warning in warnings}
    assert {warning.kind for warning in warnings} == {"unused-column"}


@pytest.mark.parametrize("names", ["item_id,name,name", "item_id,title,title", "id,sku,name"])
def test_two_names_that_cannot_be_told_apart_are_an_error(names: str, tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv=f"{names}\ni1,Frost,x\n")
    with pytest.raises(DataError, match=r"the columns '\w+' and '\w+' could each be"):
        read(tmp_path / "shop")


def test_parts_with_other_names_get_the_common_one_in_messages(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    (tmp_path / "shop" / "items").mkdir()
    for number, name in enumerate(("qty", "stock")):
        columns = {"item_id": [f"i{number}"], name: [-1]}
        pq.write_table(pa.table(columns), tmp_path / "shop" / "items" / f"part-{number}.parquet")
    (error,) = [problem for problem in check(tmp_path / "shop") if problem.severity == "error"]
    assert error.message.startswith("'stock' is -1; expected")


def test_of_many_columns_the_first_are_shown(tmp_path: Path) -> None:
    extra = [f"extra{n}" for n in range(30)]
    rows = f"ann,i1{',' * 30}\n"
    write(tmp_path / "shop", user_item_csv=f"user_id,item_id,{','.join(extra)}\n{rows}")
    (warning,) = check(tmp_path / "shop")
    assert "'extra7' and 22 more are not used" in warning.message
    assert warning.names == tuple(extra)


def test_the_row_numbers_of_pandas_need_no_warning(tmp_path: Path) -> None:
    frame = pd.DataFrame(PLAIN["user_item"])[1:]
    frames = {table: pd.DataFrame(dict(columns)) for table, columns in PLAIN.items()}
    assert read_frames(**frames | {"user_item": frame}).warnings == ()
    assert read_frames(**frames | {"user_item": pa.table(frame)}).warnings == ()


def test_an_error_is_shown_with_the_warnings_but_not_with_the_notes(tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv="sku,currency,price\ni1,EUR,dear\n")
    with pytest.raises(DataError) as raised:
        read(tmp_path / "shop")
    assert [problem.kind for problem in raised.value.problems][:3] == [
        "unused-column",
        "column-alias",
        "bad-number",
    ]
    assert "Name it when you train" in str(raised.value)
    assert "is read as" not in str(raised.value)


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (["Products.xlsx"], "If 'Products.xlsx' is the table 'items', save it as items.csv"),
        (
            ["item.parquet", "package.TSV.gz"],
            "If 'item.parquet' is the table 'items', save it as items.parquet, and if 'package.TSV.gz' is "
            "the table 'bundles', save it as bundles.tsv.gz",
        ),
        (["orders.csv", "reviews.csv"], "Rename those that are among these, or leave them"),
        (["reviews.csv", "items.csv", "bundles.csv"], "Rename it if it is one of these, or leave it"),
    ],
)
def test_what_to_do_with_files_that_are_not_read(names: list[str], fix: str, tmp_path: Path) -> None:
    write(tmp_path / "shop")
    for name in names:
        (tmp_path / "shop" / name).write_text("bundle_id,item_id\nb1,i1\n")
    (warning,) = [problem for problem in check(tmp_path / "shop") if problem.kind == "unused-file"]
    assert warning.fix == fix


def test_a_folder_of_text_files_is_not_a_table(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    (tmp_path / "shop" / "items").mkdir()
    (tmp_path / "shop" / "items" / "part.csv").write_text(ITEMS)
    (tmp_path / "shop" / "models").mkdir()
    (warning,) = check(tmp_path / "shop")
    assert (warning.kind, warning.names) == ("unused-file", ("items",))


class TestCommandLine:
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Path:
        write(
            tmp_path / "shop",
            user_item_csv=GOOD["user_item.csv"].replace("user_id", "customer"),
            items_csv="sku,name,colour\ni1,Frost,white\ni2,Ember,red\ni3,Dusk,grey\n",
            reviews_csv="user_id,stars\nann,5\n",
        )
        return tmp_path / "shop"

    def test_check(self, shop: Path) -> None:
        said = run("data", "check", shop).stderr
        assert "warning: items.csv: the column 'colour' is not used" in said
        assert "the file 'reviews.csv' is not read" in said
        assert "note: items.csv: the column 'sku' is read as 'item_id' and 'name' as 'title'" in said
        assert "kinds of errors: 0; kinds of warnings: 2" in said

    def test_check_in_json(self, shop: Path) -> None:
        found = json.loads(run("data", "check", shop, "--json").stdout)
        assert found["ok"] is True
        assert [(each["severity"], each["kind"], each["names"]) for each in found["problems"]] == [
            ("warning", "unused-file", ["reviews.csv"]),
            ("warning", "unused-column", ["colour"]),
            ("note", "column-alias", ["customer"]),
            ("note", "column-alias", ["sku", "name"]),
        ]

    def test_notes_alone_are_no_problem(self, shop: Path) -> None:
        (shop / "reviews.csv").unlink()
        (shop / "items.csv").unlink()
        done = run("data", "check", shop)
        assert "note: user_item.csv: the column 'customer' is read as 'user_id'" in done.stderr
        assert done.stdout == "no problem found\n"
        assert json.loads(run("data", "check", shop, "--json").stdout)["ok"] is True

    def test_training_shows_warnings_and_no_notes(self, tmp_path: Path) -> None:
        write_shop(sample_shop(users=40, items=30, bundles=10).dataset, tmp_path / "shop", "csv")
        items = tmp_path / "shop" / "items.csv"
        items.write_text(items.read_text().replace("title", "name", 1).replace("stock", "colour", 1))
        said = run("train", tmp_path / "shop", "-o", tmp_path / "model", *BUNDLEMAGE).stderr
        assert "warning: items.csv: the column 'colour' is not used" in said
        assert "is read as" not in said
