"""Outcomes on disk. Several processes may share a folder, and any of them may be killed at any time.

An outcome is `KEY.json` and `KEY.npz`, which has the values case by case. The JSON is written last and holds
the checksum of the other file, so it vouches for both.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bundlemage.data.folders import json_bytes, write_whole
from bundlemage.errors import ConfigError
from bundlemage.studies.outcome import Outcome, PerCase

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
"""The version of what is stored; part of every key, so that another version's files are never found."""


class CacheWarning(UserWarning):
    """A stored outcome cannot be used."""


class Cache:
    """Outcomes by their keys. A key is a checksum of all that an outcome depends on."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"the cache {self.folder} is a file, or lies in one; name a folder") from None

    def load(self, key: str, *, quiet: bool = False) -> Outcome | None:
        """The outcome of a key, or None. A damaged outcome gives None and, unless `quiet`, a warning."""
        file = self.folder / f"{key}.json"
        try:
            content = json.loads(file.read_bytes())
            cases = (self.folder / f"{key}.npz").read_bytes()
            if content["key"] != key or content["cases"] != hashlib.sha256(cases).hexdigest():
                raise ValueError("its parts do not belong together")  # noqa: TRY301
            return Outcome.from_json(content["outcome"], _unpacked(cases))
        except FileNotFoundError as error:
            if not file.exists():
                return None
            reason = f"{Path(error.filename).name} is missing"
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
        ) as error:
            reason = f"{error or type(error).__name__}"
        if not quiet:
            warnings.warn(f"{file} is not used, and done again: {reason}", CacheWarning, stacklevel=2)
        return None

    def save(self, key: str, outcome: Outcome) -> None:
        """Store an outcome, in place of an earlier one or of the note that it failed."""
        cases = _packed(outcome)
        content = {"key": key, "cases": hashlib.sha256(cases).hexdigest(), "outcome": outcome.to_json()}
        write_whole(self.folder / f"{key}.npz", cases)
        write_whole(self.folder / f"{key}.json", json_bytes(content))
        (self.folder / f"{key}.error.txt").unlink(missing_ok=True)

    def note(self, key: str, text: str) -> Path:
        """Keep the traceback of a cell that failed, and return its file."""
        file = self.folder / f"{key}.error.txt"
        write_whole(file, text.encode())
        return file

    @contextmanager
    def working(self, key: str) -> Iterator[Path]:
        """Yield the folder for a cell's checkpoints, locked against other processes and threads.

        The system removes the lock of a process that is killed.
        """
        lock = self.folder / f"{key}.lock"
        handle = _locked(lock)
        try:
            yield self.folder / f"{key}.run"
        finally:
            lock.unlink(missing_ok=True)
            os.close(handle)


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # The previous owner removes the file at the end. A lock on a removed file protects nothing.
            if _inode(path) == os.fstat(handle).st_ino:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _packed(outcome: Outcome) -> bytes:
    arrays = {
        f"{task}.{metric}": np.asarray(values, np.float32)
        for task, metrics in outcome.cases.items()
        for metric, values in metrics.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _unpacked(content: bytes) -> dict[str, PerCase]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        for name in stored.files:
            task, metric = name.split(".", 1)
            cases.setdefault(task, {})[metric] = stored[name]
    return dict(cases)
