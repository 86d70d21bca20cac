"""Ingesting: on every engine the same files, byte for byte, and the same problems in the same words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.shards import Layout
from bundlemage.engines.base import Engine, engine
from bundlemage.engines.ingesting import IngestJob
from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.readers.load import read
from bundlemage.sample.generate import sample_shop, write_shop
from tests.cli.run import run
from tests.parted_tables import SHOP, in_parts, write_parts
from tests.real_data import real_data

UUIDS = [UUID(int=number).bytes for number in (2**127, 7, 2**64, 9, 1)]
ROWS = {"item_id": ["i1", "i2", "i1", "i3", "i2"]}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def users(*values: Any, kind: pa.DataType | None = None) -> dict[str, Any]:
    """A table of user_item whose users have these ids."""
    column = values[0] if isinstance(values[0], pa.Array) else pa.array(values, kind)
    return {"user_item": {"user_id": column, "item_id": (ROWS["item_id"] * 5)[: len(column)]}}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are then as divided as billions would be."""
    monkeypatch.setattr("bundlemage.engines.ray.ingest_survey._LEAST_ROWS", 2)
    monkeypatch.setattr("bundlemage.engines.ray.ingest_survey._BLOCK", 0)
    monkeypatch.setattr("bundlemage.engines.ray.ingesting._PIECES_IN_A_RANGE", 2)


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


def both(folder: Path, change: Mapping[str, Any], parts: int) -> tuple[list[Problem], list[Problem]]:
    write_parts(folder, {**SHOP, **change}, parts)
    job = IngestJob(str(folder))
    return list(engine("local").ingest(job).problems), list(engine("ray").ingest(job).problems)


@pytest.mark.usefixtures("ray_cluster", "small_pieces")
class TestTheSameOnBoth:
    @pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
    def test_files_and_warnings(self, tmp_path: Path, change: Mapping[str, Any]) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **change}, 2)
        done, stages = {}, {}
        for name in ("local", "ray"):
            job = IngestJob(str(tmp_path / "shop"), tmp_path / name, shard_rows=2)
            done[name] = engine(name).ingest(job, lambda what, _, of: stages.update({what: of}))
        assert stages["ordering users"] > 1
        assert stages["sharing out user_item"] > 1
        assert contents(tmp_path / "local") == contents(tmp_path / "ray")
        for field in ("problems", "sizes", "pairs", "files", "fingerprint", "name"):
            assert getattr(done["local"], field) == getattr(done["ray"], field)
        assert read(tmp_path / "shop").dataset.fingerprint() == done["ray"].fingerprint

    @pytest.mark.parametrize("change", BAD.values(), ids=BAD)
    def test_problems(self, tmp_path: Path, change: Mapping[str, Any]) -> None:
        local, ray = both(tmp_path / "shop", change, 3)
        assert any(problem.severity == "error" for problem in local)
        assert ray == local

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
        local, ray = (list(engine(name).ingest(IngestJob(str(folder))).problems) for name in ("local", "ray"))
        assert {problem.kind for problem in local} == {
            "empty-file",
            "bad-parquet",
            "not-parquet",
            "mixed-types",
            "ambiguous-file",
        }
        assert ray == local

    def test_damage_that_only_reading_finds(self, tmp_path: Path) -> None:
        """Each file once, though it is read in pieces."""
        write_parts(tmp_path / "shop", SHOP, 1)
        many = {"user_id": [f"user {n:03}" for n in range(60)], "item_id": ["i1", "i2"] * 30}
        in_parts(tmp_path / "shop" / "user_item", many, 3, group=5)
        for number in (0, 2):
            file = tmp_path / "shop" / "user_item" / f"part-{number}.parquet"
            file.write_bytes(b"PAR1" + b"\xff" * 600 + file.read_bytes()[604:])
        local, ray = (
            list(engine(name).ingest(IngestJob(str(tmp_path / "shop"))).problems) for name in ("local", "ray")
        )
        assert [problem.where for problem in local] == [
            "user_item/part-0.parquet",
            "user_item/part-2.parquet",
        ]
        assert ray == local

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
        location = str(tmp_path / "nowhere" if spoil == "gone" else tmp_path)
        local, ray = (list(engine(name).ingest(IngestJob(location)).problems) for name in ("local", "ray"))
        assert local
        assert ray == local


@pytest.mark.usefixtures("ray_cluster")
class TestShops:
    def same(self, dataset: BundleDataset, folder: Path, parts: int | None, shard_rows: int) -> None:
        _as_parquet(dataset, folder / "shop", parts)
        for name in ("local", "ray"):
            job = IngestJob(str(folder / "shop"), folder / name, shard_rows)
            assert engine(name).ingest(job).problems == ()
        assert contents(folder / "local") == contents(folder / "ray")
        assert read(folder / "ray").dataset.catalogue == dataset.catalogue

    @pytest.mark.parametrize("parts", [None, 3])
    def test_the_sample_shop(self, tmp_path: Path, parts: int | None) -> None:
        self.same(sample_shop().dataset, tmp_path, parts, 170)

    def test_youshu(self, tmp_path: Path) -> None:
        self.same(read(real_data("youshu/bgcn")).dataset, tmp_path, 4, 3000)


def _as_parquet(dataset: BundleDataset, folder: Path, parts: int | None) -> None:
    for file in write_shop(dataset, folder, "parquet"):
        if parts is not None:
            table = pq.read_table(file)
            file.unlink()
            in_parts(
                folder / file.stem, {name: table[name] for name in table.column_names}, parts, group=10_000
            )


class TestOnAnyEngine:
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Path:
        write_parts(tmp_path / "shop", SHOP, 2)
        return tmp_path / "shop"

    def test_the_layout_is_the_data(self, any_engine: Engine, shop: Path, tmp_path: Path) -> None:
        told = []
        done = any_engine.ingest(
            IngestJob(str(shop), tmp_path / "layout", 3), lambda what, done, of: told.append((what, done, of))
        )
        assert done.sizes == {"users": 4, "items": 4, "bundles": 2}
        assert done.pairs == {"user_item": 5, "user_bundle": 3, "bundle_item": 4}
        layout = Layout.open(tmp_path / "layout")
        assert layout.dataset().fingerprint() == read(shop).dataset.fingerprint() == done.fingerprint
        assert layout.shard_rows == 3
        assert told
        assert all(0 <= done <= max(of, done) for _, done, of in told)

    def test_errors_leave_nothing(self, any_engine: Engine, tmp_path: Path) -> None:
        write_parts(tmp_path / "shop", {**SHOP, **BAD["missing ids"]}, 2)
        with pytest.raises(DataError, match="'user_id' is empty"):
            any_engine.ingest(IngestJob(str(tmp_path / "shop"), tmp_path / "layout"))
        assert [path.name for path in tmp_path.iterdir()] == ["shop"]

    def test_nothing_is_lost(self, any_engine: Engine, shop: Path, tmp_path: Path) -> None:
        job = IngestJob(str(shop), tmp_path / "layout")
        any_engine.ingest(job)
        before = contents(tmp_path / "layout")
        with pytest.raises(ConfigError, match="--overwrite"):
            any_engine.ingest(job)
        with pytest.raises(ConfigError, match="does not replace"):
            any_engine.ingest(IngestJob(str(shop), shop, overwrite=True))
        with pytest.raises(ConfigError, match="at least one row"):
            any_engine.ingest(IngestJob(str(shop), tmp_path / "other", 0))
        assert contents(tmp_path / "layout") == before
        any_engine.ingest(IngestJob(str(shop), tmp_path / "layout", overwrite=True))
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

    def test_an_address_is_for_ray(self) -> None:
        assert "--engine ray" in run("data", "check", "sample", "--address", "auto", code=2).stderr


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("what", ["sample", "csv", "layout", "sqlite:///shop.db"])
def test_what_ray_does_not_read(tmp_path: Path, what: str) -> None:
    location = what
    if what == "csv":
        location = str(tmp_path / "shop")
        write_shop(sample_shop(users=20, items=30, bundles=10).dataset, tmp_path / "shop", "csv")
    elif what == "layout":
        write_parts(tmp_path / "shop", SHOP, 2)
        engine("local").ingest(IngestJob(str(tmp_path / "shop"), tmp_path / "layout"))
        location = str(tmp_path / "layout")
    with pytest.raises(DataError, match="use --engine local"):
        engine("ray").ingest(IngestJob(location, tmp_path / "new"))


@pytest.mark.usefixtures("ray_cluster", "small_pieces")
class TestMisfortunes:
    def test_a_worker_that_is_killed_is_replaced(self, tmp_path: Path) -> None:
        import ray

        write_parts(tmp_path / "shop", SHOP, 2)
        engine("local").ingest(IngestJob(str(tmp_path / "shop"), tmp_path / "local", 2))
        killed = []

        def kill(what: str, done: int, of: int) -> None:
            if what in ("sharing out user_item", "writing users") and done == 1:
                killed.append(ray.get(ray.remote(lambda: os.getpid()).remote()))
                os.kill(killed[-1], signal.SIGKILL)

        engine("ray").ingest(IngestJob(str(tmp_path / "shop"), tmp_path / "ray", 2), kill)
        assert len(killed) == 2
        assert contents(tmp_path / "ray") == contents(tmp_path / "local")

    @pytest.mark.parametrize("how", ["gone", "other"])
    def test_a_table_that_changes_meanwhile(self, tmp_path: Path, how: str) -> None:
        write_parts(tmp_path / "shop", SHOP, 2)
        file = tmp_path / "shop" / "user_item" / "part-0.parquet"

        def change(what: str, done: int, of: int) -> None:
            if what == "sharing out user_item" and done == 0:
                file.unlink()
                if how == "other":
                    in_parts(file.parent, {"user_id": ["x"] * 3, "item_id": ["i77"] * 3}, 1)

        with pytest.raises(DataError, match=r"user_item/.* (changed|No such file)"):
            engine("ray").ingest(IngestJob(str(tmp_path / "shop"), tmp_path / "ray", 2), change)
        assert [path.name for path in tmp_path.iterdir()] == ["shop"]


SLOW = """
import sys, time
from pathlib import Path
from bundlemage.engines.base import engine
from bundlemage.engines.ingesting import IngestJob

def wait(what, done, of):
    if what.startswith("writing") and done:
        print("writing", flush=True)
        time.sleep(60)

engine("local").ingest(IngestJob(sys.argv[1], Path(sys.argv[2]), 2, overwrite=True), wait)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    write_parts(tmp_path / "shop", SHOP, 2)
    layout = tmp_path / "layout"
    engine("local").ingest(IngestJob(str(tmp_path / "shop"), layout, 3))
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
    engine("local").ingest(IngestJob(str(tmp_path / "shop"), layout, 2, overwrite=True))
    assert len(Layout.open(layout).parts("users")) == 2
