"""Sparse matrices for models in closed form. Products need bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged

TIE_BREAK = 1e-6
"""The weight of log-popularity in a score. It only orders candidates that are equal otherwise."""
WALKS = 2**22
"""The maximum number of pairs of entries that a product of two sparse matrices holds at a time."""
CELLS = 2**24
"""The maximum number of cells in a block of a dense matrix. A longer row is a block by itself."""


def exact(device: torch.device) -> torch.dtype:
    """Returns the most precise float type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Yields slices that split a dense matrix [rows, width] into blocks of at most `CELLS` cells."""
    step = max(1, CELLS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix. `rows` holds the columns of each row's entries. Entries of one cell are added up."""

    rows: Ragged
    weights: Tensor  # [entries]
    columns: int

    @classmethod
    def of(
        cls, rows: Ragged, columns: int, weight: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> SparseRows:
        """Makes a matrix in which every entry has the same weight."""
        weights = torch.full((len(rows.values),), weight, dtype=dtype, device=rows.device)
        return cls(rows, weights, columns)

    def __len__(self) -> int:
        return len(self.rows)

    def block(self, which: slice) -> SparseRows:
        """Returns consecutive rows."""
        offsets = self.rows.offsets[which.start : which.stop + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        return SparseRows(
            Ragged(self.rows.values[entries], offsets - offsets[0]), self.weights[entries], self.columns
        )

    def above(self, other: SparseRows) -> SparseRows:
        """Returns these rows followed by the rows of `other`."""
        weights = torch.cat([self.weights, other.weights])
        return SparseRows(self.rows.append(other.rows), weights, self.columns)

    def beside(self, other: SparseRows) -> SparseRows:
        """Returns these columns followed by the columns of `other`."""
        moved = Ragged(other.rows.values + self.columns, other.rows.offsets)
        total = self.columns + other.columns
        return SparseRows(self.rows, self.weights, total).plus(SparseRows(moved, other.weights, total))

    def plus(self, other: SparseRows) -> SparseRows:
        """The sum of two matrices of the same shape."""
        row = torch.cat([self.rows.row_of_entry(), other.rows.row_of_entry()])
        order = torch.argsort(row, stable=True)
        values = torch.cat([self.rows.values, other.rows.values])[order]
        weights = torch.cat([self.weights, other.weights])[order]
        return SparseRows(Ragged(values, self.rows.offsets + other.rows.offsets), weights, self.columns)

    def transposed(self) -> SparseRows:
        order = torch.argsort(self.rows.values, stable=True)
        return SparseRows(self.rows.transposed(self.columns), self.weights[order], len(self))

    def times(self, other: SparseRows) -> Tensor:
        """The dense product with another sparse matrix. Each entry (r, c) visits all entries in row c of
        `other`; each visit is called a walk."""
        product = self.weights.new_zeros(len(self) * other.columns)
        row, walks = self.rows.row_of_entry(), other.rows.lengths[self.rows.values]  # [entries]
        # For each entry: its first entry in `other`, minus the number of walks before it.
        before = torch.cat([walks.new_zeros(1), walks.cumsum(0)])
        begin = other.rows.offsets[self.rows.values] - before[:-1]
        for first, last in _parts(before):
            total = int(before[last] - before[first])
            entry = torch.repeat_interleave(
                torch.arange(first, last, device=row.device), walks[first:last], output_size=total
            )
            there = begin[entry] + torch.arange(total, device=row.device) + before[first]
            cell = row[entry] * other.columns + other.rows.values[there]
            product.index_add_(0, cell, self.weights[entry] * other.weights[there])
        return product.view(len(self), other.columns)

    def times_dense(self, table: Tensor) -> Tensor:
        """The product with a dense matrix, which has `columns` rows."""  # [rows, d]
        return self.rows.weighted_sum_of(table, self.weights)


def _parts(before: Tensor) -> Iterator[tuple[int, int]]:
    """Yields ranges of entries with at most `WALKS` walks. `before`: the walks before each entry."""
    start, entries = 0, len(before) - 1
    while start < entries:
        reach = int(torch.searchsorted(before, before[start] + WALKS, right=True)) - 1
        end = max(start + 1, reach)  # an entry with more walks is a range by itself
        yield start, end
        start = end
