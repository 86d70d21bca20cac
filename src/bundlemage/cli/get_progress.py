"""Shows downloads: each file before it starts, a progress bar, and the result."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bundlemage.cli import show
from bundlemage.downloads.public_data import Fetched, FetchWatcher, Order


class FetchedFiles(FetchWatcher):
    """Writes lines to a console, and shows a bar on stderr if that is a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None

    def __enter__(self) -> FetchedFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def on_order(self, order: Order) -> None:
        if order.there:
            self._say(f"{order.target}: {order.there.state} ({order.there.note})")
            return
        file = order.file
        size = f"{file.size:,} bytes" if file.size is not None else f"about {file.about or 0:,} bytes"
        self._say(f"{order.target}")
        self._say(f"  from     {order.url}")
        self._say(f"  size     {size}")
        self._say(f"  SHA-256  {file.sha256 or 'not known'}")

    def on_bytes(self, done: int, total: int | None) -> None:
        if not show.notes.is_terminal:
            return
        if self.bar is None:
            self.bar = Progress(
                TextColumn("  fetching"),
                BarColumn(bar_width=20),
                DownloadColumn(),
                TransferSpeedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=show.notes,
                transient=True,
            )
            self.bar.start()
            # The bytes of an earlier run must not count as speed.
            self.task = self.bar.add_task("fetching", total=total, completed=done)
        self.bar.update(self.task, completed=done, total=total)

    def on_pause(self, reason: str, seconds: float) -> None:
        self._stop()
        show.notes.print(f"  {show.plain(reason)}; trying again in {seconds:.0f} s", soft_wrap=True)

    def on_fetched(self, fetched: Fetched) -> None:
        self._stop()
        checksum = "" if fetched.verified else f"; its SHA-256 is {fetched.sha256}"
        self._say(f"  fetched  {fetched.size:,} bytes, {fetched.note}{checksum}")

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _say(self, text: str) -> None:
        self.console.print(show.plain(text), soft_wrap=True)
