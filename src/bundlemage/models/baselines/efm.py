"""EFM: factors of users, items and bundles, learned from choices and from which items keep company."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.losses import pairwise_loss
from bundlemage.models.ragged import Ragged, pick
from bundlemage.models.sampling import Negatives
from bundlemage.models.space import Between, OneOf, Space


class EFMConfig(LearnedConfig):
    """Three losses in turn, each over its own pairs."""

    space: ClassVar[Space] = {
        **LearnedConfig.space,
        "embedding_dim": OneOf(64, 128, 200),
        "negatives": OneOf(1, 4),
        "item_weight": Between(0.1, 2.0),
        "content_weight": Between(0.1, 2.0),
    }

    embedding_dim: int = Field(200, ge=1)
    """The length of every vector."""
    negatives: int = Field(1, ge=1)
    """How many things that the user has not each thing that they have is compared with."""
    shift: int = Field(5, ge=1)
    """k: how many random items each pair of a bundle's items is told from. It shifts the mutual information
    that is factorised by log k."""
    item_weight: float = Field(1.0, ge=0)
    """What the loss over users' items is multiplied by."""
    content_weight: float = Field(1.0, ge=0)
    """What the loss over bundles' items is multiplied by."""
    bundle_bias: bool = True
    """Whether each bundle has a bias. The publication has none."""


ITEMS = Phase("items", over="user_item")
CONTENTS = Phase("contents", over="bundle_item")
BUNDLES = Phase("bundles", over="user_bundle")


class EFM(Model):
    """A user's factors p_u rank items (p_u·q_i) and bundles (p_u·h_b + bias_b) by BPR; the items' factors q
    and the bundles' h are those that also tell which items stand together in which bundle.

    The publication factorises a matrix of shifted positive mutual information (SPPMI) of item, item and
    bundle. That matrix grows with the square of a bundle, so it is not built: for an item i of bundle b and
    another item j of it, σ(q_i·(c_j + h_b)) is told from k items drawn by how often they stand in bundles,
    whose optimum is the same mutual information less log k (without the cut at zero). Only the
    publication's abstract was at hand: that a bundle's vector is added to its item's context vector c_j is
    our reading of its item-item-list co-occurrence.
    """

    name: ClassVar[str] = "efm"
    title: ClassVar[str] = "EFM"
    publication: ClassVar[str] = (
        "Cao, Nie, He, Wei, Zhu and Chua, Embedding Factorization Models for Jointly Recommending Items and "
        "User Generated Lists, SIGIR 2017"
    )
    config_class: ClassVar[type[ModelConfig]] = EFMConfig
    knows_new_users: ClassVar[bool] = False

    def __init__(self, config: EFMConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        spread = 0.1 / config.embedding_dim**0.5
        self.user_factors = nn.Parameter(torch.randn(sizes.users, config.embedding_dim) * spread)  # p
        self.item_factors = nn.Parameter(torch.randn(sizes.items, config.embedding_dim) * spread)  # q
        self.context_factors = nn.Parameter(torch.randn(sizes.items, config.embedding_dim) * spread)  # c
        self.bundle_factors = nn.Parameter(torch.randn(sizes.bundles, config.embedding_dim) * spread)  # h
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (ITEMS,) * bool(self.config.item_weight) + (
            (CONTENTS,) * bool(self.config.content_weight) + (BUNDLES,)
        )

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    def observe(self, data: Interactions) -> None:
        self.other_items = Negatives(data.user_item, self.sizes.items)
        self.other_bundles = Negatives(data.user_bundle, self.sizes.bundles)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        if phase is CONTENTS:
            return self.config.content_weight * self._content_loss(rows, data.bundle_item)
        if phase is ITEMS:
            users, items = data.user_item.entries(rows)
            others = self.other_items.draw(users, self.config.negatives)
            return self.config.item_weight * self._choice_loss(users, items, others, self.item_factors, None)
        users, bundles = data.user_bundle.entries(rows)
        others = self.other_bundles.draw(users, self.config.negatives)
        return self._choice_loss(users, bundles, others, self.bundle_factors, self.bundle_bias)

    def _choice_loss(
        self, users: Tensor, chosen: Tensor, others: Tensor, table: Tensor, bias: Tensor | None
    ) -> Tensor:
        choices = torch.cat([chosen[:, None], others], dim=1)
        user = F.embedding(users, self.user_factors)
        scores = torch.einsum("rd,rcd->rc", user, F.embedding(choices, table))
        if bias is not None:
            scores = scores + pick(bias, choices)
        return pairwise_loss(scores[:, :1], scores[:, 1:])

    def companions(self, pairs: Tensor, contents: Ragged) -> Tensor:
        """Another item of the bundle for each pair of bundle and item; the same where there is no other."""
        bundles, _ = contents.entries(pairs)
        starts, lengths = contents.offsets[bundles], contents.lengths[bundles]
        # A step of 1 to n - 1 onwards in the row, round its end.
        step = 1 + (torch.rand(len(pairs), device=pairs.device) * (lengths - 1)).long()
        return contents.values[starts + (pairs - starts + step) % lengths]

    def _content_loss(self, pairs: Tensor, contents: Ragged) -> Tensor:
        bundles, items = contents.entries(pairs)
        others = self.companions(pairs, contents)
        # A bundle of one item has no pair: then its own vector is all the context there is.
        paired = (others != items)[:, None]
        context = F.embedding(bundles, self.bundle_factors)
        context = context + F.embedding(others, self.context_factors) * paired  # c_j + h_b
        drawn = torch.randint(len(contents.values), (len(pairs), self.config.shift), device=pairs.device)
        choices = torch.cat([items[:, None], contents.values[drawn]], dim=1)
        scores = torch.einsum("rd,rcd->rc", context, F.embedding(choices, self.item_factors))
        return (F.softplus(-scores[:, 0]) + F.softplus(scores[:, 1:]).sum(1)).mean()

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        scores = self.user_factors[self.known_users(histories)] @ self.bundle_factors.T  # p_u·h_b
        if self.bundle_bias is not None:
            scores = scores + self.bundle_bias
        return self.with_unnamed(scores, contents)  # [rows, bundles]
