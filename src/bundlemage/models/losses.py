"""The losses that models share: the multinomial likelihood over a whole catalogue, without a target matrix
and in bounded memory, and the pairwise one of BPR."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.ragged import Ragged

BLOCK_ENTRIES = {"cpu": 2**24, "cuda": 2**28}
"""How many logits exist at a time, whatever the batch and the catalogue: 64 MiB of float32, which caches
like; on a GPU 1 GiB, as products of few rows leave most of it idle."""


class _WeightedLogSumExp(torch.autograd.Function):
    """Σ_r weight_r · log Σ_n exp(z_r · e_n), a block of rows at a time.

    As the weights are known, the gradient is finished in the forward pass while a block's logits are
    at hand: three matrix products in all, and nothing of size rows × catalogue is kept.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, table: Tensor, weights: Tensor) -> Tensor:
        learning = z.requires_grad or table.requires_grad
        grad_z = torch.empty_like(z) if learning else None
        grad_table = torch.zeros_like(table) if learning else None
        total = z.new_zeros(())
        entries = BLOCK_ENTRIES.get(z.device.type, BLOCK_ENTRIES["cpu"])
        step = max(1, entries // max(1, len(table)))
        for start in range(0, len(z), step):
            rows = slice(start, start + step)
            logits = z[rows] @ table.T  # [block, catalogue]
            log_share = logits.log_softmax(1)
            normaliser = logits[:, :1] - log_share[:, :1]
            weight = weights[rows, None]
            total += (normaliser * weight).sum()
            if grad_z is not None and grad_table is not None:
                share = log_share.exp_()  # the weight goes to the narrow side of each product
                grad_z[rows] = (share @ table).mul_(weight)
                grad_table.addmm_(share.T, z[rows] * weight)
        ctx.save_for_backward(grad_z, grad_table)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_z, grad_table = ctx.saved_tensors
        return grad_z * upstream, grad_table * upstream, None


def multinomial_loss(z: Tensor, table: Tensor, positives: Ragged, row_weights: Tensor) -> Tensor:
    """The mean over rows r of −weight_r · Σ_p log softmax(table · z_r)_p, p running over the row's positives.

    A row without positives adds nothing.
    """
    counts = positives.lengths.to(z.dtype)  # [rows]
    # Σ_p z·e_p = z·Σ_p e_p, so the positives' logits need no gather from the logits.
    positive = (z * positives.sum_of(table)).sum(1)  # [rows]
    normaliser: Tensor = _WeightedLogSumExp.apply(z, table, counts * row_weights)  # type: ignore[no-untyped-call]
    return (normaliser - (positive * row_weights).sum()) / max(1, len(z))


def pairwise_loss(right: Tensor, wrong: Tensor) -> Tensor:
    """BPR's −log σ(right − wrong), averaged (Rendle et al., 2009)."""
    return F.softplus(wrong - right).mean()
