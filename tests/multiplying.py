"""Work for a pool of processes, in a file of its own: a process that is started imports the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

NO_ROOM = 13
"""A task that fails."""


def multiply(factor: int, task: int, ask: Callable[[Any], Any]) -> tuple[int, int]:
    """By a factor that all share; what to add is asked for. Also which process it was."""
    if task == NO_ROOM:
        raise OSError(28, "no room", "somewhere")
    return factor * task + ask(os.getpid()), os.getpid()
