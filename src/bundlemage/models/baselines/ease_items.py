"""EASE for items: what else is in a bundle, as a weighted sum of what is in it already."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.closed_form import EaseModel, training_rows
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.models.sparse_rows import SparseRows

TIE_BREAK = 1e-6
"""Times the logarithm of an item's count: an order where nothing is known."""


class EaseItemsConfig(ModelConfig):
    """How EASE weighs what it sees."""

    regularisation: float = Field(300.0, ge=0.1)
    """λ. Much less would drown in rounding."""
    user_weight: float = Field(0.0, ge=0)
    """What an item that the user has weighs, where one in the bundle weighs 1; with 0 users have no part,
    else what each user has is a row to learn from as well."""


class EaseItems(Completer, EaseModel):
    """Items from the items that a bundle has."""

    name: ClassVar[str] = "ease-items"
    title: ClassVar[str] = "EASE on bundle-item"
    publication: ClassVar[str] = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    config_class: ClassVar[type[ModelConfig]] = EaseItemsConfig

    def __init__(self, config: EaseItemsConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.items)
        self.config = config
        self.popularity: Tensor
        self.register_buffer("popularity", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        both = torch.cat([data.bundle_item.values, data.user_item.values])
        self.popularity.copy_(torch.bincount(both, minlength=self.sizes.items).log1p())
        rows = training_rows(data.bundle_item, self.sizes.items)
        if self.config.user_weight:
            rows = rows.above(training_rows(data.user_item, self.sizes.items, self.config.user_weight))
        self.solve(rows, self.config.regularisation)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        asked = SparseRows.of(partial, self.sizes.items)
        if self.config.user_weight:
            asked = asked.plus(SparseRows.of(histories.items, self.sizes.items, self.config.user_weight))
        return self.predict(asked) + TIE_BREAK * self.popularity
