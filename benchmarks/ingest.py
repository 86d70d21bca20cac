"""Ingesting within a limit of memory: `python -m benchmarks.ingest --rows 50000000 --limit-gb 4`.

The tables are generated in parts. Each way runs in a memory cgroup of its own: `command` is
`bundlemage data ingest`, `in-memory` reads all tables at once. What each has written is compared with the
source by SQL, and the ways with each other, byte by byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.setting import ROOT

_GIGABYTE = 2**30
_CGROUPS = Path("/sys/fs/cgroup/memory")
_PART_ROWS, _GROUP_ROWS = 1_000_000, 250_000


def generate(folder: Path, rows: int, events: bool, seed: int = 0) -> None:
    """A tenth as many users as rows, up to 200,000 items and 20,000 bundles; ids are text. With `events`, the
    rows of user_item have times and weights."""
    random = np.random.default_rng(seed)
    users, items, bundles = max(rows // 10, 10), min(200_000, rows // 10), min(20_000, rows // 100)
    for number, start in enumerate(range(0, rows, _PART_ROWS)):
        count = min(_PART_ROWS, rows - start)
        popular = (items * random.random(count) ** 3).astype(np.int64)
        pairs = {"user_id": random.integers(0, users, count), "item_id": popular}
        facts: dict[str, Any] = {}
        if events:
            moments = random.integers(10**15, 2 * 10**15, count)
            facts = {"at": pa.array(moments, pa.timestamp("us")), "weight": 0.1 + random.random(count)}
        _write(folder, "user_item", number, **pairs, **facts)
        count = max(count // 10, 1)
        taken = (bundles * random.random(count) ** 2).astype(np.int64)
        _write(folder, "user_bundle", number, user_id=random.integers(0, users, count), bundle_id=taken)
    inside = random.integers(0, items, bundles * 10)
    _write(folder, "bundle_item", 0, bundle_id=np.repeat(np.arange(bundles), 10), item_id=inside)
    _write(
        folder, "items", 0, item_id=np.arange(items), price=pa.array(random.integers(1, 9999, items) / 100)
    )


def _write(folder: Path, table: str, part: int, **columns: Any) -> None:
    named = {
        name: pc.binary_join_element_wise(
            name.removesuffix("id"), pa.array(values * 7919 % 2**31).cast(pa.string()), ""
        )
        if name.endswith("_id")
        else values
        for name, values in columns.items()
    }
    path = folder / table / f"part-{part:05}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(named), path, row_group_size=_GROUP_ROWS)


class Watch:
    """The memory of a process and of all that it starts."""

    def __init__(self, limit: int) -> None:
        self._limit, self.peak = limit, 0
        self.group: Path | None = None
        try:
            group = _CGROUPS / f"bundlemage-ingest-{os.getpid()}"
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(limit))
            self.group = group
        except OSError as error:
            print(f"no limit could be set ({error}): memory is only sampled", file=sys.stderr)

    def enter(self) -> None:
        """In the new process, before it does anything."""
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

    @contextmanager
    def sampling(self, process: int) -> Iterator[None]:
        done = threading.Event()

        def sample() -> None:
            while not done.wait(0.5):
                self.peak = max(self.peak, self._in_group() if self.group else _of_family(process))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _in_group(self) -> int:
        """What processes hold and what they share; not what the system keeps of files while there is room."""
        assert self.group is not None
        lines = (self.group / "memory.stat").read_text().splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
        return stat["total_rss"] + stat.get("total_shmem", stat.get("total_mapped_file", 0))

    def close(self) -> dict[str, Any]:
        if self.group is None:
            return {"limit_gb": None}
        killed = dict(line.split() for line in (self.group / "memory.oom_control").read_text().splitlines())
        highest = int((self.group / "memory.max_usage_in_bytes").read_text())
        for _ in range(50):  # processes take a moment to end
            try:
                self.group.rmdir()
                break
            except OSError:
                time.sleep(0.2)
        return {
            "limit_gb": self._limit / _GIGABYTE,
            "peak_gb_with_file_cache": round(highest / _GIGABYTE, 2),
            "killed_for_memory": int(killed.get("oom_kill", 0)),
        }


def _of_family(process: int) -> int:
    """The sum of PSS of a process and of its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = {process}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    total = 0
    for member in family:
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


VERIFY = """
import json, sys
import duckdb
source, layout, scratch, shard_rows = sys.argv[1:5]
db = duckdb.connect(f"{scratch}/verify.duckdb")
for setting in (
    "memory_limit='6GB'",
    "threads=2",
    f"temp_directory='{scratch}'",
    "preserve_insertion_order=false",
    "enable_progress_bar=false",
):
    db.execute(f"SET {setting}")
def one(query): return db.execute(query).fetchone()
def table(name): return f"read_parquet('{source}/{name}/*.parquet')"
def union(column, *names): return " UNION ".join(f"SELECT {column} FROM {table(name)}" for name in names)
def part(kind): return f"read_parquet('{layout}/{kind}/*.parquet', filename=true, file_row_number=true)"
wanted = {
    "users": one(f"SELECT count(*) FROM ({union('user_id', 'user_item', 'user_bundle')})")[0],
    "items": one(f"SELECT count(*) FROM ({union('item_id', 'user_item', 'bundle_item', 'items')})")[0],
    "bundles": one(f"SELECT count(*) FROM ({union('bundle_id', 'user_bundle', 'bundle_item')})")[0],
}
found = {kind: one(f"SELECT count(*) FROM {part(kind)}")[0] for kind in wanted}
for kind in ("items", "bundles"):
    column = kind[:-1] + "_id"
    db.execute(
        f"CREATE TABLE {kind} AS SELECT {column} AS name, file_row_number + {shard_rows} * "
        f"CAST(regexp_extract(filename, 'part-([0-9]+)', 1) AS BIGINT) AS position FROM {part(kind)}"
    )
for name, owner, files, other in (
    ("user_item", "user_id", "users", "items"),
    ("user_bundle", "user_id", "users", "bundles"),
    ("bundle_item", "bundle_id", "bundles", "items"),
):
    thing = other[:-1] + "_id"
    # Order does not matter to a sum of hashes; a pair that is missing, wrong or there twice does.
    sums = "count(*), sum(hash(a, b) % 1000000007)"
    wanted[name] = one(f"SELECT {sums} FROM (SELECT DISTINCT {owner} AS a, {thing} AS b FROM {table(name)})")
    found[name] = one(
        f"SELECT {sums} FROM (SELECT owner AS a, name AS b FROM "
        f"(SELECT {owner} AS owner, unnest({other}) AS place FROM {part(files)}) "
        f"JOIN {other} ON place = position)"
    )
print(json.dumps({"same": wanted == found, "found": found, "wanted": wanted}, default=int))
"""


IN_MEMORY = """
import json, sys
from pathlib import Path
from bundlemage.data.shards import write_layout
from bundlemage.readers.load import read
write_layout(read(sys.argv[1]).dataset, Path(sys.argv[2]), overwrite=True)
"""
WAYS = {
    "command": ["-m", "bundlemage", "data", "ingest", "{source}", "-o", "{layout}", "--overwrite", "--json"],
    "in-memory": ["-c", IN_MEMORY, "{source}", "{layout}"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000_000, help="of user_item")
    parser.add_argument("--limit-gb", type=float, default=4.0, help="of memory, for each way")
    parser.add_argument("--ways", default="command", help=f"with commas between them: {', '.join(WAYS)}")
    parser.add_argument("--events", action="store_true", help="rows of user_item have times and weights")
    parser.add_argument(
        "--folder", type=Path, help="for the tables and the layouts; they are kept, and used again"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        source = folder / f"tables-{chosen.rows}{'-events' * chosen.events}"
        if not source.exists():
            generate(source, chosen.rows, chosen.events)
        layouts = {}
        for way in chosen.ways.split(","):
            layout = folder / f"layout-{way}"
            measured = _ingest(way, source, layout, chosen.limit_gb)
            speed = round(chosen.rows / measured["seconds"])
            print(
                json.dumps({"way": way, "rows": chosen.rows, **measured, "rows_per_second": speed}),
                flush=True,
            )
            if not measured["failed"]:
                layouts[way] = layout
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    arguments = (str(source), str(layout), scratch, "100000")
                    subprocess.run([sys.executable, "-c", VERIFY, *arguments], check=True)
        same = len({_digest(layout) for layout in layouts.values()}) == 1
        print(json.dumps({"ways": list(layouts), "the same bytes": same}))


def _digest(layout: Path) -> str:
    """Of the file that lists all others with their checksums."""
    return hashlib.sha256((layout / "layout.json").read_bytes()).hexdigest()


def _ingest(way: str, source: Path, layout: Path, limit_gb: float) -> dict[str, Any]:
    watch = Watch(int(limit_gb * _GIGABYTE))
    command = [{"{source}": str(source), "{layout}": str(layout)}.get(part, part) for part in WAYS[way]]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        preexec_fn=watch.enter,
    )
    with process, watch.sampling(process.pid):
        process.communicate()
    seconds = time.monotonic() - began
    return {
        "seconds": round(seconds, 1),
        "failed": bool(process.returncode),
        "peak_gb": round(watch.peak / _GIGABYTE, 2),
        **watch.close(),
    }


if __name__ == "__main__":
    main()
