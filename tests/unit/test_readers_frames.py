"""Frames of every library that speaks Arrow give the dataset that the same rows give in files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import DataError
from bundlemage.readers.assemble import read_frames

Columns = dict[str, list[Any]]

USER_ITEM: Columns = {
    "user_id": ["ann", "ann", "bob"],
    "item_id": [1, 20, 20],
    "weight": [0.5, 1.0, 1.0],
}
USER_BUNDLE: Columns = {"user_id": ["ann", "bob"], "bundle_id": ["b1", "b2"]}
BUNDLE_ITEM: Columns = {"bundle_id": ["b1", "b1", "b2"], "item_id": [1, 20, 300]}
ITEMS: Columns = {
    "item_id": [20, 1],
    "title": ["Frost", "Dusk"],
    "tags": [["a", "b"], None],
    "price": [1.5, None],
}


UNKNOWN_TO_ARROW: Any = [{1, 2}, object(), "x"]


def duckdb_relation(columns: Columns) -> Any:
    frame = pa.table(columns)
    return duckdb.from_arrow(frame)


LIBRARIES: dict[str, Callable[[Columns], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "duckdb": duckdb_relation,
    "pyarrow": pa.table,
}


def dataset(user_item: Any) -> BundleDataset:
    return read_frames(user_item, pa.table(USER_BUNDLE), pa.table(BUNDLE_ITEM)).dataset


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_each_library(library: Callable[[Columns], Any]) -> None:
    read = read_frames(
        library(USER_ITEM), library(USER_BUNDLE), library(BUNDLE_ITEM), items=library(ITEMS), name="mine"
    ).dataset
    assert read.name == "mine"
    assert read.fingerprint() == dataset(pa.table(USER_ITEM)).fingerprint()
    assert read.items.ids == ("1", "20", "300")
    assert read.catalogue is not None
    assert read.catalogue.items["title"].to_pylist() == ["Dusk", "Frost", None]
    assert read.catalogue.items["tags"].to_pylist() == [None, ["a", "b"], None]
    assert read.catalogue.items["price"].to_pylist() == [None, 1.5, None]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(USER_ITEM).astype({"user_id": "category", "item_id": "category"}),
        pd.DataFrame(USER_ITEM).astype({"item_id": "float64"}),
        pd.DataFrame(USER_ITEM).astype({"item_id": "Int64"}),
        pd.DataFrame(USER_ITEM).astype({"user_id": "object"}),
        pd.DataFrame(USER_ITEM).set_index("user_id"),
        pd.DataFrame(USER_ITEM).assign(note=UNKNOWN_TO_ARROW),
        pl.DataFrame(USER_ITEM).with_columns(pl.col("user_id").cast(pl.Categorical)),
        pl.DataFrame(USER_ITEM).with_columns(pl.col("user_id").cast(pl.Enum(["zoe", "bob", "ann"]))),
        pa.table(USER_ITEM).set_column(0, "user_id", pa.array(USER_ITEM["user_id"], pa.large_string())),
        pa.concat_tables([pa.table(USER_ITEM).slice(0, 1), pa.table(USER_ITEM).slice(1)]),
    ],
    ids=[
        "pandas categories",
        "pandas floats",
        "pandas nullable",
        "pandas objects",
        "pandas index",
        "pandas with a column Arrow cannot hold",
        "polars categories",
        "polars enum with a value unused",
        "large strings",
        "chunks",
    ],
)
def test_columns_of_every_kind(frame: Any) -> None:
    assert dataset(frame).fingerprint() == dataset(pa.table(USER_ITEM)).fingerprint()


def test_dictionaries_that_differ_from_chunk_to_chunk() -> None:
    users = pa.chunked_array(
        [pa.array(["ann", "ann"]).dictionary_encode(), pa.array(["bob"]).dictionary_encode()]
    )
    frame = pa.table({**USER_ITEM, "user_id": users})
    assert dataset(frame).fingerprint() == dataset(pa.table(USER_ITEM)).fingerprint()


def test_dictionaries_too_many_for_their_index_type() -> None:
    small = pa.dictionary(pa.int8(), pa.string())
    chunks = [
        pa.array([f"{letter}{n}" for n in range(100)]).dictionary_encode().cast(small) for letter in "ab"
    ]
    frame = pa.table({"user_id": pa.chunked_array(chunks), "item_id": [1] * 200})
    assert len(dataset(frame).users) == 202


def test_a_category_that_no_row_holds_is_no_id() -> None:
    users = pd.Categorical(USER_ITEM["user_id"], categories=["ann", "bob", "nobody"])
    read = dataset(pd.DataFrame({"user_id": users, "item_id": USER_ITEM["item_id"]}))
    assert read.users.ids == ("ann", "bob")


def test_uuids() -> None:
    some = [uuid.UUID(int=number) for number in (3, 4, 5)]
    as_text = dataset(pa.table({"user_id": list(map(str, some)), "item_id": [1, 20, 20]}))
    relation = duckdb.sql(
        "select unnest([uuid '00000000-0000-0000-0000-000000000003', "
        "uuid '00000000-0000-0000-0000-000000000004', uuid '00000000-0000-0000-0000-000000000005']) "
        "as user_id, unnest([1, 20, 20]) as item_id"
    )
    assert dataset(relation).fingerprint() == as_text.fingerprint()
    if hasattr(pa, "uuid"):
        frame = pd.DataFrame({"user_id": some, "item_id": [1, 20, 20]})
        assert dataset(frame).fingerprint() == as_text.fingerprint()


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"user_id": ["ann", None, "bob"], "item_id": [1, 2, 3]}),
        pd.DataFrame({"user_id": [1, np.nan, 2], "item_id": [1, 2, 3]}),
        pd.DataFrame({"user_id": pd.array([1, None, 2], dtype="Int64"), "item_id": [1, 2, 3]}),
        pl.DataFrame({"user_id": [1.0, float("nan"), 2.0], "item_id": [1, 2, 3]}),
        pa.table({"user_id": pa.array(["ann", None, "bob"]).dictionary_encode(), "item_id": [1, 2, 3]}),
    ],
    ids=["text", "NaN", "nullable", "polars NaN", "dictionary"],
)
def test_a_missing_id_is_named_with_its_row(frame: Any) -> None:
    with pytest.raises(DataError) as raised:
        dataset(frame)
    (problem,) = raised.value.problems
    assert (problem.kind, problem.where, problem.line) == ("missing-id", "user_item", 2)


@pytest.mark.parametrize(
    ("frame", "kind", "says"),
    [
        ([("ann", 1)], "not-a-frame", "a list is not a frame"),
        (None, "not-a-frame", "a NoneType is not a frame"),
        ({"user_id": ["ann"]}, "not-a-frame", "a dict is not a frame"),
        (pd.DataFrame({"user_id": [1, "a"], "item_id": [1, 2]}), "bad-id-type", "more than one type"),
        (pd.DataFrame({"user_id": [1.5], "item_id": [1]}), "bad-id-type", "'user_id' holds 1.5, a float"),
        (
            pd.DataFrame({"user_id": pd.to_datetime(["2020-01-01"]), "item_id": [1]}),
            "bad-id-type",
            "a datetime",
        ),
        (pd.DataFrame({"who": [1], "item_id": [1]}), "unknown-column", "no column 'user_id'"),
    ],
    ids=["list", "None", "dict", "mixed", "fractions", "dates", "column"],
)
def test_what_is_no_table_of_ids_is_refused(frame: Any, kind: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as raised:
        dataset(frame)
    assert [problem.kind for problem in raised.value.problems] == [kind]


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame, pa.table])
def test_users_may_have_no_single_items_but_bundles(frame: Any) -> None:
    none: Columns = {"user_id": [], "item_id": []}
    found = read_frames(frame(none), frame(USER_BUNDLE), frame(BUNDLE_ITEM))
    assert [(problem.kind, problem.severity) for problem in found.warnings] == [("no-rows", "warning")]
    assert found.dataset.user_item.nnz == 0
    assert found.dataset.user_bundle.nnz > 0
    with pytest.raises(DataError, match="user_bundle: there are column names but no rows"):
        read_frames(frame(none), frame({"user_id": [], "bundle_id": []}), frame(BUNDLE_ITEM))


def test_the_problems_of_all_frames_come_together() -> None:
    with pytest.raises(DataError) as raised:
        read_frames(3, pa.table({"user_id": ["ann"]}), pa.table(BUNDLE_ITEM))
    assert [problem.where for problem in raised.value.problems] == ["user_item", "user_bundle"]
