"""A softmax over a catalogue that is too large to be compared with in every step: the right ones against a
sample, each of which stands for as many as it was likely not to be drawn (Bengio and Senécal, Adaptive
Importance Sampling to Accelerate Training of a Neural Probabilistic Language Model, IEEE TNN 2008)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.losses import Prior
from bundlemage.models.ragged import Ragged

EVENLY = 0.1
"""The share that is drawn from the whole catalogue alike: what nobody ever took must be seen to be wrong."""


@dataclass(frozen=True)
class Drawn:
    """Distinct members of a catalogue, and the logarithm of how often each could be expected, per time that
    it came."""

    ids: Tensor  # [drawn]
    log_expected: Tensor  # [drawn]


class Sampler:
    """Draws by popularity, with some drawn evenly."""

    def __init__(self, popularity: Tensor, size: int) -> None:
        """`popularity`: how often each member is a right one. A catalogue of at most `size` comes whole."""
        self.size, self.members = size, len(popularity)
        self.device = popularity.device
        if self.members > size:
            share = popularity.double() / popularity.sum().clamp(min=1)
            self.evenly = max(1, round(size * EVENLY)) if bool(popularity.any()) else size
            chance = (share * (size - self.evenly) + self.evenly / self.members) / size
            self.log_expected = (chance * size).log().float()
            self.up_to = share.cumsum(0)

    def draw(self) -> Drawn:
        if self.members <= self.size:
            everyone = torch.arange(self.members, device=self.device)
            return Drawn(everyone, torch.zeros(self.members, device=self.device))
        spots = torch.rand(self.size - self.evenly, device=self.device, dtype=torch.float64)
        popular = torch.searchsorted(self.up_to, spots * self.up_to[-1]).clamp(max=self.members - 1)
        even = torch.randint(self.members, (self.evenly,), device=self.device)
        ids, times = torch.unique(torch.cat([popular, even]), return_counts=True)
        return Drawn(ids, self.log_expected[ids] - times.log())


def sampled_loss(
    z: Tensor,
    table: Tensor,
    positives: Ragged,
    drawn: Drawn,
    row_weights: Tensor,
    prior: Prior | None = None,
) -> Tensor:
    """`multinomial_loss` with the sum over the catalogue estimated: a row's positives as they are, and of the
    drawn those that are not among them. Ids of `positives` and `drawn` are rows of `table`."""
    row = positives.row_of_entry()
    right = (F.embedding(row, z) * F.embedding(positives.values, table)).sum(1)  # [entries]
    others = z @ F.embedding(drawn.ids, table).T - drawn.log_expected  # [rows, drawn]
    if prior is not None:
        right = right + (prior.bias + prior.shift)[positives.values]
        others = others + prior.bias[drawn.ids]
    column = torch.full((len(table),), len(drawn.ids), device=z.device)
    column[drawn.ids] = torch.arange(len(drawn.ids), device=z.device)
    hit = torch.zeros(len(z), len(drawn.ids) + 1, dtype=torch.bool, device=z.device)
    hit[row, column[positives.values]] = True
    others = others.masked_fill(hit[:, :-1], -torch.inf)
    highest = torch.full((len(z),), -torch.inf, device=z.device, dtype=z.dtype)
    highest = highest.scatter_reduce(0, row, right.detach(), "amax")
    if len(drawn.ids):
        highest = torch.maximum(highest, others.detach().amax(1))
    highest = torch.where(
        highest.isfinite(), highest, 0.0
    )  # a row that has nothing, and for which nothing is
    total = (others - highest[:, None]).exp().sum(1)
    total = total.index_add(0, row, (right - F.embedding(row, highest[:, None])[:, 0]).exp())
    counts = positives.lengths.to(z.dtype)
    normaliser = torch.where(counts > 0, total.clamp(min=torch.finfo(z.dtype).tiny).log() + highest, 0.0)
    likelihood = torch.zeros_like(normaliser).index_add(0, row, right)
    return (row_weights * (counts * normaliser - likelihood)).sum() / max(1, len(z))


@dataclass(frozen=True)
class Part:
    """What a step touches of a catalogue: distinct ids, and where each asked one is among them."""

    ids: Tensor  # [touched]
    places: tuple[Tensor, ...]
    """For each of the tensors asked for, positions in `ids`."""

    @classmethod
    def of(cls, *asked: Tensor) -> Part:
        ids, inverse = torch.unique(torch.cat(asked), return_inverse=True)
        return cls(ids, inverse.split([len(some) for some in asked]))
