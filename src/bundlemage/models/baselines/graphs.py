"""The base class of models that learn on graphs of users, items and bundles; LightGCN and BGCN."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Learner, Matcher, Phase, Sizes
from bundlemage.models.baselines.factors import PAIRS
from bundlemage.models.config import Between, LearnedConfig, OneOf
from bundlemage.models.losses import Negatives, pairwise_loss
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import Ragged


class GraphConfig(LearnedConfig):
    """The settings of models that propagate vectors over graphs."""

    space = LearnedConfig.space | {
        "embedding_dim": OneOf(32, 64, 128),
        "batch_size": OneOf(512, 1024, 2048, 4096),
        "ego_penalty": OneOf(0.0, 0.00001, 0.0001, 0.001),
    }

    embedding_dim: int = Field(64, ge=1)
    """The length of a vector before it is propagated over the graphs."""
    batch_size: int = Field(2048, ge=1)
    """The number of (user, bundle) pairs per step. Each step uses the whole graphs."""
    weight_decay: float = Field(0.0, ge=0)
    """weight_decay × weight is added to the gradient, for every weight in every step."""
    ego_penalty: float = Field(0.0001, ge=0)
    """The weight of the L2 penalty, ½ length² per pair, on the batch's vectors before propagation."""
    negatives: int = Field(1, ge=1)
    """The number of negatives per pair. They are drawn among the bundles that the user does not have."""
    bundle_bias: bool = False
    """Whether each bundle has a bias, which starts at log(1 + sales). It ranks bundles for users without an
    edge in the graphs. The publications have no bias."""


class GraphModel(Matcher, Learner):
    """Scores a bundle by the inner product of its vector and the user's vector.

    A subclass defines how vectors are propagated over the graphs. This class trains on pairs of a user and a
    bundle, and keeps the propagated vectors for scoring.
    """

    knows_new_users = False
    has_items: ClassVar[bool] = True
    """Whether items have vectors, and edges to users and bundles."""
    config: GraphConfig
    phases = (PAIRS,)

    def __init__(self, config: GraphConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.bias = nn.Parameter(torch.zeros(sizes.bundles, 1)) if config.bundle_bias else None
        dim = config.embedding_dim
        self.user_vectors = self.new_buffer("user_vectors", torch.zeros(sizes.users, 0))
        self.bundle_vectors = self.new_buffer("bundle_vectors", torch.zeros(sizes.bundles, 0))
        self.users = first_vectors(sizes.users, dim)
        if self.has_items:
            self.items = first_vectors(sizes.items, dim)
        self.bundles = first_vectors(sizes.bundles, dim)

    @abstractmethod
    def propagate(self) -> tuple[Tensor, Tensor]:
        """Returns the final vectors of users and of bundles. Their products are the scores without bias."""

    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The tables of users and of bundles that `ego_penalty` keeps small."""
        return (self.users,), (self.bundles,)

    def observe(self, data: Interactions) -> None:
        self.not_owned = Negatives(data.user_bundle, self.sizes.bundles)
        if self.bias is not None:
            sales = data.user_bundle.counts(self.sizes.bundles)
            with torch.no_grad():
                self.bias.copy_(sales[:, None].log1p())
        self.user_bundle = Bipartite.of(data.user_bundle, self.sizes.bundles)
        if self.has_items:
            self.user_item = Bipartite.of(data.user_item, self.sizes.items)
            self.bundle_item = Bipartite.of(data.bundle_item, self.sizes.items)

    def biased(self, users: Tensor, bundles: Tensor) -> tuple[Tensor, Tensor]:
        """Appends the bias as a column to the bundles' table, and a column of ones to the users' table."""
        if self.bias is None:
            return users, bundles
        return torch.cat([users, torch.ones_like(users[:, :1])], 1), torch.cat([bundles, self.bias], 1)

    def draw(self, users: Tensor) -> Tensor:
        """Draws bundles that the users do not have."""  # [pairs, negatives]
        return self.not_owned.draw(users, self.config.negatives)

    def compare(self, tables: tuple[Tensor, Tensor], users: Tensor, bundles: Tensor) -> Tensor:
        """The BPR loss of the pairs against drawn negatives, plus the penalty."""
        wrong = self.draw(users)
        user = F.embedding(users, tables[0])  # [pairs, d]
        right_score = (user * F.embedding(bundles, tables[1])).sum(1, keepdim=True)
        wrong_score = torch.einsum("pd,pnd->pn", user, F.embedding(wrong, tables[1]))
        of_users, of_bundles = self.ego_tables()
        chosen = torch.cat([bundles[:, None], wrong], dim=1)
        penalised = [(users, table) for table in of_users] + [(chosen, table) for table in of_bundles]
        squares = torch.stack([F.embedding(rows, table).square().sum() for rows, table in penalised]).sum()
        penalty = self.config.ego_penalty * squares / (2 * max(1, len(users)))
        return pairwise_loss(right_score, wrong_score) + penalty

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        return self.compare(self.biased(*self.propagate()), users, bundles)

    def settle(self, data: Interactions) -> None:
        was_training = self.training
        self.eval()  # without dropout
        self.user_vectors, self.bundle_vectors = self.biased(*self.propagate())
        self.train(was_training)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        scores = self.user_vectors[self.known_users(histories)] @ self.bundle_vectors.T  # [rows, bundles]
        return self.with_later(scores, contents)


def first_vectors(nodes: int, dim: int) -> nn.Parameter:
    """A table with a vector for each node, drawn by Xavier's normal distribution."""
    table = torch.empty(nodes, dim)
    return nn.Parameter(nn.init.xavier_normal_(table) if nodes else table)


class LightGCNConfig(GraphConfig):
    """The published settings, applied to users and bundles."""

    space = GraphConfig.space | {"layers": OneOf(1, 2, 3, 4)}

    layers: int = Field(3, ge=0, le=32)
    """The number of propagation steps. The initial vectors count as one more layer."""


class LightGCN(GraphModel):
    """Only the initial vectors are learned. Every layer is D^(-1/2) A D^(-1/2) times the layer before.

    A node without an edge has a zero vector (our choice).
    """

    name = "lightgcn"
    title = "LightGCN"
    publication = (
        "He, Deng, Wang, Li, Zhang and Wang, LightGCN: Simplifying and Powering Graph Convolution Network "
        "for Recommendation, SIGIR 2020"
    )
    config_class = LightGCNConfig
    has_items = False
    config: LightGCNConfig

    def propagate(self) -> tuple[Tensor, Tensor]:
        layers = self.user_bundle.layers(self.users, self.bundles, self.config.layers)
        # e = Σ_k e^(k) / (K + 1)
        users, bundles = (torch.stack(side).mean(0) for side in zip(*layers, strict=True))
        return users, bundles


class BGCNConfig(GraphConfig):
    """The published values. Values that the publication does not give are ours."""

    space = GraphConfig.space | {
        "weight_decay": OneOf(0.0, 0.000005, 0.00002, 0.0001),
        "layers": OneOf(1, 2),
        "dropout": Between(0.0, 0.5),
    }

    weight_decay: float = Field(0.00002, ge=0)
    ego_penalty: float = Field(0.0, ge=0)
    layers: int = Field(1, ge=1, le=32)
    """The number of layers on each of the two graphs. A node's vectors of all layers are concatenated."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """The dropout rate on the output of each layer."""
    unit_layers: bool = False
    """Whether vectors of each layer except the initial one are scaled to length one before concatenation."""
    hard_negatives: float = Field(0.0, ge=0, le=1)
    """The probability that a negative bundle is drawn among those that contain an item of the user."""


class BGCN(GraphModel):
    """Two levels, user-item and user-bundle. A pair's score is the sum of the two levels' scores.

    The publication trains in two stages, the second with hard negatives. Here hard negatives are a setting,
    off by default. Also our choice: D^(-1/2) A D^(-1/2) instead of the mean over neighbours, one matrix W
    for both kinds of nodes of a level, and zero vectors for nodes without an edge.
    """

    name = "bgcn"
    title = "BGCN"
    publication = (
        "Chang, Gao, He, Jin and Li, Bundle Recommendation with Graph Convolutional Networks, SIGIR 2020"
    )
    config_class = BGCNConfig
    config: BGCNConfig

    def __init__(self, config: BGCNConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim, layers = config.embedding_dim, config.layers
        self.item_level = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.bundle_level = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        for layer in (*self.item_level, *self.bundle_level):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(config.dropout)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.others = overlap_totals(self.bundle_item)

    def draw(self, users: Tensor) -> Tensor:
        drawn, chance = super().draw(users), self.config.hard_negatives
        if not chance:
            return drawn
        rows = users[:, None].expand_as(drawn)
        item, has_item = any_of(self.user_item.left, rows)
        hard, has_bundle = any_of(self.bundle_item.right, item)
        usable = has_item & has_bundle & ~self.not_owned.owns(rows, hard)
        return torch.where(usable & (torch.rand(usable.shape, device=usable.device) < chance), hard, drawn)

    def propagate(self) -> tuple[Tensor, Tensor]:
        users_by_items, items = self._level(self.user_item, self.item_level, self.items)
        users, bundles = self._level(self.user_bundle, self.bundle_level, self.bundles)
        by_items = self.bundle_item.mean_to_left(items)  # a bundle is the mean of its items
        return torch.cat([users_by_items, users], dim=1), torch.cat([by_items, bundles], dim=1)

    def _level(self, graph: Bipartite, layers: nn.ModuleList, things: Tensor) -> tuple[Tensor, Tensor]:
        """Propagates vectors on the user-item or the user-bundle graph. Bundles also receive vectors from
        bundles that share items with them. `things` are the vectors of items or bundles. Returns all layers
        of users and of things, concatenated."""
        users, things = graph.connected(self.users, things)
        of_users, of_things = [users], [things]
        for layer in layers:
            to_users, to_things = graph.spread(users, things)
            if graph is self.user_bundle:
                to_things = to_things + mean_of_overlapping(self.bundle_item, self.others, things)
            carried = (users + to_users, things + to_things)
            users, things = (self.dropout(F.leaky_relu(layer(table))) for table in carried)
            for layers_of, table in ((of_users, users), (of_things, things)):
                layers_of.append(F.normalize(table) if self.config.unit_layers else table)
        return torch.cat(of_users, 1), torch.cat(of_things, 1)


def overlap_totals(bundle_item: Bipartite) -> Tensor:
    """For each bundle, the number of shared items, summed over all other bundles."""  # [bundles]
    sizes = bundle_item.left.lengths
    holders = bundle_item.right.lengths[:, None].float()
    return bundle_item.sum_to_left(holders)[:, 0].round() - sizes


def mean_of_overlapping(bundle_item: Bipartite, totals: Tensor, bundles: Tensor) -> Tensor:
    """For each bundle, the mean vector of the other bundles, weighted by the number of shared items.

    Two products with X compute the product with X Xᵀ, without building that bundles × bundles matrix. Its
    diagonal, the overlap of each bundle with itself, is then subtracted.
    """  # [bundles, d]
    sizes = bundle_item.left.lengths[:, None]
    summed = bundle_item.sum_to_left(bundle_item.sum_to_right(bundles)) - sizes * bundles
    return torch.where(totals[:, None] > 0, summed / totals.clamp(min=1)[:, None], 0)


def any_of(ragged: Ragged, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a random entry of each row, and whether the row has any entries."""
    if not len(ragged.values):
        return torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    lengths = ragged.lengths[rows]
    within = (torch.rand(rows.shape, device=rows.device) * lengths).long().clamp(max=lengths - 1)
    place = (ragged.offsets[rows] + within).clamp(0, len(ragged.values) - 1)
    return ragged.values[place], lengths > 0
