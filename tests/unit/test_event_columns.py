"""Times, weights, types of events and vectors: every reader takes the same from the same tables."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import DAY, UNDATED
from bundlemage.data.splits import Source, SplitPlan
from bundlemage.errors import DataError, Problem
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.facts import read_fact
from bundlemage.readers.ingest import ingest
from bundlemage.readers.load import read, try_to_read
from bundlemage.readers.sql import read_sql
from tests.shop_files import write

MOMENT = int(datetime(2026, 1, 31, 12, 30, 15, tzinfo=UTC).timestamp()) * 10**6
MIDNIGHT = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp()) * 10**6


def locate(row: int) -> tuple[str, int]:
    return "table", row + 1


def converted(name: str, *chunks: Any) -> Any:
    values, problems = read_fact(name, chunks, locate, repr(name))
    assert not problems, problems
    return values


def problem_of(name: str, *chunks: Any) -> Problem:
    values, problems = read_fact(name, chunks, locate, repr(name))
    assert values is None
    (problem,) = problems
    return problem


NAIVE = datetime(2026, 1, 31, 12, 30, 15)
IN_UTC = NAIVE.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        ["2026-01-31T12:30:15", "2026-01-31 12:30:15"],
        ["2026-01-31T12:30:15Z", "2026-01-31T14:30:15+02:00"],
        ["2026-01-31T12:30:15", "2026-01-31T14:30:15+02:00", " 2026-01-31 12:30:15.000000Z "],
        ["2026-01-31T12:30:15.000000000"],
        [str(MOMENT // 10**6), str(MOMENT // 1000), str(MOMENT), str(MOMENT * 1000)],
        ["1769862615.0", "1769862615"],
        [MOMENT // 10**6, MOMENT // 1000, MOMENT, MOMENT * 1000],
        [MOMENT / 10**6, MOMENT / 1000.0],
        [NAIVE, NAIVE],
        [IN_UTC, IN_UTC],
    ],
    ids=str,
)
def test_a_time_in_many_forms(values: list[Any]) -> None:
    whole, one_by_one = converted("at", pa.array(values)), converted("at", values)
    assert whole.dtype == one_by_one.dtype == np.int64
    assert whole.tolist() == one_by_one.tolist() == [MOMENT] * len(values)
    assert converted("at", pa.array(values).dictionary_encode()).tolist() == [MOMENT] * len(values)
    assert converted("at", pa.array([*values, None])).tolist()[-1] == UNDATED


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["2026-01-31"]),
        pa.array([b"2026-01-31"]),
        pa.array([date(2026, 1, 31)]),
        pa.array([date(2026, 1, 31)]).cast(pa.date64()),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("s")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("ms")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("ns")),
        pa.array([date(2026, 1, 31)]).cast(pa.timestamp("us", "Europe/Berlin")),
        pa.array([MIDNIGHT // 10**6], pa.uint32()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_date_is_its_midnight_in_utc(array: pa.Array) -> None:
    assert converted("at", array).tolist() == [MIDNIGHT]


def test_fractions_of_a_second_and_times_before_1970() -> None:
    assert converted("at", pa.array(["1969-12-31T23:59:59.250000"])).tolist() == [-750_000]
    assert converted("at", pa.array([-0.75])).tolist() == converted("at", [-0.75]).tolist() == [-750_000]
    assert converted("at", pa.array(["-86400"])).tolist() == [-DAY]


def test_an_empty_time_is_not_known() -> None:
    assert converted("at", pa.array(["", " ", None, "2026-01-31"])).tolist() == [*[UNDATED] * 3, MIDNIGHT]
    assert converted("at", pa.nulls(2), pa.array(["2026-01-31"])).tolist() == [*[UNDATED] * 2, MIDNIGHT]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["2026-02-30", "2026-01-31"], "'2026-02-30'"),
        (["31/01/2026"], "'31/01/2026'"),
        (["soon"], "'soon'"),
        (["12:30"], "'12:30'"),
        (["nan"], "'nan'"),
        (["20260131"], "'20260131'"),
        ([20260131], "20260131"),
        ([float("nan")], "nan"),
        ([float("inf")], "inf"),
        ([True], "True"),
        ([b"\xff\xfe"], "b'\\xff\\xfe'"),
        ([1 - 10**11], str(1 - 10**11)),
        ([[1]], "[1]"),
        ([timedelta(days=1)], "1 day, 0:00:00"),
    ],
    ids=str,
)
def test_what_is_no_time(values: list[Any], shown: str) -> None:
    good: Any = pa.array(["2026-01-31"] * 3)
    for bad in (pa.array(values), values):
        problem = problem_of("at", good, bad)
        assert (problem.kind, problem.line, problem.more) == ("bad-time", 4, 0)
        assert problem.message == f"'at' is {shown}; expected a date and time"


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], [1.0, 2.0, 3.0], ["1", " 2", "3.0"], ["1e0", "+2", "3"], [b"1", b"2", b"3"]],
    ids=str,
)
def test_weights(values: list[Any]) -> None:
    for column in (pa.array(values), values, pa.array(values).dictionary_encode()):
        assert converted("weight", column).tolist() == [1.0, 2.0, 3.0]
    assert converted("weight", pa.array([*values, None])).tolist() == [1.0, 2.0, 3.0, 1.0]


@pytest.mark.parametrize("value", [-1, "-1", "many", float("nan"), "nan", float("inf"), 1e13, True], ids=str)
def test_what_is_no_weight(value: Any) -> None:
    for bad in (pa.array([value, value]), [value, value]):
        problem = problem_of("weight", pa.array([1, 2]), bad)
        assert (problem.kind, problem.line, problem.more) == ("bad-weight", 3, 1)
        assert problem.message.startswith("'weight' is ")
        assert "expected a number from 0 to" in problem.message


VECTORS = [[0.5, -1.0], None, [2.0, 0.25]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(VECTORS, pa.list_(pa.float32())),
        pa.array(VECTORS, pa.list_(pa.float64())),
        pa.array(VECTORS, pa.large_list(pa.float16())),
        pa.array(VECTORS, pa.list_(pa.float32(), 2)),
        pa.array([None, *VECTORS], pa.list_(pa.float32(), 2))[1:],
        pa.array(["[0.5, -1]", "", "[2, 0.25]"]),
        pa.array(["[0.5, -1]", None, "[2, 0.25]"]).dictionary_encode(),
        VECTORS,
    ],
    ids=lambda column: str(getattr(column, "type", "list")),
)
def test_vectors(column: Any) -> None:
    vectors = converted("vector", column)
    assert vectors.type == pa.list_(pa.float32())
    assert vectors.to_pylist() == VECTORS


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        (pa.array([[1.0, 2.0], [1.0, float("nan")]]), 2, "a list with nan at place 2"),
        (pa.array([[1.0, None], [1.0, 3.0]]), 1, "a list with None at place 2"),
        (pa.array([[1.0, 1e300]]), 1, "a list with 1e+300 at place 2"),
        (pa.array([[1.0], []]), 2, "[]"),
        (pa.array(["[1, 2]", "[1, NaN]"]), 2, "'[1, NaN]'"),
        (pa.array(["[1, 2]", "1 2"]), 2, "'1 2'"),
        (pa.array(["[1, 2]", '["a", 2]']), 2, """'["a", 2]'"""),
        (pa.array([[True, False]]), 1, "a list with True at place 1"),
    ],
    ids=str,
)
def test_what_is_no_vector(column: Any, row: int, value: str) -> None:
    problem = problem_of("vector", column)
    assert (problem.kind, problem.line) == ("bad-vector", row)
    assert problem.message == f"'vector' is {value}; expected a list of numbers"


def test_vectors_of_different_lengths() -> None:
    problem = problem_of("vector", pa.array([None, [1.0, 2.0]]), pa.array([[1.0, 2.0, 3.0], [1.0]]))
    assert (problem.kind, problem.line, problem.more) == ("uneven-vectors", 3, 1)
    assert problem.message == "'vector' holds 3 numbers, but the first vector has 2"


# Every reader

TIMES = ["2026-01-31T12:30:15", "2026-01-02", "", "2026-01-03", "2026-01-05"]
ROWS: dict[str, dict[str, list[Any]]] = {
    "user_item": {
        "user_id": ["ann", "ann", "ann", "bob", "bob"],
        "item_id": ["i1", "i1", "i2", "i1", "i3"],
        "at": TIMES,
        "weight": ["2", "0.5", "1", "", "3"],
        "event": ["buy", "buy", "view", "view", "return"],
    },
    "user_bundle": {"user_id": ["ann", "bob"], "bundle_id": ["b1", "b2"], "order_id": ["1", "2"]},
    "bundle_item": {"bundle_id": ["b1", "b1", "b2", "b2"], "item_id": ["i1", "i2", "i2", "i3"]},
    "items": {
        "item_id": ["i1", "i2", "i3"],
        "title": ["Frost", "Ember", "Dusk"],
        "description": ["A cold game", "", "A <dark> game"],
    },
    "item_vectors": {"item_id": ["i3", "i1"], "vector": ["[0.5, 1]", "[-1, 0.25]"]},
}
EVENTS = {"view": 0.25, "buy": 1.0, "return": -1.0}


def typed(tables: dict[str, dict[str, list[Any]]]) -> dict[str, pa.Table]:
    """The same tables with times, numbers and lists of numbers in place of texts."""
    found = {name: pa.table(dict(columns)) for name, columns in tables.items()}
    items = found["user_item"]
    at = [datetime.fromisoformat(time) if time else None for time in TIMES]
    weight = [float(text) if text else None for text in tables["user_item"]["weight"]]
    items = items.set_column(2, "at", pa.array(at)).set_column(3, "weight", pa.array(weight))
    vectors = pa.array([[0.5, 1], [-1, 0.25]], pa.list_(pa.float32()))
    found["item_vectors"] = found["item_vectors"].set_column(1, "vector", vectors)
    return found | {"user_item": items}


def as_text(folder: Path, ending: str) -> Path:
    folder.mkdir(parents=True)
    for name, columns in ROWS.items():
        mark = "\t" if ending.startswith("tsv") else ","
        lines = [columns.keys(), *zip(*columns.values(), strict=True)]
        text = "".join(mark.join(f'"{value}"' for value in line) + "\n" for line in lines)
        content = text.encode()
        (folder / f"{name}.{ending}").write_bytes(gzip.compress(content) if "gz" in ending else content)
    return folder


def as_parquet(folder: Path, parts: int) -> Path:
    for name, table in typed(ROWS).items():
        place = folder / name
        place.mkdir(parents=True)
        for part in range(parts):
            first, last = (each * len(table) // parts for each in (part, part + 1))
            pq.write_table(table.slice(first, last - first), place / f"part-{part}.parquet")
    return folder


def in_sqlite(folder: Path) -> str:
    folder.mkdir()
    with sqlite3.connect(folder / "shop.db") as database:
        for name, columns in ROWS.items():
            database.execute(f"create table {name} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            rows = zip(*columns.values(), strict=True)
            database.executemany(f"insert into {name} values ({marks})", list(rows))
    database.close()
    return f"sqlite:///{folder}/shop.db"


def frames(convert: Callable[[pa.Table], Any]) -> Source:
    return read_frames(**{name: convert(table) for name, table in typed(ROWS).items()}, events=EVENTS)


WAYS: dict[str, Callable[[Path], Source]] = {
    "csv": lambda folder: read(as_text(folder, "csv"), events=EVENTS),
    "tsv.gz": lambda folder: read(as_text(folder, "tsv.gz"), events=EVENTS),
    "parquet": lambda folder: read(as_parquet(folder, 1), events=EVENTS),
    "parts": lambda folder: read(as_parquet(folder, 2), events=EVENTS),
    "SQL": lambda folder: read(in_sqlite(folder), events=EVENTS),
    "queries": lambda folder: read(in_sqlite(folder), {n: f"select * from {n}" for n in ROWS}, EVENTS),
    "pandas": lambda _: frames(lambda table: table.to_pandas()),
    "polars": lambda _: frames(pl.from_arrow),
    "Arrow": lambda _: frames(lambda table: table),
    "DuckDB": lambda _: frames(duckdb.from_arrow),
    "shards": lambda folder: through_shards(as_text(folder / "csv", "csv"), folder / "shards"),
}


def through_shards(tables: Path, output: Path) -> Source:
    ingest(str(tables), output, shard_rows=1, events=EVENTS)
    return read(output, events=EVENTS)


@pytest.mark.parametrize("way", WAYS)
def test_every_reader_carries_them(way: str, tmp_path: Path) -> None:
    data = WAYS[way](tmp_path / "shop").dataset
    events = data.item_events
    assert data.user_item.toarray().tolist() == [[1, 1, 0], [1, 0, 0]]
    assert events.at is not None
    assert events.weight is not None
    assert events.rejected is not None
    assert events.at.tolist() == [MOMENT, UNDATED, MIDNIGHT - 28 * DAY]
    assert events.weight.tolist() == [2.5, 0.25, 0.25]
    assert events.rejected.toarray().tolist() == [[0, 0, 0], [0, 0, 1]]
    assert not data.bundle_events
    assert data.catalogue is not None
    items = data.catalogue.items
    assert items["description"].to_pylist() == ["A cold game", None, "A <dark> game"]
    assert items["vector"].to_pylist() == [[-1, 0.25], None, [0.5, 1]]


def test_every_reader_gives_the_same_fingerprint(tmp_path: Path) -> None:
    prints = {way: each(tmp_path / way.replace(".", "-")).dataset.fingerprint() for way, each in WAYS.items()}
    assert len(set(prints.values())) == 1, prints


def test_postgres(postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    for name, table in (typed(ROWS) | {"item_vectors": pa.table(dict(ROWS["item_vectors"]))}).items():
        table.to_pandas().to_sql(name, engine, index=False)
    engine.dispose()
    expected = WAYS["Arrow"](Path()).dataset
    assert read_sql(postgres_url, events=EVENTS).dataset.fingerprint() == expected.fingerprint()


def test_vectors_in_the_catalogue_itself(tmp_path: Path) -> None:
    write(tmp_path / "shop", items_csv='item_id,embedding\ni1,"[1, 2]"\ni2,\ni3,"[3, 4]"\n')
    catalogue = read(tmp_path / "shop").dataset.catalogue
    assert catalogue is not None
    assert catalogue.items["vector"].to_pylist() == [[1, 2], None, [3, 4]]
    (tmp_path / "shop" / "item_vectors.csv").write_text('item_id,vector\ni1,"[1, 2]"\n')
    _, (*_, problem) = try_to_read(tmp_path / "shop")
    assert str(problem) == (
        "items.csv: the items have a column 'vector', and there are vectors in item_vectors.csv. "
        "Keep the vectors in one of them"
    )


def test_a_table_of_vectors_alone_makes_a_catalogue(tmp_path: Path) -> None:
    write(tmp_path / "shop", item_vectors_csv='item_id,vector\ni2,"[1, 2]"\nnew,"[3, 4]"\n')
    data = read(tmp_path / "shop").dataset
    assert data.items.ids == ("i1", "i2", "i3", "new")
    assert data.catalogue is not None
    assert data.catalogue.items["vector"].to_pylist() == [None, [1, 2], None, [3, 4]]
    assert data.catalogue.bundles["title"].null_count == len(data.bundles)


def test_numbers_of_a_large_table_do_not_become_python_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_one_by_one(*_: Any) -> Any:
        raise AssertionError

    for function in ("_time", "_weight", "_vector", "_by_value"):
        monkeypatch.setattr(f"bundlemage.readers.facts.{function}", not_one_by_one)
    moments = pd.Series(pd.to_datetime(["2026-01-31", None, "2026-02-01"]))
    for column in (moments, moments.dt.tz_localize("UTC"), moments.dt.strftime("%Y-%m-%d %H:%M:%S")):
        converted("at", pa.array(column))
    vectors = np.random.default_rng(0).random((100, 8), np.float32)
    converted("vector", pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8))


# Shards


def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Path, **options: Any) -> list[bytes]:
    """The files of two layouts, one by DuckDB and one in memory; they must be the same."""
    with monkeypatch.context() as patch:
        patch.setattr("bundlemage.readers.ingest._in_memory", None)
        by_duckdb = ingest(str(tables), tmp_path / "by-duckdb", **options)
    with monkeypatch.context() as patch:
        patch.setattr("bundlemage.readers.ingest._by_duckdb", lambda *_: None)
        in_memory = ingest(str(tables), tmp_path / "in-memory", **options)
    assert by_duckdb.problems == in_memory.problems
    contents = [
        {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.*"))}
        for folder in (tmp_path / "by-duckdb", tmp_path / "in-memory")
    ]
    assert contents[0].keys() == contents[1].keys()
    assert [name for name in contents[0] if contents[0][name] != contents[1][name]] == []
    return list(contents[0].values())


def random_tables(folder: Path, columns: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    folder.mkdir()

    def table(name: str, other: str, rows: int) -> None:
        found: dict[str, Any] = {
            "user_id": [f"u{n}" for n in random.integers(0, 20, rows)],
            f"{other}_id": [f"{other}{n}" for n in random.integers(0, 15, rows)],
        }
        if "at" in columns:
            seconds = random.integers(1_700_000_000, 1_700_000_500, rows)
            found["timestamp"] = pa.array(seconds).cast(pa.timestamp("s"))
        if "weight" in columns:
            found["qty"] = random.integers(0, 4, rows) if "whole" in columns else random.random(rows) * 3
        if "event" in columns:
            found["event"] = random.choice(["view", "buy", "return", "seen"], rows, p=[0.5, 0.3, 0.1, 0.1])
        pq.write_table(pa.table(found), folder / f"{name}.parquet", row_group_size=50)

    table("user_item", "item", 600)
    table("user_bundle", "bundle", 300)
    bundles = {"bundle_id": [f"bundle{n}" for n in range(15) for _ in range(3)]}
    inside = {"item_id": [f"item{n}" for n in random.integers(0, 15, 45)]}
    pq.write_table(pa.table(bundles | inside), folder / "bundle_item.parquet")


KINDS = ["at", "weight", "whole weight", "event", "at weight event", "at whole weight event"]


@pytest.mark.parametrize("columns", KINDS)
def test_duckdb_writes_the_same_bytes(columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_tables(tmp_path / "shop", columns, seed=len(columns))
    monkeypatch.setattr("bundlemage.readers.ingest.BATCH_ROWS", 64)
    events = EVENTS | {"seen": 0.0} if "event" in columns else None
    ingested(tmp_path, monkeypatch, tmp_path / "shop", shard_rows=7, events=events)
    data = read(tmp_path / "shop", events=events).dataset
    assert data.item_events
    assert read(tmp_path / "in-memory").dataset.fingerprint() == data.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("bundlemage.readers.ingest._in_memory", None)
        checked = ingest(str(tmp_path / "shop"), events=events)
    with monkeypatch.context() as patch:
        patch.setattr("bundlemage.readers.ingest._by_duckdb", lambda *_: None)
        expected = ingest(str(tmp_path / "shop"), events=events)
    assert (checked.problems, checked.leakage) == (expected.problems, expected.leakage)
    assert checked.about_events == expected.about_events


def test_duckdb_writes_the_same_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_text(tmp_path / "shop", "csv")
    ingested(tmp_path, monkeypatch, tmp_path / "shop", events=EVENTS)


def test_a_process_reads_its_part_of_a_layout(tmp_path: Path) -> None:
    random_tables(tmp_path / "shop", "at weight event", seed=1)
    layout = ingest(str(tmp_path / "shop"), tmp_path / "shards", 7, events=EVENTS | {"seen": 0}).layout
    assert layout is not None
    whole = layout.dataset()
    prints = set()
    for part in ({"users": range(3, 12)}, {"items": range(4, 9)}, {"users": range(0, 0)}):
        data = layout.dataset(**part, ids=False)
        assert data.fingerprint() == whole.fingerprint()
        rows, columns = part.get("users", range(20)), part.get("items", range(15))
        known = facts_by_pair(whole, rows, columns)
        assert facts_by_pair(data, range(20), range(15)) == known
        prints.add(SplitPlan(histories="without held-out").divide(data).train.fingerprint())
    assert len(prints) == 1, "all processes train on the same data"
    assert layout.event_types["user_item"].keys() == {"view", "buy", "return", "seen"}


def facts_by_pair(data: BundleDataset, rows: range, columns: range) -> dict[str, Any]:
    users, items = data.user_item.nonzero()
    at, weight, rejected = data.item_events.at, data.item_events.weight, data.item_events.rejected
    chosen = np.isin(users, rows) & np.isin(items, columns)
    pairs = list(zip(users[chosen].tolist(), items[chosen].tolist(), strict=True))
    return {
        "at": dict(zip(pairs, [] if at is None else at[chosen].tolist(), strict=True)),
        "weight": dict(zip(pairs, [] if weight is None else weight[chosen].tolist(), strict=True)),
        "rejected": []
        if rejected is None
        else [(r, c) for r, c in zip(*rejected.nonzero(), strict=True) if r in rows and c in columns],
    }


def test_shards_take_the_weights_of_events_that_they_were_made_with(tmp_path: Path) -> None:
    as_text(tmp_path / "shop", "csv")
    ingest(str(tmp_path / "shop"), tmp_path / "shards", events=EVENTS)
    expected = read(tmp_path / "shards").dataset.fingerprint()
    assert read(tmp_path / "shards", events=EVENTS).dataset.fingerprint() == expected
    with pytest.raises(DataError, match=r"made with --events view=0.25,buy=1,return=-1"):
        read(tmp_path / "shards", events={"buy": 1})
