"""A folder of tables in any of its forms gives the same dataset, with ids exactly as written."""

from __future__ import annotations

import csv
import gzip
import sqlite3
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset
from bundlemage.readers import load
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.load import check, is_tables
from bundlemage.readers.sql import read_sql
from tests.shop_files import BUNDLES, GOOD, ITEMS, parquet, write

Pairs = Sequence[tuple[Any, Any]]
COLUMNS = {
    "user_item": ("user_id", "item_id"),
    "user_bundle": ("user_id", "bundle_id"),
    "bundle_item": ("bundle_id", "item_id"),
}


def read(folder: Path) -> BundleDataset:
    return load.read(folder).dataset


def pairs(dataset: BundleDataset, table: str) -> set[tuple[str, str]]:
    rows, columns = {
        "user_item": (dataset.users, dataset.items),
        "user_bundle": (dataset.users, dataset.bundles),
        "bundle_item": (dataset.bundles, dataset.items),
    }[table]
    matrix = getattr(dataset, table).tocoo()
    return {(rows[r], columns[c]) for r, c in zip(matrix.row.tolist(), matrix.col.tolist(), strict=True)}


def test_reads_the_pairs(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    dataset = read(tmp_path / "shop")
    assert dataset.name == "shop"
    assert dataset.catalogue is None
    assert pairs(dataset, "user_bundle") == {("ann", "b1"), ("bob", "b2")}
    assert pairs(dataset, "bundle_item") == {("b1", "i1"), ("b1", "i2"), ("b2", "i2"), ("b2", "i3")}


@pytest.mark.parametrize(
    "header",
    ["user ID,item ID", "userId,itemId", "USER_ID,ITEM_ID", "uid,iid", "customer_id,sku", "User,Product"],
)
def test_columns_go_by_many_names(header: str, tmp_path: Path) -> None:
    write(tmp_path / "plain")
    write(tmp_path / "shop", user_item_csv=GOOD["user_item.csv"].replace("user_id,item_id", header))
    assert read(tmp_path / "shop").fingerprint() == read(tmp_path / "plain").fingerprint()


@pytest.mark.parametrize(
    "text",
    [
        "item_id,when,user_id,grams\ni1,2020,ann,1\ni2,2020,ann,0.5\ni1,2021,bob,3\ni3,2022,bob,1\n",
        "\ufeffuser_id,item_id\r\nann,i1\r\n\r\nann,i2\r\nbob,i1\r\nbob,i3",
        "\n\nuser_id,item_id\n\nann,i1\nann,i2\n\nbob,i1\nbob,i3\n\n\n",
        "user_id,item_id\rann,i1\rann,i2\rbob,i1\rbob,i3\r",
        'user_id,item_id\n"ann","i1"\nann,i2\nann,i1\nbob,i1\nbob,i3\nbob,i3\n',
        "user_id,uid,item_id\nann,7,i1\nann,7,i2\nbob,8,i1\nbob,8,i3\n",
    ],
    ids=["order and extras", "BOM and CRLF", "blank lines", "CR alone", "duplicates", "exact name wins"],
)
def test_text_in_any_everyday_shape(text: str, tmp_path: Path) -> None:
    write(tmp_path / "plain")
    write(tmp_path / "shop", user_item_csv=text)
    assert read(tmp_path / "shop").fingerprint() == read(tmp_path / "plain").fingerprint()
    header = text.lstrip("\ufeff\n").splitlines()[0].split(",")
    problems = check(tmp_path / "shop")
    assert {problem.kind for problem in problems} <= {"unused-column"}
    assert {name for problem in problems for name in problem.names} == {*header} - {"user_id", "item_id"}


def test_ids_are_kept_as_written(tmp_path: Path) -> None:
    some_uuid = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
    ids = ["007", "1.0", "NA", "null", 'Salt, "Pepper"', "寿司", "🎮", some_uuid, "two\nlines"]
    rows = "".join('ann,"' + name.replace('"', '""') + '"\n' for name in ids)
    write(tmp_path / "shop", user_item_csv="user_id,item_id\n" + rows)
    assert {item for _, item in pairs(read(tmp_path / "shop"), "user_item")} == set(ids)


def test_whole_numbers_sort_as_numbers(tmp_path: Path) -> None:
    write(
        tmp_path / "shop", user_item_csv="user_id,item_id\n10,i1\n9,i1\n", user_bundle_csv="uid,bid\n-3,b1\n"
    )
    assert read(tmp_path / "shop").users.ids == ("-3", "9", "10")


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([1, 20, 300]),
        pa.array([1, 20, 300], pa.uint16()),
        pa.array([1.0, 20.0, 300.0]),
        pa.array(["1", "20", "300"]),
        pa.array(["1", "20", "300"], pa.large_string()),
        pa.array(["1", "20", "300"]).dictionary_encode(),
        pa.array([b"1", b"20", b"300"]),
        pa.array([1, 20, 300]).cast(pa.decimal128(30, 2)),
    ],
    ids=lambda array: str(array.type),
)
def test_ids_of_any_type_in_parquet(ids: pa.Array, tmp_path: Path) -> None:
    write(tmp_path / "plain", user_item_csv="user_id,item_id\n1,i1\n20,i1\n300,i1\n")
    content = parquet({"user_id": ids, "item_id": pa.array(["i1"] * 3), "place": pa.array([1, 2, 3])})
    write(tmp_path / "shop", user_item_csv=None, user_item_parquet=content)
    assert read(tmp_path / "shop").fingerprint() == read(tmp_path / "plain").fingerprint()


def test_a_float_too_large_to_be_exact_is_no_id(tmp_path: Path) -> None:
    content = parquet({"user_id": pa.array([1.0, 2.0**53]), "item_id": pa.array(["i1"] * 2)})
    write(tmp_path / "shop", user_item_csv=None, user_item_parquet=content)
    assert [(problem.kind, problem.line) for problem in check(tmp_path / "shop")] == [("bad-id-type", 2)]


def test_the_catalogue_is_in_vocabulary_order(tmp_path: Path) -> None:
    items = "name;ID;tags;price;in stock\n".replace(";", ",") + (
        'Dusk,i3,one | two;three,1e1,4.0\nUnsold,i9,,,\nFrost,i1,"a, b,,a b",9.99,3\n'
    )
    write(tmp_path / "shop", items_csv=items, bundles_csv=BUNDLES, bundle_item_csv=GOOD["bundle_item.csv"])
    dataset = read(tmp_path / "shop")
    assert dataset.catalogue is not None
    assert dataset.catalogue.items.schema == ITEM_SCHEMA
    assert dataset.catalogue.bundles.schema == BUNDLE_SCHEMA
    assert dataset.catalogue.items.drop_columns(
        ["cost", "image_url", "description", "vector"]
    ).to_pylist() == [
        {"item_id": "i1", "title": "Frost", "price": 9.99, "tags": ["a", "b", "a b"], "stock": 3},
        {"item_id": "i2", "title": None, "price": None, "tags": None, "stock": None},
        {"item_id": "i3", "title": "Dusk", "price": 10.0, "tags": ["one", "two", "three"], "stock": 4},
        {"item_id": "i9", "title": "Unsold", "price": None, "tags": None, "stock": None},
    ]
    assert dataset.catalogue.bundles["discount"].to_pylist() == [0.2, 0.0]


def test_tags_may_be_lists_and_one_catalogue_is_enough(tmp_path: Path) -> None:
    content = parquet({"bundle_id": pa.array(["b2"]), "tags": pa.array([["x", None, " y "]])})
    write(tmp_path / "shop", bundles_parquet=content)
    catalogue = read(tmp_path / "shop").catalogue
    assert catalogue is not None
    assert catalogue.bundles["tags"].to_pylist() == [None, ["x", "y"]]
    assert catalogue.items["title"].to_pylist() == [None, None, None]


def test_the_first_description_counts(tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv=ITEMS + "i1,Later,1,1\n")
    catalogue = read(tmp_path / "shop").catalogue
    assert catalogue is not None
    assert catalogue.items["title"].to_pylist() == ["Frost", "Ember", "Dusk"]


def test_matches_only_a_folder_with_a_table(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    assert is_tables(tmp_path / "shop")
    assert not is_tables(tmp_path)
    assert not is_tables(tmp_path / "shop" / "user_item.csv")
    assert not is_tables(tmp_path / "nowhere")


# Any text that is an id at all: not blank, and without the NUL that no format is sure to carry.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
ids = st.one_of(names.filter(lambda name: not name.isspace()), st.integers().map(str), st.uuids().map(str))


@st.composite
def shops(draw: st.DrawFn) -> dict[str, Pairs]:
    users, items, bundles = (draw(st.lists(ids, min_size=1, max_size=6)) for _ in range(3))
    kinds = {"user_id": users, "item_id": items, "bundle_id": bundles}
    return {
        table: draw(
            st.lists(st.tuples(*(st.sampled_from(kinds[c]) for c in columns)), min_size=1, max_size=12)
        )
        for table, columns in COLUMNS.items()
    }


def write_text(path: Path, columns: Iterable[str], rows: Pairs) -> None:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        delimiter = "\t" if ".tsv" in path.name else ","
        writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        writer.writerows(rows)


def write_parquet(path: Path, columns: Iterable[str], rows: Pairs) -> None:
    pq.write_table(pa.table([pa.array(column) for column in zip(*rows, strict=True)], list(columns)), path)


def write_sqlite(path: Path, shop: dict[str, Pairs]) -> None:
    connection = sqlite3.connect(path)
    for table, (first, second) in COLUMNS.items():
        connection.execute(f"create table {table} ({first}, {second})")
        connection.executemany(f"insert into {table} values (?, ?)", shop[table])
    connection.commit()
    connection.close()


def every_way(shop: dict[str, Pairs], folder: Path) -> dict[str, BundleDataset]:
    for form in ("csv", "tsv.gz", "parquet"):
        (folder / form).mkdir()
        for table, columns in COLUMNS.items():
            write_table = write_parquet if form == "parquet" else write_text
            write_table(folder / form / f"{table}.{form}", columns, shop[table])
    write_sqlite(folder / "shop.db", shop)
    frames: dict[str, Any] = {
        table: pd.DataFrame(shop[table], columns=list(columns)) for table, columns in COLUMNS.items()
    }
    return {
        **{form: read(folder / form) for form in ("csv", "tsv.gz", "parquet")},
        "sqlite": read_sql(f"sqlite:///{folder}/shop.db").dataset,
        "pandas": read_frames(**frames).dataset,
    }


@settings(max_examples=40, deadline=None)
@given(shops())
def test_every_reader_gives_the_same_dataset_and_the_ids_as_written(shop: dict[str, Pairs]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        datasets = every_way(shop, Path(folder))
    assert len({dataset.fingerprint() for dataset in datasets.values()}) == 1
    for dataset in datasets.values():
        for table in COLUMNS:
            assert pairs(dataset, table) == set(shop[table])


def test_numbers_are_the_same_ids_as_their_text(tmp_path: Path) -> None:
    shop: dict[str, Pairs] = {
        "user_item": [(5, 700), (2**40, 3)],
        "user_bundle": [(5, 1)],
        "bundle_item": [(1, 3), (1, 700)],
    }
    datasets = every_way(shop, tmp_path)
    assert len({dataset.fingerprint() for dataset in datasets.values()}) == 1
    assert datasets["csv"].users.ids == ("5", str(2**40))


def test_uuids_in_parquet(tmp_path: Path) -> None:
    some = [uuid.UUID(int=number) for number in (7, 2**127)]
    kind = getattr(pa, "uuid", None)
    if kind is None:
        pytest.skip("this PyArrow has no UUID type")
    storage = pa.array([one.bytes for one in some], pa.binary(16))
    column = pa.ExtensionArray.from_storage(kind(), storage)
    content = parquet({"user_id": column, "item_id": pa.array(["i1", "i2"])})
    write(tmp_path / "shop", user_item_csv=None, user_item_parquet=content)
    assert {user for user, _ in pairs(read(tmp_path / "shop"), "user_item")} == set(map(str, some))
