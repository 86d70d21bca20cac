"""BPR: matrix factorisation that learns to rank the bundles that a user took above all others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.config import OneOf
from bundlemage.models.losses import pairwise_loss
from bundlemage.models.pairs import PAIRS, PairsConfig, PairsModel, random_vectors
from bundlemage.models.ragged import Ragged, pick

SPREAD = 0.01
"""Standard deviation of the initial vectors. It is so small that initial scores are almost only biases."""


class BPRConfig(PairsConfig):
    """`weight_decay` is λ, the regularisation of the publication."""

    space = PairsConfig.space | {"negatives": OneOf(1, 4, 8)}


class BPR(PairsModel):
    """A vector for each user, and a vector and a bias for each bundle."""

    name = "bpr"
    title = "BPR"
    publication = (
        "Rendle, Freudenthaler, Gantner and Schmidt-Thieme, BPR: Bayesian Personalized Ranking from "
        "Implicit Feedback, UAI 2009"
    )
    config_class = BPRConfig
    phases = (PAIRS,)

    def __init__(self, config: BPRConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.user_vectors = random_vectors(sizes.users, config.embedding_dim, SPREAD)
        self.bundle_vectors = random_vectors(sizes.bundles, config.embedding_dim, SPREAD)
        # For a user without bundles only this term counts: weight decay shrinks the user's vector to zero.
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles))

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        # Without vectors, the loss is lowest at b_i − b_j = ln(count_i / count_j), as j is drawn uniformly.
        # If the biases started at zero, the vectors would overfit before the biases have grown.
        counts = data.user_bundle.counts(self.sizes.bundles)
        with torch.no_grad():
            self.bundle_bias.copy_(counts.log1p())

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """BPR-Opt: −ln σ(x̂_ui − x̂_uj), where user u took bundle i and not bundle j."""
        users, choices = self.choices(phase, rows, data)
        user = F.embedding(users, self.user_vectors)[:, None]  # [rows, 1, k]
        return pairwise_loss(self._score(user, choices[:, :1]), self._score(user, choices[:, 1:]))

    def _score(self, user: Tensor, bundles: Tensor) -> Tensor:
        """x̂_ui = ⟨w_u, h_i⟩ + b_i."""  # [rows, count]
        bias = pick(self.bundle_bias, bundles)
        return (user * F.embedding(bundles, self.bundle_vectors)).sum(-1) + bias

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        user = F.embedding(self.known_users(histories), self.user_vectors)
        scores = torch.addmm(self.bundle_bias, user, self.bundle_vectors.T)  # [rows, bundles]
        return self.with_unnamed(scores, contents)
