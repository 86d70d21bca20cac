"""Writing a shop: five tables in text or Parquet, all of them or none."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundlemage.data.dataset import ITEM_SCHEMA, BundleDataset
from bundlemage.errors import ConfigError
from bundlemage.sample.generate import sample_shop, write_shop

COLUMNS = {
    "user_item": ["user_id", "item_id"],
    "user_bundle": ["user_id", "bundle_id"],
    "bundle_item": ["bundle_id", "item_id"],
    "items": ["item_id", "title", "price", "tags", "stock"],
    "bundles": ["bundle_id", "title", "price", "tags", "discount"],
}


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_text(tmp_path: Path, suffix: Literal["csv", "tsv"], delimiter: str) -> None:
    data = sample_shop(20, 30, 8).dataset
    paths = write_shop(data, tmp_path / "new" / "shop", suffix)
    assert [path.name for path in paths] == [f"{name}.{suffix}" for name in COLUMNS]
    tables = {path.stem: read_text(path, delimiter) for path in paths}
    assert {name: list(rows[0]) for name, rows in tables.items()} == COLUMNS
    pairs = {(row["user_id"], row["item_id"]) for row in tables["user_item"]}
    rows, columns = data.user_item.nonzero()
    assert len(tables["user_item"]) == data.user_item.nnz
    assert pairs == {(data.users[int(u)], data.items[int(i)]) for u, i in zip(rows, columns, strict=True)}
    assert data.catalogue is not None
    assert [row["title"] for row in tables["items"]] == data.catalogue.items["title"].to_pylist()
    assert [row["tags"].split("|") for row in tables["items"]] == data.catalogue.items["tags"].to_pylist()
    assert [float(row["discount"]) for row in tables["bundles"]] == data.catalogue.bundles[
        "discount"
    ].to_pylist()


def test_parquet_keeps_types(tmp_path: Path) -> None:
    data = sample_shop(20, 30, 8).dataset
    paths = {path.stem: path for path in write_shop(data, tmp_path / "shop", "parquet")}
    assert data.catalogue is not None
    items, bundles = data.catalogue.items, data.catalogue.bundles
    # A column without any value is not written.
    assert pq.read_table(paths["items"]).equals(
        items.drop_columns(["cost", "image_url", "description", "vector"])
    )
    assert pq.read_table(paths["bundles"]).equals(bundles.drop_columns(["image_url"]))
    assert pq.read_table(paths["bundle_item"]).column_names == COLUMNS["bundle_item"]


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    data = sample_shop(20, 30, 8).dataset
    write_shop(data, tmp_path)
    with pytest.raises(ConfigError, match="in use"):
        write_shop(data, tmp_path)


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="csv, tsv, parquet"):
        write_shop(sample_shop(20, 30, 8).dataset, tmp_path, "xlsx")  # type: ignore[arg-type]


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail_on_the_third(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail_on_the_third)
    with pytest.raises(OSError, match="disk full"):
        write_shop(sample_shop(20, 30, 8).dataset, tmp_path / "shop", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # to replace it would pull the floor from under the caller
    with pytest.raises(ConfigError, match="in use"):
        write_shop(sample_shop(20, 30, 8).dataset, Path())


def test_awkward_titles_survive(tmp_path: Path) -> None:
    title = 'Say "Hi",\tthen run\naway'
    for suffix, delimiter in (("csv", ","), ("tsv", "\t")):
        write_shop(relabelled(title=title), tmp_path / suffix, suffix)  # type: ignore[arg-type]
        assert read_text(tmp_path / suffix / f"items.{suffix}", delimiter)[0]["title"] == title


def test_a_tag_with_the_separator_needs_parquet(tmp_path: Path) -> None:
    data = relabelled(tags=["a|b"])
    with pytest.raises(ConfigError, match="write Parquet"):
        write_shop(data, tmp_path / "shop")
    assert list(tmp_path.iterdir()) == []
    assert len(write_shop(data, tmp_path / "shop", "parquet")) == 5


def test_without_a_catalogue_there_are_three_tables(tmp_path: Path) -> None:
    data = replace(sample_shop(20, 30, 8).dataset, catalogue=None)
    assert [path.stem for path in write_shop(data, tmp_path / "shop")] == list(COLUMNS)[:3]


def relabelled(**values: Any) -> BundleDataset:
    """A small shop whose first item says something else."""
    data = sample_shop(20, 30, 8).dataset
    assert data.catalogue is not None
    rows = data.catalogue.items.to_pylist()
    rows[0] |= values
    items = pa.Table.from_pylist(rows, schema=ITEM_SCHEMA)
    return replace(data, catalogue=replace(data.catalogue, items=items))


def read_text(path: Path, delimiter: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))
