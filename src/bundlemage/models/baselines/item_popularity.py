"""Popularity of what is in a bundle: the row that the BundleMage paper calls POP."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class ItemPopularity(Model):
    """A bundle by how many users its items have, on average."""

    name: ClassVar[str] = "item-popularity"
    title: ClassVar[str] = "Mean item popularity"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.item_counts: Tensor
        self.register_buffer("item_counts", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        self.item_counts.copy_(data.user_item.counts(self.sizes.items))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        # A logarithm, so that the softmax of the scores goes by counts, each one greater.
        scores = contents.mean_of(self.item_counts[:, None])[:, 0].log1p()  # [bundles]
        # Below a bundle of items that nobody has: of an empty one there is nothing to be had at all.
        return scores.masked_fill(contents.lengths == 0, -1.0).expand(len(histories), -1)
