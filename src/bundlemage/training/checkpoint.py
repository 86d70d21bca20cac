"""A training run on disk. After any kind of interruption it can continue from the last stored epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bundlemage.data.folders import ResumableFolder, whole_file, write_whole
from bundlemage.training.history import EpochRecord

Weights = dict[str, Tensor]
CHECKSUMS = frozenset({"training data", "validation data"})
"""Keys of a run's identity that hold checksums. Messages do not show their values."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: its epochs so far and the best one. The tensors are stored separately."""

    history: tuple[EpochRecord, ...] = ()
    best_epoch: int = 0
    best_value: float = float("-inf")

    @property
    def epoch(self) -> int:
        """The last finished epoch; 0 before the first."""
        return self.history[-1].epoch if self.history else 0


class RunFolder(ResumableFolder):
    """The folder of a run. `last.safetensors` holds the state after the last stored epoch.

    `best-N.safetensors` holds the weights of the best epoch, N. Each member of an ensemble has its own folder
    `member-N`. `history.jsonl` is for readers and plots; a resumed run does not read it.
    """

    kind = "training run"
    file = "run.json"
    others = ("last.safetensors", "best-*.safetensors", "history.jsonl")
    checksums = CHECKSUMS
    anew = "start over without --resume"

    def begin(self, identity: Mapping[str, Any], **more: Any) -> None:
        """Start a new run. Removes an earlier run in this folder. Raises an error if it holds other files."""
        self.discard()
        self.check(resume=False)
        super().begin(identity, **more)

    def discard(self) -> None:
        for member in self.members():
            member.discard()
        super().discard()

    def holds_progress(self) -> bool:
        """Whether at least one epoch of a single model is stored."""
        return (self.path / "last.safetensors").exists()

    def member(self, number: int) -> RunFolder:
        """Returns the folder of one member of an ensemble, counted from 1."""
        return RunFolder(self.path / f"member-{number}")

    def members(self) -> list[RunFolder]:
        """Returns the folders of the members whose training has begun; an empty list for a single model."""
        return [RunFolder(path.parent) for path in sorted(self.path.glob("member-*/run.json"))]

    def can_resume(self) -> bool:
        """Whether at least one epoch of the model, or of a member of the ensemble, is stored."""
        return any(folder.holds_progress() for folder in (self, *self.members()))

    def save(self, tensors: Weights, progress: RunProgress, best: Weights | None) -> None:
        """Write the state after an epoch, and the best epoch's weights if they are not stored yet."""
        if best is not None and not self._best(progress.best_epoch).exists():
            _save_tensors(self._best(progress.best_epoch), best, {})
        state = json.dumps(asdict(progress))
        _save_tensors(self.path / "last.safetensors", tensors, {"progress": state})
        lines = "".join(record.to_line() for record in progress.history)
        write_whole(self.path / "history.jsonl", lines.encode())
        for old in self.path.glob("best-*.safetensors"):
            if old != self._best(progress.best_epoch):
                old.unlink(missing_ok=True)

    def load(self) -> tuple[Weights, RunProgress, Weights | None]:
        """Returns the tensors and the progress of the last stored epoch, and the best epoch's weights."""
        tensors, metadata = self._tensors(self.path / "last.safetensors")
        state = json.loads(metadata["progress"])
        history = tuple(EpochRecord(**record) for record in state.pop("history"))
        progress = RunProgress(history, **state)
        best = self._tensors(self._best(progress.best_epoch))[0] if progress.best_epoch else None
        return tensors, progress, best

    def _tensors(self, path: Path) -> tuple[Weights, dict[str, str]]:
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise self.damaged(path, error) from None

    def _best(self, epoch: int) -> Path:
        return self.path / f"best-{epoch:06d}.safetensors"


def prefixed(prefix: str, weights: Weights) -> Weights:
    """Returns the tensors with `prefix.` before each name."""
    return {f"{prefix}.{name}": value for name, value in weights.items()}


def unprefixed(prefix: str, weights: Weights) -> Weights:
    """Returns the tensors whose names begin with `prefix.`, under their names without it."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}


def _save_tensors(path: Path, tensors: Weights, metadata: dict[str, str]) -> None:
    on_cpu = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    with whole_file(path) as temporary:
        save_file(on_cpu, temporary, metadata=metadata or None)
