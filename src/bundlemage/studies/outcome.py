"""The outcome of one cell of a study, and the cache that keeps outcomes on disk.

Several processes may share a cache, and any of them may be killed at any time. An outcome has two files:
`KEY.npz` has the metrics of each test case, `KEY.json` the rest. The JSON file is written last and contains
the checksum of the other file. If it exists, the outcome is complete.
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
METRICS = tuple(f"{name}@{k}" for name in ("ndcg", "recall", "mrr", "hit", "precision", "map") for k in KS)
"""Outcomes of earlier versions have only nDCG and recall."""
CASE_METRICS = ("ndcg@5", "ndcg@20", "recall@20")
"""Metrics that are stored for each case. Only these can be tested for significance."""


@dataclass(frozen=True)
class Outcome:
    """One model with one seed on one split, fitted and tested."""

    label: str
    """The contender's name in this study. Other studies may use another name for the same result."""
    model: str
    settings: Mapping[str, Any]
    """Every setting, defaults included."""
    dataset: str
    protocol: str
    split: str
    """`key` of the split. Two splits may have the same dataset name and protocol."""
    seed: int
    seeded: bool
    """Whether another seed could give another result."""
    matching: Mapping[str, float] | None
    """Each of METRICS → its mean over the test cases; None without cases, or if the model cannot match."""
    matching_cases: int
    generation: Mapping[str, float] | None
    generation_cases: int
    validation: Mapping[str, float]
    """The metrics of the epoch that was kept; for an ensemble, their mean over the members. Empty for a model
    without gradient steps."""
    epochs: int
    """Number of epochs; for an ensemble, the sum over its members."""
    best_epoch: int
    """The epoch that was kept; for an ensemble, that of the first member."""
    fit_seconds: float
    evaluate_seconds: float
    memory: int | None
    """Peak memory in bytes: allocated on a GPU, or growth of the process on a CPU; None if unknown."""
    device: str
    """The name of the GPU or processor."""
    version: str
    torch: str
    date: str
    """When the cell ended, in UTC."""
    jobs: int = 1
    """Number of cells that ran at a time. If it is above 1, the seconds do not measure the model's speed."""
    curve: Sequence[float] = ()
    """Validation nDCG@5 after each epoch; empty for an ensemble, because each member has its own curve."""
    ensemble: int = 1
    """Number of members that were trained and averaged."""
    lists: Mapping[str, Any] | None = None
    """The fields of `ListMeasures`. None if the model does not match, or if an earlier version stored it."""
    cases: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """`TASK.METRIC` → an array of float32 with a value for each case, for the metrics of CASE_METRICS. They
    are not part of the JSON."""

    @property
    def shown_settings(self) -> dict[str, Any]:
        """The settings without seed and device. An ensemble also has its number of members, `ensemble`."""
        shown = {key: value for key, value in self.settings.items() if key not in ("seed", "device")}
        return shown if self.ensemble == 1 else {"ensemble": self.ensemble, **shown}

    def settings_text(self) -> str:
        """Returns the model and its `shown_settings` as lines of text."""
        shown = self.shown_settings.items()
        return "\n".join([f"model = {self.model}", *(f"{key} = {value!r}" for key, value in shown)])

    @property
    def machine(self) -> str:
        """The hardware and the versions of the software."""
        return f"{self.device}; BundleMage {self.version}, PyTorch {self.torch}"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields except `cases` as plain values. They are arguments of `Outcome`."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cases"}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}


@dataclass(frozen=True)
class Missing:
    """A contender without a result. `message` says why it failed, or why no test case suits it."""

    label: str
    model: str
    dataset: str
    protocol: str
    split: str
    message: str

    @property
    def name(self) -> str:
        """The contender, the dataset and the protocol, as text."""
        return f"{self.label} on {self.dataset}, {self.protocol}"

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


FORMAT = 1
"""The version of the stored files. It is part of every key, so files of other versions are ignored."""
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile)


class CacheWarning(UserWarning):
    """A stored outcome cannot be used."""


class Cache:
    """A folder of outcomes. The key of an outcome is a checksum of everything that it depends on."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"the cache {self.folder} is a file, or inside a file; name a folder") from None

    def load(self, key: str, *, quiet: bool = False) -> Outcome | None:
        """Returns the outcome of a key, or None. If it is damaged, returns None and warns, unless `quiet`."""
        file = self.folder / f"{key}.json"
        try:
            content = json.loads(file.read_bytes())
            cases = (self.folder / f"{key}.npz").read_bytes()
            if content["key"] != key or content["cases"] != hashlib.sha256(cases).hexdigest():
                raise ValueError("its two files do not match")
            with np.load(io.BytesIO(cases), allow_pickle=False) as stored:
                return Outcome(**content["outcome"], cases=dict(stored))
        except FileNotFoundError as error:
            if not file.exists():
                return None
            reason = f"{Path(error.filename).name} is missing"
        except _DAMAGED as error:
            reason = f"{error or type(error).__name__}"
        if not quiet:
            message = f"{file} cannot be used, so this result is computed again: {reason}"
            warnings.warn(message, CacheWarning, stacklevel=2)
        return None

    def save(self, key: str, outcome: Outcome) -> None:
        """Store an outcome. It replaces an earlier outcome, and the traceback of an earlier failure."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **outcome.cases)
        cases = buffer.getvalue()
        content = {"key": key, "cases": hashlib.sha256(cases).hexdigest(), "outcome": outcome.to_json()}
        write_whole(self.folder / f"{key}.npz", cases)
        write_whole(self.folder / f"{key}.json", json_bytes(content))
        (self.folder / f"{key}.error.txt").unlink(missing_ok=True)

    def note(self, key: str, text: str) -> Path:
        """Write the traceback of a failed cell to a file, and return the file's path."""
        file = self.folder / f"{key}.error.txt"
        write_whole(file, text.encode())
        return file

    @contextmanager
    def working(self, key: str) -> Iterator[Path]:
        """Yield the folder for a cell's checkpoints, locked against other processes and threads.

        If a process is killed, the operating system removes its lock.
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
