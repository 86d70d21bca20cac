"""EFM: factors of users, items and bundles, learned from users' choices and from bundles' contents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.config import Between, OneOf
from bundlemage.models.losses import choice_loss
from bundlemage.models.pairs import BUNDLES, ITEMS, PairsConfig, PairsModel, random_vectors
from bundlemage.models.ragged import Ragged, pick

CONTENTS = Phase("contents", over="bundle_item")


class EFMConfig(PairsConfig):
    """Settings of EFM. Three losses alternate: over user-item, bundle-item and user-bundle pairs."""

    space = PairsConfig.space | {
        "negatives": OneOf(1, 4),
        "item_weight": Between(0.1, 2.0),
        "content_weight": Between(0.1, 2.0),
    }

    shift: int = Field(5, ge=1)
    """k: the number of random negative items for each pair of items in a bundle. The factorised mutual
    information is shifted by log k."""
    item_weight: float = Field(1.0, ge=0)
    """The weight of the loss over users' items."""
    content_weight: float = Field(1.0, ge=0)
    """The weight of the loss over bundles' items."""
    bundle_bias: bool = True
    """Whether each bundle has a bias. The publication has none."""


class EFM(PairsModel):
    """A user's score is p_u·q_i for an item and p_u·h_b + bias_b for a bundle, both learned by BPR. The
    factors q and h also learn which items occur together in which bundle.

    The publication factorises a matrix of shifted positive pointwise mutual information (SPPMI) of item, item
    and bundle. Its size grows with the square of a bundle's size, so we do not build it. Instead we use
    negative sampling: for items i and j of bundle b, σ(q_i·(c_j + h_b)) is trained towards 1, and towards 0
    for k items in place of i, drawn in proportion to their number of bundles. The optimum is the same mutual
    information minus log k, but not cut off at zero. Only the publication's abstract was available. To model
    its item-item-list co-occurrence, we add the bundle's vector to the context vector c_j.
    """

    name = "efm"
    title = "EFM"
    publication = (
        "Cao, Nie, He, Wei, Zhu and Chua, Embedding Factorization Models for Jointly Recommending Items and "
        "User Generated Lists, SIGIR 2017"
    )
    config_class = EFMConfig
    config: EFMConfig

    def __init__(self, config: EFMConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim, spread = config.embedding_dim, 0.1 / config.embedding_dim**0.5
        self.user_factors = random_vectors(sizes.users, dim, spread)  # p
        self.item_factors = random_vectors(sizes.items, dim, spread)  # q
        self.context_factors = random_vectors(sizes.items, dim, spread)  # c
        self.bundle_factors = random_vectors(sizes.bundles, dim, spread)  # h
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None

    @property
    def phases(self) -> tuple[Phase, ...]:
        items, contents = bool(self.config.item_weight), bool(self.config.content_weight)
        return (ITEMS,) * items + (CONTENTS,) * contents + (BUNDLES,)

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        if phase is CONTENTS:
            return self.config.content_weight * self._content_loss(rows, data.bundle_item)
        users, choices = self.choices(phase, rows, data)
        table = self.item_factors if phase is ITEMS else self.bundle_factors
        user = F.embedding(users, self.user_factors)
        scores = torch.einsum("rd,rcd->rc", user, F.embedding(choices, table))
        if phase is ITEMS:
            return self.config.item_weight * choice_loss(scores)
        if self.bundle_bias is not None:
            scores = scores + pick(self.bundle_bias, choices)
        return choice_loss(scores)

    def companions(self, pairs: Tensor, contents: Ragged) -> Tensor:
        """Returns another item of the bundle for each bundle-item pair; the same item if it is alone."""
        bundles, _ = contents.entries(pairs)
        starts, lengths = contents.offsets[bundles], contents.lengths[bundles]
        # Go 1 to n - 1 places onwards in the row, and continue at its start.
        step = 1 + (torch.rand(len(pairs), device=pairs.device) * (lengths - 1)).long()
        return contents.values[starts + (pairs - starts + step) % lengths]

    def _content_loss(self, pairs: Tensor, contents: Ragged) -> Tensor:
        bundles, items = contents.entries(pairs)
        others = self.companions(pairs, contents)
        # A bundle with one item has no pair of items: the context is then only the bundle's vector.
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
