"""ItemKNN: recommends bundles with the same buyers as the user's bundles."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Histories, Interactions, Matcher, Sizes
from bundlemage.models.closed_form import TIE_BREAK, SparseRows, blocks
from bundlemage.models.config import Between, ModelConfig, OneOf
from bundlemage.models.ragged import Ragged


class ItemKnnConfig(ModelConfig):
    """How neighbours are found and weighted."""

    space = ModelConfig.space | {
        "neighbours": OneOf(50, 100, 200, 500),
        "shrinkage": Between(0.0, 200.0),
        "item_weight": OneOf(0.0, 0.1, 0.5),
    }

    neighbours: int = Field(500, ge=1)
    """The number of neighbours of each bundle and each item."""
    shrinkage: float = Field(30.0, ge=0)
    """Added to the denominator of the cosine. It lowers similarities that rest on few shared users."""
    item_weight: float = Field(0.0, ge=0)
    """The weight of an item in the user's history; a bundle has weight 1. With 0, users without bundles get
    popular bundles, which is better on Youshu. With more, their items decide."""


class ItemKnn(Matcher):
    """A bundle's score is the sum of its similarities to the user's bundles and items.

    The similarity is the cosine between the sets of users who have them.
    """

    name = "item-knn"
    title = "ItemKNN"
    publication = (
        "Sarwar, Karypis, Konstan and Riedl, Item-Based Collaborative Filtering Recommendation Algorithms, "
        "WWW 2001; Deshpande and Karypis, Item-Based Top-N Recommendation Algorithms, TOIS 2004"
    )
    config_class = ItemKnnConfig
    config: ItemKnnConfig

    def __init__(self, config: ItemKnnConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = min(config.neighbours, sizes.bundles)
        self.popularity = self.new_buffer("popularity", torch.zeros(sizes.bundles))
        self.bundle_neighbours: Tensor
        self.bundle_weights: Tensor
        self.item_neighbours: Tensor
        self.item_weights: Tensor
        for kind, count in (("bundle", sizes.bundles), ("item", sizes.items if config.item_weight else 0)):
            self.register_buffer(f"{kind}_neighbours", torch.zeros(count, width, dtype=torch.int64))
            self.register_buffer(f"{kind}_weights", torch.zeros(count, width))

    def observe(self, data: Interactions) -> None:
        taken = SparseRows.of(data.user_bundle, self.sizes.bundles)
        users_of_bundle = taken.transposed()
        self.popularity.copy_(users_of_bundle.rows.lengths.log1p())
        self._find(users_of_bundle, taken, self.bundle_neighbours, self.bundle_weights, themselves=True)
        if self.config.item_weight:
            users_of_item = SparseRows.of(data.user_item, self.sizes.items).transposed()
            self._find(users_of_item, taken, self.item_neighbours, self.item_weights)

    def _find(
        self,
        users_of: SparseRows,
        taken: SparseRows,
        neighbours: Tensor,
        weights: Tensor,
        themselves: bool = False,
    ) -> None:
        """Writes each row's nearest bundles and their similarities into `neighbours` and `weights`.

        `themselves`: the rows are the bundles, so a bundle must not be its own neighbour.
        """
        mine = users_of.rows.lengths.float().sqrt()
        theirs = taken.rows.counts(taken.columns).float().sqrt()
        for which in blocks(len(users_of), taken.columns):
            shared = users_of.block(which).times(taken)  # users of both [block, bundles]
            lengths = mine[which, None] * theirs + self.config.shrinkage
            similarity = shared / lengths.clamp(min=1)  # 0 / 1 if there are no users
            if themselves:
                similarity.diagonal(which.start).zero_()
            best = similarity.topk(neighbours.shape[1], dim=1)
            weights[which], neighbours[which] = best.values, best.indices

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        bundles = SparseRows.of(self.named_bundles(histories), self.sizes.bundles)
        scores = bundles.times(self._table(self.bundle_neighbours, self.bundle_weights))
        if self.config.item_weight:
            items = SparseRows.of(histories.items, self.sizes.items, self.config.item_weight)
            scores += items.times(self._table(self.item_neighbours, self.item_weights))
        return self.with_unnamed(scores + TIE_BREAK * self.popularity, contents)

    def _table(self, neighbours: Tensor, weights: Tensor) -> SparseRows:
        count, width = neighbours.shape
        offsets = torch.arange(count + 1, device=neighbours.device) * width
        return SparseRows(Ragged(neighbours.flatten(), offsets), weights.flatten(), self.sizes.bundles)
