"""A plain rule: a bundle is for users who have most of its items."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Matcher, Sizes
from bundlemage.models.closed_form import SparseRows, exact
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged


class OwnedShare(Matcher):
    """The share of the bundle's items that the user has, and among equals the bundle's popularity."""

    name = "owned-share"
    title = "Share of items owned"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.popularity = self.new_buffer("popularity", torch.zeros(sizes.bundles))

    def observe(self, data: Interactions) -> None:
        self.popularity.copy_(data.user_bundle.counts(self.sizes.bundles).log1p())

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        # The steps between shares of large bundles are too fine for float32.
        precise = exact(contents.device)
        sizes = contents.lengths.clamp(min=1).to(precise)  # [bundles]
        held = SparseRows.of(contents, self.sizes.items, dtype=precise).transposed()
        owned = SparseRows.of(histories.items, self.sizes.items, dtype=precise).times(held)
        return (owned / sizes).add_(self._tie_break(contents, sizes))

    def _tie_break(self, contents: Ragged, sizes: Tensor) -> Tensor:
        """Less than the step between any two shares, which is 1 / (size × size) at the least."""  # [bundles]
        later = self.popularity.new_zeros(len(contents) - self.sizes.bundles)
        popularity = torch.cat([self.popularity, later]).to(sizes.dtype)
        highest = popularity.amax() if len(popularity) else popularity.new_zeros(())
        largest = sizes.amax() if len(sizes) else sizes.new_ones(())
        return popularity / (2 * (1 + highest) * largest**2)
