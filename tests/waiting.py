"""Waiting for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], what: str, seconds: float = 240) -> None:
    """Return as soon as `true()` is true.

    The limit is far above what a busy machine needs: it only turns an endless test into a failing one.
    """
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.02)
