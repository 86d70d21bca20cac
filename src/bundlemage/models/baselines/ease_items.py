"""EASE for items: the rest of a bundle is predicted by a weighted sum of the items in it."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.closed_form import EaseModel, SparseRows, training_rows
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class EaseItemsConfig(ModelConfig):
    """How EASE weighs its inputs."""

    regularisation: float = Field(300.0, ge=0.1)
    """λ. With much less, rounding errors would dominate."""
    user_weight: float = Field(0.0, ge=0)
    """The weight of an item that the user has, where one in the bundle has weight 1. With 0 users are left
    out; else the items of each user are a row to learn from as well."""


class EaseItems(EaseModel, Completer):
    """Predicts items from the items in a bundle."""

    name = "ease-items"
    title = "EASE on bundle-item"
    publication = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    config_class = EaseItemsConfig
    config: EaseItemsConfig

    def __init__(self, config: EaseItemsConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.items)

    def observe(self, data: Interactions) -> None:
        both = torch.cat([data.bundle_item.values, data.user_item.values])
        self.popularity.copy_(torch.bincount(both, minlength=self.sizes.items).log1p())
        rows = training_rows(data.bundle_item, self.sizes.items)
        if self.config.user_weight:
            rows = rows.above(training_rows(data.user_item, self.sizes.items, self.config.user_weight))
        self.solve(rows, self.config.regularisation)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        inputs = SparseRows.of(partial, self.sizes.items)
        if self.config.user_weight:
            inputs = inputs.plus(SparseRows.of(histories.items, self.sizes.items, self.config.user_weight))
        return self.predict(inputs)
