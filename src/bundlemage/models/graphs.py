"""Base classes of models that learn on graphs of users, items and bundles."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Learner, Matcher, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import LearnedConfig, OneOf
from bundlemage.models.losses import Negatives, pairwise_loss
from bundlemage.models.pairs import PAIRS
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
    """L2 penalty on the batch's vectors before propagation: its weight, per pair, on ½ length²."""
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
    views: ClassVar[int] = 1
    """The vector of a user or bundle is a concatenation of this many vectors of length `embedding_dim`."""
    has_items: ClassVar[bool] = True
    """Whether items have vectors, and edges to users and bundles."""
    config: GraphConfig
    phases = (PAIRS,)

    def __init__(self, config: GraphConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.bias = nn.Parameter(torch.zeros(sizes.bundles, 1)) if config.bundle_bias else None
        width, dim = self.width + config.bundle_bias, config.embedding_dim
        self.user_vectors = self.new_buffer("user_vectors", torch.zeros(sizes.users, width))
        self.bundle_vectors = self.new_buffer("bundle_vectors", torch.zeros(sizes.bundles, width))
        self.users = first_vectors(sizes.users, dim)
        if self.has_items:
            self.items = first_vectors(sizes.items, dim)
        self.bundles = first_vectors(sizes.bundles, dim)

    @property
    def width(self) -> int:
        """The length of the final vectors of users and bundles, without the bias."""
        return self.views * self.config.embedding_dim

    @abstractmethod
    def propagate(self) -> tuple[Tensor, Tensor]:
        """Returns the final vectors of users and of bundles. Their products are the scores without bias."""

    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The tables of users and of bundles that `ego_penalty` keeps small."""
        return (self.users,), (self.bundles,)

    def observe(self, data: Interactions) -> None:
        self.drawn = Negatives(data.user_bundle, self.sizes.bundles)
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
        return self.drawn.draw(users, self.config.negatives)

    def compare(self, tables: tuple[Tensor, Tensor], users: Tensor, bundles: Tensor) -> Tensor:
        """The BPR loss of the pairs against drawn negatives, plus the penalty."""
        wrong = self.draw(users)
        user = F.embedding(users, tables[0])  # [pairs, d]
        right_score = (user * F.embedding(bundles, tables[1])).sum(1, keepdim=True)
        wrong_score = torch.einsum("pd,pnd->pn", user, F.embedding(wrong, tables[1]))
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
        self.eval()  # without dropout
        users, bundles = self.biased(*self.propagate())
        self.user_vectors.copy_(users)
        self.bundle_vectors.copy_(bundles)
        self.train(was_training)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        scores = self.user_vectors[self.known_users(histories)] @ self.bundle_vectors.T  # [rows, bundles]
        return self.with_unnamed(scores, contents)


class ViewsConfig(GraphConfig):
    """The settings of models that see users and bundles in several graphs."""

    space = GraphConfig.space | {
        "weight_decay": OneOf(0.0, 0.00001, 0.00004, 0.0001),
        "layers": OneOf(1, 2),
    }

    weight_decay: float = Field(0.00004, ge=0)
    ego_penalty: float = Field(0.0, ge=0)
    layers: int = Field(1, ge=1)
    """The number of propagation steps on each graph."""
    augmentation: Literal["none", "edges", "messages", "noise"] = "none"
    """The random change in training. `edges` drops edges, `messages` drops numbers of the propagated vectors,
    and `noise` is added to the propagated vectors."""
    disturbance: float = Field(0.2, ge=0, lt=1)
    """The probability that an edge or a number is dropped, or the length of the noise."""


class ViewsModel(GraphModel):
    """A model with several views of users and bundles, made from three graphs. A subclass defines them."""

    config: ViewsConfig

    def spread(self, graph: Bipartite, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the first vectors plus the vectors of all later LightGCN layers, scaled to length one."""
        left, right = graph.connected(left, right)
        layers = self.disturbed(graph).layers(left, right, self.config.layers)
        for one, other in layers[1:]:
            left = left + F.normalize(self.shaken(one))
            right = right + F.normalize(self.shaken(other))
        return left, right

    def disturbed(self, graph: Bipartite) -> Bipartite:
        """Returns the graph. In training with the augmentation `edges`, some edges are dropped."""
        if self.training and self.config.augmentation == "edges":
            return graph.thinned(self.config.disturbance)
        return graph

    def shaken(self, table: Tensor) -> Tensor:
        """Returns the vectors. In training, `messages` and `noise` change them at random."""
        if not self.training:
            return table
        if self.config.augmentation == "messages":
            return F.dropout(table, self.config.disturbance)
        if self.config.augmentation == "noise":
            noise = F.normalize(torch.rand_like(table)) * self.config.disturbance
            return table + table.sign() * noise
        return table


def first_vectors(nodes: int, dim: int) -> nn.Parameter:
    """A table with a vector for each node, drawn by Xavier's normal distribution."""
    table = torch.empty(nodes, dim)
    return nn.Parameter(nn.init.xavier_normal_(table) if nodes else table)
