"""A table in parts: a folder of Parquet files is read as the one table that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from bundlemage.errors import DataError
from bundlemage.readers.load import check, read, read_tables
from bundlemage.readers.places import place
from tests.parted_tables import SHOP, in_parts, write_parts
from tests.shop_files import with_files


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("suffix", ["", ".parquet"])
def test_parts_are_one_table(tmp_path: Path, parts: int, suffix: str) -> None:
    write_parts(tmp_path / "one", SHOP, 1)
    write_parts(tmp_path / "shop", SHOP, parts, suffix)
    assert check(tmp_path / "shop") == []
    found, expected = read(tmp_path / "shop").dataset, read(tmp_path / "one").dataset
    assert found.fingerprint() == expected.fingerprint()
    assert found.catalogue == expected.catalogue
    assert found.name == "shop"


def test_folders_in_folders_and_what_other_programs_leave(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 3)
    table = tmp_path / "shop" / "user_item"
    (table / "day=2").mkdir()
    (table / "part-2.parquet").rename(table / "day=2" / "part-2.parquet")
    for name in ("_SUCCESS", ".part-0.parquet.crc", "_temporary/part-9.parquet"):
        (table / name).parent.mkdir(exist_ok=True)
        (table / name).write_bytes(b"not data")
    assert check(tmp_path / "shop") == []
    assert read(tmp_path / "shop").dataset.user_item.nnz == 5


def test_parts_beside_text(tmp_path: Path) -> None:
    with_files(user_item_csv=None)(tmp_path / "shop")
    in_parts(tmp_path / "shop" / "user_item", {"user_id": ["ann", "bob"], "item_id": ["i1", "i2"]}, 2)
    assert read(tmp_path / "shop").dataset.user_item.nnz == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"user_item": {"user_id": ["ann", "ann", "bob", None, "cy", ""], "item_id": ["i1"] * 6}},
            ("missing-id", "user_item/part-1.parquet", 1, 1),
        ),
        (
            {"items": {"item_id": ["i1", "i2", "i3", "i4"], "price": [1.0, 2.0, 3.0, -4.0]}},
            ("bad-number", "items/part-1.parquet", 2, 0),
        ),
        (
            {"items": {"item_id": ["i1", "i2", "i3", "i2"], "price": [1.0, 2.0, 3.0, 4.0]}},
            ("duplicate-catalogue-id", "items/part-1.parquet", 2, 0),
        ),
        (
            {"user_bundle": {"user_id": ["ann", "bob", "cy"], "bundle_id": ["b1", "b2", "b9"]}},
            ("empty-bundle", "user_bundle/part-1.parquet", 1, 0),
        ),
        (
            {"bundle_item": {"bundle_id": ["b1", "b1", "b2", "b2"], "item_id": ["i1", "i2", "i3", "i9"]}},
            ("item-not-in-catalogue", "bundle_item/part-1.parquet", 2, 0),
        ),
    ],
)
def test_a_problem_names_the_file_and_its_row(
    tmp_path: Path, change: Mapping[str, Any], expected: tuple[str, str, int, int]
) -> None:
    write_parts(tmp_path / "shop", {**SHOP, **change}, 2)
    (problem,) = check(tmp_path / "shop")
    assert (problem.kind, problem.where, problem.line, problem.more) == expected
    assert str(problem).startswith(f"{expected[1]}:{expected[2]}: ")


def test_an_empty_bundle_is_missed_in_the_folder(tmp_path: Path) -> None:
    change = {"user_bundle": {"user_id": ["ann"], "bundle_id": ["b9"]}}
    write_parts(tmp_path / "shop", {**SHOP, **change}, 1)
    (problem,) = check(tmp_path / "shop")
    assert problem.message == "bundle 'b9' has no items in bundle_item/"


def test_files_with_the_same_fault_are_told_once(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", {**SHOP, "user_item": {"who": ["a", "b", "c"], "item_id": ["i1"] * 3}}, 3)
    (problem,) = check(tmp_path / "shop")
    assert (problem.kind, problem.where, problem.more) == ("unknown-column", "user_item/part-0.parquet", 2)


@pytest.mark.parametrize(
    ("content", "kind"), [(b"", "empty-file"), (b"PAR1 cut", "bad-parquet"), (b"a,b\n1,2\n", "bad-parquet")]
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, kind: str) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    (tmp_path / "shop" / "user_item" / "part-1.parquet").write_bytes(content)
    (problem,) = check(tmp_path / "shop")
    assert (problem.kind, problem.where) == (kind, "user_item/part-1.parquet")


def test_what_is_not_read_is_told(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    (tmp_path / "shop" / "user_item" / "more.csv").write_text("user_id,item_id\n")
    (problem,) = check(tmp_path / "shop")
    assert (problem.kind, problem.where) == ("not-parquet", "user_item/more.csv")
    assert read(tmp_path / "shop").warnings == (problem,)


def test_a_table_that_is_there_twice(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    in_parts(tmp_path / "shop" / "user_item.parquet", SHOP["user_item"], 1)
    (problem,) = check(tmp_path / "shop")
    assert problem.kind == "ambiguous-file"


@pytest.mark.parametrize(
    "types",
    [
        [pa.int64(), pa.string()],
        [pa.int32(), pa.int64()],
        [pa.float64(), pa.string()],
        [pa.large_string(), pa.string()],
        [pa.dictionary(pa.int8(), pa.string()), pa.int64()],
    ],
    ids=str,
)
def test_files_may_store_ids_in_different_types(tmp_path: Path, types: Sequence[pa.DataType]) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    for number, kind in enumerate(types):
        users = pa.array([str(number), "2"]).cast(pa.int64() if pa.types.is_floating(kind) else kind)
        columns = {"user_id": users.cast(kind), "item_id": ["i1", "i2"]}
        in_parts(tmp_path / "shop" / "user_item", columns, 1, first=number)
    assert read(tmp_path / "shop").dataset.users.ids[:3] == ("0", "1", "2")


def test_details_of_types_that_go_together(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 1)
    items = tmp_path / "shop" / "items"
    in_parts(items, {"item_id": ["i1", "i2"], "price": pa.array([1, 2])}, 1)
    in_parts(items, {"item_id": ["i3"], "title": ["Dusk"]}, 1, first=1)
    in_parts(items, {"item_id": ["i4"], "price": pa.array([2.5])}, 1, first=2)
    assert check(tmp_path / "shop") == []
    catalogue = read(tmp_path / "shop").dataset.catalogue
    assert catalogue is not None
    assert catalogue.items["price"].to_pylist() == [1, 2, None, 2.5]
    assert catalogue.items["title"].to_pylist() == [None, None, "Dusk", None]
    in_parts(items, {"item_id": ["i3"], "price": ["free"]}, 1, first=3)
    (problem,) = check(tmp_path / "shop")
    assert (problem.kind, problem.where) == ("mixed-types", "items/part-3.parquet")


class TestUris:
    def test_a_file_uri_is_the_folder(self, tmp_path: Path) -> None:
        write_parts(tmp_path / "a shop", SHOP, 2)
        uri = (tmp_path / "a shop").as_uri()
        assert check(uri) == []
        assert read(uri).dataset.fingerprint() == read(tmp_path / "a shop").dataset.fingerprint()

    @pytest.mark.parametrize("parts", [None, 2])
    def test_an_object_store_by_its_file_system(self, tmp_path: Path, parts: int | None) -> None:
        """Any Arrow file system is listed and read alike: here one that stands on a folder."""
        write_parts(tmp_path / "bucket" / "shop", SHOP, parts or 1)
        if parts is None:
            for table in SHOP:
                folder = tmp_path / "bucket" / "shop" / table
                (folder / "part-0.parquet").rename(folder.with_suffix(".parquet"))
                folder.rmdir()
        found = place(tmp_path)
        remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        store = type(found)("s3://bucket/shop", "shop", "bucket/shop", remote)
        source = read_tables(store)
        assert source.warnings == ()
        expected = read(tmp_path / "bucket" / "shop").dataset
        assert source.dataset.fingerprint() == expected.fingerprint()
        (tmp_path / "bucket" / "shop" / "user_bundle.csv").write_text("user_id,bundle_id\n")
        with pytest.raises(DataError) as caught:
            read_tables(store)
        assert {problem.kind for problem in caught.value.problems} == {"ambiguous-file"}

    def test_a_uri_of_nothing_known(self) -> None:
        with pytest.raises(DataError, match="URI cannot be used") as caught:
            read("ftp://someone:secret@host/shop")
        assert "secret" not in str(caught.value)
