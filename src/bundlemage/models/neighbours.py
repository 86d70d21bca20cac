"""Sums over the neighbours of nodes in a graph, and attention over them, with hand-written gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.ragged import Ragged, Unchanging, kernels_for, mask_whole_batch, offsets_of, operator


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
        """Returns both tables, with zeros for nodes without an edge: this graph could not train them."""
        by_left, by_right = ((side.lengths > 0)[:, None] for side in (self.left, self.right))
        return left_table * by_left, right_table * by_right

    def layers(self, left_table: Tensor, right_table: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the result of `connected`, and then both tables after each of `steps` calls of `spread`."""
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
    all_rows = torch.arange(len(offsets) - 1, device=table.device)
    sums: Tensor = kernels.sum_of_rows(table, values, offsets, all_rows, None, None, None, 0.0, False)[0]
    return sums


SLOPE = 0.2
"""The negative slope of the LeakyReLU on attention scores, as published."""
BLOCK_ENTRIES = 2**24
"""Maximum size, edges × dimensions, of a temporary tensor in the gradient. It bounds memory."""


class Neighbours(Unchanging):
    """The edges from nodes of one kind (the rows) to the nodes that they attend to, in both directions."""

    def __init__(
        self, rows: Tensor, values: Tensor, row_count: int, nodes: int, pair: Tensor | None = None
    ) -> None:
        """Builds the edges from `rows` to `values`, which are positions among all `nodes` of the graph. Edges
        of the same `pair` are hidden together. Without `pair` each edge is a pair of its own."""
        numbers = torch.arange(len(rows), device=rows.device)
        order = torch.argsort(rows, stable=True)
        self.row, values = rows[order], values[order]  # the row that each edge starts from
        self.pair = (numbers if pair is None else pair)[order]  # [edges]
        self.edges = Ragged(values, offsets_of(torch.bincount(rows, minlength=row_count)))
        self.own = Ragged(numbers, self.edges.offsets)  # for each row, the numbers of its edges
        back = torch.argsort(values, stable=True)
        starts = offsets_of(torch.bincount(values, minlength=nodes))
        # For every node, the rows that attend to it, and the numbers of their edges to it.
        self.seen_by, self.edge_of = Ragged(self.row[back], starts), Ragged(back, starts)


class _Attention(torch.autograd.Function):
    """The gradient is hand-written: autograd would sort the edges. `Neighbours` has them in both orders."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        query: Tensor,
        key: Tensor,
        near: Neighbours,
        kept: Tensor | None,
        product: bool,
    ) -> Tensor:
        raw = None
        if product:
            share = product_shares(query, key, near, kept)[:, None]
        else:
            raw = query.index_select(0, near.row) + key.index_select(0, near.edges.values)  # [edges, heads]
            share = _shares(F.leaky_relu(raw, SLOPE), near, kept)
        result = _by_head(near.edges, table, share)
        ctx.near = near
        ctx.save_for_backward(table, query, key, raw, share, result)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        table, query, key, raw, share, result = ctx.saved_tensors
        near: Neighbours = ctx.near
        heads, back = share.shape[1], near.edge_of.values
        upstream = upstream.contiguous()
        grad_table = _by_head(near.seen_by, upstream, share.index_select(0, back))
        # The gradient of a softmax needs Σ_j α_nj · ∂L/∂α_nj. It equals the result times its gradient.
        mean = (result * upstream).view(len(result), heads, -1).sum(2)
        grad_raw = share * (_products(upstream, table, near, heads) - mean.index_select(0, near.row))
        if raw is None:
            grad_query = near.edges.weighted_sum_of(key, grad_raw[:, 0])
            grad_key = near.seen_by.weighted_sum_of(query, grad_raw[:, 0].index_select(0, back))
        else:
            grad_raw = torch.where(raw > 0, grad_raw, SLOPE * grad_raw)
            grad_query, grad_key = near.own.sum_of(grad_raw), near.edge_of.sum_of(grad_raw)
        return grad_table, grad_query, grad_key, None, None, None


def _shares(logits: Tensor, near: Neighbours, kept: Tensor | None) -> Tensor:
    """Attention weights: a softmax over each row's edges, per head; 0 for hidden edges."""  # [edges, heads]
    if kept is not None:
        logits = logits.masked_fill(~kept[:, None], -torch.inf)
    heads = logits.shape[1]
    row = near.row[:, None].expand(-1, heads)
    lowest = torch.finfo(logits.dtype).min  # the maximum of a row if all its edges are hidden
    highest = logits.new_full((len(near.edges), heads), lowest).scatter_reduce(0, row, logits, "amax")
    share = (logits - highest.index_select(0, near.row)).exp_()
    total = near.own.sum_of(share).clamp(min=torch.finfo(share.dtype).tiny)
    share /= total.index_select(0, near.row)
    return share


def _products(left: Tensor, right: Tensor, near: Neighbours, heads: int = 1) -> Tensor:
    """Dot products, per edge and head, of the edge's row in `left` and node in `right`."""  # [edges, heads]
    products = left.new_empty(len(near.row), heads)
    step = max(1, BLOCK_ENTRIES // max(1, left.shape[1]))
    for start in range(0, len(products), step):
        some = slice(start, start + step)
        product = left.index_select(0, near.row[some])
        product *= right.index_select(0, near.edges.values[some])
        products[some] = product.view(len(product), heads, -1).sum(2)
    return products


def _by_head(edges: Ragged, table: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums over neighbours. Each head weighs its own part of the columns."""
    parts = table.chunk(weights.shape[1], dim=1)
    sums = [
        edges.weighted_sum_of(part.contiguous(), weights[:, n].contiguous()) for n, part in enumerate(parts)
    ]
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)


def attend(
    table: Tensor,
    query: Tensor,
    key: Tensor,
    near: Neighbours,
    kept: Tensor | None = None,
    product: bool = False,
) -> Tensor:
    """Returns Σ_j α_nj · table_j over the neighbours of each row n, head by head; zeros for a row without
    neighbours. Only edges marked in `kept` count, by default all.

    α_n is softmax_j LeakyReLU(query_n + key_j) as in graph attention (Veličković et al., 2018). With
    `product` it is softmax_j (query_n · key_j) as in a transformer, with one head.
    """  # [rows, d]
    result: Tensor = _Attention.apply(table, query, key, near, kept, product)  # type: ignore[no-untyped-call]
    return result


def product_shares(queries: Tensor, keys: Tensor, near: Neighbours, kept: Tensor | None = None) -> Tensor:
    """Returns each edge's weight: a softmax of query · key over the neighbours of a row."""  # [edges]
    return _shares(_products(queries, keys, near), near, kept)[:, 0]
