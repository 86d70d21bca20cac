"""What a reader gives back."""

from __future__ import annotations

from dataclasses import dataclass

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split
from bundlemage.errors import Problem


@dataclass(frozen=True)
class Source:
    """A dataset as read, and the split that its own files define, where they define one."""

    dataset: BundleDataset
    ready: Split | None = None
    warnings: tuple[Problem, ...] = ()
    """Problems that did not stop the reading."""
