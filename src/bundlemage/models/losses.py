"""The losses that models share: the multinomial likelihood over a whole catalogue, without a target matrix
and in bounded memory, and the pairwise one of BPR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.accelerated import kernels_for, operator
from bundlemage.models.ragged import Ragged

BLOCK_ENTRIES = {"cpu": 2**25, "cuda": 2**28}
"""About how many logits exist at a time, whatever batch and catalogue: 128 MiB of float32; on a GPU 1 GiB, as
products of few rows leave most of it idle."""
FEWEST_ROWS = 256
"""On a CPU a block has a multiple of this many rows, however large the catalogue: with 16, products over a
million items take more than twice as long."""
SAFE_EXPONENT = 60.0
"""Logits that cannot be larger are raised to powers as they are: e⁶⁰ times any catalogue is a float32."""


def multinomial_loss(
    z: Tensor,
    table: Tensor,
    positives: Ragged,
    row_weights: Tensor,
    index: Tensor | None = None,
    prior: Prior | None = None,
) -> Tensor:
    """The mean over rows r of −weight_r · Σ_p log softmax(table · z_r + prior)_p, over the row's positives p.

    With an `index`, row r's positives are row `index[r]` of `positives`. A row without positives adds
    nothing.
    """
    chosen = torch.arange(len(z), device=z.device) if index is None else index
    total: Tensor = _Multinomial.apply(z, table, positives, chosen, row_weights, prior)  # type: ignore[no-untyped-call]
    return total / max(1, len(z))


@dataclass(frozen=True)
class Prior:
    """What each member of a catalogue has in its score for everyone alike.

    Where a member is a row's positive, `shift` is added: the prior is then what it would be if this very
    positive had not been counted. A purchase that is to be foretold is in no count either.
    """

    bias: Tensor  # [catalogue]
    shift: Tensor  # [catalogue]

    def __deepcopy__(self, memo: object) -> Prior:
        return self  # never changed, so a model's copy shares it

    @classmethod
    def of_counts(cls, counts: Tensor, weight: Tensor) -> Prior:
        """weight · log(1 + count), where each positive is one of the counted."""
        bias = weight * counts.log1p()
        return cls(bias, weight * (counts - 1).clamp(min=0).log1p() - bias)

    def part(self, members: slice | Tensor) -> Prior:
        """Of some members of the catalogue."""
        return Prior(self.bias[members], self.shift[members])


def fitted_weight(counts: Tensor) -> float:
    """The weight w of log(1 + count) under which the counted choices are most likely, if nothing else is
    known: softmax(w · log(1 + count)), each choice judged by the count without it. From 0 to 1.

    About 1 where what was chosen often is chosen again, 0 where everything is chosen once.
    """
    counts = counts.double().cpu()
    if not bool(counts.sum()):
        return 0.0
    scores = counts.log1p()
    chosen = float((counts * (counts - 1).clamp(min=0).log1p()).sum() / counts.sum())
    low, high = 0.0, 1.0
    for _ in range(40):  # the likelihood rises as long as a choice expects less than was chosen
        middle = (low + high) / 2
        expected = float((scores * (middle * scores).softmax(0)).sum())
        low, high = (middle, high) if expected < chosen else (low, middle)
    return low


class _Multinomial(torch.autograd.Function):
    """As the weights are known, the gradient is finished in the forward pass while a block's logits are at
    hand: three matrix products in all, and nothing of size rows × catalogue is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        table: Tensor,
        positives: Ragged,
        index: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        bias, shift = (None, None) if prior is None else (prior.bias, prior.shift)
        total: Tensor
        total, grad_z, grad_table = _multinomial(
            z, table, bias, shift, positives.values, positives.offsets, index, weights
        )
        ctx.save_for_backward(grad_z, grad_table)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        grad_z, grad_table = ctx.saved_tensors
        return grad_z * upstream, grad_table * upstream, None, None, None, None


@operator(
    "multinomial(Tensor z, Tensor table, Tensor? bias, Tensor? shift, Tensor values, Tensor offsets,"
    " Tensor index, Tensor weights) -> (Tensor, Tensor, Tensor)"
)
def _multinomial(
    z: Tensor,
    table: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    values: Tensor,
    offsets: Tensor,
    index: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_r weight_r · (positives_r · log Σ_n exp(z_r · e_n + prior_n) − Σ_p (z_r · e_p + prior_p)), and its
    gradients."""
    entries = BLOCK_ENTRIES.get(z.device.type, BLOCK_ENTRIES["cpu"])
    kernels = kernels_for(z)
    if kernels is not None:
        found: tuple[Tensor, Tensor, Tensor] = kernels.multinomial(
            z, table, bias, shift, values, offsets, index, weights, entries
        )
        return found
    positives = Ragged(values, offsets).rows(index)
    row, counts = positives.row_of_entry(), positives.lengths.to(z.dtype)
    first = positives.offsets.tolist()
    total, grad_z, grad_table = z.new_zeros(()), torch.empty_like(z), torch.zeros_like(table)
    if not len(table):
        return total, grad_z.zero_(), grad_table
    shifted = bool(len(z)) and _largest(z, table, bias) > SAFE_EXPONENT
    step = rows_at_a_time(len(z), len(table), entries)
    memory = z.new_empty(len(table) * step)  # one for all blocks: fresh memory costs as much as the softmax
    for start in range(0, len(z), step):
        some = slice(start, start + step)
        block = z[some]
        # [catalogue, block]: laid out so, all three products run at full speed.
        cells = memory[: len(table) * len(block)].view(len(table), len(block))
        torch.mm(table, block.T, out=cells)
        if bias is not None:
            cells += bias[:, None]
        mine = slice(first[start], first[start + len(block)])
        here = row[mine] - start
        at = positives.values[mine] * len(block) + here
        flat = cells.view(-1)
        if shift is not None:
            flat[at] += shift[positives.values[mine]]
        weight = weights[some]
        total -= (flat[at] * weight[here]).sum()
        highest = cells.amax(0) if shifted else torch.zeros_like(weight)
        if shifted:
            cells -= highest
        sums = cells.exp_().sum(0)
        total += (weight * counts[some] * (sums.log() + highest)).sum()
        # The slope of the loss is weight · (count · share − 1 at each positive); its factor
        # weight · count / sum goes to the narrow side of each product.
        flat[at] -= (sums / counts[some].clamp(min=1))[here]
        factor = (weight * counts[some] / sums)[:, None]
        grad_z[some] = (cells.T @ table).mul_(factor)
        grad_table.addmm_(cells, block * factor)
    return total, grad_z, grad_table


def _largest(z: Tensor, table: Tensor, bias: Tensor | None) -> float:
    """What no logit can exceed."""
    product = float(z.norm(dim=1).amax() * table.norm(dim=1).amax())
    return product if bias is None else product + float(bias.abs().amax())


def rows_at_a_time(rows: int, catalogue: int, entries: int) -> int:
    """Blocks of equal size, but for a multiple of so many rows that products run at full speed."""
    blocks = max(1, -(-rows * catalogue // entries))
    step = -(-rows // blocks)
    return max(1, min(rows, -(-step // FEWEST_ROWS) * FEWEST_ROWS))


def pairwise_loss(right: Tensor, wrong: Tensor) -> Tensor:
    """BPR's −log σ(right − wrong), averaged (Rendle et al., 2009)."""
    return F.softplus(wrong - right).mean()
