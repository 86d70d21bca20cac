"""PreMix: a weighted mean of two vectors, with a weight for each dimension, and a feed-forward layer on it.

In the paper it mixes a user's item history and bundle history. With `pair_mixer="gate"` the same layer also
mixes a user with an incomplete bundle.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bundlemage.models.config import Mixer


def feed_forward(dim: int) -> nn.Sequential:
    """FNN: ℝᵈ → ℝᵈᐟ² → ℝᵈ, a ReLU between the two layers and none after."""
    return nn.Sequential(nn.Linear(dim, dim // 2), nn.ReLU(), nn.Linear(dim // 2, dim))


class PreMix(nn.Module):
    """Eq. gate: g_u = σ(W¹[p_u; q_u] + b¹), z_u = FNN¹(g_u ⊙ p_u + (1 − g_u) ⊙ q_u).

    With `residual` the mix is added to the output of FNN¹.
    """

    def __init__(self, dim: int, mixer: Mixer, residual: bool = False) -> None:
        super().__init__()
        self.weigh = nn.Linear(2 * dim, dim) if mixer == "gate" else None  # W¹, b¹
        self.transform = feed_forward(dim)  # FNN¹
        self.residual = residual

    def gate(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        """The weight of the first vector against the second, in each dimension."""
        if self.weigh is None:  # the ablation "-Avg"
            return torch.full_like(from_items, 0.5)
        return torch.sigmoid(self.weigh(torch.cat([from_items, from_bundles], dim=1)))  # g_u [rows, d]

    def forward(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        gate = self.gate(from_items, from_bundles)
        mix = gate * from_items + (1 - gate) * from_bundles
        z: Tensor = self.transform(mix)  # z_u [rows, d]
        return mix + z if self.residual else z
