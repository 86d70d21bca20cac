"""Whether recommendations are fast while long work runs: `python -m benchmarks.busy`.

It generates a shop and an untrained model, starts the service as a command, and sends requests at fixed times
with `benchmarks.load`. First nothing else runs. Then forecasts, insights and designs run all the time. With
`--source`, the code of another checkout is measured, too.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import typer

from benchmarks.generated import ShopSize, generate
from benchmarks.load import Load, Plan, console, table_of, user_id
from benchmarks.serving import ROOT, Serving

GOAL_MS = 60.0
"""The p99 that is promised for recommendations while long work runs, on two quiet cores."""
KINDS = ("forecast", "insights", "design")
PAUSE = 0.1
"""Seconds between two long requests of the same kind."""


def fill(folder: Path, db: str, size: ShopSize, dim: int, served: int) -> dict[str, Any]:
    """Write the model and the store. Returns the bodies of the long requests."""
    from bundlemage.artifact.files import load_artifact
    from bundlemage.data.dataset import Vocabulary
    from bundlemage.live import record_of
    from bundlemage.store.records import Served
    from bundlemage.store.repository import Store

    generate(size, dim, folder / "first")
    dataset = load_artifact(folder / "first").dataset
    names = [user_id(number) for number in range(len(dataset.users))]
    store = Store.open(db)
    store.import_dataset(replace(dataset, users=Vocabulary("user", names)))
    store.publish(record_of(folder / "first"))
    now, shown = datetime.now(UTC), list(dataset.bundles.ids[:10])
    store.add_served(
        [
            Served(f"r{number}", "bundles", names[number % len(names)], "before", tuple(shown), now)
            for number in range(served)
        ]
    )
    store.close()
    limits = {"size": {"least": 4, "most": 8}, "method": "exact", "n": 3, "time_limit": 10}
    return {
        "forecast": ("/v1/bundles:score", {"items": dataset.items.ids[:5]}),
        "insights": ("/v1/insights", None),
        "design": ("/v1/design", {"user_id": names[0], **limits}),
    }


@contextmanager
def long_work(address: str, requests: dict[str, Any]) -> Iterator[dict[str, list[float]]]:
    """Ask for each of the long requests again and again. Yields the seconds that the answers took."""
    took: dict[str, list[float]] = {kind: [] for kind in requests}
    over = threading.Event()

    def ask(kind: str) -> None:
        path, body = requests[kind]
        content = None if body is None else json.dumps(body).encode()
        while not over.is_set():
            began = time.perf_counter()
            order = Request(address + path, content, {"Content-Type": "application/json"})
            try:
                with urlopen(order, timeout=300) as answer:
                    answer.read()
                took[kind].append(time.perf_counter() - began)
                over.wait(PAUSE)
            except HTTPError as error:
                console.print(f"[red]{kind}: status {error.code}: {error.read()[:300]!r}[/]")
                over.wait(1)

    threads = [threading.Thread(target=ask, args=(kind,), daemon=True) for kind in requests]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        over.set()  # the threads end with their last answer, or with this process


def main(
    users: Annotated[int, typer.Option(help="How many users the shop has.")] = 20_000,
    bundles: Annotated[int, typer.Option(help="How many bundles it has.")] = 2_000,
    items: Annotated[int, typer.Option(help="How many items it has.")] = 5_000,
    dim: Annotated[int, typer.Option(help="The length of the model's vectors.")] = 400,
    served: Annotated[int, typer.Option(help="How many shown answers the store has.")] = 20_000,
    rate: Annotated[float, typer.Option(help="Recommendations per second.")] = 100,
    seconds: Annotated[float, typer.Option(help="How long each row of the table is measured.")] = 30,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help=f"Only this long work: {', '.join(KINDS)}.")
    ] = None,
    source: Annotated[list[Path] | None, typer.Option(help="Another checkout to measure, too.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Latency of recommendations without and with long work."""
    size: ShopSize = {
        "users": users,
        "items": items,
        "bundles": bundles,
        "items_per_user": 20,
        "bundles_per_user": 5,
        "items_per_bundle": 8,
    }
    rows: list[tuple[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="bundlemage-busy-") as scratch:
        folder = Path(scratch)
        db = f"sqlite:///{folder / 'shop.db'}"
        requests = fill(folder, db, size, dim, served)
        requests = {kind: requests[kind] for kind in only or KINDS}
        for checkout in (ROOT, *(source or [])):
            serving = Serving(folder, db, checkout.resolve())
            name = "this checkout" if checkout == ROOT else str(checkout)
            serving.start()
            try:
                serving.wait_until_ready()
                plan = Plan(serving.address, seconds, 64, rate, users)
                Load(replace(plan, seconds=3)).run()  # to warm up; not measured
                rows.append((f"{name}, alone", Load(plan).run().figures()))
                with long_work(serving.address, requests) as took:
                    time.sleep(2)
                    figures = Load(plan).run().figures()
                figures["work"] = {kind: [round(each, 2) for each in times] for kind, times in took.items()}
                rows.append((f"{name}, with long work", figures))
            finally:
                serving.stop()
    console.print(
        f"{users:,} users, {bundles:,} bundles, {rate:g} recommendations a second, {os.cpu_count()} cores "
        f"for service and client; goal: p99 below {GOAL_MS:g} ms:"
    )
    console.print(table_of(rows))
    for name, figures in rows:
        for kind, times in figures.get("work", {}).items():
            mean = f", {sum(times) / len(times):.2f} s each" if times else ""
            console.print(f"{name}: {kind} answered {len(times)} times{mean}")
    if json_file:
        json_file.write_text(json.dumps(dict(rows), indent=2))


if __name__ == "__main__":
    typer.run(main)
