"""Folders that are either whole or not there: built beside their place, and given their name at the end."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A folder to build in. At the end it takes the name `path`; if that is not reached, it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    building.chmod(0o755)
    try:
        yield building
        swap_in(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def swap_in(building: Path, path: Path) -> None:
    """Give the new folder its name. What had the name before is left under the other one."""
    if not path.exists():
        building.rename(path)
        return
    if _exchange(building, path):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / path.name)
    try:
        building.rename(path)
    except BaseException:
        (old / path.name).rename(path)
        raise
    finally:
        shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is missing for a moment; False where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old one
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)
