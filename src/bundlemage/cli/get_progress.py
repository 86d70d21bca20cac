"""Shows downloads: each file before it starts, how much of it has come, and the result."""

from __future__ import annotations

from rich.console import Console

from bundlemage.cli import show
from bundlemage.downloads.public_data import Fetched, FetchWatcher, Order
from bundlemage.progress import Shown


class FetchedFiles(FetchWatcher):
    """Writes lines to a console, and shows progress on stderr if that is a terminal."""

    def __init__(self, console: Console, progress: Shown) -> None:
        self.console, self.progress = console, progress

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
        self.progress("bytes", done, total or 0)

    def on_pause(self, reason: str, seconds: float) -> None:
        self.progress.close()
        self.progress.say(f"  {reason}; trying again in {seconds:.0f} s")

    def on_fetched(self, fetched: Fetched) -> None:
        self.progress.close()
        checksum = "" if fetched.verified else f"; its SHA-256 is {fetched.sha256}"
        self._say(f"  fetched  {fetched.size:,} bytes, {fetched.note}{checksum}")

    def _say(self, text: str) -> None:
        self.console.print(show.plain(text), soft_wrap=True)
