"""Models that contrast two views of users and bundles: CrossCBR and MultiCBR."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Phase
from bundlemage.models.config import Between, OneOf
from bundlemage.models.graphs import ViewsConfig, ViewsModel
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.ragged import Ragged

Tables = tuple[Tensor, Tensor]
"""Two tensors: one for users and one for bundles, or two views of the same users or bundles."""


class CrossCBRConfig(ViewsConfig):
    """The weight and the temperature of the contrastive loss are those published for Youshu.

    Without `weight_decay` the model stops improving after a dozen epochs, and is less accurate.
    """

    space = ViewsConfig.space | {
        "contrast": Between(0.005, 0.5, log=True),
        "temperature": Between(0.1, 0.5),
    }

    contrast: float = Field(0.04, ge=0)
    """λ₁: the weight of the contrastive loss."""
    temperature: float = Field(0.25, gt=0)
    """τ: the number that divides cosines in the contrastive loss."""


class ContrastModel(ViewsModel):
    """Adds two contrastive losses, for users and for bundles, to the pairwise loss."""

    config: CrossCBRConfig

    @abstractmethod
    def contrasted(self, tables: Tables, chosen: Tables) -> list[Tables]:
        """Returns two views of the chosen users, and two views of the chosen bundles.

        `tables` has the vectors of all users and of all bundles, and `chosen` the positions of a batch.
        """

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        tables = self.propagate()
        loss = self.compare(self.biased(*tables), users, bundles)
        if self.config.contrast:
            for one, other in self.contrasted(tables, (users, bundles)):
                agreement = contrastive_loss(one, other, self.config.temperature)
                loss = loss + self.config.contrast * agreement / 2
        return loss


class CrossCBR(ContrastModel):
    """The sum of the scores of two views: by items (a bundle is the mean of its items), and by bundles.

    A node without an edge in a graph has a zero vector in that view (our choice).
    """

    name = "crosscbr"
    title = "CrossCBR"
    publication = (
        "Ma, He, Zhang, Wang and Chua, CrossCBR: Cross-view Contrastive Learning for Bundle Recommendation, "
        "KDD 2022"
    )
    config_class = CrossCBRConfig
    views = 2

    def propagate(self) -> tuple[Tensor, Tensor]:
        users, items = self.spread(self.user_item, self.users, self.items)
        by_items = self.disturbed(self.bundle_item).mean_to_left(items)
        users_too, by_bundles = self.spread(self.user_bundle, self.users, self.bundles)
        # The product of the joined vectors is the sum of the two views' products.
        return torch.cat([users, users_too], dim=1), torch.cat([by_items, by_bundles], dim=1)

    def contrasted(self, tables: Tables, chosen: Tables) -> list[Tables]:
        views = [F.embedding(rows, table).chunk(2, dim=1) for table, rows in zip(tables, chosen, strict=True)]
        return [(by_items, by_bundles) for by_items, by_bundles in views]


class MultiCBRConfig(CrossCBRConfig):
    """Vector length, batch size and learning rate are published. Weights and augmentation are ours."""

    space = CrossCBRConfig.space | {
        "user_bundle_weight": Between(0.0, 1.0),
        "user_item_weight": Between(0.0, 1.0),
        "bundle_item_weight": Between(0.0, 1.0),
        "augmentation": OneOf("none", "edges", "noise"),
    }

    user_bundle_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by user-bundle edges in the fused vectors."""
    user_item_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by user-item edges. In this view a bundle is the mean of its items."""
    bundle_item_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by bundle-item edges. In this view a user is the mean of the user's items."""


class MultiCBR(ContrastModel):
    """A score is the product of a user's and a bundle's fused vectors: weighted sums over three views.

    The contrastive loss compares a batch's fused vectors with a second, randomly changed copy. With the
    augmentation `none` it compares them with themselves, which moves different vectors apart. From the
    publication: the three views, fusion before the contrast, two contrastive losses (users and bundles), the
    pairwise loss. Our choices: layers are scaled to length one and added, as in CrossCBR; nodes without an
    edge are zero; the values of the weights.
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

    def contrasted(self, tables: Tables, chosen: Tables) -> list[Tables]:
        copies = tables if self.config.augmentation == "none" else self.propagate()
        return [
            (F.embedding(rows, table), F.embedding(rows, copy))
            for table, copy, rows in zip(tables, copies, chosen, strict=True)
        ]


def contrastive_loss(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE: a cross-entropy loss. Each row of `one` must find the same row among all rows of `other`, with
    cosine / τ as logits. Returns the mean over rows."""
    rows = torch.arange(len(one) + 1, device=one.device)
    itself = Ragged(rows[:-1], rows)
    return multinomial_loss(
        F.normalize(one) / temperature, F.normalize(other), itself, torch.ones_like(one[:, 0])
    )
