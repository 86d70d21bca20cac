"""Sums over the neighbours in a two-sided graph, with a gradient that is the same sum the other way, and what
the models that learn on such graphs have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.config import LearnedConfig
from bundlemage.models.losses import pairwise_loss
from bundlemage.models.ragged import Ragged, mask_whole_batch
from bundlemage.models.sampling import Negatives


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

    def connected(self, left_table: Tensor, right_table: Tensor) -> tuple[Tensor, Tensor]:
        """The tables with zeros for nodes without an edge: nothing in this graph teaches what those are, so
        their first, random vectors would speak for ever."""
        by_left, by_right = ((side.lengths > 0)[:, None] for side in (self.left, self.right))
        return left_table * by_left, right_table * by_right

    def layers(self, left_table: Tensor, right_table: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """The tables themselves, as far as connected, and after each of `steps` steps."""
        found = [self.connected(left_table, right_table)]
        for _ in range(steps):
            found.append(self.spread(*found[-1]))
        return found

    def thinned(self, ratio: float) -> Bipartite:
        """The same nodes, each edge left out with chance `ratio`."""
        return Bipartite.of(mask_whole_batch(self.left, ratio), len(self.right))


class GraphConfig(LearnedConfig):
    """What every model has that compares vectors spread over graphs."""

    embedding_dim: int = Field(64, ge=1)
    """The length of a vector before it is spread."""
    batch_size: int = Field(2048, ge=1)
    """(user, bundle) pairs per step; the graphs are walked whole in each step."""
    weight_decay: float = Field(0.0, ge=0)
    """Added to the gradient as weight_decay × weight, for every weight in every step."""
    ego_penalty: float = Field(0.0001, ge=0)
    """Times half the squared length of the batch's own vectors, before they are spread, per pair."""
    negatives: int = Field(1, ge=1)
    """Bundles that the user has not, drawn for each one that the user has."""
    bundle_bias: bool = False
    """Whether each bundle has a number that is added to its score for everyone, at first the logarithm of
    its sales. The publications have none; it ranks for users of whom the graphs know nothing."""


PAIRS = Phase("pairs", over="user_bundle")


class GraphModel(Model):
    """Scores a bundle by the inner product of its vector and the user's, both spread over graphs.

    A subclass says how they are spread; this one learns from pairs and keeps the tables that scoring needs.
    """

    knows_new_users: ClassVar[bool] = False
    config: GraphConfig

    def __init__(self, config: GraphConfig, sizes: Sizes, width: int) -> None:
        super().__init__(config, sizes)
        self.bias = nn.Parameter(torch.zeros(sizes.bundles, 1)) if config.bundle_bias else None
        width += config.bundle_bias
        self.user_vectors: Tensor
        self.bundle_vectors: Tensor
        self.register_buffer("user_vectors", torch.zeros(sizes.users, width))
        self.register_buffer("bundle_vectors", torch.zeros(sizes.bundles, width))

    @abstractmethod
    def propagate(self) -> tuple[Tensor, Tensor]:
        """Every user's and every bundle's vector, as their product is to be taken, but for the bias."""

    @abstractmethod
    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The tables of users and of bundles that `ego_penalty` keeps small."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (PAIRS,)

    def observe(self, data: Interactions) -> None:
        self.drawn = Negatives(data.user_bundle, self.sizes.bundles)
        if self.bias is not None:
            sales = data.user_bundle.counts(self.sizes.bundles)
            with torch.no_grad():
                self.bias.copy_(sales[:, None].log1p())

    def biased(self, users: Tensor, bundles: Tensor) -> tuple[Tensor, Tensor]:
        """The tables with the bias as one more dimension, in which every user has 1."""
        if self.bias is None:
            return users, bundles
        return torch.cat([users, torch.ones_like(users[:, :1])], 1), torch.cat([bundles, self.bias], 1)

    def draw(self, users: Tensor) -> Tensor:  # [pairs, negatives]
        return self.drawn.draw(users, self.config.negatives)

    def compare(self, tables: tuple[Tensor, Tensor], users: Tensor, bundles: Tensor) -> Tensor:
        """BPR's loss of the pairs against drawn ones, and the penalty."""
        wrong = self.draw(users)
        whom = F.embedding(users, tables[0])  # [pairs, d]
        right_score = (whom * F.embedding(bundles, tables[1])).sum(1, keepdim=True)
        wrong_score = torch.einsum("pd,pnd->pn", whom, F.embedding(wrong, tables[1]))
        of_users, of_bundles = self.ego_tables()
        chosen = torch.cat([bundles[:, None], wrong], dim=1)
        named = [(users, table) for table in of_users] + [(chosen, table) for table in of_bundles]
        squares = torch.stack([F.embedding(rows, table).square().sum() for rows, table in named]).sum()
        penalty = self.config.ego_penalty * squares / (2 * max(1, len(users)))
        return pairwise_loss(right_score, wrong_score) + penalty

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        return self.compare(self.biased(*self.propagate()), users, bundles)

    def settle(self, data: Interactions) -> None:
        was_training = self.training
        self.eval()  # nothing dropped
        users, bundles = self.biased(*self.propagate())
        self.user_vectors.copy_(users)
        self.bundle_vectors.copy_(bundles)
        self.train(was_training)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        scores = self.user_vectors[self.known_users(histories)] @ self.bundle_vectors.T  # [rows, bundles]
        return self.with_unnamed(scores, contents)


def first_vectors(nodes: int, dim: int) -> nn.Parameter:
    """A table of nodes, Xavier-normal."""
    table = torch.empty(nodes, dim)
    return nn.Parameter(nn.init.xavier_normal_(table) if nodes else table)
