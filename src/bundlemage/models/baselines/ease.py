"""EASE for bundles: each bundle is predicted by a weighted sum of the others, and of items."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Matcher, Sizes
from bundlemage.models.closed_form import EaseModel, SparseRows, training_rows
from bundlemage.models.config import Between, ModelConfig, OneOf
from bundlemage.models.ragged import Ragged


class EaseConfig(ModelConfig):
    """How EASE weighs its inputs."""

    space = ModelConfig.space | {
        "beside": OneOf("items", "contents", "nothing"),
        "regularisation": Between(10.0, 10000.0, log=True),
        "side_weight": Between(0.05, 2.0, log=True),
    }

    beside: Literal["items", "contents", "nothing"] = "contents"
    """What is added to user-bundle: `items`, the users' items as further columns, so that they predict
    bundles, too; `contents`, a further row for each item with the bundles that it is in."""
    regularisation: float = Field(1000.0, ge=0.1)
    """λ. With much less, rounding errors would dominate."""
    side_weight: float = Field(0.5, gt=0)
    """The weight of an entry of the further columns or rows, where one of user-bundle has weight 1."""


class Ease(EaseModel, Matcher):
    """Predicts bundles from the bundles, and the items, that a user has."""

    name = "ease"
    title = "EASE"
    publication = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"
    config_class = EaseConfig
    config: EaseConfig

    def __init__(self, config: EaseConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.bundles)

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
        inputs = SparseRows.of(self.named_bundles(histories), self.sizes.bundles)
        if self.config.beside == "items":
            inputs = inputs.beside(SparseRows.of(histories.items, self.sizes.items, self.config.side_weight))
        return self.with_unnamed(self.predict(inputs), contents)
