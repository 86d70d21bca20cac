"""Popularity: the same answer for everyone, and the first thing that any model must beat."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class Popularity(Model):
    """Bundles by how many users took them, items by how many users took them."""

    name: ClassVar[str] = "popularity"
    title: ClassVar[str] = "Popularity"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.bundle_counts: Tensor
        self.item_counts: Tensor
        self.register_buffer("bundle_counts", torch.zeros(sizes.bundles))
        self.register_buffer("item_counts", torch.zeros(sizes.items))

    @property
    def generates(self) -> bool:
        return True

    def observe(self, data: Interactions) -> None:
        self.bundle_counts.copy_(data.user_bundle.counts(self.sizes.bundles))
        self.item_counts.copy_(data.user_item.counts(self.sizes.items))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        unseen = self.bundle_counts.new_zeros(len(contents) - self.sizes.bundles)
        # A logarithm, so that the softmax of the scores is the share of sales (each counted once more).
        return torch.cat([self.bundle_counts, unseen]).log1p().expand(len(histories), -1)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return self.item_counts.log1p().expand(len(histories), -1)
