"""What a shop knows about its pairs beyond that they exist: when, how strong, and taken back.

A pair is a user and an item, or a user and a bundle. A row of a table is an event: several events of the
same pair make one entry of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

Mask: TypeAlias = npt.NDArray[np.bool_]
Times: TypeAlias = npt.NDArray[np.int64]
"""Microseconds since 1970 in UTC."""
Weights: TypeAlias = npt.NDArray[np.float32]
UNDATED = -(2**63)
"""The time of a pair whose time is not known. It is before every other time."""
DAY = 86_400_000_000
"""Microseconds in a day."""
EARLIEST, LATEST = -719_162 * DAY, 2_932_896 * DAY
"""A time lies between the years 1 and 9999: from EARLIEST on and before LATEST."""


@dataclass(frozen=True)
class Events:
    """Facts about the entries of a binary matrix, in the order of `matrix.indices`."""

    at: Times | None = None
    """The time of each pair's latest event, or UNDATED. None: no time is known."""
    weight: Weights | None = None
    """The strength of each pair, above 0. None: all are 1."""
    rejected: sparse.csr_matrix | None = None
    """Pairs whose latest event is negative, such as a return or a dislike. They are not in the matrix, and
    `rejected` has its shape. None: there are none."""

    def __post_init__(self) -> None:
        if self.at is not None and not (self.at != UNDATED).any():
            object.__setattr__(self, "at", None)
        if self.weight is not None and bool((self.weight == 1).all()):
            object.__setattr__(self, "weight", None)
        if self.rejected is not None and not self.rejected.nnz:
            object.__setattr__(self, "rejected", None)
        for array in (self.at, self.weight):
            if array is not None:
                array.setflags(write=False)

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return any(fact is not None for fact in (self.at, self.weight, self.rejected))

    def check(self, matrix: sparse.csr_matrix, name: str) -> None:
        """Raises `ValueError` if these are not facts about this matrix."""
        for what, array in (("times", self.at), ("weights", self.weight)):
            if array is not None and len(array) != matrix.nnz:
                raise ValueError(f"{name} has {matrix.nnz:,} pairs, but {len(array):,} {what}")
        if self.weight is not None and not bool((np.isfinite(self.weight) & (self.weight > 0)).all()):
            raise ValueError(f"a weight of {name} is not a number above 0")
        if self.rejected is not None and self.rejected.shape != matrix.shape:
            raise ValueError(f"{name} is {matrix.shape}, but its rejected pairs are {self.rejected.shape}")

    @property
    def purchases(self) -> Mask | None:
        """Marks the pairs that count as purchases: those with a weight of 1 or more. None: all pairs.

        Weaker events, such as views, tell a user's taste, but the user owns nothing by them. If no pair
        reaches 1, the weights are no such scale, and all pairs are purchases.
        """
        if self.weight is None or not self.tells_purchases:
            return None
        strong = self.weight >= 1
        return None if strong.all() else strong

    def bought(self, matrix: sparse.csr_matrix) -> sparse.csr_matrix:
        """Returns the matrix that these facts describe with only the purchases."""
        purchases = self.purchases
        if purchases is None:
            return matrix
        ends = np.concatenate([[0], np.cumsum(purchases)])[matrix.indptr]
        arrays = (matrix.data[purchases], matrix.indices[purchases], ends.astype(matrix.indptr.dtype))
        kept = sparse.csr_matrix(arrays, shape=matrix.shape)
        kept.has_canonical_format = True
        for array in (kept.data, kept.indices, kept.indptr):
            array.setflags(write=False)
        return kept

    @property
    def tells_purchases(self) -> bool:
        """Whether a weight below 1 means that a thing was not bought."""
        return self.weight is None or not len(self.weight) or bool(self.weight.max() >= 1)

    def strengths(self, half_life: float | None) -> Weights | None:
        """Returns how much each pair counts; None: all count 1. With a half-life, the weights are those of
        `recent`, all multiplied by one number, so that their mean is what it is without a half-life: the
        sums in losses and in sales keep their size. Pairs without any time keep their weights.
        """
        if half_life is None or self.at is None:
            return self.weight
        recent = self.recent(half_life)
        before = len(recent) if self.weight is None else self.weight.sum(dtype=np.float64)
        return recent * np.float32(before / recent.sum(dtype=np.float64))

    def of(self, before: sparse.csr_matrix, after: sparse.csr_matrix) -> Events:
        """Returns the same facts in the order of another matrix of the same shape.

        `before` is the matrix that these facts describe. A pair that it lacks has no time, and the weight 1.
        """
        if after is before or (self.at is None and self.weight is None):
            return self
        old, new = _keys(before), _keys(after)
        place = np.searchsorted(old, new).clip(max=max(len(old) - 1, 0))
        known = old[place] == new if len(old) else np.zeros(len(new), bool)
        at = None if self.at is None else np.where(known, self.at[place], UNDATED) if len(old) else None
        weight = None
        if self.weight is not None and len(old):
            weight = np.where(known, self.weight[place], np.float32(1))
        return replace(self, at=at, weight=weight)

    def columns(self, matrix: sparse.csr_matrix, kept: npt.NDArray[np.integer]) -> Events:
        """Returns the facts about `matrix[:, kept]`, with sorted rows."""
        if not self:
            return self
        numbered = sparse.csr_matrix(
            (np.arange(1, matrix.nnz + 1, dtype=np.int64), matrix.indices, matrix.indptr), matrix.shape
        )[:, kept]
        numbered.sort_indices()
        place = numbered.data - 1
        return Events(
            None if self.at is None else self.at[place],
            None if self.weight is None else self.weight[place],
            None if self.rejected is None else sparse.csr_matrix(self.rejected[:, kept]),
        )

    def wider(self, columns: int) -> Events:
        """Returns the same facts about a matrix with more columns, which are empty."""
        if self.rejected is None:
            return self
        gone = self.rejected
        arrays = (gone.data, gone.indices, gone.indptr)
        return replace(self, rejected=sparse.csr_matrix(arrays, shape=(gone.shape[0], columns)))

    def recent(self, half_life: float, now: int | None = None, oldest: int | None = None) -> Weights:
        """Returns the weights times 0.5 ** (age / half_life). `half_life` is in days.

        `now` is the moment from which ages count; None: the latest time. A pair without a time is as old as
        the `oldest` pair with one; None: of these pairs.
        """
        if self.at is None:
            raise ValueError("these pairs have no times")
        dated = self.at[self.at != UNDATED]
        now = int(dated.max()) if now is None else now
        ages = (now - np.maximum(self.at, dated.min() if oldest is None else oldest)).clip(min=0) / DAY
        decay: Weights = np.exp2(-ages / half_life).astype(np.float32).clip(min=np.finfo(np.float32).tiny)
        return decay if self.weight is None else decay * self.weight


NOTHING_KNOWN = Events()


def _keys(matrix: sparse.csr_matrix) -> npt.NDArray[np.int64]:
    """Returns a number for each pair, in ascending order. Equal pairs have equal numbers."""
    rows: npt.NDArray[np.int64] = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keys: npt.NDArray[np.int64] = rows * max(matrix.shape[1], 1) + matrix.indices
    return keys
