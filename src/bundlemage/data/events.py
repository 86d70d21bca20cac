"""What a shop knows about its pairs beyond that they exist: when, how strong, and taken back.

A pair is a user and an item, or a user and a bundle. A row of a table is an event: several events of the
same pair make one entry of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


FACTS = ("at", "weight", "rejected")
"""The fields of `Events` that tell something about pairs."""


@dataclass(frozen=True)
class Whole:
    """What all pairs of a matrix tell about some of them, as splits and processes have."""

    tells_purchases: bool = True
    """Whether a weight below 1 means that a thing was not bought."""
    oldest: int | None = None
    now: int | None = None
    """The first and the last known time; None: no time is known."""

    @classmethod
    def of(cls, weights: Iterable[Weights | None], times: Iterable[Times | None]) -> Whole:
        """Takes all weights and all times, piece by piece. Weights are read until one is a purchase's."""
        tells_purchases = max(_highest(weights), default=1.0) >= 1
        dated = (part[part != UNDATED] for part in times if part is not None)
        ends = [(int(part.min()), int(part.max())) for part in dated if len(part)]
        if not ends:
            return cls(tells_purchases)
        return cls(tells_purchases, min(first for first, _ in ends), max(last for _, last in ends))


@dataclass(frozen=True)
class Divided(Whole):
    """The same for pairs that are divided among processes."""

    scale: float | None = None
    """What the weights of `Events.recent` are multiplied by; None: the pairs at hand tell it."""


def _highest(weights: Iterable[Weights | None]) -> Iterator[float]:
    """Yields the highest weight of each piece, and ends with the first that is a purchase."""
    for part in weights:
        if part is not None and len(part):
            yield float(part.max())
            if part.max() >= 1:
                return


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
    whole: Whole | None = None
    """Set if these are facts about some pairs of a larger matrix. None: they are about all pairs."""

    def __post_init__(self) -> None:
        divided = isinstance(self.whole, Divided)  # the pairs of other processes may have times and weights
        if self.at is not None and not divided and not (self.at != UNDATED).any():
            object.__setattr__(self, "at", None)
        if self.weight is not None and not divided and bool((self.weight == 1).all()):
            object.__setattr__(self, "weight", None)
        if self.rejected is not None and not self.rejected.nnz:
            object.__setattr__(self, "rejected", None)
        for array in (self.at, self.weight):
            if array is not None:
                array.setflags(write=False)

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return any(getattr(self, fact) is not None for fact in FACTS)

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
        return (self.whole or Whole.of([self.weight], ())).tells_purchases

    def strengths(self, half_life: float | None) -> Weights | None:
        """Returns how much each pair counts; None: all count 1. With a half-life, the weights are those of
        `recent`, all multiplied by one number, so that their mean is what it is without a half-life: the
        sums in losses and in sales keep their size. Pairs without any time keep their weights.
        """
        if half_life is None or self.at is None:
            return self.weight
        scale = self.whole.scale if isinstance(self.whole, Divided) else None
        if scale is None:
            before, after = self.sums(half_life)
            scale = before / after if after else 1.0
        return _positive(self._decayed(half_life) * scale)

    def sums(self, half_life: float) -> tuple[float, float]:
        """Returns the sum of the weights, and that of the weights of `recent`."""
        decayed = self._decayed(half_life)
        before = len(decayed) if self.weight is None else self.weight.sum(dtype=np.float64)
        return float(before), float(decayed.sum())

    def of(self, before: sparse.csr_matrix, after: sparse.csr_matrix) -> Events:
        """Returns the same facts in the order of another matrix of the same shape.

        `before` is the matrix that these facts describe. A pair that it lacks has no time, and the weight 1.
        What counts as a purchase, and from when ages count, stays as it was.
        """
        if after is before or (self.at is None and self.weight is None):
            return self
        old, new = _keys(before), _keys(after)
        place = np.searchsorted(old, new).clip(max=max(len(old) - 1, 0))
        known = old[place] == new if len(old) else np.zeros(len(new), bool)
        at = weight = None
        if self.at is not None:
            at = np.full(len(new), UNDATED)
            at[known] = self.at[place[known]]
        if self.weight is not None:
            weight = np.ones(len(new), np.float32)
            weight[known] = self.weight[place[known]]
        whole = self.whole or Whole.of([self.weight], [self.at])
        return replace(self, at=at, weight=weight, whole=whole)

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
            self.whole,
        )

    def wider(self, columns: int) -> Events:
        """Returns the same facts about a matrix with more columns, which are empty."""
        if self.rejected is None:
            return self
        gone = self.rejected
        arrays = (gone.data, gone.indices, gone.indptr)
        return replace(self, rejected=sparse.csr_matrix(arrays, shape=(gone.shape[0], columns)))

    def recent(self, half_life: float) -> Weights:
        """Returns the weights times 0.5 ** (age / half_life). `half_life` is in days.

        Ages count from the latest time of the whole matrix. A pair without a time is as old as the oldest
        one with a time.
        """
        return _positive(self._decayed(half_life))

    def _decayed(self, half_life: float) -> npt.NDArray[np.float64]:
        if self.at is None:
            raise ValueError("these pairs have no times")
        whole = self.whole or Whole.of((), [self.at])
        now, oldest = whole.now or 0, whole.oldest or 0  # without any time, all pairs are equally old
        ages = (now - np.maximum(self.at, oldest)).clip(min=0) / DAY
        # Beyond 1,000 half-lives, 64 bits could hold only 0.
        decay: npt.NDArray[np.float64] = np.exp2(-np.minimum(ages / half_life, 1000))
        return decay if self.weight is None else decay * self.weight


def _positive(weights: npt.NDArray[np.float64]) -> Weights:
    """Returns the weights as 32-bit numbers. None of them becomes 0."""
    return weights.astype(np.float32).clip(min=np.finfo(np.float32).tiny)


NOTHING_KNOWN = Events()


def _keys(matrix: sparse.csr_matrix) -> npt.NDArray[np.int64]:
    """Returns a number for each pair, in ascending order. Equal pairs have equal numbers."""
    rows: npt.NDArray[np.int64] = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keys: npt.NDArray[np.int64] = rows * max(matrix.shape[1], 1) + matrix.indices
    return keys
