"""Popularity of a bundle's items: the row POP of the BundleMage paper."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Matcher, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class ItemPopularity(Matcher):
    """Ranks bundles by the mean number of users of their items."""

    name = "item-popularity"
    title = "Mean item popularity"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.item_counts = self.new_buffer("item_counts", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        self.item_counts.copy_(data.user_item.counts(self.sizes.items))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        # With a logarithm, the softmax of the scores is the share of the counts (each plus one).
        scores = contents.mean_of(self.item_counts[:, None])[:, 0].log1p()  # [bundles]
        # An empty bundle ranks below a bundle of items without users.
        return scores.masked_fill(contents.lengths == 0, -1.0).expand(len(histories), -1)
