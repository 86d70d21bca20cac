"""BundleGT: attention over the items of a bundle, and over the bundles and items of a user."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.attention import Neighbours, attend_by_product
from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.config import Between, OneOf
from bundlemage.models.graphs import GraphConfig, ViewsConfig, ViewsModel


class BundleGTConfig(ViewsConfig):
    """The vector length and batch size are the published ones. The sizes of the attention are ours."""

    space = ViewsConfig.space | {
        "weight_decay": GraphConfig.space["weight_decay"],
        "augmentation": OneOf("none", "edges"),
        "attention_dim": OneOf(8, 16, 32),
        "attention_dropout": Between(0.0, 0.5),
    }

    weight_decay: float = Field(0.0, ge=0)
    ego_penalty: float = Field(0.0001, ge=0)
    attention_dim: int = Field(16, ge=1)
    """The length of queries and keys."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """The probability that a token is hidden from attention during training."""


class BundleGT(ViewsModel):
    """The sum of the scores of two views: LightGCN on the user-bundle graph, and attention over tokens.

    From the publication: items are tokens, and their vectors are propagated on the user-item graph. Attention
    over its items gives a bundle's strategy-aware vector, and attention over the user's bundles and items
    gives a user's. The user-bundle graph and the pairwise loss are also published. The full text was not
    available, so these are our choices: a bundle's query comes from its vector on the user-bundle graph, and
    a user's query from the user's vectors on both graphs; one layer, one head, no value matrix, no
    feed-forward layer; one softmax over a user's bundles and items together; a user's vector on the user-item
    graph is added to the result of attention; nodes without an edge have zero vectors.
    """

    name = "bundlegt"
    title = "BundleGT"
    publication = "Wei, Liu, Ma, Wang, Nie and Chua, Strategy-aware Bundle Recommender System, SIGIR 2023"
    config_class = BundleGTConfig
    config: BundleGTConfig
    views = 2

    def __init__(self, config: BundleGTConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.bundle_query, self.item_key, self.user_query, self.user_item_key, self.user_bundle_key = (
            nn.Linear(dim, config.attention_dim, bias=False) for _ in range(5)
        )

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        bundles, items = self.sizes.bundles, self.sizes.items
        contents = data.bundle_item
        self.tokens_of_bundles = Neighbours.of(contents.row_of_entry(), contents.values, bundles, items)
        # A user's tokens are bundles and items. Items are numbered after the bundles.
        owners = torch.cat([data.user_bundle.row_of_entry(), data.user_item.row_of_entry()])
        owned = torch.cat([data.user_bundle.values, data.user_item.values + bundles])
        self.tokens_of_users = Neighbours.of(owners, owned, self.sizes.users, bundles + items)

    def propagate(self) -> tuple[Tensor, Tensor]:
        users_by_bundles, bundles = self.spread(self.user_bundle, self.users, self.bundles)
        users_by_items, items = self.spread(self.user_item, self.users, self.items)
        by_strategy = self._attended(
            self.bundle_query(bundles), self.item_key(items), items, self.tokens_of_bundles
        )
        tokens = torch.cat([by_strategy, items])
        keys = torch.cat([self.user_bundle_key(by_strategy), self.user_item_key(items)])
        queries = self.user_query(users_by_bundles + users_by_items)
        users = users_by_items + self._attended(queries, keys, tokens, self.tokens_of_users)
        # The product of the joined vectors is the sum of the two views' products.
        return torch.cat([users_by_bundles, users], dim=1), torch.cat([bundles, by_strategy], dim=1)

    def _attended(self, queries: Tensor, keys: Tensor, tokens: Tensor, near: Neighbours) -> Tensor:
        kept = None
        if self.training and self.config.attention_dropout:
            kept = torch.rand(len(near.row), device=near.row.device) >= self.config.attention_dropout
        # softmax(q · k / √a), as in a transformer
        return attend_by_product(queries / self.config.attention_dim**0.5, keys, tokens, near, kept)
