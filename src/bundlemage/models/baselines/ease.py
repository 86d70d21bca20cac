"""EASE for bundles: each bundle as a weighted sum of the others, and of the items beside them."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Sizes
from bundlemage.models.closed_form import EaseModel, training_rows
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.models.space import Between, OneOf, Space
from bundlemage.models.sparse_rows import SparseRows

TIE_BREAK = 1e-6
"""Times the logarithm of a bundle's sales: an order for those of whom nothing is known."""


class EaseConfig(ModelConfig):
    """How EASE weighs what it sees."""

    space: ClassVar[Space] = {
        "beside": OneOf("items", "contents", "nothing"),
        "regularisation": Between(10.0, 10000.0, log=True),
        "side_weight": Between(0.05, 2.0, log=True),
    }

    beside: Literal["items", "contents", "nothing"] = "contents"
    """What stands beside user-bundle: `items`, the users' items as further columns, so that they too
    predict bundles; `contents`, each item as a further row that holds the bundles it is in."""
    regularisation: float = Field(1000.0, ge=0.1)
    """λ. Much less would drown in rounding."""
    side_weight: float = Field(0.5, gt=0)
    """What an entry of the further columns or rows weighs, where one of user-bundle weighs 1."""


class Ease(EaseModel):
    """Bundles from the bundles, and the items, that a user has."""

    name: ClassVar[str] = "ease"
    title: ClassVar[str] = "EASE"
    publication: ClassVar[str] = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    config_class: ClassVar[type[ModelConfig]] = EaseConfig

    def __init__(self, config: EaseConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.bundles)
        self.config = config
        self.popularity: Tensor
        self.register_buffer("popularity", torch.zeros(sizes.bundles))

    def observe(self, data: Interactions) -> None:
        self.popularity.copy_(data.user_bundle.counts(self.sizes.bundles).log1p())
        rows = training_rows(data.user_bundle, self.sizes.bundles)
        weight = self.config.side_weight
        if self.config.beside == "items":
            rows = rows.beside(training_rows(data.user_item, self.sizes.items, weight))
        elif self.config.beside == "contents":
            holders = data.bundle_item.transposed(self.sizes.items)
            rows = rows.above(training_rows(holders, self.sizes.bundles, weight))
        self.solve(rows, self.config.regularisation)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        asked = SparseRows.of(self.named_bundles(histories), self.sizes.bundles)
        if self.config.beside == "items":
            asked = asked.beside(SparseRows.of(histories.items, self.sizes.items, self.config.side_weight))
        return self.with_unnamed(self.predict(asked) + TIE_BREAK * self.popularity, contents)
