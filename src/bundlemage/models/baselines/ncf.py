"""NCF: matrix factorisation with a neural network, NeuMF, in place of the inner product."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.config import Between, OneOf
from bundlemage.models.pairs import PAIRS, PairsConfig, PairsModel, random_vectors
from bundlemage.models.ragged import Ragged, pick

SPREAD = 0.01
"""Standard deviation of the initial vectors, as published."""
HIDDEN_AT_A_TIME = 2**22
"""Maximum number of values of the first hidden layer in scoring: 16 MiB of float32. More does not fit into a
CPU's caches, and is slower."""


class NCFConfig(PairsConfig):
    """Settings of NeuMF. It is trained without the publication's pre-training."""

    space = PairsConfig.space | {
        "dropout": Between(0.0, 0.7),
        "negatives": OneOf(1, 4, 8),
    }

    embedding_dim: int = Field(200, ge=1)
    """The length of vectors. Users and bundles have two vectors each: one for GMF, one for the MLP."""
    layers: int = Field(3, ge=1)
    """The number of hidden layers. The first has `embedding_dim` units, each next one half as many."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """The dropout rate on all vectors and hidden layers. The publication uses no dropout."""
    negatives: int = Field(4, ge=1)


class NCF(PairsModel):
    """GMF and an MLP, each with its own vectors, joined by the last layer.

    Each bundle also has a bias, whose initial value follows from its popularity. The publication has no bias.
    """

    name = "ncf"
    title = "NCF"
    publication = "He, Liao, Zhang, Nie, Hu and Chua, Neural Collaborative Filtering, WWW 2017"
    config_class = NCFConfig
    config: NCFConfig
    phases = (PAIRS,)

    def __init__(self, config: NCFConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        widths = [max(1, dim // 2**depth) for depth in range(config.layers)]
        # The first layer is W[p; q] + a = Wᵖp + (W^q q + a). The first part is computed once per user, the
        # second once per bundle. A pair then needs only their sum.
        self.user_part = nn.Linear(dim, widths[0], bias=False)
        self.bundle_part = nn.Linear(dim, widths[0])
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.join_factors = nn.Parameter(torch.empty(dim))  # h, the weights of GMF
        self.join_hidden = nn.Parameter(torch.empty(widths[-1]))  # h, the weights of the MLP
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles))
        self.user_factors = random_vectors(sizes.users, dim, SPREAD)  # pᴳ
        self.bundle_factors = random_vectors(sizes.bundles, dim, SPREAD)  # qᴳ
        self.user_vectors = random_vectors(sizes.users, dim, SPREAD)  # pᴹ
        self.bundle_vectors = random_vectors(sizes.bundles, dim, SPREAD)  # qᴹ
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    layer.bias.zero_()
        reach = (3 / (len(self.join_factors) + len(self.join_hidden))) ** 0.5
        self.join_factors.uniform_(-reach, reach)
        self.join_hidden.uniform_(-reach, reach)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        # Without vectors, the log loss is lowest at log(positives / negatives) of each bundle. One is added
        # to both counts, for bundles without a buyer.
        counts = data.user_bundle.counts(self.sizes.bundles)
        drawn = self.config.negatives * len(data.user_bundle.values) / max(1, self.sizes.bundles)
        with torch.no_grad():
            self.bundle_bias.copy_(counts.log1p() - math.log1p(drawn))

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """The log loss: the target is 1 for bundles that the user took, and 0 for drawn negatives."""
        users, bundles = self.choices(phase, rows, data)  # [rows], [rows, 1 + negatives]
        logits = self.pair_logits(users, bundles)
        answers = torch.zeros_like(logits)
        answers[:, 0] = 1
        return F.binary_cross_entropy_with_logits(logits, answers)

    def pair_logits(self, users: Tensor, bundles: Tensor) -> Tensor:
        """Returns the logit of ŷ for each user and each bundle in the user's row."""  # [rows, count]
        factors = self._drop(F.embedding(users, self.user_factors))[:, None] * self._drop(
            F.embedding(bundles, self.bundle_factors)
        )  # φᴳ = pᴳ ⊙ qᴳ  [rows, count, d]
        user = self.user_part(self._drop(F.embedding(users, self.user_vectors)))[:, None]
        bundle = self.bundle_part(self._drop(F.embedding(bundles, self.bundle_vectors)))
        bias = pick(self.bundle_bias, bundles)
        return factors @ self.join_factors + self._tower(user + bundle) + bias

    def _tower(self, first: Tensor) -> Tensor:
        """Returns the MLP's part of the logit. `first` is the first layer before its ReLU."""
        value = self._drop(F.relu(first, inplace=True))
        for layer in self.hidden:
            value = self._drop(F.relu(layer(value), inplace=True))
        return value @ self.join_hidden

    def _drop(self, values: Tensor) -> Tensor:
        # torch draws a mask even if the rate is 0.
        return F.dropout(values, self.config.dropout, self.training) if self.config.dropout else values

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        later = candidates >= self.sizes.bundles
        named = candidates.masked_fill(later, 0)
        step = max(1, HIDDEN_AT_A_TIME // max(1, candidates.shape[1] * self.config.embedding_dim))
        chunks = zip(torch.split(self.known_users(histories), step), torch.split(named, step), strict=True)
        scores = torch.cat([self.pair_logits(users, bundles) for users, bundles in chunks])
        # Bundles added after training rank below all others, as in `with_unnamed`.
        return scores.masked_fill(later, torch.finfo(scores.dtype).min)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        factors = F.embedding(self.known_users(histories), self.user_factors) * self.join_factors
        scores = torch.addmm(self.bundle_bias, factors, self.bundle_factors.T)  # [rows, bundles]
        user = self.user_part(F.embedding(self.known_users(histories), self.user_vectors))  # [rows, width]
        bundle = self.bundle_part(self.bundle_vectors)  # [bundles, width]
        step = max(1, HIDDEN_AT_A_TIME // max(1, bundle.numel()))
        hidden = [self._tower(chunk[:, None] + bundle) for chunk in user.split(step)]
        if hidden:
            scores = scores + torch.cat(hidden)
        return self.with_unnamed(scores, contents)
