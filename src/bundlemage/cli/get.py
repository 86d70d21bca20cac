"""`bundlemage data get`: download public data sets."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bundlemage.cli.options import AsJson
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from rich.console import Console

    from bundlemage.downloads.public_data import ByHand, Fetched, FetchWatcher, PublicData


def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="youshu, steam or netease; 'list' describes them.")
    ] = "list",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The data's folder; by default NAME."),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A web server with the same files, as URL/NAME/LAYOUT/FILE."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are not the published ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download public data, resume a broken download, and verify it. Without NAME: list what there is."""
    from bundlemage.cli import show
    from bundlemage.downloads.public_data import fetch, public_data

    if name == "list":
        _list(as_json)
        return
    data = public_data(name)
    folder = output or Path(name)
    with Shown(show.notes, "fetching") as progress:
        watcher = _watcher(show.notes if as_json else show.out, progress)
        done = fetch(data, folder, mirror, overwrite=overwrite, watcher=watcher)
    quoted = shlex.quote(str(folder / data.folder))
    next_steps = [f"bundlemage data check {quoted}", f"bundlemage train {quoted} -o MODEL"]
    if as_json:
        show.print_json(
            {
                "data": name,
                "folder": str(folder / data.folder),
                "files": [asdict(file) for file in done],
                "note": data.note or None,
                "by_hand": [{**asdict(entry), "put": _place(entry, folder)} for entry in data.by_hand],
                "next": next_steps,
            }
        )
        return
    _summary(data, folder, done)
    for step in next_steps:
        show.out.print(f"  {show.plain(step)}", soft_wrap=True)


def _watcher(console: Console, progress: Shown) -> FetchWatcher:
    """Prints each file before it starts and when it is complete, and shows how much of it has come."""
    from bundlemage.cli import show
    from bundlemage.downloads.public_data import FetchWatcher, Order

    def say(text: str) -> None:
        console.print(show.plain(text), soft_wrap=True)

    class Showing(FetchWatcher):
        def on_order(self, order: Order) -> None:
            if order.there:
                say(f"{order.target}: {order.there.state} ({order.there.note})")
                return
            file = order.file
            size = f"{file.size:,} bytes" if file.size is not None else f"about {file.about or 0:,} bytes"
            say(f"{order.target}")
            say(f"  from     {order.url}")
            say(f"  size     {size}")
            say(f"  SHA-256  {file.sha256 or 'not known'}")

        def on_bytes(self, done: int, total: int | None) -> None:
            progress("bytes", done, total or 0)

        def on_pause(self, reason: str, seconds: float) -> None:
            progress.close()
            progress.say(f"  {reason}; trying again in {seconds:.0f} s")

        def on_fetched(self, fetched: Fetched) -> None:
            progress.close()
            checksum = "" if fetched.verified else f"; its SHA-256 is {fetched.sha256}"
            say(f"  fetched  {fetched.size:,} bytes, {fetched.note}{checksum}")

    return Showing()


def _place(entry: ByHand, folder: Path) -> str:
    places = " and ".join(str(folder / inner) for inner in entry.put)
    return f"put into {places}" if places else "not read here"


def _summary(data: PublicData, folder: Path, done: list[Fetched]) -> None:
    from bundlemage.cli import show

    unverified = sum(not file.verified for file in done)
    result = "all verified" if not unverified else f"{unverified} not verified: no published checksum"
    place = show.plain(folder / data.folder)
    show.out.print(f"[bold]{data.name}[/]: {len(done)} files in [bold]{place}[/], {result}", soft_wrap=True)
    if data.note:
        show.out.print(f"[yellow]note:[/] {show.plain(data.note)}", soft_wrap=True)
    for entry in data.by_hand:
        show.out.print(f"by hand: {entry.what}: {entry.page}", soft_wrap=True)
        show.out.print(f"  {show.plain(_place(entry, folder))}", soft_wrap=True)
    show.out.print("next:")


def _list(as_json: bool) -> None:
    from rich.table import Table

    from bundlemage.cli import show
    from bundlemage.downloads.public_data import PUBLIC_DATA

    if as_json:
        listed = []
        for data in PUBLIC_DATA.values():
            files = [
                {"name": file.name, **asdict(file), "verifiable": bool(file.sha256)} for file in data.files
            ]
            listed.append({**asdict(data), "files": files})
        show.print_json({"data": listed})
        return
    table = Table(title="Public data: bundlemage data get NAME", title_justify="left")
    for column in ("name", "what", "to fetch", "checksums"):
        table.add_column(column, justify="right" if column == "to fetch" else "left")
    for data in PUBLIC_DATA.values():
        size = sum(file.size or file.about or 0 for file in data.files)
        known = sum(file.sha256 is not None for file in data.files)
        table.add_row(
            data.name,
            f"{data.title}\n[dim]{data.sizes}[/]",
            f"{len(data.files)} files\n{size / 1e6:.1f} MB",
            f"{known} of {len(data.files)}",
        )
    show.out.print(table)
    for data in PUBLIC_DATA.values():
        show.out.print(f"[bold]{data.name}[/]: {data.publication}", soft_wrap=True)
        show.out.print(f"  from {' and '.join(data.pages)}", soft_wrap=True)
        if data.note:
            show.out.print(f"  note: {data.note}", soft_wrap=True)
        for entry in data.by_hand:
            show.out.print(f"  by hand: {entry.what}: {entry.page}", soft_wrap=True)
