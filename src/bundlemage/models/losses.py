"""The losses that models share. One is the multinomial loss over a whole catalogue, in bounded memory and
without a target matrix. The other is the pairwise loss of BPR, with a sampler of negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.ragged import Ragged, Unchanging, at_least, kernels_for, operator

if TYPE_CHECKING:
    from bundlemage.models.division import Processes

BLOCK_ENTRIES = {"cpu": 2**25, "cuda": 2**28}
"""The approximate number of logits in memory at a time: 128 MiB of float32 on a CPU. A GPU takes 1 GiB,
because products with few rows leave it mostly idle."""
FEWEST_ROWS = 256
"""On a CPU, the number of rows in a block is a multiple of this. With 16 instead, products over a million
items take more than twice as long."""
SAFE_EXPONENT = 60.0
"""Up to this maximum, logits are not shifted before exp: e⁶⁰ times any catalogue size fits in a float32."""
ROUNDS = 4
"""How often a negative is drawn again if the row owns it. If a row owns the share s of the catalogue, s⁵ of
the final draws are still wrong: almost none for usual rows, a third for s = 80%."""


def multinomial_loss(
    z: Tensor,
    table: Tensor,
    positives: Ragged,
    row_weights: Tensor,
    index: Tensor | None = None,
    prior: Prior | None = None,
    group: Processes | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """The mean over rows r of −weight_r · Σ_p w_p · log softmax(table · z_r + prior)_p, over the row's
    positives p and their weights w_p, which are 1 if `positives` has none.

    With an `index`, row r's positives are row `index[r]` of `positives`. A row without positives adds 0. If a
    `group` of processes divides the catalogue, `table`, `positives` and `prior` are this process's part, and
    `counts` is the sum of each row's w_p over all parts. All processes return the same loss.
    """
    bias, shift = (None, None) if prior is None else (prior.bias, prior.shift)
    rows: tuple[Any, ...] = (positives, counts, row_weights, group)
    if group is None:
        index = torch.arange(len(z), device=z.device) if index is None else index
        rows = (positives.values, positives.offsets, index, row_weights)
        if positives.weights is not None:
            positives = positives.rows(index)
            rows = (positives, positives.row_sums(), row_weights, None)
    total: Tensor = _Multinomial.apply(z, table, bias, shift, *rows)  # type: ignore[no-untyped-call]
    return total / max(1, len(z))


@dataclass(frozen=True)
class Prior(Unchanging):
    """A term of the score of each item or bundle that is the same for every user.

    For a row's positives, `shift` is added to the bias. This removes the positive itself from the count: when
    a trained model predicts a purchase, the counts do not include that purchase yet.
    """

    bias: Tensor  # [catalogue]
    shift: Tensor  # [catalogue]

    @classmethod
    def of_counts(cls, counts: Tensor, weight: Tensor, own: Tensor | float = 1) -> Prior:
        """The prior weight · log(1 + count). The counts include each positive with the number `own`: 1, or
        for sums of weights the mean weight of a positive."""
        bias = weight * counts.log1p()
        return cls(bias, weight * (counts - own).clamp(min=0).log1p() - bias)

    def part(self, members: slice | Tensor) -> Prior:
        """The prior of some members of the catalogue."""
        return Prior(self.bias[members], self.shift[members])


def fitted_weight(counts: Tensor, own: Tensor | float = 1) -> float:
    """Returns the weight w, from 0 to 1, for which softmax(w · log(1 + count)) makes the counted choices most
    likely. The count for a choice leaves out this choice, which counts `own` (see `Prior.of_counts`).

    w is about 1 if popular things are chosen again, and 0 if everything is chosen once.
    """
    counts = counts.double().cpu()
    if not bool(counts.sum()):
        return 0.0
    scores = counts.log1p()
    own = own.double().cpu() if isinstance(own, Tensor) else own
    chosen = float((counts * (counts - own).clamp(min=0).log1p()).sum() / counts.sum())
    low, high = 0.0, 1.0
    for _ in range(40):  # the likelihood rises as long as the expected score is below that of the choices
        middle = (low + high) / 2
        expected = float((scores * (middle * scores).softmax(0)).sum())
        low, high = (middle, high) if expected < chosen else (low, middle)
    return low


class _Multinomial(torch.autograd.Function):
    """The forward pass also computes the gradients, while a block's logits are in memory. This takes three
    matrix products in all, and no matrix of size rows × catalogue is kept."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        total: Tensor
        divided = isinstance(arguments[4], Ragged)
        total, grad_z, grad_table = (_by_blocks if divided else _multinomial)(*arguments)
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
def _multinomial(z: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    kernels = kernels_for(z)
    if kernels is not None:
        by_kernel: tuple[Tensor, Tensor, Tensor] = kernels.multinomial(z, *others, BLOCK_ENTRIES["cuda"])
        return by_kernel
    table, bias, shift, values, offsets, index, weights = others
    positives = Ragged(values, offsets).rows(index)
    return _by_blocks(z, table, bias, shift, positives, positives.lengths, weights, None)


def _by_blocks(
    z: Tensor, table: Tensor, bias: Tensor | None, shift: Tensor | None, *rows: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_r weight_r · (W_r · log Σ_n exp(z_r · e_n + prior_n) − Σ_p w_p · (z_r · e_p + prior_p)), and its
    gradients. W_r is the sum of the row's w_p. A group of processes adds up the sums over their parts of the
    catalogue."""
    positives, counts, weights, group = rows
    row, starts, counts = positives.row_of_entry(), positives.offsets.tolist(), counts.to(z.dtype)
    total, grad_z, grad_table = z.new_zeros(()), torch.zeros_like(z), torch.zeros_like(table)
    positive_total = total if group is None else torch.zeros_like(total)
    largest, shifted, kind = len(table), True, z.dtype
    if group is not None:
        # The block size depends on the largest part: all processes must have the same number of blocks.
        largest = int(group.highest_(torch.tensor(len(table), device=z.device)))
        kind = torch.bfloat16 if z.is_cuda else kind  # as in `kernels.multinomial`
    elif len(table):
        shifted = bool(len(z)) and _largest(z, table, bias) > SAFE_EXPONENT
    else:
        return total, grad_z, grad_table
    step = rows_at_a_time(len(z), largest, BLOCK_ENTRIES.get(z.device.type, BLOCK_ENTRIES["cpu"]))
    # Shared by all blocks: new memory costs as much as the softmax.
    memory = z.new_empty(len(table) * step if kind == z.dtype else 0)
    narrow_table = table.to(kind)
    for start in range(0, len(z), step):
        some = slice(start, start + step)
        block = z[some]
        # [catalogue, block]: in this layout all three products run at full speed.
        cells = _product(narrow_table, block.to(kind).T, memory[: len(table) * len(block)])
        if bias is not None:
            cells += bias[:, None]
        entries = slice(starts[start], starts[start + len(block)])
        entry_row = row[entries] - start
        cell = positives.values[entries] * len(block) + entry_row
        flat = cells.view(-1)
        if shift is not None:
            flat[cell] += shift[positives.values[entries]]
        weight, count = weights[some], counts[some]
        own = None if positives.weights is None else positives.weights[entries].to(z.dtype)
        right = flat[cell] if own is None else flat[cell] * own
        positive_total -= (right * weight[entry_row]).sum()
        highest = torch.zeros_like(weight)
        if shifted:
            highest = cells.amax(0) if len(cells) else highest - torch.inf
            cells -= highest if group is None else group.highest_(highest)
        sums = cells.exp_().sum(0)
        sums = sums if group is None else group.add_(sums)
        total += (weight * count * (sums.log() + highest)).sum()
        # The gradient of the logits is weight · (count · softmax − w_p at each positive). Its factor
        # weight · count / sum is applied to the smaller matrix of each product.
        share = (sums / at_least(count))[entry_row]
        flat[cell] -= share if own is None else share * own
        factor = (weight * count / sums)[:, None]
        slopes = cells.to(kind)
        grad_z[some] = _product(slopes.T, narrow_table).mul_(factor)
        if group is None:
            grad_table.addmm_(cells, block * factor)
        else:
            grad_table += _product(slopes, (block * factor).to(kind))
    if group is not None:
        total += group.add_(positive_total)
        group.add_(grad_z)
    return total, grad_z, grad_table


def _product(left: Tensor, right: Tensor, memory: Tensor | None = None) -> Tensor:
    if left.dtype == torch.bfloat16:  # adds up in float32
        return torch.mm(left, right, out_dtype=torch.float32)
    out = None if memory is None else memory.view(len(left), right.shape[1])
    return torch.mm(left, right, out=out)


def _largest(z: Tensor, table: Tensor, bias: Tensor | None) -> float:
    """Returns an upper bound of the logits."""
    product = float(z.norm(dim=1).amax() * table.norm(dim=1).amax())
    return product if bias is None else product + float(bias.abs().amax())


def rows_at_a_time(rows: int, catalogue: int, entries: int) -> int:
    """The number of rows in a block. Blocks have equal size, a multiple of `FEWEST_ROWS`."""
    blocks = max(1, -(-rows * catalogue // entries))
    step = -(-rows // blocks)
    return max(1, min(rows, -(-step // FEWEST_ROWS) * FEWEST_ROWS))


def pairwise_loss(right: Tensor, wrong: Tensor) -> Tensor:
    """The mean BPR loss −log σ(right − wrong) (Rendle et al., 2009)."""
    return F.softplus(wrong - right).mean()


def choice_loss(scores: Tensor) -> Tensor:
    """The BPR loss of each row's first score, the positive, against the row's other scores."""
    return pairwise_loss(scores[:, :1], scores[:, 1:])


class Negatives:
    """Draws negatives for rows: uniform numbers below `columns` that are not in the same row of `owned`."""

    def __init__(self, owned: Ragged, columns: int) -> None:
        self.columns = columns
        self.keys = (owned.row_of_entry() * columns + owned.values).sort().values  # [entries]

    def owns(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Returns whether the row of `owned` contains the column, elementwise."""
        if not len(self.keys):
            return torch.zeros_like(rows + columns, dtype=torch.bool)
        key = rows * self.columns + columns
        place = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
        return self.keys[place] == key

    def draw(self, rows: Tensor, count: int = 1) -> Tensor:
        """Draws `count` negatives for each row, without waiting for the device."""  # [rows, count]
        shape = (len(rows), count)
        drawn = torch.randint(self.columns, shape, device=rows.device)
        for _ in range(ROUNDS):
            again = torch.randint(self.columns, shape, device=rows.device)
            drawn = torch.where(self.owns(rows[:, None], drawn), again, drawn)
        return drawn
