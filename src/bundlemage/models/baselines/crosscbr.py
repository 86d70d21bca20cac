"""CrossCBR: two views of users and bundles, made to agree by a contrastive loss."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import ModelConfig
from bundlemage.models.graphs import GraphConfig, GraphModel, first_vectors
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.ragged import Ragged
from bundlemage.models.space import Between, OneOf, Space


class CrossCBRConfig(GraphConfig):
    """Weight and temperature of the contrast as published for Youshu; the augmentation is a choice."""

    space: ClassVar[Space] = {
        **GraphConfig.space,
        "weight_decay": OneOf(0.0, 0.00001, 0.00004, 0.0001),
        "layers": OneOf(1, 2),
        "contrast": Between(0.005, 0.5, log=True),
        "temperature": Between(0.1, 0.5),
    }

    weight_decay: float = Field(0.00004, ge=0)
    """Added to the gradient as weight_decay × weight, for every weight in every step. Without it the model
    is at its best after a dozen epochs, and lower."""
    ego_penalty: float = Field(0.0, ge=0)
    """Times half the squared length of the batch's own vectors, before they are spread, per pair."""

    layers: int = Field(1, ge=1)
    """Steps on each of the two graphs."""
    contrast: float = Field(0.04, ge=0)
    """λ₁, the weight of the contrastive loss."""
    temperature: float = Field(0.25, gt=0)
    """τ, by which cosines are divided in the contrastive loss."""
    augmentation: Literal["none", "edges", "messages", "noise"] = "none"
    """What is disturbed while learning: edges left out, numbers of the spread vectors left out, or noise
    added to these."""
    disturbance: float = Field(0.2, ge=0, lt=1)
    """The chance that an edge or number is left out, or the length of the noise."""


class CrossCBR(GraphModel):
    """A view by items (a bundle is the mean of its items) and a view by bundles; scores add up.

    A node without an edge in a graph is zero in its view (ours).
    """

    name: ClassVar[str] = "crosscbr"
    title: ClassVar[str] = "CrossCBR"
    publication: ClassVar[str] = (
        "Ma, He, Zhang, Wang and Chua, CrossCBR: Cross-view Contrastive Learning for Bundle Recommendation, "
        "KDD 2022"
    )
    config_class: ClassVar[type[ModelConfig]] = CrossCBRConfig
    config: CrossCBRConfig

    def __init__(self, config: CrossCBRConfig, sizes: Sizes) -> None:
        dim = config.embedding_dim
        super().__init__(config, sizes, 2 * dim)
        self.config = config
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

    def propagate(self) -> tuple[Tensor, Tensor]:
        users, items = self._spread(self.user_item, self.users, self.items)
        by_items = self._disturbed(self.bundle_item).mean_to_left(items)
        users_too, by_bundles = self._spread(self.user_bundle, self.users, self.bundles)
        # The product of the joined vectors is the sum of the two views' products.
        return torch.cat([users, users_too], dim=1), torch.cat([by_items, by_bundles], dim=1)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        tables = self.propagate()
        loss = self.compare(self.biased(*tables), users, bundles)
        if not self.config.contrast:
            return loss
        for table, chosen in zip(tables, (users, bundles), strict=True):
            by_items, by_bundles = F.embedding(chosen, table).chunk(2, dim=1)
            agreement = contrastive_loss(by_items, by_bundles, self.config.temperature)
            loss = loss + self.config.contrast * agreement / 2
        return loss

    # ── One view ─────────────────────────────────────────────────────────────────────────────────

    def _spread(self, graph: Bipartite, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """LightGCN's layers, each brought to length one, added up."""
        left, right = graph.connected(left, right)
        layers = self._disturbed(graph).layers(left, right, self.config.layers)
        for one, other in layers[1:]:
            left = left + F.normalize(self._shaken(one))
            right = right + F.normalize(self._shaken(other))
        return left, right

    def _disturbed(self, graph: Bipartite) -> Bipartite:
        if self.training and self.config.augmentation == "edges":
            return graph.thinned(self.config.disturbance)
        return graph

    def _shaken(self, table: Tensor) -> Tensor:
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
