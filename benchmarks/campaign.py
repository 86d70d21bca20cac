"""A large campaign, killed in the middle and resumed: `python -m benchmarks.campaign --users 100000`.

Each run is a process of its own, so that its peak memory is what it says. That limits are kept, and that no
user is there twice or missing, is checked by code that knows nothing of how campaigns are made.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from bundlemage.data.dataset import BundleDataset
from bundlemage.sample.generate import sample_shop

FACTS = ["price", "to_pay", "owned_items", "missing_items", "sold_out"]
COLUMNS = ["user_id", "rank", "bundle_id", "chance", "value", *FACTS]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All that is shown, as plain rows."""
    parts = folder / "parts"
    if any(parts.glob("*.jsonl")):
        lines = [file.read_text(encoding="utf-8") for file in sorted(parts.glob("*.jsonl"))]
        return [json.loads(line) for text in lines for line in text.split("\n") if line]
    form = "csv" if any(parts.glob("*.csv")) else "parquet"
    rows: list[dict[str, Any]] = ds.dataset(parts, format=form).to_table().to_pylist()
    return rows


def faults(
    rows: Sequence[dict[str, Any]],
    dataset: BundleDataset,
    users: Sequence[str],
    *,
    per_user: int = 1,
    stock: bool = False,
    shown_at_most: int | None = None,
    different_at_most: int | None = None,
    budget: float | None = None,
    reserve: str = "shown",
    value: str = "sales",
) -> list[str]:
    """What is wrong with a campaign, in plain loops; nothing, if all is well."""
    found = []
    assert dataset.catalogue is not None
    items = dataset.catalogue.items.to_pylist()
    bundles = {row["bundle_id"]: row for row in dataset.catalogue.bundles.to_pylist()}
    inside = {
        name: [items[place] for place in dataset.bundle_item[number].indices]
        for number, name in enumerate(dataset.bundles)
    }
    has = {
        name: {dataset.bundles[place] for place in dataset.user_bundle[number].indices}
        for number, name in enumerate(dataset.users)
    }
    of_user: dict[str, list[dict[str, Any]]] = {}
    order = []
    used: Counter[str] = Counter()
    times: Counter[str] = Counter()
    spent = 0.0
    for row in rows:
        if list(row) != COLUMNS:
            found.append(f"columns {list(row)}")
        if row["user_id"] not in of_user:
            order.append(row["user_id"])
        elif order[-1] != row["user_id"]:
            found.append(f"user {row['user_id']} is served at two places")
        of_user.setdefault(row["user_id"], []).append(row)
        share = 1.0 if reserve == "shown" else row["chance"]
        for item in inside[row["bundle_id"]]:
            used[item["item_id"]] += share  # type: ignore[assignment]
        times[row["bundle_id"]] += 1
        bundle = bundles[row["bundle_id"]]
        worth = row["chance"] * (bundle["price"] if value == "takings" else 1.0)
        if not 0 < row["chance"] <= 1 or abs(row["value"] - worth) > 1e-9 * worth:
            found.append(f"chance {row['chance']} and value {row['value']} where {worth} is right")
        if row["price"] != bundle["price"]:
            found.append(f"price {row['price']} of {row['bundle_id']}")
        if budget is not None:
            spent += share * bundle["discount"] * sum(item["price"] for item in inside[row["bundle_id"]])
    places = {name: place for place, name in enumerate(users)}
    if [places.get(name, -1) for name in order] != sorted(places.get(name, -1) for name in order):
        found.append("users do not follow each other as they were given")
    for name, shown in of_user.items():
        ids = [row["bundle_id"] for row in shown]
        if name not in places:
            found.append(f"user {name} was not asked for")
        if len(set(ids)) < len(ids) or len(ids) > per_user or set(ids) & has[name]:
            found.append(f"user {name} is shown {ids} and has {has[name]}")
        if [row["rank"] for row in shown] != list(range(1, len(shown) + 1)):
            found.append(f"ranks of user {name}")
        if [row["value"] for row in shown] != sorted((row["value"] for row in shown), reverse=True):
            found.append(f"the best of user {name} does not come first")
    tolerance = 1e-6
    if stock:
        found += [
            f"{used[item['item_id']]} of item {item['item_id']}, stock {item['stock']}"
            for item in items
            if used[item["item_id"]] > item["stock"] + tolerance
        ]
    if shown_at_most is not None and max(times.values(), default=0) > shown_at_most:
        found.append(f"a bundle is shown {max(times.values())} times")
    if different_at_most is not None and len(times) > different_at_most:
        found.append(f"{len(times)} different bundles")
    if budget is not None and spent > budget + tolerance:
        found.append(f"discounts cost {spent}")
    return found


@dataclass(frozen=True)
class Ended:
    """A process that came to its end, or to ours."""

    output: str
    seconds: float
    peak_bytes: int
    code: int


def run(arguments: Sequence[str], *, threads: int, kill_after: Path | None = None) -> Ended:
    """A command in a process of its own; killed without warning as soon as a file is there."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "bundlemage", *arguments], stdout=said, env=environment
        )
        while process.poll() is None:
            # Of the process alone; what `wait4` tells may be the peak of the one that started it.
            peak = max(peak, _peak_bytes(process.pid))
            if kill_after is not None and kill_after.exists():
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.005)
        said.seek(0)
        return Ended(said.read(), time.monotonic() - began, peak, process.returncode)


def _peak_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # ended meanwhile
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure(users: int, threads: int, scratch: Path) -> dict[str, Any]:
    from bundlemage import Recommender

    dataset = sample_shop(
        users=users, items=3_000, bundles=600, items_per_user=12, bundles_per_user=4, items_per_bundle=6
    ).dataset
    model = scratch / "model"
    began = time.monotonic()
    Recommender(epochs=2, embedding_dim=32, device="cpu").fit(dataset, progress=False).save(model)
    trained = time.monotonic() - began
    limits: dict[str, Any] = {
        "stock": True,
        "shown_at_most": max(1, users // 500),
        "different_at_most": 200,
        "budget": users * 3.5,
    }
    options = ["--stock"]
    for name in ("shown_at_most", "different_at_most", "budget"):
        options += [f"--{name.replace('_', '-')}", str(limits[name])]
    command = ["campaign", str(model), *options, "--device", "cpu", "--json", "-o"]
    parts = -(-users // 8192)
    killed = run(
        [*command, str(scratch / "killed")],
        threads=threads,
        kill_after=scratch / "killed" / "parts" / f"part-{parts // 2:05d}.parquet",
    )
    if killed.code != -signal.SIGKILL:
        raise SystemExit(f"the campaign ended with {killed.code} before it could be killed")
    done = len(list((scratch / "killed" / "parts").glob("part-*")))
    resumed = run([*command, str(scratch / "killed"), "--resume"], threads=threads)
    whole = run([*command, str(scratch / "whole")], threads=threads)
    for ended in (resumed, whole):
        if ended.code:
            raise SystemExit(f"the campaign ended with {ended.code}")
    wrong = faults(rows_of(scratch / "killed"), dataset, dataset.users.ids, **limits)
    names = [
        sorted(str(file.relative_to(scratch / run)) for file in (scratch / run).rglob("*") if file.is_file())
        for run in ("whole", "killed")
    ]
    same = names[0] == names[1] and all(
        (scratch / "whole" / name).read_bytes() == (scratch / "killed" / name).read_bytes()
        for name in names[0]
    )
    summary = json.loads(whole.output)
    return {
        "users": users,
        "bundles": len(dataset.bundles),
        "items": len(dataset.items),
        "threads": threads,
        "training_seconds": round(trained, 1),
        "seconds": round(whole.seconds, 1),
        "peak_megabytes": round(whole.peak_bytes / 2**20),
        "killed_after_parts": f"{done} of {parts}",
        "seconds_killed_and_resumed": [round(killed.seconds, 1), round(resumed.seconds, 1)],
        "peak_megabytes_killed_and_resumed": [round(ended.peak_bytes / 2**20) for ended in (killed, resumed)],
        "same_files": same,
        "faults": wrong[:5],
        "share_of_bound": round(summary["share_of_bound"], 4),
        "share_of_unconstrained": round(summary["share_of_unconstrained"], 4),
        "with_nothing": summary["with_nothing"],
        "shown": summary["shown"],
        "limits": {
            name: {k: v for k, v in use.items() if k != "tightest"} for name, use in summary["limits"].items()
        },
        "chances": summary["chances"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(given.users, given.threads, Path(scratch))
    print(json.dumps(found, indent=2))
    if found["faults"] or not found["same_files"]:
        raise SystemExit("the campaign is not as it must be")


if __name__ == "__main__":
    main()
