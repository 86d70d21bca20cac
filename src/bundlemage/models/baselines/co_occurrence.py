"""Co-occurrence: items that stand in bundles together with those of the partial bundle."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.models.sparse_rows import SparseRows, blocks

TIE_BREAK = {"count": 0.1, "cosine": 1e-4}
"""The most that popularity adds: less than one bundle more in common."""


class CoOccurrenceConfig(ModelConfig):
    """How bundles in common are counted."""

    normalise: Literal["count", "cosine"] = "cosine"
    """`count` is the number of bundles in common; `cosine` divides it by √(bundles of one × of the other)."""
    user_weight: float = Field(0.05, ge=0)
    """What an item that the user has counts, where one of the partial bundle counts 1; 0: nothing."""


class CoOccurrence(Completer):
    """An item scores the bundles that it shares with each item of the partial bundle.

    Items × items is never made: scoring walks from the partial bundle to the bundles that hold its items,
    and from those to what else is in them.
    """

    name: ClassVar[str] = "co-occurrence"
    title: ClassVar[str] = "Item co-occurrence"
    config_class: ClassVar[type[ModelConfig]] = CoOccurrenceConfig

    def __init__(self, config: CoOccurrenceConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        self.tie_break: Tensor
        self.holders: Tensor
        self.holder_offsets: Tensor
        self.register_buffer("tie_break", torch.zeros(sizes.items))
        # The bundles that hold each item.
        self.register_buffer("holders", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("holder_offsets", torch.zeros(sizes.items + 1, dtype=torch.int64))

    def observe(self, data: Interactions) -> None:
        holders = data.bundle_item.transposed(self.sizes.items)
        self.holders, self.holder_offsets = holders.values, holders.offsets
        in_users = data.user_item.counts(self.sizes.items).float()
        # By bundles, and among equals by users; between 0 and 1.
        popularity = holders.lengths + in_users / (1 + in_users.amax())
        self.tie_break.copy_(popularity / (1 + popularity.amax()) * TIE_BREAK[self.config.normalise])

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
        """Each item's bundles; in cosine a bundle counts the less, the more of them the item is in."""
        rows = Ragged(self.holders, self.holder_offsets)
        plain = SparseRows.of(rows, self.sizes.bundles)
        if self.config.normalise == "count":
            return plain
        weights = rows.lengths.clamp(min=1).float().rsqrt()[rows.row_of_entry()]
        return SparseRows(rows, weights, self.sizes.bundles)
