"""Means over the rows that a batch asks for, with some entries hidden.

The size of the result is known beforehand, so nothing waits for a GPU. Hence the operators: on a GPU a
Triton kernel, elsewhere the plain PyTorch below, which also says what the kernels compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bundlemage.models.accelerated import kernels_for, operator
from bundlemage.models.ragged import Ragged, mask_each_row, offsets_of


@dataclass(frozen=True)
class Hidden:
    """Which entries a look at a batch's rows leaves out, at random."""

    ratio: float = 0.0
    each_row: bool = False
    """Whether that share of every row is hidden, or of the batch wherever the entries fall."""


NOTHING = Hidden()

# The constants of `chances`, as signed 64-bit numbers: odd, with bits that look random.
BY_KEY, BY_ROW, BY_SEED = -0x61C8864680B583EB, -0x3D4D51C2D82B14B1, 0x27D4EB2F165667C5
FIRST_MIX, SECOND_MIX = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def chances(seed: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """A random number from 0 to 1 for each entry, by the seed, its row in the batch and its key.

    It does not depend on which other entries there are. So processes that hold different parts of the data,
    and a CPU and a GPU, all hide the same entries.
    """  # [entries]
    mixed = keys * BY_KEY + rows * BY_ROW + seed * BY_SEED  # whole numbers overflow, and that is meant
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
) -> Tensor:
    """The mean of `table` over the entries of each row that `index` names, zeros where there is none.

    `without` names for each of them one value that does not count. `keys` are what hidden entries are drawn
    by, where the values are not the ids themselves.
    """  # [index, d]
    return mean_and_counts(rows, index, table, hidden, without, keys)[0]


def mean_and_counts(
    rows: Ragged,
    index: Tensor,
    table: Tensor,
    hidden: Hidden = NOTHING,
    without: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `mean_of_rows`, and of how many entries each mean is."""  # [index, d], [index]
    seed = torch.randint(2**31, (1,), device=table.device) if hidden.ratio else None
    means, counts = _MeanOfRows.apply(table, rows, index, without, keys, seed, hidden)  # type: ignore[no-untyped-call]
    return means, counts


class _MeanOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        edges: Ragged,
        index: Tensor,
        without: Tensor | None,
        keys: Tensor | None,
        seed: Tensor | None,
        hidden: Hidden,
    ) -> tuple[Tensor, Tensor]:
        means: Tensor
        counts: Tensor
        means, counts = _mean_of_rows(
            table, edges.values, edges.offsets, index, without, keys, seed, hidden.ratio, hidden.each_row
        )
        ctx.edges, ctx.hidden, ctx.table_rows = edges, hidden, len(table)
        ctx.save_for_backward(counts, index, without, keys, seed)
        ctx.mark_non_differentiable(counts)
        return means, counts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        counts, index, without, keys, seed = ctx.saved_tensors
        back = _mean_of_rows_back(
            upstream.contiguous(),
            counts,
            ctx.edges.values,
            ctx.edges.offsets,
            index,
            without,
            keys,
            seed,
            ctx.hidden.ratio,
            ctx.hidden.each_row,
            ctx.table_rows,
        )
        return back, None, None, None, None, None, None


@operator(
    "mean_of_rows(Tensor table, Tensor values, Tensor offsets, Tensor index, Tensor? without, Tensor? keys,"
    " Tensor? seed, float ratio, bool each_row) -> (Tensor, Tensor)"
)
def _mean_of_rows(
    table: Tensor,
    values: Tensor,
    offsets: Tensor,
    index: Tensor,
    without: Tensor | None,
    keys: Tensor | None,
    seed: Tensor | None,
    ratio: float,
    each_row: bool,
) -> tuple[Tensor, Tensor]:
    kernels = kernels_for(table)
    if kernels is None or each_row:
        rows = _look(Ragged(values, offsets), index, without, keys, seed, Hidden(ratio, each_row))
        return rows.mean_of(table), rows.lengths.int()
    found: tuple[Tensor, Tensor] = kernels.sum_of_rows(
        table, values, offsets, index, without, keys, seed, ratio, True
    )
    return found


@operator(
    "mean_of_rows_back(Tensor upstream, Tensor counts, Tensor values, Tensor offsets, Tensor index,"
    " Tensor? without, Tensor? keys, Tensor? seed, float ratio, bool each_row, int table_rows) -> Tensor"
)
def _mean_of_rows_back(
    upstream: Tensor,
    counts: Tensor,
    values: Tensor,
    offsets: Tensor,
    index: Tensor,
    without: Tensor | None,
    keys: Tensor | None,
    seed: Tensor | None,
    ratio: float,
    each_row: bool,
    table_rows: int,
) -> Tensor:
    kernels = kernels_for(upstream)
    if kernels is None or each_row:
        rows = _look(Ragged(values, offsets), index, without, keys, seed, Hidden(ratio, each_row))
        shares = upstream / counts.clamp(min=1)[:, None]
        # Sums for the touched rows alone: with empty rows of a large table they would take much longer.
        values, order = rows.values.sort(stable=True)
        touched, times = torch.unique_consecutive(values, return_counts=True)
        back = shares.new_zeros(table_rows, shares.shape[1])
        back[touched] = Ragged(rows.row_of_entry()[order], offsets_of(times)).sum_of(shares)
        return back
    found: Tensor = kernels.spread_of_rows(
        upstream, counts, values, offsets, index, without, keys, seed, ratio, table_rows
    )
    return found


def _look(
    edges: Ragged,
    index: Tensor,
    without: Tensor | None,
    keys: Tensor | None,
    seed: Tensor | None,
    hidden: Hidden,
) -> Ragged:
    rows = edges.rows(index)
    row = rows.row_of_entry()
    counted = torch.ones_like(row, dtype=torch.bool)
    if without is not None:
        counted &= rows.values != without[row]
    if seed is not None and not hidden.each_row:
        by = rows.values if keys is None else Ragged(keys, edges.offsets).rows(index).values
        counted &= chances(seed, row, by) >= hidden.ratio
    rows = rows.keep(counted)
    if seed is None or not hidden.each_row:
        return rows
    return mask_each_row(rows, hidden.ratio, torch.Generator(edges.device).manual_seed(int(seed)))
