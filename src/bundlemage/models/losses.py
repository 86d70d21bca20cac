"""The losses that models share: the multinomial likelihood over a whole catalogue, without a target matrix
and in bounded memory, and the pairwise loss of BPR with the negatives that it compares with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.accelerated import kernels_for, operator
from bundlemage.models.ragged import Ragged, Unchanging

BLOCK_ENTRIES = {"cpu": 2**25, "cuda": 2**28}
"""About how many logits exist at a time: 128 MiB of float32; on a GPU 1 GiB, because products of few rows
leave most of it idle."""
FEWEST_ROWS = 256
"""On a CPU a block has a multiple of this many rows. With 16, products over a million items take more than
twice as long."""
SAFE_EXPONENT = 60.0
"""Logits up to this are exponentiated as they are: e⁶⁰ times any catalogue size is a float32."""
ROUNDS = 4
"""How often a negative that the row has is drawn again. After that, (share of all things that the row has)⁵
of the draws are wrong: none for a usual row of a shop, a third for a row that has 80% of all things."""


def multinomial_loss(
    z: Tensor,
    table: Tensor,
    positives: Ragged,
    row_weights: Tensor,
    index: Tensor | None = None,
    prior: Prior | None = None,
) -> Tensor:
    """The mean over rows r of −weight_r · Σ_p log softmax(table · z_r + prior)_p, over the row's positives p.

    With an `index`, row r's positives are row `index[r]` of `positives`. A row without positives adds 0.
    """
    chosen = torch.arange(len(z), device=z.device) if index is None else index
    bias, shift = (None, None) if prior is None else (prior.bias, prior.shift)
    total: Tensor = _Multinomial.apply(  # type: ignore[no-untyped-call]
        z, table, bias, shift, positives.values, positives.offsets, chosen, row_weights
    )
    return total / max(1, len(z))


@dataclass(frozen=True)
class Prior(Unchanging):
    """The term of each catalogue member's score that is the same for every user.

    Where a member is a row's positive, `shift` is added. The prior is then the one without this positive,
    because a purchase that is to be predicted is not in any count either.
    """

    bias: Tensor  # [catalogue]
    shift: Tensor  # [catalogue]

    @classmethod
    def of_counts(cls, counts: Tensor, weight: Tensor) -> Prior:
        """The prior weight · log(1 + count), where each positive was counted."""
        bias = weight * counts.log1p()
        return cls(bias, weight * (counts - 1).clamp(min=0).log1p() - bias)

    def part(self, members: slice | Tensor) -> Prior:
        """The prior of some members of the catalogue."""
        return Prior(self.bias[members], self.shift[members])


def fitted_weight(counts: Tensor) -> float:
    """The weight w, from 0 to 1, for which softmax(w · log(1 + count)) makes the counted choices most likely.
    Each choice is judged by the count without it.

    It is about 1 where popular things are chosen again, and 0 where everything is chosen once.
    """
    counts = counts.double().cpu()
    if not bool(counts.sum()):
        return 0.0
    scores = counts.log1p()
    chosen = float((counts * (counts - 1).clamp(min=0).log1p()).sum() / counts.sum())
    low, high = 0.0, 1.0
    for _ in range(40):  # the likelihood rises as long as the expected score is below that of the choices
        middle = (low + high) / 2
        expected = float((scores * (middle * scores).softmax(0)).sum())
        low, high = (middle, high) if expected < chosen else (low, middle)
    return low


class _Multinomial(torch.autograd.Function):
    """The weights are known, so the forward pass also computes the gradient, while a block's logits exist:
    three matrix products in all, and nothing of size rows × catalogue is kept."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        total: Tensor
        total, grad_z, grad_table = _multinomial(*arguments)
        ctx.save_for_backward(grad_z, grad_table)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_z, grad_table = ctx.saved_tensors
        return grad_z * upstream, grad_table * upstream, *[None] * 6


@operator(
    "multinomial(Tensor z, Tensor table, Tensor? bias, Tensor? shift, Tensor values, Tensor offsets,"
    " Tensor index, Tensor weights) -> (Tensor, Tensor, Tensor)"
)
def _multinomial(
    z: Tensor, table: Tensor, bias: Tensor | None, shift: Tensor | None, *rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_r weight_r · (positives_r · log Σ_n exp(z_r · e_n + prior_n) − Σ_p (z_r · e_p + prior_p)), and its
    gradients."""
    entries = BLOCK_ENTRIES.get(z.device.type, BLOCK_ENTRIES["cpu"])
    kernels = kernels_for(z)
    if kernels is not None:
        by_kernel: tuple[Tensor, Tensor, Tensor] = kernels.multinomial(z, table, bias, shift, *rows, entries)
        return by_kernel
    values, offsets, index, weights = rows
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
    """A number that no logit exceeds."""
    product = float(z.norm(dim=1).amax() * table.norm(dim=1).amax())
    return product if bias is None else product + float(bias.abs().amax())


def rows_at_a_time(rows: int, catalogue: int, entries: int) -> int:
    """The rows of a block: blocks of equal size, in multiples of `FEWEST_ROWS`."""
    blocks = max(1, -(-rows * catalogue // entries))
    step = -(-rows // blocks)
    return max(1, min(rows, -(-step // FEWEST_ROWS) * FEWEST_ROWS))


def pairwise_loss(right: Tensor, wrong: Tensor) -> Tensor:
    """BPR's −log σ(right − wrong), averaged (Rendle et al., 2009)."""
    return F.softplus(wrong - right).mean()


def choice_loss(scores: Tensor) -> Tensor:
    """BPR's loss of each row's first score against the row's other scores."""
    return pairwise_loss(scores[:, :1], scores[:, 1:])


class Negatives:
    """Draws uniformly among `columns` things, except those that a row of `owned` has."""

    def __init__(self, owned: Ragged, columns: int) -> None:
        self.columns = columns
        self.keys = (owned.row_of_entry() * columns + owned.values).sort().values  # [entries]

    def owns(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether the row has the column, elementwise."""
        if not len(self.keys):
            return torch.zeros_like(rows + columns, dtype=torch.bool)
        wanted = rows * self.columns + columns
        place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return self.keys[place] == wanted

    def draw(self, rows: Tensor, count: int = 1) -> Tensor:
        """Draws `count` things for each row, without waiting for the device."""  # [rows, count]
        shape = (len(rows), count)
        drawn = torch.randint(self.columns, shape, device=rows.device)
        for _ in range(ROUNDS):
            again = torch.randint(self.columns, shape, device=rows.device)
            drawn = torch.where(self.owns(rows[:, None], drawn), again, drawn)
        return drawn
