"""Sums over the neighbours in a two-sided graph, with a gradient that is the same sum the other way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged


class _NeighbourSum(torch.autograd.Function):
    """Row n of the result is Σ of `table` over n's neighbours.

    The gradient of embedding_bag would sort the edges anew in each step; the graph knows them both ways.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, edges: Ragged, reverse: Ragged) -> Tensor:
        ctx.reverse = reverse
        return edges.sum_of(table)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.reverse.sum_of(upstream.contiguous()), None, None


@dataclass(frozen=True)
class Bipartite:
    """A graph between two kinds of nodes, e.g. users on the left and bundles on the right."""

    left: Ragged
    """For each left node, its neighbours on the right."""
    right: Ragged
    """For each right node, its neighbours on the left."""

    @classmethod
    def of(cls, edges: Ragged, right_nodes: int) -> Bipartite:
        return cls(edges, edges.transposed(right_nodes))

    def sum_to_left(self, right_table: Tensor) -> Tensor:  # [left, d]
        found: Tensor = _NeighbourSum.apply(right_table, self.left, self.right)  # type: ignore[no-untyped-call]
        return found

    def sum_to_right(self, left_table: Tensor) -> Tensor:  # [right, d]
        found: Tensor = _NeighbourSum.apply(left_table, self.right, self.left)  # type: ignore[no-untyped-call]
        return found

    def mean_to_left(self, right_table: Tensor) -> Tensor:
        """The mean over neighbours; zeros for a node that has none."""  # [left, d]
        return self.sum_to_left(right_table) / self.left.lengths.clamp(min=1)[:, None]

    def mean_to_right(self, left_table: Tensor) -> Tensor:  # [right, d]
        return self.sum_to_right(left_table) / self.right.lengths.clamp(min=1)[:, None]

    def spread(self, left_table: Tensor, right_table: Tensor) -> tuple[Tensor, Tensor]:
        """One step of D^(-1/2) A D^(-1/2), both ways: what LightGCN calls a layer."""
        by_left, by_right = (
            side.lengths.clamp(min=1).to(left_table.dtype).rsqrt()[:, None]
            for side in (self.left, self.right)
        )
        to_left = by_left * self.sum_to_left(by_right * right_table)
        to_right = by_right * self.sum_to_right(by_left * left_table)
        return to_left, to_right

    def layers(self, left_table: Tensor, right_table: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """The tables themselves and after each of `steps` steps."""
        found = [(left_table, right_table)]
        for _ in range(steps):
            found.append(self.spread(*found[-1]))
        return found
