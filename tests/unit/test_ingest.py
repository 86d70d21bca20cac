"""Ingesting in bounded memory: the files of the in-memory way, byte for byte, and the same problems."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundlemage.data.leakage import leakage_of
from bundlemage.data.shards import Layout, write_layout
from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.readers.ingest import ingest
from bundlemage.readers.load import check, read
from bundlemage.sample.generate import sample_shop, write_shop
from tests.cli.run import run
from tests.leaking_shop import leaking_shop
from tests.parted_tables import SHOP, in_parts, write_parts
from tests.real_data import real_data

UUIDS = [UUID(int=number).bytes for number in (2**127, 7, 2**64, 9, 1)]
ROWS = {"item_id": ["i1", "i2", "i1", "i3", "i2"]}
PAIR = {"bundle_id": ["b1"]}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def users(*values: Any, kind: pa.DataType | None = None) -> dict[str, Any]:
    """A table of user_item whose users have these ids."""
    column = values[0] if isinstance(values[0], pa.Array) else pa.array(values, kind)
    return {"user_item": {"user_id": column, "item_id": (ROWS["item_id"] * 5)[: len(column)]}}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are then read in as many batches as billions would be."""
    monkeypatch.setattr("bundlemage.readers.ingest.BATCH_ROWS", 2)


@pytest.fixture
def only_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all into memory is then an error."""
    monkeypatch.setattr("bundlemage.readers.ingest._in_memory", None)


def in_memory(location: Path, output: Path, shard_rows: int) -> tuple[Problem, ...]:
    """The layout as one that reads all at once writes it; returns the warnings."""
    source = read(location)
    write_layout(source.dataset, output, shard_rows)
    return source.warnings


GOOD: dict[str, Mapping[str, Any]] = {
    "as it is": {},
    "whole numbers": users(10, 9, -3, 100, 9, kind=pa.int64())
    | {"user_bundle": {"user_id": pa.array([9, 700, 10]), "bundle_id": ["b1", "b2", "b1"]}},
    "whole numbers here, text there": users(10, 9, -3, 100, 9, kind=pa.int64()),
    "numbers as text": users("10", "9", "-3", "100", "9")
    | {"user_bundle": {"user_id": ["9", "700"], "bundle_id": ["b1", "b2"]}},
    "not quite numbers": users("10", "9", "-0", "007", "9")
    | {"user_bundle": {"user_id": ["9", "700"], "bundle_id": ["b1", "b2"]}},
    "floats": users(3.0, 20.0, 100.0, 3.0, -1.0, kind=pa.float64()),
    "decimals": users(Decimal("3.0"), Decimal("20.0"), Decimal("100.0")),
    "bytes": users(b"ann", b"\xc3\xa9", b"zoe"),
    "uuids": users(pa.ExtensionArray.from_storage(pa.uuid(), pa.array(UUIDS, pa.binary(16)))),
    "a dictionary": users(pa.array(["b", "a", "b", "c", "a"]).dictionary_encode()),
    "beyond ASCII": users("\U0001f600", "\uff41", "é", "e", "z"),
    "large text": users("b", "a", "b", "c", "a", kind=pa.large_string()),
    "pairs given twice": users("a", "a", "b", "b", "a", "a", "b", "a", "b", "c"),
    "spaces": users(" ann", "bob ", "cy", " ann", "a b"),
    "one described twice": {"items": {"item_id": ["i3", "i1", "i3", "i2", "i3"], "price": [1.0, 2, 3, 4, 5]}},
    "unknown to the catalogue": {"items": {"item_id": ["i9", "i1"], "title": ["Nine", "One"]}},
    "empty bundles": {
        "user_bundle": {"user_id": ["ann", "bob", "cy", "cy"], "bundle_id": ["b1", "b8", "b2", "b9"]},
        "bundles": {"bundle_id": ["b7", "b1", "b8"], "discount": [0.5, None, 0.1]},
    },
    "an empty catalogue": {"items": {"item_id": pa.array([], pa.string())}},
    "numbers in details": {
        "items": {"item_id": ["i1", "i2", "i3"], "price": ["1", " 2.5 ", ""], "stock": [1, 2, 3]}
    },
}
CAREFUL = ("floats", "decimals", "bytes", "uuids", "spaces")
"""Good data that is not plainly good, so that all of it is read into memory."""
BAD: dict[str, Mapping[str, Any]] = {
    "missing ids": users("a", None, "", "b", None, " ", "c ")
    | {"user_bundle": {"user_id": [None], "bundle_id": [""]}},
    "a hole in floats": users(1.0, float("nan"), 2.5, None, 2.0**60, kind=pa.float64()),
    "nulls": users("a\0b", "b", "a\0b", "\0"),
    "not text": users(pa.array([b"ann", b"\xff\xfe", b"bob", b"\xff"], pa.binary())),
    "truth": users(True, False, True),
    "lists": users(pa.array([["a"], ["b"], None, ["a"]])),
    "bad details": {
        "items": {
            "item_id": ["i1", "i2", "i1", "i3", "i3"],
            "price": ["1", "free", "2", "-1", "x"],
            "stock": ["1.5", "2", "3", "much", ""],
        },
    },
    "text in a faulty catalogue of numbers": {
        "user_item": {"user_id": ["a", "b", "c"], "item_id": [3, 20, 100]},
        "bundle_item": {"bundle_id": ["b1", "b1", "b2"], "item_id": [3, 4, 5]},
        "items": {"item_id": ["x", "3", "y", "x"], "price": ["free", "1", "2", "3"]},
    },
    "another column": {"user_item": {"who": ["a", "b"], "item_id": ["i1", "i2"]}},
    "two columns for one": {"bundle_item": {"bundle": ["b1"], "pack_id": ["b1"], "item_id": ["i1"]}},
    "no rows": {
        "user_bundle": {"user_id": pa.array([], pa.string()), "bundle_id": pa.array([], pa.string())},
        "items": {"item_id": pa.array([], pa.string())},
    },
}


class TestTheSameAsInMemory:
    @pytest.mark.parametrize("name", GOOD)
    def test_files_and_warnings(
        self, tmp_path: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **GOOD[name]}, 2)
        warnings = in_memory(tmp_path / "shop", tmp_path / "expected", 2)
        if name not in CAREFUL:
            request.getfixturevalue("only_duckdb")
        done = ingest(str(tmp_path / "shop"), tmp_path / "layout", 2)
        assert contents(tmp_path / "layout") == contents(tmp_path / "expected")
        assert done.problems == warnings
        assert done.layout == Layout.open(tmp_path / "layout")
        assert done.fingerprint == read(tmp_path / "shop").dataset.fingerprint()
        checked, dataset = ingest(str(tmp_path / "shop")), read(tmp_path / "shop").dataset
        assert (checked.problems, checked.leakage) == (warnings, leakage_of(dataset))

    @pytest.mark.parametrize("change", BAD.values(), ids=BAD)
    def test_problems(self, tmp_path: Path, change: Mapping[str, Any]) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **change}, 3)
        problems = ingest(str(tmp_path / "shop")).problems
        assert any(problem.severity == "error" for problem in problems)
        assert list(problems) == check(tmp_path / "shop")

    @pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
    @pytest.mark.parametrize("packed", [False, True])
    def test_tables_in_every_form(self, tmp_path: Path, form: Any, packed: bool, only_duckdb: None) -> None:
        write_shop(sample_shop(users=40, items=30, bundles=10).dataset, tmp_path / "shop", form)
        if packed and form != "parquet":
            for file in (tmp_path / "shop").iterdir():
                file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
                file.unlink()
        in_memory(tmp_path / "shop", tmp_path / "expected", 7)
        ingest(str(tmp_path / "shop"), tmp_path / "layout", 7)
        assert contents(tmp_path / "layout") == contents(tmp_path / "expected")

    @pytest.mark.parametrize("most", [10**6, 40])
    def test_leaking_pairs_are_counted_in_the_files(
        self, tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch, only_duckdb: None
    ) -> None:
        monkeypatch.setattr("bundlemage.readers.ingest.MOST_PAIRS", most)
        shop = sample_shop(users=40, items=30, bundles=10).dataset
        write_shop(shop, tmp_path / "shop", "csv")
        write_shop(leaking_shop(users=20), tmp_path / "leaking", "csv")
        found, in_memory = ingest(str(tmp_path / "shop")).leakage, leakage_of(shop)
        assert found is not None
        assert found == in_memory if most > in_memory.pairs else 20 <= found.pairs <= 1.5 * most
        leaking = ingest(str(tmp_path / "leaking")).leakage
        assert leaking is not None
        assert leaking.pairs == leaking.leaking == (120 if most > 120 else 42)  # of each third user
        assert leaking.items_of_bought == 1.0
        assert leaking.items_of_others == pytest.approx(0.0, abs=0.01)

    def test_lines_of_text_files(self, tmp_path: Path, only_duckdb: None) -> None:
        """A warning names the line, also where a row has several."""
        write_shop(sample_shop(users=20, items=30, bundles=10).dataset, tmp_path / "shop", "csv")
        with (tmp_path / "shop" / "user_bundle.csv").open("a") as file:
            file.write('"two\nlines",b0001\n\nu0001,unheard\nu0001,unheard\nu0002,"of, too"\n')
        (problem,) = ingest(str(tmp_path / "shop"), tmp_path / "layout").problems
        assert (problem,) == read(tmp_path / "shop").warnings
        assert (problem.kind, problem.value, problem.more) == ("empty-bundle", "unheard", 1)

    @pytest.mark.parametrize("fault", ['"never closed,b0001\n', "u1,b1,b2\n", ",b0001\n", "\0,b0001\n"])
    def test_faults_of_text_files(self, tmp_path: Path, fault: str) -> None:
        write_shop(sample_shop(users=20, items=30, bundles=10).dataset, tmp_path / "shop", "csv")
        with (tmp_path / "shop" / "user_bundle.csv").open("a") as file:
            file.write(fault)
        problems = ingest(str(tmp_path / "shop")).problems
        assert problems
        assert list(problems) == check(tmp_path / "shop")

    def test_problems_of_files(self, tmp_path: Path) -> None:
        """Several at once, each in another table."""
        folder = tmp_path / "shop"
        write_parts(folder, SHOP, 2)
        (folder / "user_item" / "part-1.parquet").write_bytes(b"")
        whole = (folder / "user_bundle" / "part-0.parquet").read_bytes()
        (folder / "user_bundle" / "part-0.parquet").write_bytes(whole[:-9])
        (folder / "user_bundle" / "notes.txt").write_text("hello")
        in_parts(folder / "items", {"item_id": ["i4"], "price": ["much"]}, 1, first=7)
        in_parts(folder / "bundles.parquet", {"bundle_id": ["b1", "b6"]}, 1)
        in_parts(folder / "bundles", {"bundle_id": ["b1"]}, 1)
        problems = ingest(str(folder)).problems
        assert {problem.kind for problem in problems} == {
            "empty-file",
            "bad-parquet",
            "not-parquet",
            "mixed-types",
            "ambiguous-file",
        }
        assert list(problems) == check(folder)

    def test_damage_that_only_reading_finds(self, tmp_path: Path) -> None:
        write_parts(tmp_path / "shop", SHOP, 1)
        many = {"user_id": [f"user {n:03}" for n in range(60)], "item_id": ["i1", "i2"] * 30}
        in_parts(tmp_path / "shop" / "user_item", many, 3, group=5)
        for number in (0, 2):
            file = tmp_path / "shop" / "user_item" / f"part-{number}.parquet"
            file.write_bytes(b"PAR1" + b"\xff" * 600 + file.read_bytes()[604:])
        assert [problem.where for problem in ingest(str(tmp_path / "shop")).problems] == [
            "user_item/part-0.parquet",
            "user_item/part-2.parquet",
        ]

    @pytest.mark.parametrize("spoil", ["gone", "missing", "page"])
    def test_problems_of_single_files(self, tmp_path: Path, spoil: str) -> None:
        for table, columns in SHOP.items():
            pq.write_table(pa.table(dict(columns)), tmp_path / f"{table}.parquet", compression="gzip")
        file = tmp_path / "user_item.parquet"
        if spoil == "page":  # where only reading finds it
            content = file.read_bytes()
            file.write_bytes(content[:30] + bytes(30) + content[60:])
        elif spoil == "missing":
            file.rename(tmp_path / "user_items.parquet")
        location = tmp_path / "nowhere" if spoil == "gone" else tmp_path
        problems = ingest(str(location)).problems
        assert problems
        assert list(problems) == check(location)

    def test_what_does_not_fit_goes_to_disk(
        self, tmp_path: Path, only_duckdb: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        random = np.random.default_rng(0)
        users = [f"user with a long name {number:09}" for number in random.integers(0, 10**9, 600_000)]
        write_parts(tmp_path / "shop", SHOP, 1)
        in_parts(
            tmp_path / "shop" / "user_item", {"user_id": users, "item_id": ["i1"] * 600_000}, 3, group=10**5
        )
        monkeypatch.setattr("bundlemage.readers.ingest.BATCH_ROWS", 10**5)
        monkeypatch.setattr("bundlemage.readers.ingest.MEMORY", "60MB")
        monkeypatch.setattr("bundlemage.readers.ingest.THREADS", 2)
        spilled: set[str] = set()

        def look(*_: object) -> None:
            spilled.update(path.name for path in tmp_path.glob(".layout.*/spill-*/*"))

        ingest(str(tmp_path / "shop"), tmp_path / "layout", progress=look)
        in_memory(tmp_path / "shop", tmp_path / "expected", 100_000)
        assert spilled
        assert contents(tmp_path / "layout") == contents(tmp_path / "expected")

    @given(
        users=st.lists(
            st.text(min_size=1) | st.integers(-(10**19), 10**19).map(str), min_size=1, max_size=30
        ),
        shard_rows=st.integers(1, 9),
    )
    @settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_ids(self, users: list[str], shard_rows: int) -> None:
        with TemporaryDirectory() as name:
            folder = Path(name)
            change = {"user_id": users, "item_id": (ROWS["item_id"] * 6)[: len(users)]}
            try:
                write_parts(
                    folder / "shop",
                    {**SHOP, "user_item": change, "user_bundle": PAIR | {"user_id": users[:1]}},
                    2,
                )
            except UnicodeError:  # a lone surrogate, which no file holds
                return
            problems = check(folder / "shop")
            assert list(ingest(str(folder / "shop")).problems) == problems
            if all(problem.severity == "warning" for problem in problems):
                in_memory(folder / "shop", folder / "expected", shard_rows)
                ingest(str(folder / "shop"), folder / "layout", shard_rows)
                assert contents(folder / "layout") == contents(folder / "expected")

    def test_youshu(self, tmp_path: Path, only_duckdb: None) -> None:
        dataset = read(real_data("youshu/bgcn")).dataset
        for file in write_shop(dataset, tmp_path / "shop", "parquet"):
            table = pq.read_table(file)
            file.unlink()
            columns = {name: table[name] for name in table.column_names}
            in_parts(tmp_path / "shop" / file.stem, columns, 4, group=10_000)
        in_memory(tmp_path / "shop", tmp_path / "expected", 3000)
        assert ingest(str(tmp_path / "shop"), tmp_path / "layout", 3000).problems == ()
        assert contents(tmp_path / "layout") == contents(tmp_path / "expected")


class TestOutput:
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Path:
        write_parts(tmp_path / "shop", SHOP, 2)
        return tmp_path / "shop"

    def test_the_layout_is_the_data(self, shop: Path, tmp_path: Path) -> None:
        told = []
        done = ingest(
            str(shop),
            tmp_path / "layout",
            3,
            progress=lambda *step: told.append(step),
        )
        layout = Layout.open(tmp_path / "layout")
        assert done.layout == layout
        assert layout.sizes == {"users": 4, "items": 4, "bundles": 2}
        assert layout.pairs == {"user_item": 5, "user_bundle": 3, "bundle_item": 4}
        assert layout.dataset().fingerprint() == read(shop).dataset.fingerprint() == done.fingerprint
        assert layout.shard_rows == 3
        assert {what for what, _, _ in told} > {"reading user_item", "sorting ids", "writing"}
        assert all(0 <= done <= max(of, done) for _, done, of in told)

    @pytest.mark.parametrize("what", ["sample", "layout", "sqlite"])
    def test_data_of_other_kinds(self, shop: Path, tmp_path: Path, what: str) -> None:
        location = "sample"
        if what == "layout":
            ingest(str(shop), tmp_path / "first")
            location = str(tmp_path / "first")
        elif what == "sqlite":
            with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
                for table, columns in list(SHOP.items())[:3]:
                    database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                    database.executemany(
                        f"INSERT INTO {table} VALUES (?, ?)", zip(*columns.values(), strict=True)
                    )
                database.commit()
            location = f"sqlite:///{tmp_path / 'shop.db'}"
        done = ingest(location, tmp_path / "layout")
        assert done.fingerprint == read(location).dataset.fingerprint()

    def test_errors_leave_nothing(self, tmp_path: Path) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **BAD["missing ids"]}, 2)
        with pytest.raises(DataError, match="'user_id' is empty"):
            ingest(str(tmp_path / "shop"), tmp_path / "layout")
        assert [path.name for path in tmp_path.iterdir()] == ["shop"]

    def test_nothing_is_lost(self, shop: Path, tmp_path: Path) -> None:
        ingest(str(shop), tmp_path / "layout")
        before = contents(tmp_path / "layout")
        with pytest.raises(ConfigError, match="--overwrite"):
            ingest(str(shop), tmp_path / "layout")
        with pytest.raises(ConfigError, match="does not replace"):
            ingest(str(shop), shop, overwrite=True)
        with pytest.raises(ConfigError, match="at least one row"):
            ingest(str(shop), tmp_path / "other", 0)
        assert contents(tmp_path / "layout") == before
        ingest(str(shop), tmp_path / "layout", overwrite=True)
        assert contents(tmp_path / "layout") == before


class TestCommand:
    def test_ingest_and_what_is_said(self, tmp_path: Path) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **GOOD["empty bundles"]}, 2)
        command = ("data", "ingest", tmp_path / "shop", "-o", tmp_path / "layout", "--shard-rows", "2")
        said = run(*command, "--json")
        told = json.loads(said.stdout)
        assert (told["users"], told["user_item_pairs"], told["files"]) == (3, 5, 7)
        assert [problem["kind"] for problem in told["warnings"]] == ["empty-bundle", "empty-bundle"]
        assert told["fingerprint"] == read(tmp_path / "layout").dataset.fingerprint()
        assert "warning: user_bundle/part-0.parquet:2: bundle 'b8' has no items" in said.stderr
        assert "7 files in" in run(*command, "--overwrite").stdout

    @pytest.mark.parametrize("command", [("check", "sample"), ("ingest", "sample", "-o", "layout")])
    def test_it_needs_no_engine(self, command: tuple[str, ...]) -> None:
        assert "leave --engine out" in run("data", *command, "--engine", "ray", code=2).stderr


SLOW = """
import sys, time
from pathlib import Path
from bundlemage.readers.ingest import ingest

def wait(what, done, of):
    if what.startswith("writing") and done:
        print("writing", flush=True)
        time.sleep(60)

ingest(sys.argv[1], Path(sys.argv[2]), 2, overwrite=True, progress=wait)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    layout = tmp_path / "layout"
    ingest(str(tmp_path / "shop"), layout, 3)
    before = contents(layout)
    command = [sys.executable, "-c", SLOW, str(tmp_path / "shop"), str(layout)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGKILL)
    assert contents(layout) == before
    (left,) = [path for path in tmp_path.iterdir() if path.name not in ("shop", "layout")]
    assert any(left.iterdir())
    with pytest.raises(DataError):
        read(left)
    ingest(str(tmp_path / "shop"), layout, 2, overwrite=True)
    assert len(Layout.open(layout).parts("users")) == 2
