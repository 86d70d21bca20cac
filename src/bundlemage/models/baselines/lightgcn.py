"""LightGCN: propagates vectors on the user-bundle graph and takes the mean over all layers."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.config import OneOf
from bundlemage.models.graphs import GraphConfig, GraphModel


class LightGCNConfig(GraphConfig):
    """The published settings, applied to users and bundles."""

    space = GraphConfig.space | {"layers": OneOf(1, 2, 3, 4)}

    layers: int = Field(3, ge=0)
    """The number of propagation steps. The initial vectors count as one more layer."""


class LightGCN(GraphModel):
    """Only the initial vectors are learned. Every layer is D^(-1/2) A D^(-1/2) times the layer before.

    A node without an edge has a zero vector (our choice).
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
