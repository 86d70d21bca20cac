"""Rows of different lengths on a device: a binary CSR matrix without its ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Row n holds `values[offsets[n]:offsets[n + 1]]`, positions into some table."""

    values: Tensor  # [entries] int64
    offsets: Tensor  # [rows + 1] int64

    @classmethod
    def from_csr(cls, matrix: Any, device: torch.device | None = None) -> Ragged:
        values = torch.from_numpy(matrix.indices.astype(np.int64)).to(device)
        return cls(values, torch.from_numpy(matrix.indptr.astype(np.int64)).to(device))

    @classmethod
    def from_lists(cls, rows: Sequence[Iterable[int]], device: torch.device | None = None) -> Ragged:
        lists = [list(row) for row in rows]
        offsets = np.cumsum([0, *map(len, lists)])
        values = np.array([value for row in lists for value in row], dtype=np.int64)
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(offsets).to(device))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def lengths(self) -> Tensor:  # [rows]
        return self.offsets.diff()

    def to(self, device: torch.device) -> Ragged:
        return Ragged(self.values.to(device), self.offsets.to(device))

    def row_of_entry(self) -> Tensor:  # [entries]
        rows = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=len(self.values))

    def rows(self, index: Tensor) -> Ragged:
        """The chosen rows, in the order asked for."""
        starts = self.offsets[index]
        lengths = self.offsets[index + 1] - starts
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        within = torch.arange(total, device=self.device) - torch.repeat_interleave(
            offsets[:-1], lengths, output_size=total
        )
        source = torch.repeat_interleave(starts, lengths, output_size=total) + within
        return Ragged(self.values[source], offsets)

    def keep(self, entries: Tensor) -> Ragged:
        """The same rows with only the entries marked True."""
        counted = torch.cat([entries.new_zeros(1, dtype=torch.int64), entries.cumsum(0)])
        return Ragged(self.values[entries], counted[self.offsets])

    def append(self, other: Ragged) -> Ragged:
        """The rows of this one followed by those of the other."""
        if isinstance(other, Contents):
            return Contents.of(self).append(other)
        offsets = torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ragged(torch.cat([self.values, other.values]), offsets)

    def entries(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The row and the value of entries named by their index."""
        return torch.searchsorted(self.offsets, index, right=True) - 1, self.values[index]

    def transposed(self, columns: int) -> Ragged:
        """For each of `columns` values, the rows that hold it."""
        order = torch.argsort(self.values, stable=True)
        return Ragged(self.row_of_entry()[order], offsets_of(self.counts(columns)))

    def counts(self, columns: int) -> Tensor:
        """How many rows hold each of `columns` values."""  # [columns]
        return torch.bincount(self.values, minlength=columns)

    def softmax(self, scores: Tensor) -> Tensor:
        """Shares of the entries that add up to one in each row, by a score of each entry."""  # [entries]
        row = self.row_of_entry()
        highest = scores.new_zeros(len(self)).scatter_reduce(
            0, row, scores.detach(), "amax", include_self=False
        )
        share = (scores - highest[row]).exp()
        total = share.new_zeros(len(self)).index_add(0, row, share)
        return share / total[row]

    def weighted_sum_of(self, table: Tensor, weights: Tensor) -> Tensor:
        """The sum of each row's vectors in `table`, each times the weight of its entry."""  # [rows, d]
        return F.embedding_bag(
            self.values, table, self.offsets, mode="sum", include_last_offset=True, per_sample_weights=weights
        )

    def mean_of(self, table: Tensor) -> Tensor:
        """The mean of each row's vectors in `table`; zeros for an empty row."""  # [rows, d]
        return F.embedding_bag(self.values, table, self.offsets, mode="mean", include_last_offset=True)

    def sum_of(self, table: Tensor) -> Tensor:  # [rows, d]
        return F.embedding_bag(self.values, table, self.offsets, mode="sum", include_last_offset=True)

    def as_mask(self, columns: int) -> Tensor:
        """A dense [rows, columns] mask of the entries, for hiding what a user has already."""
        mask = torch.zeros(len(self), columns, dtype=torch.bool, device=self.device)
        mask[self.row_of_entry(), self.values] = True
        return mask


@dataclass(frozen=True)
class Contents(Ragged):
    """Bundles by their items, some of them with a word on how often they are expected to sell."""

    expected_sales: Tensor  # [rows]; nan: nothing is said of it

    @classmethod
    def of(cls, bundles: Ragged, expected_sales: Tensor | None = None) -> Contents:
        """These bundles, with what is said of each; if not given, what was said before, or nothing."""
        if expected_sales is None:
            if isinstance(bundles, Contents):
                return bundles
            expected_sales = torch.full((len(bundles),), torch.nan, device=bundles.device)
        return cls(bundles.values, bundles.offsets, expected_sales)

    def to(self, device: torch.device) -> Contents:
        return Contents.of(super().to(device), self.expected_sales.to(device))

    def rows(self, index: Tensor) -> Contents:
        return Contents.of(super().rows(index), self.expected_sales[index])

    def keep(self, entries: Tensor) -> Contents:
        return Contents.of(super().keep(entries), self.expected_sales)

    def append(self, other: Ragged) -> Contents:
        further = Contents.of(other)
        joined = super().append(Ragged(other.values, other.offsets))
        return Contents.of(joined, torch.cat([self.expected_sales, further.expected_sales]))


def offsets_of(lengths: Tensor) -> Tensor:
    """Where rows of these lengths begin, and where the last one ends."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def mask_each_row(ragged: Ragged, ratio: float, random: torch.Generator | None = None) -> Ragged:
    """Hide `ratio` of every row's entries (ρ and ψ as the paper words them).

    The count to hide is rounded up or down at random, so that its mean is exact for short rows too.
    """
    entries, lengths = len(ragged.values), ragged.lengths
    chance = torch.rand(len(ragged), device=ragged.device, generator=random)
    hidden = (lengths * ratio + chance).floor().long()  # [rows]
    # A random rank inside each row: shuffle all entries, then bring rows together without reordering.
    shuffled = torch.randperm(entries, device=ragged.device, generator=random)
    row = ragged.row_of_entry()
    order = shuffled[torch.argsort(row[shuffled], stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(entries, device=ragged.device) - ragged.offsets[:-1][row]
    return ragged.keep(rank >= hidden[row])


def mask_whole_batch(ragged: Ragged, ratio: float, random: torch.Generator | None = None) -> Ragged:
    """Hide each entry of the batch with chance `ratio`, so that a row may lose all or nothing."""
    return ragged.keep(torch.rand(len(ragged.values), device=ragged.device, generator=random) >= ratio)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, whose gradient is several times as fast on a CPU as that of indexing."""
    return F.embedding(index, values[:, None])[..., 0]
