"""What a model may learn from and what it is asked afterwards: splits, and the ways to make them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, binary_matrix
from bundlemage.errors import ConfigError

Random = np.random.Generator
PAD = -1
"""Fills the candidate rows of cases that have fewer candidates than the widest one."""


@dataclass(frozen=True)
class MatchingCases:
    """Questions of the form: which of these bundles did this user take next?"""

    users: Positions  # [cases]
    positives: sparse.csr_matrix  # [cases, bundles]
    candidates: Positions | None  # [cases, width], positives included, padded with PAD; None: every bundle

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class GenerationCases:
    """Questions of the form: which of these items complete this bundle for this user?

    Several users may share an incomplete bundle: `partial`, `positives` and `candidates` have one
    row for each held-out bundle, and `bundles` says which row a case asks about.
    """

    users: Positions  # [cases]
    bundles: Positions  # [cases], rows of the three below
    partial: sparse.csr_matrix  # [held-out bundles, items]
    positives: sparse.csr_matrix  # [held-out bundles, items]
    candidates: Positions  # [held-out bundles, width], positives included, padded with PAD

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Split:
    """A dataset divided. `train` shares its vocabularies with `dataset` and holds fewer pairs."""

    dataset: BundleDataset
    train: BundleDataset
    validation: MatchingCases | None
    test: MatchingCases | None
    generation: GenerationCases | None
    protocol: str
    """How it was made, e.g. `paper`, `authors`, `bgcn`, `cold-bundles`, `none`."""
    seed: int | None = None
    """The seed that made it, or None where files or nothing did."""
