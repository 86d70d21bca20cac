"""Published pickles, read as data. Python's `pickle` is not used: loading with it may run anything.

A pickle is a program for a small stack machine. `pickle_machine` knows the instructions that build plain
values, and asks `pickled` for the few NumPy and SciPy objects; everything else is refused.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from bundlemage.errors import DataError, Problem
from bundlemage.readers.pickle_machine import Machine
from bundlemage.readers.pickled import BrokenError, RefusedError


def safe_load(path: Path) -> Any:
    """The plain values, arrays and sparse matrices in a pickle of any protocol, Python 2's included.

    Python 2 strings are read as latin-1, NumPy scalars become plain numbers and default dicts plain
    dicts. Anything else in the file raises DataError, and nothing in it is ever run.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _error(
            "missing-file", path, "the file is missing", "Put it there, or name another path."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _error("unreadable-file", path, f"cannot be read: {reason}", "Name a readable file.") from None
    if not data:
        raise _error("empty-file", path, "the file is empty", "Download it again.")
    try:
        return Machine(data).run()
    except RefusedError as refused:
        message = f"refused, and nothing in it was run: {refused}"
        fix = "No published data set needs that: do not open the file with other tools, download it anew."
        raise _error("unsafe-pickle", path, message, fix) from None
    # What remains are bytes that make no sense, in whichever of many ways.
    except (
        BrokenError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
        struct.error,
    ) as error:
        reason = str(error) if isinstance(error, BrokenError) else "its bytes make no sense"
        fix = "It was cut short, damaged, or is another kind of file: download it again."
        raise _error("broken-pickle", path, f"not a whole pickle: {reason}", fix) from None


def _error(kind: str, path: Path, message: str, fix: str) -> DataError:
    return DataError(Problem(kind, str(path), message, fix))
