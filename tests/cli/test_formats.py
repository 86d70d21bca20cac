"""train, evaluate, recommend and complete on every layout that there is a reader for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.readers.load import read
from bundlemage.sample.generate import TableFormat, sample_shop, write_shop
from tests.cli.run import BUNDLEMAGE, run_json
from tests.published_files import write_bgcn, write_generation, write_matching, write_pathak
from tests.real_data import real_data


def small() -> BundleDataset:
    return sample_shop(60, 80, 30, seed=1).dataset


def tables(format: TableFormat) -> Callable[[Path], str]:  # noqa: A002
    def write(folder: Path) -> str:
        write_shop(small(), folder / "shop", format)
        return str(folder / "shop")

    return write


def sqlite(folder: Path) -> str:
    write_shop(small(), folder / "shop", "parquet")
    with sqlite3.connect(folder / "shop.db") as database:
        for name in ("user_item", "user_bundle", "bundle_item"):
            table = pq.read_table(folder / "shop" / f"{name}.parquet")
            database.execute(f"create table {name} ({', '.join(table.column_names)})")
            rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
            database.executemany(f"insert into {name} values (?, ?)", rows)
    return f"sqlite:///{folder / 'shop.db'}"


LAYOUTS: dict[str, Callable[[Path], Any]] = {
    "csv": tables("csv"),
    "tsv": tables("tsv"),
    "parquet": tables("parquet"),
    "sqlite": sqlite,
    "bgcn": lambda folder: write_bgcn(folder / "bgcn"),
    "authors' matching split": lambda folder: write_matching(folder / "mat"),
    "authors' generation split": lambda folder: write_generation(folder / "gen"),
    "pathak": lambda folder: write_pathak(folder / "pathak"),
    "sample": lambda _: "sample",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_from_data_to_answers(layout: str, tmp_path: Path) -> None:
    location = LAYOUTS[layout](tmp_path)
    data = read(location).dataset
    model = tmp_path / "model"

    trained = run_json("train", location, "-o", model, *BUNDLEMAGE)
    assert trained["epochs"] >= 1

    evaluated = run_json("evaluate", model, location)
    assert evaluated["test"] == trained["test"]
    assert evaluated["data_changed"] is False

    user, item = data.users[0], data.items[0]
    bundles = run_json("recommend", model, "--user", user, "-k", 2)["bundles"]
    assert {answer["id"] for answer in bundles} <= set(data.bundles)
    owned = {data.bundles[position] for position in data.user_bundle[0].indices}
    assert not owned & {answer["id"] for answer in bundles}

    items = run_json("complete", model, "--user", user, "--items", item, "-k", 2)["items"]
    assert [answer["rank"] for answer in items] == list(range(1, len(items) + 1))
    assert item not in {answer["id"] for answer in items}


def test_the_same_tables_from_sqlite_and_csv_are_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    from_sqlite, from_csv = read(sqlite(tmp_path / "a")).dataset, read(tables("csv")(tmp_path / "b")).dataset
    assert from_sqlite.fingerprint() == from_csv.fingerprint()


def test_postgresql(postgres_url: str, tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    shop = small()
    users, bundles, items = shop.users, shop.bundles, shop.items
    columns = {
        "purchases": ("user_id", "item_id", shop.user_item, users, items),
        "user_bundle": ("user_id", "bundle_id", shop.user_bundle, users, bundles),
        "bundle_item": ("bundle_id", "item_id", shop.bundle_item, bundles, items),
    }
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        for table, (left, right, matrix, rows, ids) in columns.items():
            connection.execute(text(f"create table {table} ({left} text, {right} text)"))
            pairs = [
                {"left": rows[int(row)], "right": ids[int(column)]}
                for row, column in zip(*matrix.nonzero(), strict=True)
            ]
            connection.execute(text(f"insert into {table} values (:left, :right)"), pairs)
    query = "user_item=select item_id, user_id from purchases"
    trained = run_json("train", postgres_url, "--table", query, "-o", tmp_path / "m", *BUNDLEMAGE)
    evaluated = run_json("evaluate", tmp_path / "m", postgres_url, "--table", query)
    assert evaluated["test"] == trained["test"]


@pytest.mark.parametrize("data", ["youshu/authors/gen", "youshu/bgcn", "steam/authors/mat", "steam/pathak"])
def test_published_data(data: str, tmp_path: Path) -> None:
    location, model = real_data(data), tmp_path / "model"
    tiny = [
        "--model",
        "bundlemage",
        "--set",
        "embedding_dim=4",
        "--set",
        "tasks=matching",
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]
    trained = run_json("train", location, "-o", model, *tiny)
    row = trained["test"][0]
    assert row["dataset"] == ("steam-partial" if "steam" in data else "youshu")
    assert 0 < row["matching"]["ndcg@5"] < 1
    assert run_json("recommend", model, "--user", "0", "-k", 3)["bundles"]
