"""The result of one cell of a study, and the cache that keeps such outcomes on disk.

Several processes may share a cache, and any of them may be killed at any time. An outcome is `KEY.json` and
`KEY.npz`, which has the values case by case. The JSON is written last and holds the checksum of the other
file, so an outcome with a JSON file is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage.data.folders import json_bytes, write_whole
from bundlemage.errors import ConfigError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

TASKS = ("matching", "generation")
KS = (5, 10, 20, 40)
METRICS = tuple(f"{name}@{k}" for name in ("ndcg", "recall") for k in KS)
CASE_METRICS = ("ndcg@5", "ndcg@20", "recall@20")
"""Metrics that are kept case by case, and so can be tested for significance."""


@dataclass(frozen=True)
class Outcome:
    """One model with one seed on one split, fitted and tested."""

    label: str
    """The contender's name in this study, which does not identify the result."""
    model: str
    settings: Mapping[str, Any]
    """Every setting, defaults included."""
    dataset: str
    protocol: str
    split: str
    """`key` of the split: two splits may share a dataset's name and protocol."""
    seed: int
    seeded: bool
    """Whether another seed could give another result."""
    matching: Mapping[str, float] | None
    """Mean over the test cases of each of METRICS; None without cases, or if the model does not match."""
    matching_cases: int
    generation: Mapping[str, float] | None
    generation_cases: int
    validation: Mapping[str, float]
    """The metrics of the epoch that was kept, or their mean over the members of an ensemble; empty for a
    model that learns nothing by steps."""
    epochs: int
    """Of an ensemble, of all its members together."""
    best_epoch: int
    """Of an ensemble, its first member's."""
    fit_seconds: float
    evaluate_seconds: float
    memory: int | None
    """Peak bytes: allocated on a GPU, or what the process grew by on a CPU; None where unknown."""
    device: str
    """The hardware in words."""
    version: str
    torch: str
    date: str
    """When it was done, in UTC."""
    jobs: int = 1
    """How many cells ran at a time: beside others, seconds are no measure of speed."""
    curve: Sequence[float] = ()
    """Validation nDCG@5 after each epoch; empty for an ensemble, whose members have one each."""
    ensemble: int = 1
    """How many members were trained and averaged."""
    cases: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """`TASK.METRIC`, with a metric of CASE_METRICS → an array of float32 with a value for each case. Not part
    of the JSON."""

    @property
    def shown_settings(self) -> dict[str, Any]:
        """The settings that say which model it is: without seed and device, with `ensemble` if it is one."""
        shown = {key: value for key, value in self.settings.items() if key not in ("seed", "device")}
        return shown if self.ensemble == 1 else {"ensemble": self.ensemble, **shown}

    def settings_text(self) -> str:
        """The model and the settings above as lines of text."""
        shown = self.shown_settings.items()
        return "\n".join([f"model = {self.model}", *(f"{key} = {value!r}" for key, value in shown)])

    @property
    def machine(self) -> str:
        """The hardware and the versions of the software."""
        return f"{self.device}; BundleMage {self.version}, PyTorch {self.torch}"

    def to_json(self) -> dict[str, Any]:
        """Everything but the cases as plain values, which are the arguments of `Outcome`."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cases"}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}


@dataclass(frozen=True)
class Missing:
    """A contender without a result: why it failed, or why there was nothing to ask it."""

    label: str
    model: str
    dataset: str
    protocol: str
    split: str
    message: str

    @property
    def name(self) -> str:
        """The contender and the split."""
        return f"{self.label} on {self.dataset}, {self.protocol}"

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


# ── The cache ────────────────────────────────────────────────────────────────────────────────────

FORMAT = 1
"""The version of what is stored; part of every key, so that another version's files are never found."""


_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile)


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
                raise ValueError("its parts do not belong together")
            with np.load(io.BytesIO(cases), allow_pickle=False) as stored:
                return Outcome(**content["outcome"], cases=dict(stored))
        except FileNotFoundError as error:
            if not file.exists():
                return None
            reason = f"{Path(error.filename).name} is missing"
        except _DAMAGED as error:
            reason = f"{error or type(error).__name__}"
        if not quiet:
            warnings.warn(f"{file} is not used, and done again: {reason}", CacheWarning, stacklevel=2)
        return None

    def save(self, key: str, outcome: Outcome) -> None:
        """Store an outcome, in place of an earlier one or of the note that it failed."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **outcome.cases)
        cases = buffer.getvalue()
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
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(handle).st_ino:
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
