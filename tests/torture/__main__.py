"""Tries to break the live service: `make test-torture`, or `python -m tests.torture`.

It sends fuzzed requests of every kind and kills the service at random moments, on SQLite and on PostgreSQL.
It ends with exit code 1 if there is an answer that is not documented, a confirmed write that is lost, or an
error in the log.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.postgres_server import NotInstalledError, new_database, running_server
from tests.torture.fuzz import fuzz
from tests.torture.kills import kill_again_and_again
from tests.torture.shop import Shop, new_sqlite, train

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Part:
    """One line of the summary."""

    name: str
    done: str
    seconds: float
    faults: list[str] = field(default_factory=list)


def main(
    requests: Annotated[
        int, typer.Option(help="How many fuzzed requests, on all databases together.")
    ] = 100_000,
    kills: Annotated[int, typer.Option(help="How many kills, on all databases together.")] = 300,
    db: Annotated[str, typer.Option(help="The databases.")] = "sqlite,postgresql",
    seed: Annotated[int, typer.Option(help="Seed of the requests and of the moments of the kills.")] = 0,
    replay: Annotated[int | None, typer.Option(help="Send only the request of this number.")] = None,
    serve: Annotated[
        str, typer.Option(help="More options of 'bundlemage serve', such as '--workers 2'.")
    ] = "",
) -> None:
    """Fuzz and kill the service. Exit code 1 if it does anything that it should not."""
    parts: list[Part] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bundlemage-torture-")))
        databases: dict[str, Callable[[Path], str]] = {}
        for kind in db.split(","):
            if kind == "sqlite":
                databases[kind] = new_sqlite
            elif kind == "postgresql":
                try:
                    server = stack.enter_context(running_server())
                except NotInstalledError as error:
                    console.print(f"[yellow]PostgreSQL is left out:[/] {error}", soft_wrap=True)
                    continue
                databases[kind] = lambda _, server=server: new_database(server)  # type: ignore[misc]
            else:
                raise typer.BadParameter(f"--db: expected sqlite, postgresql or both, found {kind!r}")
        with console.status("training three models of the sample shop"):
            models = train(folder, 3)
        for kind, new in databases.items():
            share = len(databases)
            place = folder / kind
            place.mkdir()
            tortured = _Tortured(place, models, new, kind, seed, tuple(serve.split()))
            if requests:
                parts.append(tortured.fuzzed(requests // share, replay))
            if kills and replay is None:
                parts.append(tortured.killed(kills // share))
    _show(parts)
    if not parts:
        console.print("[red]nothing was tested[/]")
    if not parts or any(part.faults for part in parts):
        raise typer.Exit(1)


@dataclass
class _Tortured:
    """One database and all that is done to its service."""

    folder: Path
    models: list[Path]
    new_database: Callable[[Path], str]
    kind: str
    seed: int
    options: tuple[str, ...]

    def fuzzed(self, requests: int, replay: int | None) -> Part:
        began = time.monotonic()
        shop = self._shop("fuzz")
        shop.create_keys()
        shop.publish_all()
        shop.start()
        try:
            shop.wait_until_ready()
            with _Shown(self.kind) as say:
                outcome = fuzz(shop, requests, self.seed, say, replay)
        finally:
            shop.kill()
        counts = ", ".join(f"{name}: {count:,}" for name, count in sorted(outcome.statuses.items()))
        before, after = outcome.memory_mb
        done = f"{outcome.requests:,} requests ({counts}); memory {before:.0f} → {after:.0f} MB"
        return Part(f"{self.kind}, fuzzing", done, time.monotonic() - began, outcome.faults)

    def killed(self, kills: int) -> Part:
        began = time.monotonic()
        with _Shown(self.kind) as say:
            outcome = kill_again_and_again(self._shop("kills"), kills, self.seed, say)
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(outcome.kills.items()))
        done = (
            f"{outcome.kills.total():,} kills ({counts}); {outcome.confirmed:,} writes confirmed, "
            f"{outcome.replayed:,} of them replayed, {outcome.unconfirmed:,} not confirmed; "
            f"{outcome.publications} publications"
        )
        return Part(f"{self.kind}, kills", done, time.monotonic() - began, outcome.faults)

    def _shop(self, name: str) -> Shop:
        folder = self.folder / name
        folder.mkdir()
        return Shop(folder, self.new_database(folder), self.models, options=self.options)


class _Shown:
    """A progress bar."""

    def __init__(self, kind: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(kind)
        self._kind = kind

    def __enter__(self) -> Callable[[str, int, int], None]:
        self._progress.start()
        return self._say

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _say(self, what: str, done: int, of: int) -> None:
        description = f"{self._kind}, {what}"
        self._progress.update(self._task, description=description, completed=done, total=of or None)


def _show(parts: list[Part]) -> None:
    for part in parts:
        for fault in part.faults:
            console.print(f"[red]{part.name}:[/] ", end="")
            console.print(fault, markup=False, soft_wrap=True)
    table = Table("part", "done", "minutes", "findings", box=box.SIMPLE_HEAD)
    for part in parts:
        found = f"[red]{len(part.faults)}[/]" if part.faults else "none"
        table.add_row(part.name, part.done, f"{part.seconds / 60:.1f}", found)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
