"""DAM: a bundle is the mean of its items, weighted by the user's attention. One network scores both."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.config import Between, OneOf
from bundlemage.models.losses import choice_loss
from bundlemage.models.pairs import BUNDLES, ITEMS, PairsConfig, PairsModel
from bundlemage.models.ragged import Ragged, pick

NUMBERS_AT_A_TIME = 2**27
"""Maximum number of temporary values in scoring: 512 MiB of float32."""
SPREAD = 0.1
"""Standard deviation of the initial vectors. The mean of a bundle's items must not become too small."""


class DAMConfig(PairsConfig):
    """Settings of DAM, which alternates BPR over items and BPR over bundles."""

    space = PairsConfig.space | {
        "dropout": Between(0.0, 0.7),
        "bundle_bias": OneOf(False, True),
    }

    hidden_dims: tuple[PositiveInt, ...] = Field((100, 50), min_length=1)
    """The widths of the layers that items and bundles share."""
    pooling: Literal["product", "both"] = "both"
    """The input of the layers. `product`: user ⊙ item or bundle. `both`: the product and the two vectors."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """The dropout rate on the input of each shared layer."""
    item_weight: float = Field(1.0, ge=0)
    """The weight of the loss over users' items."""
    bundle_bias: bool = False
    """Whether each bundle of the training data has its own bias. The publication has none."""


class DAM(PairsModel):
    """A bundle's vector for user u is f_ub = Σ_i α_ui v_i, with α_ui = softmax_i (p_u·a_i) over its items.

    p_u is the user's only vector. Each item has a vector v_i, and a second vector a_i for attention. The
    input of the layers is [p_u ⊙ x; p_u; x]; x is an item's v_i or a bundle's f_ub. Items and bundles have
    separate last layers. Only the publication's abstract and summaries of it were available. They say that
    attention is computed from the user's vector and a second vector of the item. The pooling, widths and
    dropout are our choice.
    """

    name = "dam"
    title = "DAM"
    publication = (
        "Chen, Liu, He, Gao and Zheng, Matching User with Item Set: Collaborative Bundle Recommendation with "
        "Deep Attention Network, IJCAI 2019"
    )
    config_class = DAMConfig
    config: DAMConfig

    def __init__(self, config: DAMConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.user_factors = nn.Parameter(torch.empty(sizes.users, dim))  # p
        self.item_factors = nn.Parameter(torch.empty(sizes.items, dim))  # v
        self.attended_factors = nn.Parameter(torch.empty(sizes.items, dim))  # a
        for table in (self.user_factors, self.item_factors, self.attended_factors):
            nn.init.normal_(table, 0, SPREAD)
        widths = [dim if config.pooling == "product" else 3 * dim, *config.hidden_dims]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.judge_item = nn.Linear(widths[-1], 1, bias=False)
        self.judge_bundle = nn.Linear(widths[-1], 1, bias=False)
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (ITEMS,) * bool(self.config.item_weight) + (BUNDLES,)

    # ── The network ──────────────────────────────────────────────────────────────────────────────

    def attend(self, users: Tensor, bundles: Ragged) -> Tensor:
        """Returns f_ub for each row: the user's vector in `users`, the bundle's items in `bundles`."""
        attended = F.embedding(bundles.values, self.attended_factors)  # [entries, d]
        scores = (F.embedding(bundles.row_of_entry(), users) * attended).sum(1)  # p_u·a_i
        return bundles.weighted_sum_of(self.item_factors, bundles.softmax(scores))  # [rows, d]

    def _hidden(self, users: Tensor, things: Tensor) -> Tensor:
        hidden = users * things
        if self.config.pooling == "both":
            hidden = torch.cat([hidden, users, things], dim=-1)
        for layer in self.layers:
            hidden = F.relu(layer(self.dropout(hidden)))
        return hidden  # [..., the last width]

    def pair_scores(self, users: Tensor, bundles: Ragged) -> Tensor:
        """Returns the score of each row's bundle for the same row's user, without the bundle's bias."""
        scores: Tensor = self.judge_bundle(self._hidden(users, self.attend(users, bundles)))
        return scores[:, 0]  # [rows]

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, choices = self.choices(phase, rows, data)
        if phase is BUNDLES:
            return choice_loss(self._score_some(users, choices, data.bundle_item))
        user = F.embedding(users, self.user_factors)[:, None].expand(-1, choices.shape[1], -1)
        scores = self.judge_item(self._hidden(user, F.embedding(choices, self.item_factors)))[:, :, 0]
        return self.config.item_weight * choice_loss(scores)

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def _score_some(self, users: Tensor, choices: Tensor, contents: Ragged) -> Tensor:
        """Returns the scores of bundles, `choices[n]` for user `users[n]`."""  # [rows, choices]
        each = users.repeat_interleave(choices.shape[1], output_size=choices.numel())
        bundles = contents.rows(choices.flatten())
        scores = self.pair_scores(F.embedding(each, self.user_factors), bundles).view_as(choices)
        if self.bundle_bias is None:
            return scores
        bias = F.pad(self.bundle_bias, (0, len(contents) - len(self.bundle_bias)))
        return scores + pick(bias, choices)

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        typical = len(contents.values) // max(1, len(contents)) + 1  # items in a bundle
        each = candidates.shape[1] * self.user_factors.shape[1] * (2 * typical + 4)
        step = max(1, NUMBERS_AT_A_TIME // max(1, each))
        blocks = zip(
            torch.split(self.known_users(histories), step), torch.split(candidates, step), strict=True
        )
        return torch.cat([self._score_some(users, some, contents) for users, some in blocks])

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Scores a few users at a time, because the bundles' vectors differ for every user."""
        users = self.user_factors[self.known_users(histories)]  # [rows, d]
        # Temporary values per user: vectors and a layer per bundle, attention per entry, scores per item.
        wide = 2 * users.shape[1] + 2 * max(self.config.hidden_dims)
        each = len(contents) * wide + 8 * len(contents.values) + self.sizes.items
        at_a_time = max(1, NUMBERS_AT_A_TIME // max(1, each))
        blocks = [self._score_all(block, contents) for block in torch.split(users, at_a_time)]
        scores = torch.cat(blocks) if blocks else users.new_zeros(0, len(contents))
        if self.bundle_bias is not None:
            scores = scores + F.pad(self.bundle_bias, (0, len(contents) - len(self.bundle_bias)))
        return scores  # [rows, bundles]

    def _score_all(self, users: Tensor, contents: Ragged) -> Tensor:
        count, bundles = len(users), len(contents)
        # Compute p_u·a_i once for each user and item; each bundle then looks it up.
        attention = (users @ self.attended_factors.T)[:, contents.values].flatten()
        starts = torch.arange(count, device=users.device) * len(contents.values)
        offsets = (contents.offsets[:-1] + starts[:, None]).flatten()
        everything = Ragged(
            contents.values.repeat(count), F.pad(offsets, (0, 1), value=count * len(contents.values))
        )
        vectors = everything.weighted_sum_of(self.item_factors, everything.softmax(attention))
        hidden = self._first_layer(users, vectors.view(count, bundles, users.shape[1]))
        for layer in self.layers[1:]:
            hidden = F.relu(layer(hidden))
        scores: Tensor = self.judge_bundle(hidden)
        return scores[:, :, 0]  # [users, bundles]

    def _first_layer(self, users: Tensor, vectors: Tensor) -> Tensor:
        """Uses A[p ⊙ f] + Bp + Cf = (A diag(p) + C)f + Bp: a third of the work if a user has many bundles."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        of_product, *of_each = first.weight.tensor_split(first.in_features // users.shape[1], dim=1)
        kernel, constant = of_product * users[:, None], first.bias.expand(len(users), -1)  # [users, h, d]
        if of_each:
            kernel, constant = kernel + of_each[1], constant + users @ of_each[0].T
        return F.relu(
            torch.baddbmm(constant[:, None], vectors, kernel.transpose(1, 2))
        )  # [users, bundles, h]
