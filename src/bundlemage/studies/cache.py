"""Outcomes on disk. Several processes may share a folder, and any of them may be killed at any time.

An outcome is `KEY.json` with `KEY.npz` beside it, the values case by case. Both are written under another
name, flushed and renamed, the JSON last: with the checksum of the other file, it vouches for both.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"the cache {self.folder} is a file, or lies in one; name a folder") from None

    def load(self, key: str, *, quiet: bool = False) -> Outcome | None:
        """The outcome of a key; None, with a warning, if what is stored is damaged or of another kind."""
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
        cases = _packed(outcome)
        content = {"key": key, "cases": hashlib.sha256(cases).hexdigest(), "outcome": outcome.to_json()}
        self._write(f"{key}.npz", cases)
        self._write(f"{key}.json", json.dumps(content, indent=1).encode())
        (self.folder / f"{key}.error.txt").unlink(missing_ok=True)

    def note(self, key: str, text: str) -> Path:
        """Keep the traceback of a cell that failed."""
        self._write(f"{key}.error.txt", text.encode())
        return self.folder / f"{key}.error.txt"

    @contextmanager
    def working(self, key: str) -> Iterator[Path]:
        """The folder for a cell's checkpoints, which is nobody else's meanwhile.

        A process that is killed gives its lock up by that.
        """
        lock = self.folder / f"{key}.lock"
        handle = _locked(lock)
        try:
            yield self.folder / f"{key}.run"
        finally:
            lock.unlink(missing_ok=True)
            os.close(handle)

    def _write(self, name: str, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=name[:16], suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp's files are for their owner alone
            Path(temporary).replace(self.folder / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever had the lock removes its file at the end; then this is the lock of nothing.
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
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        for name in stored.files:
            task, metric = name.split(".", 1)
            found.setdefault(task, {})[metric] = stored[name]
    return dict(found)
