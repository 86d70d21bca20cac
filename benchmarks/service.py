"""How fast the live service answers: `python -m benchmarks.service`, with wrk (a Debian package) as client.

A sample model, many users in the store, one process of the service, wrk beside it on loopback; in the middle
of the run another model takes the place of the first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from bundlemage import Recommender, sample_shop
from bundlemage.client import Client
from bundlemage.data.dataset import BundleDataset, Vocabulary, binary_matrix
from bundlemage.errors import BundleMageError
from bundlemage.store.repository import Store

SCRIPT = """
local number = {seed}
function request()
  number = (number * 1103515245 + 12345) % 2147483648
  return wrk.format("GET", string.format("/v1/users/c%07d/bundles?k={k}", math.floor(number / 8) % {users}))
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('\\nFIGURES {{"requests": %d, "microseconds": %d, "p50": %d, "p90": %d, ' ..
    '"p99": %d, "most": %d, "connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(90),
    latency:percentile(99), latency.max, errors.connect, errors.read, errors.write, errors.status,
    errors.timeout))
end
"""
console = Console(highlight=False)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Outcome:
    users: int
    connections: int
    seconds: float
    requests: int
    per_second: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    most_ms: float
    errors: int
    served_before: str
    served_after: str
    reload_s: float
    memory_mb: float


def customers(count: int, seed: int = 0) -> BundleDataset:
    """The sample shop with many more users, each with most of what a user of the sample has."""
    shop = sample_shop().dataset
    random = np.random.default_rng(seed)
    like = random.integers(0, len(shop.users), count)

    def drawn(matrix: Any) -> Any:
        rows = matrix[like]
        owners = np.repeat(np.arange(count), np.diff(rows.indptr))
        kept = random.random(len(owners)) > 0.1
        return binary_matrix(owners[kept], rows.indices[kept], rows.shape)

    return BundleDataset(
        drawn(shop.user_item),
        drawn(shop.user_bundle),
        shop.bundle_item,
        Vocabulary("user", [f"c{number:07d}" for number in range(count)]),
        shop.items,
        shop.bundles,
        shop.catalogue,
        "sample",
    )


@app.command()
def main(
    users: Annotated[int, typer.Option(help="How many users the store knows.")] = 100_000,
    seconds: Annotated[int, typer.Option(help="How long wrk asks.")] = 60,
    connections: Annotated[int, typer.Option(help="How many ask at the same time.")] = 16,
    k: Annotated[int, typer.Option(help="How many bundles each wants.")] = 10,
    epochs: Annotated[int | None, typer.Option(help="Fewer for a trial.")] = None,
    db: Annotated[str | None, typer.Option(help="An empty PostgreSQL database; else a SQLite file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Requests per second, latency and errors under load, with a change of models in the middle."""
    if shutil.which("wrk") is None:
        console.print("wrk is not installed: apt-get install wrk")
        raise typer.Exit(2)
    with tempfile.TemporaryDirectory() as scratch:
        outcome = measured(Path(scratch), users, seconds, connections, k, epochs, db)
    console.print(
        f"{outcome.users:,} users in the store, {outcome.connections} connections, {outcome.seconds:.0f} s: "
        f"[bold]{outcome.per_second:,.0f} recommendations/s[/], p50 {outcome.p50_ms:.1f}, "
        f"p90 {outcome.p90_ms:.1f}, [bold]p99 {outcome.p99_ms:.1f} ms[/], most {outcome.most_ms:.0f} ms; "
        f"{outcome.requests:,} requests, [bold]{outcome.errors} errors[/]\n"
        f"model {outcome.served_before} → {outcome.served_after} in the middle, loaded in "
        f"{outcome.reload_s:.2f} s; the service's memory {outcome.memory_mb:.0f} MB",
        soft_wrap=True,
    )
    if json_file:
        json_file.write_text(json.dumps(asdict(outcome), indent=2))
    if outcome.errors or outcome.served_before == outcome.served_after:
        raise typer.Exit(1)


def measured(
    scratch: Path, users: int, seconds: int, connections: int, k: int, epochs: int | None, db: str | None
) -> Outcome:
    models = [scratch / "model", scratch / "other"]
    settings: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    with console.status("training two models of the sample shop"):
        for seed, path in enumerate(models):
            Recommender(seed=seed, device="cpu", **settings).fit(sample_shop().dataset).save(path)
    url = db or f"sqlite:///{scratch / 'shop.db'}"
    with console.status(f"writing {users:,} users into the store"):
        store = Store.open(url)
        store.import_dataset(customers(users))
        store.close()
    log = (scratch / "log").open("wb")
    command = [sys.executable, "-m", "bundlemage", "serve", str(models[0]), "--db", url, "--port", "0"]
    command += ["--rate-limit", "1000000"]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=scratch)
    try:
        return _under_load(scratch, service, models, users, seconds, connections, k)
    finally:
        service.terminate()
        service.wait(timeout=30)
        log.close()


def _under_load(
    scratch: Path,
    service: subprocess.Popen[str],
    models: list[Path],
    users: int,
    seconds: int,
    connections: int,
    k: int,
) -> Outcome:
    address = _address(service)
    client = Client(address, timeout=60)
    before = client.recommend("c0000001", 1).model_version
    _asked(
        scratch, address, 3, connections, k, users, seed=1
    )  # so that nothing is measured for the first time
    reloaded: dict[str, Any] = {}

    def swap() -> None:
        time.sleep(seconds / 2)
        # The folder's content is replaced, as `bundlemage train --overwrite` does it.
        Recommender.load(models[1], device="cpu").save(models[0], overwrite=True)
        started = time.perf_counter()
        reloaded["serving"] = client.reload().serving
        reloaded["seconds"] = time.perf_counter() - started

    swapping = threading.Thread(target=swap)
    swapping.start()
    with console.status(f"asking for {seconds} s"):
        told = _asked(scratch, address, seconds, connections, k, users, seed=7)
    swapping.join()
    memory = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{service.pid}/status").read_text())[1])  # type: ignore[index]
    return Outcome(
        users=users,
        connections=connections,
        seconds=told["microseconds"] / 1e6,
        requests=told["requests"],
        per_second=told["requests"] / told["microseconds"] * 1e6,
        p50_ms=told["p50"] / 1e3,
        p90_ms=told["p90"] / 1e3,
        p99_ms=told["p99"] / 1e3,
        most_ms=told["most"] / 1e3,
        errors=sum(told[name] for name in ("connect", "read", "write", "status", "timeout")),
        served_before=before,
        served_after=client.recommend("c0000001", 1).model_version,
        reload_s=reloaded["seconds"],
        memory_mb=memory / 1024,
    )


def _address(service: subprocess.Popen[str]) -> str:
    """As the service says it; it is ready when it answers."""
    assert service.stdout is not None
    for line in service.stdout:
        found = re.search(r"http://[\d.]+:\d+", line)
        if found:
            Client(found[0]).ready()
            return found[0]
    raise BundleMageError("the service did not start: its log says why")


def _asked(
    scratch: Path, address: str, seconds: int, connections: int, k: int, users: int, seed: int
) -> dict[str, int]:
    script = scratch / "ask.lua"
    script.write_text(SCRIPT.format(seed=seed, k=k, users=users))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    command += ["-s", str(script), address]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
    figures: dict[str, int] = json.loads(told.split("FIGURES ")[1])
    return figures


if __name__ == "__main__":
    app()
