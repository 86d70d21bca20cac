"""Sums over neighbours in a bipartite graph. The gradient is the same sum in the opposite direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bundlemage.models.accelerated import kernels_for, operator
from bundlemage.models.ragged import Ragged, Unchanging, mask_whole_batch


@dataclass(frozen=True)
class Bipartite(Unchanging):
    """A graph between two kinds of nodes, e.g. users on the left and bundles on the right."""

    left: Ragged
    """For each left node, its neighbours on the right."""
    right: Ragged
    """For each right node, its neighbours on the left."""

    @classmethod
    def of(cls, edges: Ragged, right_nodes: int) -> Bipartite:
        return cls(edges, edges.transposed(right_nodes))

    def sum_to_left(self, right_table: Tensor) -> Tensor:
        """For each left node, the sum of its neighbours' rows of `right_table`."""  # [left, d]
        total: Tensor = _NeighbourSum.apply(right_table, self.left, self.right)  # type: ignore[no-untyped-call]
        return total

    def sum_to_right(self, left_table: Tensor) -> Tensor:
        """For each right node, the sum of its neighbours' rows of `left_table`."""  # [right, d]
        total: Tensor = _NeighbourSum.apply(left_table, self.right, self.left)  # type: ignore[no-untyped-call]
        return total

    def mean_to_left(self, right_table: Tensor) -> Tensor:
        """As `sum_to_left`, but the mean. A node without neighbours gets zeros."""  # [left, d]
        return self.sum_to_left(right_table) / self.left.lengths.clamp(min=1)[:, None]

    def mean_to_right(self, left_table: Tensor) -> Tensor:
        """As `sum_to_right`, but the mean. A node without neighbours gets zeros."""  # [right, d]
        return self.sum_to_right(left_table) / self.right.lengths.clamp(min=1)[:, None]

    def spread(self, left_table: Tensor, right_table: Tensor) -> tuple[Tensor, Tensor]:
        """One LightGCN layer: D^(-1/2) A D^(-1/2) in both directions. Returns both new tables."""
        by_left, by_right = (
            side.lengths.clamp(min=1).to(left_table.dtype).rsqrt()[:, None]
            for side in (self.left, self.right)
        )
        to_left = by_left * self.sum_to_left(by_right * right_table)
        to_right = by_right * self.sum_to_right(by_left * left_table)
        return to_left, to_right

    def connected(self, left_table: Tensor, right_table: Tensor) -> tuple[Tensor, Tensor]:
        """The tables, with zeros for nodes without an edge. This graph cannot train their vectors: they would
        stay random."""
        by_left, by_right = ((side.lengths > 0)[:, None] for side in (self.left, self.right))
        return left_table * by_left, right_table * by_right

    def layers(self, left_table: Tensor, right_table: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """The result of `connected`, followed by the tables after each of `steps` calls of `spread`."""
        layers = [self.connected(left_table, right_table)]
        for _ in range(steps):
            layers.append(self.spread(*layers[-1]))
        return layers

    def thinned(self, ratio: float) -> Bipartite:
        """Returns a graph with the same nodes. Each edge is dropped with probability `ratio`."""
        return Bipartite.of(mask_whole_batch(self.left, ratio), len(self.right))


class _NeighbourSum(torch.autograd.Function):
    """Row n of the result is the sum of `table` over n's neighbours.

    The gradient of embedding_bag sorts the edges in each step. Here both directions are already sorted.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, edges: Ragged, reverse: Ragged) -> Tensor:
        ctx.reverse = reverse
        total: Tensor = _sum_of_all(table, edges.values, edges.offsets)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return _sum_of_all(upstream.contiguous(), ctx.reverse.values, ctx.reverse.offsets), None, None


@operator("sum_of_all(Tensor table, Tensor values, Tensor offsets) -> Tensor")
def _sum_of_all(table: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    kernels = kernels_for(table)
    if kernels is None:
        return Ragged(values, offsets).sum_of(table)
    everyone = torch.arange(len(offsets) - 1, device=table.device)
    sums: Tensor = kernels.sum_of_rows(table, values, offsets, everyone, None, None, None, 0.0, False)[0]
    return sums
