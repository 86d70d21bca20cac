"""The multinomial likelihood over a catalogue whose rows lie in several processes: exactly the same sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bundlemage.models.group import Group
from bundlemage.models.losses import BLOCK_ENTRIES, Prior, rows_at_a_time
from bundlemage.models.ragged import Ragged


def divided_multinomial_loss(
    z: Tensor,
    table: Tensor,
    own: Ragged,
    counts: Tensor,
    row_weights: Tensor,
    prior: Prior | None,
    group: Group,
) -> Tensor:
    """`multinomial_loss` where `table`, `prior` and the positives `own` are this process's part of the
    catalogue. `counts`: how many positives each row has in all parts. Every process gets the same loss."""
    total: Tensor = _Divided.apply(z, table, own, counts, row_weights, prior, group)  # type: ignore[no-untyped-call]
    return total / max(1, len(z))


class _Divided(torch.autograd.Function):
    """As in `losses._Multinomial`, gradients are finished in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        table: Tensor,
        own: Ragged,
        counts: Tensor,
        weights: Tensor,
        prior: Prior | None,
        group: Group,
    ) -> Tensor:
        counts = counts.to(z.dtype)
        row, first = own.row_of_entry(), own.offsets.tolist()
        grad_z, grad_table = torch.zeros_like(z), torch.zeros_like(table)
        total, right = z.new_zeros(()), z.new_zeros(())
        entries = BLOCK_ENTRIES.get(z.device.type, BLOCK_ENTRIES["cpu"])
        # Blocks follow from the largest part, as every process must have as many of them.
        largest = int(group.highest_(torch.tensor(len(table), device=z.device)))
        step = rows_at_a_time(len(z), largest, entries)
        narrow_table, narrow_z = _narrow(table), _narrow(z)
        for start in range(0, len(z), step):
            some = slice(start, min(start + step, len(z)))
            cells = _product(narrow_table, narrow_z[some].T)  # [catalogue here, block]
            if prior is not None:
                cells += prior.bias[:, None]
            mine = slice(first[start], first[some.stop])
            here = row[mine] - start
            at, flat = own.values[mine] * cells.shape[1] + here, cells.view(-1)
            if prior is not None:
                flat[at] += prior.shift[own.values[mine]]
            weight, count = weights[some], counts[some]
            right += (flat[at] * weight[here]).sum()
            nothing = cells.new_full((cells.shape[1],), -torch.inf)
            highest = group.highest_(cells.amax(0) if len(cells) else nothing)
            sums = group.add_(cells.sub_(highest).exp_().sum(0))
            total += (weight * count * (sums.log() + highest)).sum()
            # From here as in `losses._multinomial`.
            flat[at] -= (sums / count.clamp(min=1))[here]
            factor = (weight * count / sums)[:, None]
            slopes = _narrow(cells)
            grad_z[some] = _product(slopes.T, narrow_table).mul_(factor)
            grad_table += _product(slopes, _narrow(z[some] * factor))
        ctx.save_for_backward(group.add_(grad_z), grad_table)
        return total - group.add_(right)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_z, grad_table = ctx.saved_tensors
        return grad_z * upstream, grad_table * upstream, None, None, None, None, None


def _narrow(tensor: Tensor) -> Tensor:
    """On a GPU products run on bfloat16 inputs and add up in float32, as in `kernels.multinomial`."""
    return tensor.to(torch.bfloat16) if tensor.is_cuda else tensor


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype == torch.bfloat16:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right
