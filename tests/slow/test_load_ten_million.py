"""Ten million user-item rows load within the promised time and memory, whatever the ids are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS, SECONDS, MEGABYTES, CORES = 10_000_000, 20, 2000, 2

# Both run in processes of their own: a process inherits the peak memory of the one that starts it.
MAKE = """
import sys, uuid
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, kind, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
random = np.random.default_rng(0)
names = pa.array([str(uuid.UUID(int=n * 7919 << 64 | n)) for n in range(1_000_000)])

def write(table, **columns):
    if kind == "uuid":
        columns = {name: names.take(pa.array(values)) for name, values in columns.items()}
    pq.write_table(pa.table(columns), f"{folder}/{table}.parquet")

write("user_item", user_id=random.integers(0, 1_000_000, rows), item_id=random.zipf(1.3, rows) % 200_000)
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
sizes = {"pairs": dataset.user_item.nnz, "users": len(dataset.users)}
print(json.dumps({"seconds": seconds, "megabytes": peak, **sizes}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["integer", "uuid"])
def test_ten_million_rows_of_parquet(kind: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path), kind, str(ROWS)], check=True)
    command = [sys.executable, "-c", LOAD, str(tmp_path), str(CORES)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(measured)
    assert measured["users"] > 990_000
    assert measured["pairs"] > 7_000_000
    assert measured["seconds"] < SECONDS
    assert measured["megabytes"] < MEGABYTES
