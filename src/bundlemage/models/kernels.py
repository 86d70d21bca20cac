"""Triton kernels for NVIDIA GPUs. The size of every array is known in advance. So the CPU never waits for the
GPU, and a whole training step can be recorded once and replayed.

`ragged.py`, `neighbours.py` and `losses.py` have the same functions in plain PyTorch. Tests compare the two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bundlemage.models import ragged as plain

TILE = 4
"""The number of a row's entries that a program reads together. 4 is near the best for 200 and 400 columns."""
UNIT = float(2**44)
"""Gradients are added up as integers in units of 1 / UNIT. The range is ± half a million."""
_BY_KEY, _BY_ROW, _BY_SEED = map(tl.constexpr, (plain.BY_KEY, plain.BY_ROW, plain.BY_SEED))
_FIRST_MIX, _SECOND_MIX = map(tl.constexpr, (plain.FIRST_MIX, plain.SECOND_MIX))


@triton.jit
def _chance(seed, row, key):  # type: ignore[no-untyped-def]
    """Returns the same bits as `ragged.chances`."""
    mixed = key * _BY_KEY + row.to(tl.int64) * _BY_ROW + seed * _BY_SEED
    mixed = (mixed ^ ((mixed >> 33) & 0x7FFFFFFF)) * _FIRST_MIX
    mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * _SECOND_MIX
    return ((mixed >> 32) & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit(do_not_specialize=["is_mean", "leaves_out"])  # type: ignore[untyped-decorator]
def _sum_kernel(  # type: ignore[no-untyped-def]
    out, counts, table, values, keys, offsets, index, without, seed, hidden, dim,
    is_mean, leaves_out, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """One program sums the vectors of one row. It reads `tile` entries at a time."""
    row = tl.program_id(0)
    node = tl.load(index + row)
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    inside = columns < dim
    total = tl.zeros((width,), tl.float32)
    kept = 0
    left_out = tl.where(leaves_out > 0, tl.load(without + row), -1)
    chosen_seed = tl.load(seed)
    for first in range(begin, end, tile):
        entry = first + tl.arange(0, tile)
        there = entry < end
        value = tl.load(values + entry, mask=there, other=0)
        there = there & (value != left_out)
        if hidden > 0:
            key = tl.load(keys + entry, mask=entry < end, other=0)
            there = there & (_chance(chosen_seed, row, key) >= hidden)
        vectors = tl.load(
            table + value[:, None] * dim + columns[None, :], mask=there[:, None] & inside[None, :], other=0.0
        )
        total += tl.sum(vectors, 0)
        kept += tl.sum(there.to(tl.int32), 0)
    if is_mean:
        total = total / tl.maximum(kept, 1)
    tl.store(out + row.to(tl.int64) * dim + columns, total, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(counts + row, kept)


@triton.jit(do_not_specialize=["leaves_out"])  # type: ignore[untyped-decorator]
def _spread_kernel(  # type: ignore[no-untyped-def]
    grid, upstream, counts, values, keys, offsets, index, without, seed, hidden, dim,
    leaves_out, tile: tl.constexpr, width: tl.constexpr, unit: tl.constexpr,
):  # fmt: skip
    """The gradient of `_sum_kernel`: one program adds its row's gradient to each of the row's vectors.

    Gradients are added up as integers in units of 1 / unit, so the order of programs does not matter.
    """
    row = tl.program_id(0)
    node = tl.load(index + row)
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    inside = columns < dim
    own = tl.load(upstream + row.to(tl.int64) * dim + columns, mask=inside, other=0.0)
    share = (own * (unit / tl.maximum(tl.load(counts + row), 1).to(tl.float32))).to(tl.int64)
    shares = tl.broadcast_to(share[None, :], (tile, width))
    left_out = tl.where(leaves_out > 0, tl.load(without + row), -1)
    chosen_seed = tl.load(seed)
    for first in range(begin, end, tile):
        entry = first + tl.arange(0, tile)
        there = entry < end
        value = tl.load(values + entry, mask=there, other=0)
        there = there & (value != left_out)
        if hidden > 0:
            key = tl.load(keys + entry, mask=entry < end, other=0)
            there = there & (_chance(chosen_seed, row, key) >= hidden)
        cells = grid + value[:, None] * dim + columns[None, :]
        tl.atomic_add(cells, shares, mask=there[:, None] & inside[None, :], sem="relaxed")


@triton.jit(do_not_specialize=["biased", "columns"])  # type: ignore[untyped-decorator]
def _softmax_kernel(  # type: ignore[no-untyped-def]
    logits, slopes, losses, bias, values, offsets, index, weights, columns, stride, biased,
    chunk: tl.constexpr,
):  # fmt: skip
    """Computes a row's loss, and its gradient except for the term that `_positives_kernel` subtracts."""
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(index + row)
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    weight = tl.load(weights + row)
    own = logits + row * stride
    positive = tl.zeros((chunk,), tl.float32)
    for first in range(begin, end, chunk):
        entry = first + tl.arange(0, chunk)
        value = tl.load(values + entry, mask=entry < end, other=0)
        positive += tl.load(own + value, mask=entry < end, other=0.0)
        if biased:
            positive += tl.load(bias + value, mask=entry < end, other=0.0)
    highest = tl.full((chunk,), -float("inf"), tl.float32)
    total = tl.zeros((chunk,), tl.float32)
    for first in range(0, columns, chunk):
        column = first + tl.arange(0, chunk)
        logit = tl.load(own + column, mask=column < columns, other=-float("inf"))
        if biased:
            logit += tl.load(bias + column, mask=column < columns, other=0.0)
        higher = tl.maximum(highest, logit)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - safe) + tl.exp(logit - safe)
        highest = higher
    top = tl.max(highest, 0)
    total_sum = tl.sum(total * tl.exp(highest - top), 0)
    normaliser = top + tl.log(total_sum)
    count = (end - begin).to(tl.float32)
    tl.store(losses + row, weight * (count * normaliser - tl.sum(positive, 0)))
    for first in range(0, stride, chunk):
        column = first + tl.arange(0, chunk)
        logit = tl.load(own + column, mask=column < columns, other=-float("inf"))
        if biased:
            logit += tl.load(bias + column, mask=column < columns, other=0.0)
        slope = weight * count * tl.exp(logit - normaliser)
        tl.store(slopes + row * stride + column, slope, mask=column < stride)


@triton.jit  # type: ignore[untyped-decorator]
def _shift_kernel(logits, shift, values, offsets, index, stride, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds `shift` to the logit of each positive of a row."""
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(index + row)
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    for first in range(begin, end, chunk):
        entry = first + tl.arange(0, chunk)
        value = tl.load(values + entry, mask=entry < end, other=0)
        cell = logits + row * stride + value
        more = tl.load(shift + value, mask=entry < end, other=0.0)
        tl.store(cell, tl.load(cell, mask=entry < end, other=0.0) + more, mask=entry < end)


@triton.jit  # type: ignore[untyped-decorator]
def _positives_kernel(slopes, values, offsets, index, weights, stride, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """Subtracts a row's weight at each of its positives. No positive is repeated: lanes do not collide."""
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(index + row)
    begin, end = tl.load(offsets + node), tl.load(offsets + node + 1)
    weight = tl.load(weights + row)
    for first in range(begin, end, chunk):
        entry = first + tl.arange(0, chunk)
        value = tl.load(values + entry, mask=entry < end, other=0)
        cell = slopes + row * stride + value
        slope = tl.load(cell, mask=entry < end, other=0.0).to(tl.float32)
        tl.store(cell, slope - weight, mask=entry < end)


def _width(dim: int) -> int:
    return min(256, max(16, 1 << (dim - 1).bit_length()))


def _or(tensor: Tensor | None, unread: Tensor) -> Tensor:
    """A kernel needs a tensor even for an argument that a flag tells it not to read: `unread` stands in.
    (Flags are not compile-time constants, because compiling all variants takes five seconds, not two.)"""
    return unread if tensor is None else tensor


def sum_of_rows(
    table: Tensor, values: Tensor, offsets: Tensor, index: Tensor, without: Tensor | None,
    keys: Tensor | None, seed: Tensor | None, hidden: float, mean: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the sum or the mean of each row's vectors, and the number of entries that were not hidden."""
    table = table.contiguous()
    dim = table.shape[1]
    out = table.new_empty(len(index), dim)
    counts = torch.empty(len(index), dtype=torch.int32, device=table.device)
    if out.numel():
        width = _width(dim)
        _sum_kernel[(len(index), triton.cdiv(dim, width))](
            out, counts, table, values, _or(keys, values), offsets, index, _or(without, index),
            _or(seed, index), float(hidden), dim, int(mean), int(without is not None), tile=TILE,
            width=width, num_warps=2,
        )  # fmt: skip
    return out, counts


def spread_of_rows(
    upstream: Tensor, counts: Tensor, values: Tensor, offsets: Tensor, index: Tensor, without: Tensor | None,
    keys: Tensor | None, seed: Tensor | None, hidden: float, table_rows: int,
) -> Tensor:  # fmt: skip
    """Returns the gradient of the table of `sum_of_rows`, from the gradient `upstream` of the means."""
    dim = upstream.shape[1]
    grid = torch.zeros(table_rows, dim, dtype=torch.int64, device=upstream.device)
    if upstream.numel():
        width = _width(dim)
        _spread_kernel[(len(index), triton.cdiv(dim, width))](
            grid, upstream.contiguous(), counts, values, _or(keys, values), offsets, index,
            _or(without, index), _or(seed, index), float(hidden), dim, int(without is not None), tile=TILE,
            width=width, unit=UNIT, num_warps=2,
        )  # fmt: skip
    return grid.mul(1 / UNIT)


def multinomial(
    z: Tensor, table: Tensor, bias: Tensor | None, shift: Tensor | None, values: Tensor, offsets: Tensor,
    index: Tensor, weights: Tensor, entries: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the loss and the gradients of `z` and `table`. Products of bfloat16 are summed in float32."""
    rows, columns = len(z), len(table)
    if not columns:
        return z.new_zeros(()), torch.zeros_like(z), torch.zeros_like(table)
    stride = triton.cdiv(columns, 64) * 64  # rows aligned to 128 bytes make the product three times as fast
    narrow = torch.zeros(stride, table.shape[1], dtype=torch.bfloat16, device=table.device)
    narrow[:columns] = table
    narrow_z = z.to(torch.bfloat16)
    losses = torch.empty(rows, dtype=torch.float32, device=z.device)
    grad_z = torch.empty(rows, z.shape[1], dtype=torch.float32, device=z.device)
    grad_table: Tensor | None = None
    step = max(1, entries // stride)
    for start in range(0, rows, step):
        some = slice(start, start + step)
        logits = torch.mm(narrow_z[some], narrow.T, out_dtype=torch.float32)  # [block, stride]
        slopes = torch.empty_like(logits, dtype=torch.bfloat16)
        sparse: tuple[Any, ...] = (values, offsets, index[some], weights[some])
        block = len(logits)
        if shift is not None:
            _shift_kernel[(block,)](logits, shift, *sparse[:3], stride, chunk=64, num_warps=2)
        _softmax_kernel[(block,)](
            logits, slopes, losses[some], _or(bias, losses), *sparse, columns, stride, int(bias is not None),
            chunk=2048, num_warps=8,
        )  # fmt: skip
        _positives_kernel[(block,)](slopes, *sparse, stride, chunk=64, num_warps=2)
        grad_z[some] = torch.mm(slopes, narrow, out_dtype=torch.float32)
        part = torch.mm(slopes.T, narrow_z[some], out_dtype=torch.float32)
        grad_table = part if grad_table is None else grad_table.add_(part)
    if grad_table is None:
        grad_table = torch.zeros_like(table)
    return losses.sum(), grad_z, grad_table[:columns]
