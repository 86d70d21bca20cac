"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of what is done now, how much of it is done, and how much there is (0: unknown)."""


def in_silence(what: str, done: int, of: int) -> None:
    """For callers that do not show progress."""
