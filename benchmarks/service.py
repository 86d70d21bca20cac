"""How fast the live service answers: `python -m benchmarks.service`.

It trains two sample models, writes many users to the store, starts the service as a command, and sends
requests over loopback with `benchmarks.load`. In the middle of each run the other model takes over. With
`--source`, another checkout and this one are measured in turns, because the machine may be busier at one time
than at another.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.load import Load, Outcome, Plan, console, merged, table_of
from benchmarks.serving import ROOT, Serving, databases

app = typer.Typer(add_completion=False)


@dataclass
class Variant:
    """One way to run the service, and what was measured."""

    name: str
    serving: Serving
    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    reload_s: list[float] = field(default_factory=list)
    memory_mb: float = math.nan
    turn: int = 0
    """How often the service was asked. It makes the names of the writers different each time."""

    def figures(self, connections: int) -> dict[str, Any]:
        return merged(self.outcomes[connections]).figures()


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected numbers such as 16,256, found {text!r}") from None


@app.command()
def main(
    users: Annotated[int, typer.Option(help="How many users the store knows.")] = 100_000,
    seconds: Annotated[int, typer.Option(help="How long each row of the table is measured.")] = 60,
    connections: Annotated[str, typer.Option(help="How many ask at the same time: 16, or 16,256.")] = "16",
    k: Annotated[int, typer.Option(help="How many bundles each wants.")] = 10,
    writes: Annotated[float, typer.Option(help="The share of requests that write.")] = 0.0,
    workers: Annotated[
        str | None, typer.Option(help="Passed on to 'bundlemage serve', if given: 2, or 1,2 to compare.")
    ] = None,
    source: Annotated[
        list[Path] | None, typer.Option(help="Another checkout, to be measured in turn with this one.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="In how many turns the seconds are divided.")] = 2,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the two models, for a trial.")] = None,
    db: Annotated[
        str, typer.Option(help="sqlite, postgresql (started for this), or the URL of an empty database.")
    ] = "sqlite",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Requests per second, latency and errors under load, with a change of models in the middle."""
    numbers = _numbers(connections)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        variants = _variants(Path(scratch), source or [], _numbers(workers) if workers else [None])
        new_database = stack.enter_context(databases(db, Path(scratch)))
        for variant in variants:
            with console.status(f"{variant.name}: training two models, writing {users:,} users"):
                variant.serving.db = new_database()
                variant.serving.fill(users, epochs)
            stack.callback(variant.serving.stop)
            variant.serving.start()
            variant.serving.wait_until_ready()
        plan = Plan("", seconds / rounds, users=users, k=k, writes=writes)
        _measure(variants, numbers, rounds, plan)
    _show(variants, numbers, users, db)
    if json_file:
        json_file.write_text(json.dumps(_described(variants, numbers, users, writes, db), indent=2))
    if any(variant.figures(number)["errors"] for variant in variants for number in numbers):
        raise typer.Exit(1)


def _variants(scratch: Path, sources: Sequence[Path], workers: Sequence[int | None]) -> list[Variant]:
    """This checkout, once for each number of workers, and the other checkouts, which may not know workers."""
    found = [
        Variant(
            "this checkout" if number is None else f"this checkout, workers: {number}",
            Serving(scratch / f"this-{number}", "", workers=number),
        )
        for number in workers
    ]
    for position, source in enumerate(sources):
        if not (source / "src" / "bundlemage").is_dir():
            raise typer.BadParameter(f"--source: {source} is no checkout; it has no src/bundlemage")
        found.append(Variant(str(source), Serving(scratch / f"other-{position}", "", source.resolve())))
    return found


def _measure(variants: Sequence[Variant], connections: Sequence[int], rounds: int, plan: Plan) -> None:
    """Ask all variants in turn."""
    for variant in variants:
        _asked(variant, 16, plan, seconds=3)  # to warm up; not measured
    for number in connections:
        for turn in range(rounds):
            # The order changes in each round, so that each variant goes first sometimes.
            for variant in variants if turn % 2 == 0 else reversed(variants):
                with console.status(f"{variant.name}: {number} connections, {plan.seconds:g} s"):
                    outcome = _asked(variant, number, plan, swap=True)
                variant.outcomes.setdefault(number, []).append(outcome)
    for variant in variants:
        variant.memory_mb = variant.serving.memory()


def _asked(
    variant: Variant, connections: int, plan: Plan, seconds: float | None = None, swap: bool = False
) -> Outcome:
    variant.turn += 1
    name, serving = f"w{variant.turn}", variant.serving
    changes = {"address": serving.address, "connections": connections, "name": name, "seed": variant.turn}
    fields = {**vars(plan), **changes, "seconds": seconds or plan.seconds}
    load = Load(Plan(**fields))
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(_swap, variant, load.plan.seconds / 2) if swap else None
        outcome = load.run()
        if swapping:
            swapping.result()  # raises its error
    return outcome


def _swap(variant: Variant, seconds: float) -> None:
    time.sleep(seconds)
    serving = variant.serving
    started = time.perf_counter()
    told = serving.reload(serving.versions[(len(variant.reload_s) + 1) % 2])
    variant.reload_s.append(time.perf_counter() - started)
    if not told["changed"]:
        raise RuntimeError(f"the model did not change: {told}")


def _show(variants: Sequence[Variant], connections: Sequence[int], users: int, db: str) -> None:
    rows = [
        (f"{number} connections, {variant.name}", variant.figures(number))
        for number in connections
        for variant in variants
    ]
    kind = db.partition(":")[0]
    console.print(f"{users:,} users in the store ({kind}), {os.cpu_count()} cores for service and client:")
    console.print(table_of(rows))
    for variant in variants:
        times = ", ".join(f"{each:.2f}" for each in variant.reload_s)
        console.print(
            f"{variant.name}: model changed in {times} s; memory {variant.memory_mb:.0f} MB", soft_wrap=True
        )


def _described(
    variants: Sequence[Variant], connections: Sequence[int], users: int, writes: float, db: str
) -> dict[str, Any]:
    return {
        "users": users,
        "writes": writes,
        "db": db.partition(":")[0],
        "cores": os.cpu_count(),
        "variants": [
            {
                "name": variant.name,
                "here": variant.serving.source == ROOT,
                "workers": variant.serving.workers,
                "reload_s": variant.reload_s,
                "memory_mb": variant.memory_mb,
                "connections": {number: variant.figures(number) for number in connections},
            }
            for variant in variants
        ],
    }


if __name__ == "__main__":
    app()
