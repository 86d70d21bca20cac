"""Files and folders that are either whole or not there: made beside their place, and named at the end."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bundlemage.errors import BundleMageError


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
    try:
        path.rename(old / path.name)
        building.rename(path)
    except BaseException:
        _give_back(old, path)
        raise
    shutil.rmtree(old)


def _give_back(old: Path, path: Path) -> None:
    """What was there gets its name again. If it cannot, it stays where it is: there is no other copy."""
    kept = old / path.name
    if kept.exists():
        try:
            kept.rename(path)
        except OSError as error:
            raise BundleMageError(
                f"{path} could not be replaced, nor what was there get its name back ({error.strerror}). "
                f"It lies whole in {kept}: give it the name {path} again"
            ) from error
    old.rmdir()


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there as it was or as it shall be, whenever this is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        into_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def into_place(temporary: Path, path: Path) -> None:
    """Rename so that after a power cut, too, there is the old file or the whole new one."""
    with temporary.open("rb+") as handle:
        os.fsync(handle.fileno())
    temporary.replace(path)
    if sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is missing for a moment; False where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old one
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)
