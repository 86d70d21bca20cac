"""Co-occurrence: scores items by how many bundles they share with the items of the partial bundle."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.closed_form import SparseRows, blocks
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged

MOST_ADDED = {"count": 0.1, "cosine": 1e-4}
"""Maximum score for popularity. It is less than the score of one more shared bundle."""


class CoOccurrenceConfig(ModelConfig):
    """How shared bundles are counted."""

    normalise: Literal["count", "cosine"] = "cosine"
    """`count`: the number n_ij of bundles that hold items i and j. `cosine`: n_ij / √(n_i · n_j)."""
    user_weight: float = Field(0.05, ge=0)
    """The weight of an item in the user's history. An item of the partial bundle has weight 1."""


class CoOccurrence(Completer):
    """An item's score is the number of bundles that it shares with the partial bundle's items, summed up.

    The items × items matrix is never built. Scoring goes from the items of the partial bundle to the bundles
    that contain them, and from those bundles to their other items.
    """

    name = "co-occurrence"
    title = "Item co-occurrence"
    config_class = CoOccurrenceConfig
    config: CoOccurrenceConfig

    def __init__(self, config: CoOccurrenceConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.tie_break = self.new_buffer("tie_break", torch.zeros(sizes.items))
        # The bundles that contain each item.
        self.holders = self.new_buffer("holders", torch.zeros(0, dtype=torch.int64))
        offsets = torch.zeros(sizes.items + 1, dtype=torch.int64)
        self.holder_offsets = self.new_buffer("holder_offsets", offsets)

    def observe(self, data: Interactions) -> None:
        holders = data.bundle_item.transposed(self.sizes.items)
        self.holders, self.holder_offsets = holders.values, holders.offsets
        in_users = data.user_item.counts(self.sizes.items).float()
        # Ordered by number of bundles; users, a term between 0 and 1, decide among equals.
        popularity = holders.lengths + in_users / (1 + in_users.amax())
        self.tie_break.copy_(popularity / (1 + popularity.amax()) * MOST_ADDED[self.config.normalise])

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        context = SparseRows.of(partial, self.sizes.items)
        if self.config.user_weight:
            context = context.plus(SparseRows.of(histories.items, self.sizes.items, self.config.user_weight))
        holders = self._holders()
        scores = torch.empty(len(partial), self.sizes.items, device=partial.device)
        for which in blocks(len(partial), max(self.sizes.items, self.sizes.bundles)):
            in_common = context.block(which).times(holders)  # [block, bundles]
            scores[which] = holders.times_dense(in_common.T.contiguous()).T + self.tie_break
        return scores

    def _holders(self) -> SparseRows:
        """Each item's bundles. With `cosine` a bundle counts less if the item has more bundles."""
        rows = Ragged(self.holders, self.holder_offsets)
        if self.config.normalise == "count":
            return SparseRows.of(rows, self.sizes.bundles)
        weights = rows.lengths.clamp(min=1).float().rsqrt()[rows.row_of_entry()]
        return SparseRows(rows, weights, self.sizes.bundles)
