"""CrossCBR: two views of users and bundles, made to agree by a contrastive loss."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.graphs import ViewsConfig, ViewsModel, contrastive_loss
from bundlemage.models.space import Between, OneOf, Space


class CrossCBRConfig(ViewsConfig):
    """Weight and temperature of the contrast as published for Youshu; the augmentation is a choice."""

    space: ClassVar[Space] = {
        **ViewsConfig.space,
        "weight_decay": OneOf(0.0, 0.00001, 0.00004, 0.0001),
        "contrast": Between(0.005, 0.5, log=True),
        "temperature": Between(0.1, 0.5),
    }

    weight_decay: float = Field(0.00004, ge=0)
    """Added to the gradient as weight_decay × weight, for every weight in every step. Without it the model
    is at its best after a dozen epochs, and lower."""
    ego_penalty: float = Field(0.0, ge=0)
    """Times half the squared length of the batch's own vectors, before they are spread, per pair."""

    contrast: float = Field(0.04, ge=0)
    """λ₁, the weight of the contrastive loss."""
    temperature: float = Field(0.25, gt=0)
    """τ, by which cosines are divided in the contrastive loss."""


class CrossCBR(ViewsModel):
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
        super().__init__(config, sizes, 2 * config.embedding_dim)
        self.config = config

    def propagate(self) -> tuple[Tensor, Tensor]:
        users, items = self.spread(self.user_item, self.users, self.items)
        by_items = self.disturbed(self.bundle_item).mean_to_left(items)
        users_too, by_bundles = self.spread(self.user_bundle, self.users, self.bundles)
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
