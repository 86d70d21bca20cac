"""Means over the rows that a batch asks for, with some entries hidden.

What comes out has a size that is known before: nothing waits for a GPU. Hence the operators: on a GPU a
Triton kernel, elsewhere the plain PyTorch below, which also says what the kernels compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bundlemage.models.accelerated import kernels_for, operator
from bundlemage.models.ragged import Ragged, mask_each_row, mask_whole_batch, offsets_of


@dataclass(frozen=True)
class Hidden:
    """Which entries a look at a batch's rows leaves out, at random."""

    ratio: float = 0.0
    each_row: bool = False
    """Whether that share of every row is hidden, or of the batch wherever the entries fall."""


NOTHING = Hidden()


def mean_of_rows(
    rows: Ragged, index: Tensor, table: Tensor, hidden: Hidden = NOTHING, without: Tensor | None = None
) -> Tensor:
    """The mean of `table` over the entries of each row that `index` names, zeros where there is none.

    `without` names for each of them one value that does not count.
    """  # [index, d]
    seed = torch.randint(2**31, (1,), device=table.device) if hidden.ratio else None
    found: Tensor = _MeanOfRows.apply(table, rows, index, without, seed, hidden)  # type: ignore[no-untyped-call]
    return found


class _MeanOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        edges: Ragged,
        index: Tensor,
        without: Tensor | None,
        seed: Tensor | None,
        hidden: Hidden,
    ) -> Tensor:
        found: Tensor
        found, counts = _mean_of_rows(
            table, edges.values, edges.offsets, index, without, seed, hidden.ratio, hidden.each_row
        )
        ctx.edges, ctx.hidden, ctx.table_rows = edges, hidden, len(table)
        ctx.save_for_backward(counts, index, without, seed)
        return found

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        counts, index, without, seed = ctx.saved_tensors
        back = _mean_of_rows_back(
            upstream.contiguous(),
            counts,
            ctx.edges.values,
            ctx.edges.offsets,
            index,
            without,
            seed,
            ctx.hidden.ratio,
            ctx.hidden.each_row,
            ctx.table_rows,
        )
        return back, None, None, None, None, None


@operator(
    "mean_of_rows(Tensor table, Tensor values, Tensor offsets, Tensor index, Tensor? without, Tensor? seed,"
    " float ratio, bool each_row) -> (Tensor, Tensor)"
)
def _mean_of_rows(
    table: Tensor,
    values: Tensor,
    offsets: Tensor,
    index: Tensor,
    without: Tensor | None,
    seed: Tensor | None,
    ratio: float,
    each_row: bool,
) -> tuple[Tensor, Tensor]:
    kernels = kernels_for(table)
    if kernels is None or each_row:
        rows = _look(Ragged(values, offsets), index, without, seed, Hidden(ratio, each_row))
        return rows.mean_of(table), rows.lengths.int()
    found: tuple[Tensor, Tensor] = kernels.sum_of_rows(
        table, values, offsets, index, without, seed, ratio, True
    )
    return found


@operator(
    "mean_of_rows_back(Tensor upstream, Tensor counts, Tensor values, Tensor offsets, Tensor index,"
    " Tensor? without, Tensor? seed, float ratio, bool each_row, int table_rows) -> Tensor"
)
def _mean_of_rows_back(
    upstream: Tensor,
    counts: Tensor,
    values: Tensor,
    offsets: Tensor,
    index: Tensor,
    without: Tensor | None,
    seed: Tensor | None,
    ratio: float,
    each_row: bool,
    table_rows: int,
) -> Tensor:
    kernels = kernels_for(upstream)
    if kernels is None or each_row:
        rows = _look(Ragged(values, offsets), index, without, seed, Hidden(ratio, each_row))
        shares = upstream / counts.clamp(min=1)[:, None]
        # Sums for the touched rows alone: with empty rows of a large table they would take much longer.
        values, order = rows.values.sort(stable=True)
        touched, times = torch.unique_consecutive(values, return_counts=True)
        back = shares.new_zeros(table_rows, shares.shape[1])
        back[touched] = Ragged(rows.row_of_entry()[order], offsets_of(times)).sum_of(shares)
        return back
    found: Tensor = kernels.spread_of_rows(
        upstream, counts, values, offsets, index, without, seed, ratio, table_rows
    )
    return found


def _look(
    edges: Ragged, index: Tensor, without: Tensor | None, seed: Tensor | None, hidden: Hidden
) -> Ragged:
    rows = edges.rows(index)
    if without is not None:
        rows = rows.keep(rows.values != without[rows.row_of_entry()])
    if seed is None:
        return rows
    random = torch.Generator(edges.device).manual_seed(int(seed))
    return (mask_each_row if hidden.each_row else mask_whole_batch)(rows, hidden.ratio, random)
