"""LightGCN: the mean of vectors over the layers of a plain walk on the graph of users and bundles."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.config import OneOf
from bundlemage.models.graphs import GraphConfig, GraphModel


class LightGCNConfig(GraphConfig):
    """As published, with the vectors on users and bundles."""

    space = GraphConfig.space | {"layers": OneOf(1, 2, 3, 4)}

    layers: int = Field(3, ge=0)
    """Steps on the graph. The vectors before the first one count as a layer, too."""


class LightGCN(GraphModel):
    """No weights but the first vectors: every layer is D^(-1/2) A D^(-1/2) times the one before.

    A node without an edge is zero (ours).
    """

    name = "lightgcn"
    title = "LightGCN"
    publication = (
        "He, Deng, Wang, Li, Zhang and Wang, LightGCN: Simplifying and Powering Graph Convolution Network "
        "for Recommendation, SIGIR 2020"
    )
    config_class = LightGCNConfig
    has_items = False
    config: LightGCNConfig

    def propagate(self) -> tuple[Tensor, Tensor]:
        layers = self.user_bundle.layers(self.users, self.bundles, self.config.layers)
        # e = Σ_k e^(k) / (K + 1)
        users, bundles = (torch.stack(side).mean(0) for side in zip(*layers, strict=True))
        return users, bundles
