"""CrossCBR: two views of users and bundles, made to agree by a contrastive loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.base import Interactions, Phase
from bundlemage.models.graphs import ContrastConfig, ViewsModel, contrastive_loss


class CrossCBRConfig(ContrastConfig):
    """Weight and temperature of the contrast are those published for Youshu. The augmentation is a choice.

    Without `weight_decay` the model is at its best after a dozen epochs, and less accurate.
    """


class CrossCBR(ViewsModel):
    """A view by items (a bundle is the mean of its items) and a view by bundles, whose scores add up.

    A node without an edge in a graph is zero in its view (ours).
    """

    name = "crosscbr"
    title = "CrossCBR"
    publication = (
        "Ma, He, Zhang, Wang and Chua, CrossCBR: Cross-view Contrastive Learning for Bundle Recommendation, "
        "KDD 2022"
    )
    config_class = CrossCBRConfig
    config: CrossCBRConfig
    views = 2

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
