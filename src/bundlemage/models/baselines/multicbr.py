"""MultiCBR: three views of users and bundles, which are fused first and contrasted afterwards."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Phase
from bundlemage.models.config import Between, OneOf
from bundlemage.models.graphs import ContrastConfig, ViewsModel, contrastive_loss


class MultiCBRConfig(ContrastConfig):
    """Vectors, batches and step size as published. The fusion, the contrast and its augmentation are ours."""

    space = ContrastConfig.space | {
        "user_bundle_weight": Between(0.0, 1.0),
        "user_item_weight": Between(0.0, 1.0),
        "bundle_item_weight": Between(0.0, 1.0),
        "augmentation": OneOf("none", "edges", "noise"),
    }

    user_bundle_weight: float = Field(1 / 3, ge=0)
    """The share of the view by user-bundle edges in the fused vectors."""
    user_item_weight: float = Field(1 / 3, ge=0)
    """The share of the view by user-item edges, in which a bundle is the mean of its items."""
    bundle_item_weight: float = Field(1 / 3, ge=0)
    """The share of the view by bundle-item edges, in which a user is the mean of its items."""


class MultiCBR(ViewsModel):
    """The vectors of a user and of a bundle are weighted sums over three views, and their product is the
    score. A batch's fused vectors are contrasted with a second copy that is changed at random. With the
    augmentation `none` they are contrasted with themselves, which spreads them out.

    From the publication: the three views, fusion before the contrast, two contrastive losses (users and
    bundles), the pairwise loss. Decided here: the sum of layers of length one, as in CrossCBR, zeros for
    nodes without an edge, and the values of the weights.
    """

    name = "multicbr"
    title = "MultiCBR"
    publication = (
        "Ma, He, Wang, Wei, Du, Fu and Chua, MultiCBR: Multi-view Contrastive Learning for Bundle "
        "Recommendation, TOIS 2024"
    )
    config_class = MultiCBRConfig
    config: MultiCBRConfig

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
