"""Rows of different lengths on a device, and means of vectors over the rows of a batch.

On a GPU, Triton kernels (`kernels.py`) compute the means. Elsewhere the PyTorch code below does. It is also
the reference for the kernels. The shape of the result is known in advance, so the CPU never waits for a GPU.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_library = torch.library.Library("bundlemage", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that registers a function as a PyTorch operator with this schema, and returns the operator.

    Profilers and recorded graphs see one operation. (`torch.library.custom_op` takes seconds to import.)
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        _library.define(schema)  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        registered: Callable[..., Any] = getattr(torch.ops.bundlemage, name).default
        return registered

    return register


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """Returns the Triton kernels for a float32 tensor on an NVIDIA GPU. None: use plain PyTorch."""
    return _kernels() if tensor.is_cuda and tensor.dtype == torch.float32 else None


@cache
def _kernels() -> ModuleType | None:
    # PyTorch has no Triton on Windows. Before 2.8 it cannot multiply bfloat16 into float32 results.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if importlib.util.find_spec("triton") is None or version < (2, 8):
        return None
    from bundlemage.models import kernels

    return kernels


Kept = TypeVar("Kept")


class KeptForLast(Generic[Kept]):
    """Keeps what was computed for the last object, as long as that object lives.

    A shop asks about the same bundles again and again. Several threads may ask.
    """

    def __init__(self) -> None:
        self._kept: tuple[weakref.ref[Any], Kept] | None = None

    def of(self, key: object, compute: Callable[[], Kept]) -> Kept:
        """Returns what is kept for `key`, or computes it."""
        kept = self._kept
        if kept is None or kept[0]() is not key:
            kept = self._kept = (weakref.ref(key), compute())
        return kept[1]


class Unchanging:
    """An object that never changes. Copies of a model share it."""

    def __deepcopy__(self, memo: object) -> Any:
        return self


@dataclass(frozen=True)
class Ragged(Unchanging):
    """A CSR matrix. Row n holds `values[offsets[n]:offsets[n + 1]]`. Its entries are ones, which are not
    stored, or have weights."""

    values: Tensor  # [entries] int64
    offsets: Tensor  # [rows + 1] int64
    weights: Tensor | None = field(default=None, kw_only=True)  # [entries] float32
    """How much each entry counts, above 0, in means and sums. None: all count 1."""
    weak: Tensor | None = field(default=None, kw_only=True)  # [entries] bool
    """True for what a user only viewed, say, and did not buy. None: everything was bought."""

    @classmethod
    def from_csr(
        cls, matrix: Any, device: torch.device | None = None, weights: Any = None, strong: Any = None
    ) -> Ragged:
        """Takes the positions of the entries of a SciPy CSR matrix, and ignores their values. `weights` are
        their weights, and `strong` marks the purchases; both are NumPy arrays or None."""
        values = torch.from_numpy(matrix.indices.astype(np.int64)).to(device)
        return cls(
            values,
            torch.from_numpy(matrix.indptr.astype(np.int64)).to(device),
            weights=None if weights is None else torch.from_numpy(np.array(weights, np.float32)).to(device),
            weak=None if strong is None else torch.from_numpy(~strong).to(device),
        )

    @classmethod
    def from_lists(
        cls,
        rows: Sequence[Iterable[int]],
        device: torch.device | None = None,
        weights: Sequence[Iterable[float]] | None = None,
        weak: Sequence[Iterable[bool]] | None = None,
    ) -> Ragged:
        """Makes one row from each list of positions. `weights` and `weak` have lists of the same lengths."""
        lists = [list(row) for row in rows]
        offsets = np.cumsum([0, *map(len, lists)])
        values = np.array([value for row in lists for value in row], dtype=np.int64)
        facts: dict[str, Tensor] = {}
        for name, given, kind in (("weights", weights, np.float32), ("weak", weak, np.bool_)):
            if given is not None:
                entries = np.array([fact for row in given for fact in row], dtype=kind)
                facts[name] = torch.from_numpy(entries).to(device)
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(offsets).to(device), **facts)

    def _of(self, entries: Any, offsets: Tensor) -> Ragged:
        """Other rows with the entries at an index, a mask or a slice, and their facts."""
        weights = None if self.weights is None else self.weights[entries]
        weak = None if self.weak is None else self.weak[entries]
        return Ragged(self.values[entries], offsets, weights=weights, weak=weak)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def lengths(self) -> Tensor:  # [rows]
        return self.offsets.diff()

    def to(self, device: torch.device) -> Ragged:
        """Returns a copy on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        weak = None if self.weak is None else self.weak.to(device)
        return Ragged(self.values.to(device), self.offsets.to(device), weights=weights, weak=weak)

    def with_values(self, values: Tensor) -> Ragged:
        """The same rows with other values, for entries that get other numbers."""  # [entries]
        return Ragged(values, self.offsets, weights=self.weights, weak=self.weak)

    def between(self, start: int, end: int) -> Ragged:
        """Consecutive rows. Only the offsets are copied."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        return self._of(slice(first, last), self.offsets[start : end + 1] - first)

    def with_empty_row(self) -> Ragged:
        """These rows and an empty one."""
        return replace(self, offsets=torch.cat([self.offsets, self.offsets[-1:]]))

    @property
    def strong(self) -> Ragged:
        """The same rows with only what was bought."""
        return self if self.weak is None else self.keep(~self.weak)

    def row_of_entry(self) -> Tensor:  # [entries]
        """The row of each entry."""
        rows = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=len(self.values))

    def rows(self, index: Tensor) -> Ragged:
        """The chosen rows, in the order of `index`."""
        starts = self.offsets[index]
        lengths = self.offsets[index + 1] - starts
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        within = torch.arange(total, device=self.device) - torch.repeat_interleave(
            offsets[:-1], lengths, output_size=total
        )
        source = torch.repeat_interleave(starts, lengths, output_size=total) + within
        return self._of(source, offsets)

    def keep(self, entries: Tensor) -> Ragged:
        """The same rows with only the entries marked True."""
        counted = torch.cat([entries.new_zeros(1, dtype=torch.int64), entries.cumsum(0)])
        return self._of(entries, counted[self.offsets])

    def append(self, other: Ragged) -> Ragged:
        """These rows followed by the rows of the other."""
        if isinstance(other, Contents):
            return Contents.of(self).append(other)
        offsets = torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]])
        weights = None
        if self.weights is not None or other.weights is not None:
            weights = torch.cat([self.entry_weights(), other.entry_weights()])
        weak = None
        if self.weak is not None or other.weak is not None:
            both = (
                torch.zeros_like(each.values, dtype=torch.bool) if each.weak is None else each.weak
                for each in (self, other)
            )
            weak = torch.cat(list(both))
        return Ragged(torch.cat([self.values, other.values]), offsets, weights=weights, weak=weak)

    def entry_weights(self) -> Tensor:
        """The weight of each entry."""  # [entries]
        if self.weights is None:
            return torch.ones_like(self.values, dtype=torch.float32)
        return self.weights

    def entries(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows and the values of the entries at `index`."""
        return torch.searchsorted(self.offsets, index, right=True) - 1, self.values[index]

    def transposed(self, columns: int) -> Ragged:
        """For each of `columns` values, the rows that hold it."""
        order = torch.argsort(self.values, stable=True)
        return Ragged(self.row_of_entry()[order], offsets_of(self.counts(columns)))

    def counts(self, columns: int) -> Tensor:
        """The number of rows that hold each of `columns` values."""  # [columns]
        return torch.bincount(self.values, minlength=columns)

    def column_sums(self, columns: int) -> Tensor:
        """The sum of the weights of each of `columns` values. Without weights, the number of rows."""
        if self.weights is None:
            return self.counts(columns)
        sums = torch.zeros(columns, dtype=sum_type(self.device), device=self.device)
        return sums.index_add_(0, self.values, self.weights.to(sums)).float()  # [columns]

    def row_sums(self) -> Tensor:
        """The sum of the weights in each row. Without weights, the number of entries."""  # [rows]
        if self.weights is None:
            return self.lengths
        return self.weights.new_zeros(len(self)).index_add_(0, self.row_of_entry(), self.weights)

    def softmax(self, scores: Tensor) -> Tensor:
        """The softmax within each row. `scores` has one score for each entry."""  # [entries]
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
        """The mean of each row's vectors in `table`, by weight; zeros for an empty row."""  # [rows, d]
        if self.weights is not None:
            sums = self.row_sums().to(table.dtype)
            return self.weighted_sum_of(table, self.weights.to(table.dtype) / sums[self.row_of_entry()])
        return F.embedding_bag(self.values, table, self.offsets, mode="mean", include_last_offset=True)

    def sum_of(self, table: Tensor) -> Tensor:
        """The sum of each row's vectors in `table`. Weights have no effect."""  # [rows, d]
        return F.embedding_bag(self.values, table, self.offsets, mode="sum", include_last_offset=True)

    def as_mask(self, columns: int) -> Tensor:
        """The entries as a dense mask, [rows, columns]."""
        mask = torch.zeros(len(self), columns, dtype=torch.bool, device=self.device)
        mask[self.row_of_entry(), self.values] = True
        return mask


@dataclass(frozen=True)
class Contents(Ragged):
    """The items of bundles, and the expected sales of some bundles."""

    expected_sales: Tensor  # [rows]; nan: unknown
    stamps: Tensor | None = None  # [rows] int64
    """If two contents have the same stamp in a row, that row has the same items in both. So a model can use
    the row's vector again. None: the contents cannot be compared with others."""

    @classmethod
    def of(cls, bundles: Ragged, expected_sales: Tensor | None = None) -> Contents:
        """Adds expected sales to bundles. With None, bundles keep their expected sales if they have any."""
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


def sum_type(device: torch.device) -> torch.dtype:
    """The type for long sums: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def at_least(sums: Tensor) -> Tensor:
    """Sums of weights by which something is divided: 1 in place of 0."""
    return torch.where(sums > 0, sums, 1)


def offsets_of(lengths: Tensor) -> Tensor:
    """The start of each row and the end of the last row, computed from the rows' lengths."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def mask_each_row(ragged: Ragged, ratio: float, random: torch.Generator | None = None) -> Ragged:
    """Hides a share `ratio` of every row's entries (ρ and ψ, as in the paper's text).

    The number to hide is rounded up or down at random. So its mean is exact, also for short rows.
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
    """Hides each entry with probability `ratio`. A row may lose all of its entries, or none."""
    return ragged.keep(torch.rand(len(ragged.values), device=ragged.device, generator=random) >= ratio)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Returns `values[index]`. On a CPU its gradient is several times faster than that of indexing."""
    return F.embedding(index, values[:, None])[..., 0]


# ── Means over some rows, with entries hidden ────────────────────────────────────────────────────


@dataclass(frozen=True)
class Hidden:
    """The share of entries that a mean leaves out at random."""

    ratio: float = 0.0
    each_row: bool = False
    """True: this share of each row is hidden. False: each entry is hidden with this probability."""


NOTHING = Hidden()

# The constants of `chances`, as signed 64-bit numbers: odd, with bits that look random.
BY_KEY, BY_ROW, BY_SEED = -0x61C8864680B583EB, -0x3D4D51C2D82B14B1, 0x27D4EB2F165667C5
FIRST_MIX, SECOND_MIX = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def chances(seed: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """For each entry, a random number from 0 to 1 that follows from the seed, the entry's row and its key.

    It does not depend on other entries. So processes that hold different parts of the data, and a CPU and
    a GPU, all hide the same entries.
    """  # [entries]
    mixed = keys * BY_KEY + rows * BY_ROW + seed * BY_SEED  # the overflow of whole numbers is intended
    mixed = (mixed ^ ((mixed >> 33) & (2**31 - 1))) * FIRST_MIX
    mixed = (mixed ^ ((mixed >> 29) & (2**35 - 1))) * SECOND_MIX
    return ((mixed >> 32) & (2**24 - 1)).float() * (1 / 2**24)


def mean_of_rows(
    rows: Ragged,
    index: Tensor,
    table: Tensor,
    hidden: Hidden = NOTHING,
    without: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For each row in `index`, the mean of `table` over the row's entries, and the number of entries in the
    mean. A row without entries gets zeros. If entries have weights, the mean is by weight, and the sum of the
    weights takes the place of the number.

    `without` has one value for each row, which is left out of its mean. `keys` has an id for each entry, from
    which `chances` draws the hidden entries. The default is the entry's value.
    """  # [index, d], [index]
    seed = torch.randint(2**31, (1,), device=table.device) if hidden.ratio else None
    selection = _Selection(
        rows.values, rows.offsets, index, without, keys, seed, rows.weights, hidden.ratio, hidden.each_row
    )
    means, counts = _MeanOfRows.apply(table, *selection)  # type: ignore[no-untyped-call]
    return means, counts


class _Selection(NamedTuple):
    """The rows and entries that a mean uses, in the order of the operators' arguments."""

    values: Tensor
    offsets: Tensor
    chosen: Tensor
    without: Tensor | None
    keys: Tensor | None
    seed: Tensor | None
    weights: Tensor | None
    ratio: float
    each_row: bool

    @property
    def for_kernels(self) -> tuple[Any, ...]:
        """The arguments that the Triton kernels take. They know no weights."""
        return (*self[:6], self.ratio)

    def rows(self) -> Ragged:
        """Returns the chosen rows with only the entries that count in the mean."""
        rows = Ragged(self.values, self.offsets, weights=self.weights).rows(self.chosen)
        row = rows.row_of_entry()
        counted = torch.ones_like(row, dtype=torch.bool)
        if self.without is not None:
            counted &= rows.values != self.without[row]
        if self.seed is not None and not self.each_row:
            keys = (
                rows.values if self.keys is None else Ragged(self.keys, self.offsets).rows(self.chosen).values
            )
            counted &= chances(self.seed, row, keys) >= self.ratio
        rows = rows.keep(counted)
        if self.seed is None or not self.each_row:
            return rows
        random = torch.Generator(self.values.device).manual_seed(int(self.seed))
        return mask_each_row(rows, self.ratio, random)


class _MeanOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        means: Tensor
        counts: Tensor
        means, counts = _mean_of_rows(table, *arguments)
        ctx.hidden, ctx.table_rows = arguments[-2:], len(table)
        ctx.save_for_backward(counts, *arguments[:-2])
        ctx.mark_non_differentiable(counts)
        return means, counts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        counts, *selection = ctx.saved_tensors
        back = _mean_of_rows_back(upstream.contiguous(), counts, *selection, *ctx.hidden, ctx.table_rows)
        return back, *[None] * len(_Selection._fields)


_SELECTION = (
    "Tensor values, Tensor offsets, Tensor index, Tensor? without, Tensor? keys, Tensor? seed,"
    " Tensor? weights, float ratio, bool each_row"
)


@operator(f"mean_of_rows(Tensor table, {_SELECTION}) -> (Tensor, Tensor)")
def _mean_of_rows(table: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    kernels, selection = kernels_for(table), _Selection(*arguments)
    if selection.weights is not None:
        rows = selection.rows()
        return rows.mean_of(table), rows.row_sums()
    if kernels is None or selection.each_row:
        rows = selection.rows()
        return rows.mean_of(table), rows.lengths.int()
    means: tuple[Tensor, Tensor] = kernels.sum_of_rows(table, *selection.for_kernels, True)
    return means


@operator(f"mean_of_rows_back(Tensor upstream, Tensor counts, {_SELECTION}, int table_rows) -> Tensor")
def _mean_of_rows_back(upstream: Tensor, counts: Tensor, *arguments: Any) -> Tensor:
    kernels, selection, table_rows = kernels_for(upstream), _Selection(*arguments[:-1]), arguments[-1]
    if kernels is None or selection.each_row or selection.weights is not None:
        rows = selection.rows()
        shares = upstream / at_least(counts).to(upstream)[:, None]
        # Only rows that occur are summed: summing all rows of a large table would take much longer.
        values, order = rows.values.sort(stable=True)
        touched, times = torch.unique_consecutive(values, return_counts=True)
        back = shares.new_zeros(table_rows, shares.shape[1])
        entries = Ragged(rows.row_of_entry()[order], offsets_of(times))
        if rows.weights is None:
            back[touched] = entries.sum_of(shares)
        else:
            back[touched] = entries.weighted_sum_of(shares, rows.weights[order].to(shares))
        return back
    gradient: Tensor = kernels.spread_of_rows(upstream, counts, *selection.for_kernels, table_rows)
    return gradient
