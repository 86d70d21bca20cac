"""Everyone of a large shop asked on Ray, killed in the middle and resumed: `python -m benchmarks.scoring`.

The shop has 10,000 items and 2,000 bundles, and as many users as asked for, with about 8 items and 2 bundles
each. The model is BundleMage with its first weights: how soon it answers does not depend on what it learned.
The kill is SIGKILL, to the command and to every process of Ray that it has started. That each user is there
once, with the ranks 1 to k, is asked of DuckDB, in a process that knows nothing of how parts are made.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ITEMS, BUNDLES, ITEMS_PER_BUNDLE = 10_000, 2_000, 6
K = 10


def make(users: int, folder: Path) -> None:
    """A model's folder."""
    import numpy as np
    import torch

    from bundlemage.artifact.files import Artifact, save_artifact
    from bundlemage.data.dataset import BundleDataset, Vocabulary, binary_matrix
    from bundlemage.data.splits import SplitPlan
    from bundlemage.models.base import Interactions, Learner, Sizes, require
    from bundlemage.models.registry import build, make_config

    random = np.random.default_rng(0)

    def pairs(rows: int, columns: int, mean: float) -> Any:
        row = np.repeat(np.arange(rows, dtype=np.int32), random.poisson(mean, rows))
        column = (columns * random.random(len(row), dtype=np.float32) ** 2).astype(np.int32)  # some sell more
        return binary_matrix(row, np.minimum(column, columns - 1), (rows, columns))

    contents = np.repeat(np.arange(BUNDLES), ITEMS_PER_BUNDLE)
    dataset = BundleDataset(
        user_item=pairs(users, ITEMS, 8),
        user_bundle=pairs(users, BUNDLES, 2),
        bundle_item=binary_matrix(contents, random.integers(0, ITEMS, len(contents)), (BUNDLES, ITEMS)),
        users=Vocabulary("user", [f"u{number:08d}" for number in range(users)]),
        items=Vocabulary("item", [f"i{number:05d}" for number in range(ITEMS)]),
        bundles=Vocabulary("bundle", [f"b{number:05d}" for number in range(BUNDLES)]),
        name="generated",
    )
    settings = make_config("bundlemage", {"embedding_dim": 32, "device": "cpu"})
    model = build("bundlemage", settings, Sizes.of(dataset))
    data = Interactions.of(dataset, torch.device("cpu"))
    model.observe(data)
    with torch.no_grad():
        require(model, Learner).settle(data)
    config = {
        "model": "bundlemage",
        "settings": settings.model_dump(mode="json"),
        "protocol": "none",
        "split": asdict(SplitPlan("none")),
    }
    save_artifact(Artifact(config, dict(model.state_dict()), dataset, metrics={}, history=""), folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak}))


def check(model: Path, answers: Path) -> None:
    """What is wrong with the answers, by plain SQL: how many of each, so all is well if all are 0."""
    import duckdb

    base = duckdb.connect(config={"memory_limit": "3GB", "threads": 1})
    base.execute(
        f"""create table answered as
        select user_id, count(*) as rows, count(distinct rank) as ranks, min(rank) as first,
               max(rank) as last, count(distinct bundle_id) as bundles, count(distinct filename) as files
        from read_parquet('{answers}/parts/*.parquet', filename = true) group by user_id"""
    )
    base.execute(f"create view asked as select user_id from read_parquet('{model}/users.parquet')")
    questions = {
        "missing": "select count(*) from asked anti join answered using (user_id)",
        "unknown": "select count(*) from answered anti join asked using (user_id)",
        "in_two_files": "select count(*) from answered where files > 1",
        "twice": f"select count(*) from answered where rows > {K}",
        "wrong_ranks": f"select count(*) from answered where first <> 1 or last <> {K} or ranks <> {K}",
        "bundle_twice": "select count(*) from answered where bundles <> rows",
    }
    print(json.dumps({name: base.execute(query).fetchone()[0] for name, query in questions.items()}))


def family(process: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            status = _read(folder / "stat").rpartition(")")[2].split()
            if status:
                children.setdefault(int(status[1]), []).append(int(folder.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found


def command_of(process: int) -> str:
    return _read(Path(f"/proc/{process}/cmdline"))


def _memory(process: int) -> int:
    """Its share of what it uses (PSS): what several processes use together counts once."""
    lines = _read(Path(f"/proc/{process}/smaps_rollup")).splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # ended meanwhile
        return ""


@dataclass(frozen=True)
class Ended:
    output: str
    seconds: float
    peak_bytes: int
    code: int


def run(arguments: list[str], parts: Path, kill_after: int | None) -> Ended:
    """A command; killed with all its processes as soon as so many parts are there."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "bundlemage", *arguments], stdout=said)
        while process.poll() is None:
            everyone = family(process.pid)
            peak = max(peak, sum(map(_memory, everyone)))
            if kill_after is not None and len(list(parts.glob("part-*.parquet"))) >= kill_after:
                for each in family(process.pid):
                    os.kill(each, signal.SIGKILL)
                process.wait()
            time.sleep(0.2)
        said.seek(0)
        return Ended(said.read(), time.monotonic() - began, peak, process.returncode)


def measure(users: int, scratch: Path, engine: str, part_users: int, workers: int | None) -> dict[str, Any]:
    model, answers = scratch / "model", scratch / "answers"
    began = time.monotonic()
    made = _asked("--make", str(users), str(model)) if not model.exists() else {"peak_bytes": None}
    making = time.monotonic() - began
    command = ["recommend-all", str(model), "-k", str(K), "-o", str(answers), "--engine", engine]
    command += ["--part-users", str(part_users), "--device", "cpu", "--json"]
    command += [] if workers is None else ["--workers", str(workers)]
    parts = -(-users // part_users)
    killed = run(command, answers / "parts", kill_after=parts // 2)
    if killed.code != -signal.SIGKILL:
        raise SystemExit(f"the command ended with {killed.code} before it could be killed")
    kept = len(list((answers / "parts").glob("part-*.parquet")))
    resumed = run([*command, "--resume"], answers / "parts", kill_after=None)
    if resumed.code:
        raise SystemExit(f"the command ended with {resumed.code}")
    done = json.loads(resumed.output)
    if done["kept"] != kept:
        raise SystemExit(f"{kept} parts were there, and {done['kept']} were kept")
    seconds = killed.seconds + resumed.seconds
    return {
        "users": users,
        "engine": engine,
        "model": "bundlemage, 32 numbers a vector, first weights",
        "rows": done["rows"],
        "seconds": round(seconds, 1),
        "users_per_second": round(users / seconds),
        "seconds_killed": round(killed.seconds, 1),
        "seconds_resumed": round(resumed.seconds, 1),
        "parts": parts,
        "parts_before_the_kill": kept,
        "peak_bytes": max(killed.peak_bytes, resumed.peak_bytes),
        "wrong": _asked("--check", str(model), str(answers)),
        "making": {"seconds": round(making, 1), **made},
        "left_behind": sum(1 for file in answers.rglob("*.tmp")),
    }


def _asked(*arguments: str) -> dict[str, Any]:
    """What another process of this module prints."""
    command = [sys.executable, "-m", "benchmarks.scoring", *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Everyone asked on Ray, killed in the middle and resumed.")
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--part-users", type=int, default=50_000)
    parser.add_argument("--engine", default="ray")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--scratch", type=Path, help="A folder to keep; if not said, one that is removed.")
    parser.add_argument("--make", nargs=2, metavar=("USERS", "FOLDER"), help="Only make a model.")
    parser.add_argument(
        "--check", nargs=2, type=Path, metavar=("MODEL", "ANSWERS"), help="Only check answers."
    )
    given = parser.parse_args()
    if given.make:
        make(int(given.make[0]), Path(given.make[1]))
    elif given.check:
        check(*given.check)
    else:
        with tempfile.TemporaryDirectory() as removed:
            scratch = given.scratch or Path(removed)
            found = measure(given.users, scratch, given.engine, given.part_users, given.workers)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
