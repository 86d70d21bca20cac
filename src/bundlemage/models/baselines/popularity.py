"""Popularity: the same answer for every user, which any other model must beat."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Matcher, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class Popularity(Matcher, Completer):
    """Ranks bundles, and items, by the number of their users."""

    name = "popularity"
    title = "Popularity"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.bundle_counts = self.new_buffer("bundle_counts", torch.zeros(sizes.bundles))
        self.item_counts = self.new_buffer("item_counts", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        self.bundle_counts.copy_(data.user_bundle.counts(self.sizes.bundles))
        self.item_counts.copy_(data.user_item.counts(self.sizes.items))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        unseen = self.bundle_counts.new_zeros(len(contents) - self.sizes.bundles)
        # With a logarithm, the softmax of the scores is the share of sales (each plus one).
        return torch.cat([self.bundle_counts, unseen]).log1p().expand(len(histories), -1)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return self.item_counts.log1p().expand(len(histories), -1)
