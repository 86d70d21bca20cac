"""LightGCN: vectors averaged over the layers of a plain walk on the graph of users and bundles."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import ModelConfig
from bundlemage.models.graphs import GraphConfig, GraphModel, first_vectors
from bundlemage.models.space import OneOf, Space


class LightGCNConfig(GraphConfig):
    """As published, with the vectors on users and bundles."""

    space: ClassVar[Space] = {
        **GraphConfig.space,
        "layers": OneOf(1, 2, 3, 4),
    }

    layers: int = Field(3, ge=0)
    """Steps on the graph; the vectors before the first one count as a layer too."""


class LightGCN(GraphModel):
    """No weights but the first vectors: every layer is D^(-1/2) A D^(-1/2) times the one before.

    A node without an edge is zero (ours).
    """

    name: ClassVar[str] = "lightgcn"
    title: ClassVar[str] = "LightGCN"
    publication: ClassVar[str] = (
        "He, Deng, Wang, Li, Zhang and Wang, LightGCN: Simplifying and Powering Graph Convolution Network "
        "for Recommendation, SIGIR 2020"
    )
    config_class: ClassVar[type[ModelConfig]] = LightGCNConfig
    config: LightGCNConfig

    def __init__(self, config: LightGCNConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, config.embedding_dim)
        self.config = config
        self.users = first_vectors(sizes.users, config.embedding_dim)
        self.bundles = first_vectors(sizes.bundles, config.embedding_dim)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.graph = Bipartite.of(data.user_bundle, self.sizes.bundles)

    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return (self.users,), (self.bundles,)

    def propagate(self) -> tuple[Tensor, Tensor]:
        layers = self.graph.layers(self.users, self.bundles, self.config.layers)
        # e = Σ_k e^(k) / (K + 1)
        users, bundles = (torch.stack(side).mean(0) for side in zip(*layers, strict=True))
        return users, bundles
