"""Ten million user-item rows load within the promised time and memory, whatever the ids are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS, CORES = 10_000_000, 2
LIMITS = {"ids": (20, 2000), "events": (25, 2500)}
"""The most seconds and megabytes, for tables of ids alone and with times and weights."""

# Both run in processes of their own: a process inherits the peak memory of the one that starts it.
MAKE = """
import sys, uuid
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, kind, columns, rows = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
random = np.random.default_rng(0)
names = pa.array([str(uuid.UUID(int=n * 7919 << 64 | n)) for n in range(1_000_000)])

def write(table, **columns):
    if kind == "uuid":
        columns = {
            name: names.take(pa.array(values)) if name.endswith("_id") else values
            for name, values in columns.items()
        }
    pq.write_table(pa.table(columns), f"{folder}/{table}.parquet")

known = {}
pairs = {"user_id": random.integers(0, 1_000_000, rows), "item_id": random.zipf(1.3, rows) % 200_000}
if columns == "events":
    known = {"at": pa.array(random.integers(10**15, 2 * 10**15, rows)).cast(pa.timestamp("us"))}
    known["weight"] = random.random(rows) * 5
write("user_item", **pairs, **known)
users, bundles = random.integers(0, 1_000_000, 500_000), random.integers(0, 20_000, 500_000)
write("user_bundle", user_id=users, bundle_id=bundles)
write("bundle_item", bundle_id=np.repeat(np.arange(20_000), 10), item_id=random.integers(0, 200_000, 200_000))
"""
LOAD = """
import json, os, resource, sys, time
from pathlib import Path
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[2])])
start = time.perf_counter()
from bundlemage.readers.load import read
dataset = read(Path(sys.argv[1])).dataset
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
known = [name for name, value in vars(dataset.item_events).items() if value is not None]
cpu = time.process_time()
sizes = {"cpu_seconds": cpu, "pairs": dataset.user_item.nnz, "users": len(dataset.users), "known": known}
print(json.dumps({"seconds": seconds, "megabytes": peak, **sizes}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", LIMITS)
@pytest.mark.parametrize("kind", ["integer", "uuid"])
def test_ten_million_rows_of_parquet(kind: str, columns: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path), kind, columns, str(ROWS)], check=True)
    command = [sys.executable, "-c", LOAD, str(tmp_path), str(CORES)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(measured)
    assert measured["users"] > 990_000
    assert measured["pairs"] > 7_000_000
    assert measured["known"] == (["at", "weight"] if columns == "events" else [])
    seconds, megabytes = LIMITS[columns]
    assert measured["seconds"] < seconds
    assert measured["megabytes"] < megabytes
