"""BPR: matrix factorisation that learns to put what a user took above what the user did not."""

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
from bundlemage.models.space import OneOf, Space

SPREAD = 0.01
"""Of the first embeddings: so small that the first scores are the biases alone."""


class BPRConfig(LearnedConfig):
    """λ, the publication's regularisation, is `weight_decay`."""

    space: ClassVar[Space] = {
        **LearnedConfig.space,
        "embedding_dim": OneOf(64, 128, 200),
        "negatives": OneOf(1, 4, 8),
    }

    embedding_dim: int = Field(200, ge=1)
    """k, the length of every vector."""
    negatives: int = Field(1, ge=1)
    """How many bundles that the user has not each bundle of the user is compared with in an epoch."""


PAIRS = Phase("pairs", over="user_bundle")


class BPR(Model):
    """A vector for each user, and a vector and a bias for each bundle."""

    name: ClassVar[str] = "bpr"
    title: ClassVar[str] = "BPR"
    publication: ClassVar[str] = (
        "Rendle, Freudenthaler, Gantner and Schmidt-Thieme, BPR: Bayesian Personalized Ranking from "
        "Implicit Feedback, UAI 2009"
    )
    config_class: ClassVar[type[ModelConfig]] = BPRConfig
    knows_new_users: ClassVar[bool] = False

    def __init__(self, config: BPRConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        self.user_vectors = nn.Parameter(torch.randn(sizes.users, config.embedding_dim) * SPREAD)
        self.bundle_vectors = nn.Parameter(torch.randn(sizes.bundles, config.embedding_dim) * SPREAD)
        # All that is known of a user without bundles: weight decay takes such a user's vector to zero.
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles))

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (PAIRS,)

    def observe(self, data: Interactions) -> None:
        self.negatives = Negatives(data.user_bundle, self.sizes.bundles)
        # Without vectors BPR-Opt is highest at b_i − b_j = ln(count_i / count_j), as j is drawn evenly. Begun
        # there, the vectors learn taste; begun at zero, they learn by heart before the biases have grown.
        counts = data.user_bundle.counts(self.sizes.bundles)
        with torch.no_grad():
            self.bundle_bias.copy_(counts.log1p())

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """BPR-Opt: −ln σ(x̂_ui − x̂_uj), i taken by u and j not."""
        users, taken = data.user_bundle.entries(rows)
        others = self.negatives.draw(users, self.config.negatives)  # [rows, negatives]
        user = F.embedding(users, self.user_vectors)[:, None]  # [rows, 1, k]
        return pairwise_loss(self._score(user, taken[:, None]), self._score(user, others))

    def _score(self, user: Tensor, bundles: Tensor) -> Tensor:
        """x̂_ui = ⟨w_u, h_i⟩ + b_i."""  # [rows, count]
        bias = pick(self.bundle_bias, bundles)
        return (user * F.embedding(bundles, self.bundle_vectors)).sum(-1) + bias

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        user = F.embedding(self.known_users(histories), self.user_vectors)
        scores = torch.addmm(self.bundle_bias, user, self.bundle_vectors.T)  # [rows, bundles]
        return self.with_unnamed(scores, contents)
