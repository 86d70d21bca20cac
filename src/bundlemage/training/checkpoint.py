"""A training run on disk: enough to go on from the last finished epoch after any kind of end.

No file is ever changed in place: each is written beside its name, flushed to the disk and renamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bundlemage.data.folders import into_place, write_whole
from bundlemage.errors import CheckpointError, differences
from bundlemage.training.history import EpochRecord

Weights = dict[str, Tensor]
CHECKSUMS = frozenset({"training data", "validation data"})
"""Parts of a run's identity whose values say nothing to a person."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come, besides its tensors."""

    history: tuple[EpochRecord, ...] = ()
    best_epoch: int = 0
    best_value: float = float("-inf")

    @property
    def epoch(self) -> int:
        return self.history[-1].epoch if self.history else 0


class RunFolder:
    """`run.json` says what is being trained, `last.safetensors` how far, `best-N.safetensors` the winner.
    Each member of an ensemble has these in a folder `member-N` of its own.

    `history.jsonl` is for people and plots; resuming does not read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Start anew, forgetting any earlier run here, and nothing else."""
        self.discard()
        if self.path.exists():
            raise CheckpointError(
                f"{self.path} holds other files; choose a folder of its own for checkpoints"
            )
        self.path.mkdir(parents=True)
        write_whole(self.path / "run.json", json.dumps(identity, indent=2).encode())

    def discard(self) -> None:
        """Remove what a run has written here, and the folder if nothing else is in it."""
        for start in ("run.", "last.", "best-", "history."):
            for file in [*self.path.glob(f"{start}*"), *self.path.glob(f".{start}*.tmp")]:
                file.unlink()
        for member in self.members():
            member.discard()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def holds_progress(self) -> bool:
        return (self.path / "last.safetensors").exists()

    def member(self, number: int) -> RunFolder:
        """The folder of one member of an ensemble, counted from 1."""
        return RunFolder(self.path / f"member-{number}")

    def members(self) -> list[RunFolder]:
        """The folders of members that have begun; none for the run of a single model."""
        return [RunFolder(path.parent) for path in sorted(self.path.glob("member-*/run.json"))]

    def can_go_on(self) -> bool:
        """Whether anything in here can be gone on with: of a single model, or of a member."""
        return any(folder.holds_progress() for folder in (self, *self.members()))

    def check_identity(self, identity: Mapping[str, Any], may_differ: frozenset[str]) -> None:
        """Refuse to go on with other settings or other data than the run began with."""
        stored = _read_object(self.path / "run.json")
        was, now = (
            {key: value for key, value in side.items() if key not in may_differ}
            for side in (stored, identity)
        )
        if different := differences(was, now, CHECKSUMS):
            raise CheckpointError(
                f"{self.path} was begun differently: {'; '.join(different)}. "
                "Use the same settings and data to resume, or start over without --resume."
            )

    def save(self, tensors: Weights, progress: Progress, best: Weights | None) -> None:
        """Write a finished epoch, and the best one's weights unless they are there already."""
        if best is not None and not self._best(progress.best_epoch).exists():
            _save_tensors(self._best(progress.best_epoch), best, {})
        state = {
            "history": [record.to_json() for record in progress.history],
            "best_epoch": progress.best_epoch,
            "best_value": progress.best_value,
        }
        _save_tensors(self.path / "last.safetensors", tensors, {"progress": json.dumps(state)})
        lines = "".join(record.to_line() for record in progress.history)
        write_whole(self.path / "history.jsonl", lines.encode())
        for old in self.path.glob("best-*.safetensors"):
            if old != self._best(progress.best_epoch):
                old.unlink(missing_ok=True)

    def load(self) -> tuple[Weights, Progress, Weights | None]:
        tensors, metadata = _load_tensors(self.path / "last.safetensors")
        state = json.loads(metadata["progress"])
        progress = Progress(
            tuple(EpochRecord(**record) for record in state["history"]),
            state["best_epoch"],
            state["best_value"],
        )
        best = _load_tensors(self._best(progress.best_epoch))[0] if progress.best_epoch else None
        return tensors, progress, best

    def _best(self, epoch: int) -> Path:
        return self.path / f"best-{epoch:06d}.safetensors"


def prefixed(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}.{name}": value for name, value in weights.items()}


def unprefixed(prefix: str, weights: Weights) -> Weights:
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}


def _save_tensors(path: Path, tensors: Weights, metadata: dict[str, str]) -> None:
    temporary = path.with_suffix(".tmp")
    on_cpu = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    save_file(on_cpu, temporary, metadata=metadata or None)
    into_place(temporary, path)


def _load_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot resume: {path} is missing or damaged ({error}). Start over without --resume."
        ) from None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        reason = "not an object"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise CheckpointError(
        f"cannot resume: {path} is missing or damaged ({reason}). Start over without --resume."
    )
