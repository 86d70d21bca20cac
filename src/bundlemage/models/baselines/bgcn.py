"""BGCN: graph convolutions with weights, at the level of items and at the level of bundles."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import Between, OneOf
from bundlemage.models.graphs import GraphConfig, GraphModel
from bundlemage.models.ragged import Ragged


class BGCNConfig(GraphConfig):
    """The published values. Values that the publication does not give are ours."""

    space = GraphConfig.space | {
        "weight_decay": OneOf(0.0, 0.000005, 0.00002, 0.0001),
        "layers": OneOf(1, 2),
        "dropout": Between(0.0, 0.5),
    }

    weight_decay: float = Field(0.00002, ge=0)
    ego_penalty: float = Field(0.0, ge=0)
    layers: int = Field(1, ge=1)
    """The number of layers on each of the two graphs. A node's vectors of all layers are concatenated."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """The dropout rate on the output of each layer."""
    unit_layers: bool = False
    """Whether vectors of each layer except the initial one are scaled to length one before concatenation."""
    hard_negatives: float = Field(0.0, ge=0, le=1)
    """The probability that a negative bundle is drawn among those that contain an item of the user."""


class BGCN(GraphModel):
    """Two levels, user-item and user-bundle. A pair's score is the sum of the two levels' scores.

    The publication trains in two stages, the second with hard negatives. Here hard negatives are a setting,
    off by default. Also our choice: D^(-1/2) A D^(-1/2) instead of the mean over neighbours, one matrix W
    for both kinds of nodes of a level, and zero vectors for nodes without an edge.
    """

    name = "bgcn"
    title = "BGCN"
    publication = (
        "Chang, Gao, He, Jin and Li, Bundle Recommendation with Graph Convolutional Networks, SIGIR 2020"
    )
    config_class = BGCNConfig
    config: BGCNConfig

    def __init__(self, config: BGCNConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim, layers = config.embedding_dim, config.layers
        self.item_level = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.bundle_level = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        for layer in (*self.item_level, *self.bundle_level):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(config.dropout)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.others = overlap_totals(self.bundle_item)

    @property
    def width(self) -> int:
        return 2 * self.config.embedding_dim * (self.config.layers + 1)

    def draw(self, users: Tensor) -> Tensor:
        drawn, chance = super().draw(users), self.config.hard_negatives
        if not chance:
            return drawn
        rows = users[:, None].expand_as(drawn)
        item, has_item = any_of(self.user_item.left, rows)
        hard, has_bundle = any_of(self.bundle_item.right, item)
        fit = has_item & has_bundle & ~self.drawn.owns(rows, hard)
        return torch.where(fit & (torch.rand(fit.shape, device=fit.device) < chance), hard, drawn)

    def propagate(self) -> tuple[Tensor, Tensor]:
        users_by_items, items = self._level(self.user_item, self.item_level, self.items)
        users, bundles = self._level(self.user_bundle, self.bundle_level, self.bundles)
        by_items = self.bundle_item.mean_to_left(items)  # a bundle is the mean of its items
        return torch.cat([users_by_items, users], dim=1), torch.cat([by_items, bundles], dim=1)

    def _level(self, graph: Bipartite, layers: nn.ModuleList, things: Tensor) -> tuple[Tensor, Tensor]:
        """Propagates vectors on the user-item or the user-bundle graph. Bundles also receive vectors from
        bundles that share items with them. Returns all layers, concatenated."""
        users, things = graph.connected(self.users, things)
        of_users, of_things = [users], [things]
        for layer in layers:
            to_users, to_things = graph.spread(users, things)
            if graph is self.user_bundle:
                to_things = to_things + mean_of_overlapping(self.bundle_item, self.others, things)
            users = self._activate(layer, users + to_users)
            things = self._activate(layer, things + to_things)
            of_users.append(self._layer(users))
            of_things.append(self._layer(things))
        return torch.cat(of_users, 1), torch.cat(of_things, 1)

    def _activate(self, layer: nn.Module, carried: Tensor) -> Tensor:
        activated: Tensor = self.dropout(F.leaky_relu(layer(carried)))
        return activated

    def _layer(self, table: Tensor) -> Tensor:
        return F.normalize(table) if self.config.unit_layers else table


def overlap_totals(bundle_item: Bipartite) -> Tensor:
    """For each bundle, the number of shared items, summed over all other bundles."""  # [bundles]
    sizes = bundle_item.left.lengths
    holders = bundle_item.right.lengths[:, None].float()
    return bundle_item.sum_to_left(holders)[:, 0].round() - sizes


def mean_of_overlapping(bundle_item: Bipartite, totals: Tensor, bundles: Tensor) -> Tensor:
    """For each bundle, the mean vector of the other bundles, weighted by the number of shared items.

    Two products with X compute the product with X Xᵀ, without building that bundles × bundles matrix. Its
    diagonal, the overlap of each bundle with itself, is then subtracted.
    """  # [bundles, d]
    sizes = bundle_item.left.lengths[:, None]
    summed = bundle_item.sum_to_left(bundle_item.sum_to_right(bundles)) - sizes * bundles
    return torch.where(totals[:, None] > 0, summed / totals.clamp(min=1)[:, None], 0)


def any_of(ragged: Ragged, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a random entry of each row, and whether the row has any entries."""
    if not len(ragged.values):
        return torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    lengths = ragged.lengths[rows]
    within = (torch.rand(rows.shape, device=rows.device) * lengths).long().clamp(max=lengths - 1)
    place = (ragged.offsets[rows] + within).clamp(0, len(ragged.values) - 1)
    return ragged.values[place], lengths > 0
