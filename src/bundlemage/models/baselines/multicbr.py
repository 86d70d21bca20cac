"""MultiCBR: three views of users and bundles, fused first and contrasted afterwards."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.graphs import ViewsConfig, ViewsModel, contrastive_loss
from bundlemage.models.space import Between, OneOf, Space


class MultiCBRConfig(ViewsConfig):
    """Vectors, batches and step size as published; the fusion, the contrast and its augmentation are ours."""

    space: ClassVar[Space] = {
        **ViewsConfig.space,
        "weight_decay": OneOf(0.0, 0.00001, 0.00004, 0.0001),
        "user_bundle_weight": Between(0.0, 1.0),
        "user_item_weight": Between(0.0, 1.0),
        "bundle_item_weight": Between(0.0, 1.0),
        "contrast": Between(0.005, 0.5, log=True),
        "temperature": Between(0.1, 0.5),
        "augmentation": OneOf("none", "edges", "noise"),
    }

    weight_decay: float = Field(0.00004, ge=0)
    """Added to the gradient as weight_decay × weight, for every weight in every step."""
    ego_penalty: float = Field(0.0, ge=0)
    """Times half the squared length of the batch's own vectors, before they are spread, per pair."""

    user_bundle_weight: float = Field(1 / 3, ge=0)
    """The share of the view by user-bundle edges in the fused vectors."""
    user_item_weight: float = Field(1 / 3, ge=0)
    """The share of the view by user-item edges, in which a bundle is the mean of its items."""
    bundle_item_weight: float = Field(1 / 3, ge=0)
    """The share of the view by bundle-item edges, in which a user is the mean of its items."""
    contrast: float = Field(0.04, ge=0)
    """The weight of the contrastive loss."""
    temperature: float = Field(0.25, gt=0)
    """τ, by which cosines are divided in the contrastive loss."""


class MultiCBR(ViewsModel):
    """The vectors of a user and of a bundle are weighted sums over three views, and their product is the
    score. A batch's fused vectors are held against a second, disturbed copy of themselves; with the
    augmentation `none` against themselves, which spreads them out.

    From the publication: the three views, fusion before the contrast, two contrastive losses (users and
    bundles), the pairwise loss. Decided here: layers are brought to length one and added up as in CrossCBR,
    zeros for nodes without an edge, and the values of the weights.
    """

    name: ClassVar[str] = "multicbr"
    title: ClassVar[str] = "MultiCBR"
    publication: ClassVar[str] = (
        "Ma, He, Wang, Wei, Du, Fu and Chua, MultiCBR: Multi-view Contrastive Learning for Bundle "
        "Recommendation, TOIS 2024"
    )
    config_class: ClassVar[type[ModelConfig]] = MultiCBRConfig
    config: MultiCBRConfig

    def __init__(self, config: MultiCBRConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, config.embedding_dim)
        self.config = config

    def propagate(self) -> tuple[Tensor, Tensor]:
        config = self.config
        users_by_bundles, bundles_by_users = self.spread(self.user_bundle, self.users, self.bundles)
        users_by_items, items = self.spread(self.user_item, self.users, self.items)
        bundles_by_items = self.disturbed(self.bundle_item).mean_to_left(items)
        bundles_by_contents, items = self.spread(self.bundle_item, self.bundles, self.items)
        users_by_contents = self.disturbed(self.user_item).mean_to_left(items)
        users = (
            config.user_bundle_weight * users_by_bundles
            + config.user_item_weight * users_by_items
            + config.bundle_item_weight * users_by_contents
        )
        bundles = (
            config.user_bundle_weight * bundles_by_users
            + config.user_item_weight * bundles_by_items
            + config.bundle_item_weight * bundles_by_contents
        )
        return users, bundles

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        tables = self.propagate()
        loss = self.compare(self.biased(*tables), users, bundles)
        if not self.config.contrast:
            return loss
        copies = tables if self.config.augmentation == "none" else self.propagate()
        for table, copy, chosen in zip(tables, copies, (users, bundles), strict=True):
            one, other = F.embedding(chosen, table), F.embedding(chosen, copy)
            loss = loss + self.config.contrast * contrastive_loss(one, other, self.config.temperature) / 2
        return loss
