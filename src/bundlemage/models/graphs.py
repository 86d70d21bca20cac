"""What the models have in common that learn on two-sided graphs."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import LearnedConfig
from bundlemage.models.losses import multinomial_loss, pairwise_loss
from bundlemage.models.ragged import Ragged
from bundlemage.models.sampling import Negatives
from bundlemage.models.space import OneOf, Space


class GraphConfig(LearnedConfig):
    """What every model has that compares vectors spread over graphs."""

    space: ClassVar[Space] = {
        **LearnedConfig.space,
        "embedding_dim": OneOf(32, 64, 128),
        "batch_size": OneOf(512, 1024, 2048, 4096),
        "ego_penalty": OneOf(0.0, 0.00001, 0.0001, 0.001),
    }

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


class ViewsConfig(GraphConfig):
    """What the models have that see users and bundles in several graphs."""

    space: ClassVar[Space] = {**GraphConfig.space, "layers": OneOf(1, 2)}

    layers: int = Field(1, ge=1)
    """Steps on each graph."""
    augmentation: Literal["none", "edges", "messages", "noise"] = "none"
    """What is disturbed while learning: edges left out, numbers of the spread vectors left out, or noise
    added to these."""
    disturbance: float = Field(0.2, ge=0, lt=1)
    """The chance that an edge or number is left out, or the length of the noise."""


class ViewsModel(GraphModel):
    """Vectors of users, items and bundles, and the three graphs between them. A subclass makes its views."""

    config: ViewsConfig

    def __init__(self, config: ViewsConfig, sizes: Sizes, width: int) -> None:
        super().__init__(config, sizes, width)
        self.config = config
        dim = config.embedding_dim
        self.users = first_vectors(sizes.users, dim)
        self.items = first_vectors(sizes.items, dim)
        self.bundles = first_vectors(sizes.bundles, dim)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.user_item = Bipartite.of(data.user_item, self.sizes.items)
        self.user_bundle = Bipartite.of(data.user_bundle, self.sizes.bundles)
        self.bundle_item = Bipartite.of(data.bundle_item, self.sizes.items)

    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return (self.users,), (self.bundles,)

    def spread(self, graph: Bipartite, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """LightGCN's layers, each brought to length one, added up."""
        left, right = graph.connected(left, right)
        layers = self.disturbed(graph).layers(left, right, self.config.layers)
        for one, other in layers[1:]:
            left = left + F.normalize(self.shaken(one))
            right = right + F.normalize(self.shaken(other))
        return left, right

    def disturbed(self, graph: Bipartite) -> Bipartite:
        """The graph, with edges left out where these are what is disturbed."""
        if self.training and self.config.augmentation == "edges":
            return graph.thinned(self.config.disturbance)
        return graph

    def shaken(self, table: Tensor) -> Tensor:
        """Spread vectors, changed at random where these are what is disturbed."""
        if not self.training:
            return table
        if self.config.augmentation == "messages":
            return F.dropout(table, self.config.disturbance)
        if self.config.augmentation == "noise":
            noise = F.normalize(torch.rand_like(table)) * self.config.disturbance
            return table + table.sign() * noise
        return table


def contrastive_loss(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE: the mean of −log of a row's share, by exp(cosine / τ), in one view for itself in the other."""
    rows = torch.arange(len(one) + 1, device=one.device)
    itself = Ragged(rows[:-1], rows)
    return multinomial_loss(
        F.normalize(one) / temperature, F.normalize(other), itself, torch.ones_like(one[:, 0])
    )


def first_vectors(nodes: int, dim: int) -> nn.Parameter:
    """A table of nodes, Xavier-normal."""
    table = torch.empty(nodes, dim)
    return nn.Parameter(nn.init.xavier_normal_(table) if nodes else table)
