"""BR: scores a bundle by the factors of its items, learned in two stages of BPR."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Completer, Factors, Histories, Indexable, Interactions, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.config import OneOf
from bundlemage.models.losses import choice_loss
from bundlemage.models.pairs import BUNDLES, ITEMS, PairsConfig, PairsModel
from bundlemage.models.ragged import Ragged, pick


class BRConfig(PairsConfig):
    """Two stages of BPR, one after the other in each epoch."""

    space = PairsConfig.space | {
        "negatives": OneOf(1, 4),
        "bundle_bias": OneOf(False, True),
    }

    largest_size: int = Field(100, ge=1)
    """Bundles with this number of items or more share one size bias."""
    fine_tune: bool = True
    """Whether the second stage also trains the factors and biases of the first stage. If not, it learns only
    the matrices U and V and the terms that it adds."""
    bundle_bias: bool = False
    """Whether each bundle of the training data has its own bias. The publication has none."""
    item_weight: float = Field(1.0, ge=0)
    """The weight of the first stage's loss."""


class BR(PairsModel, Indexable, Completer):
    """A bundle's score is the mean score of its items, plus terms for its size and its items' compatibility.

    Stage one is BPR on items: x_ui = β_i + γ_u·γ_i. Stage two is BPR on bundles,
    x_ub = mean_i (β_i + Uγ_u·Vγ_i) + C_|b| + mean_{i≠j} Σ_k w_k γ_ik γ_jk.
    Only the publication's abstract was available. It names size and compatibility, but not their formulas.
    We chose a bias for each size, and for two items the product of their factors with a learned weight for
    each factor. We also chose to run both stages in every epoch.
    """

    name = "br"
    title = "BR"
    publication = (
        "Pathak, Gupta and McAuley, Generating and Personalizing Bundle Recommendations on Steam, SIGIR 2017"
    )
    config_class = BRConfig
    config: BRConfig
    phases = (ITEMS, BUNDLES)

    def __init__(self, config: BRConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.user_factors = nn.Parameter(torch.randn(sizes.users, dim) * 0.1 / dim**0.5)  # γ_u
        self.item_factors = nn.Parameter(torch.randn(sizes.items, dim) * 0.1 / dim**0.5)  # γ_i
        self.item_bias = nn.Parameter(torch.zeros(sizes.items))  # β_i
        # With these initial values, the second stage's score is the mean of the first stage's scores.
        self.turn_user = nn.Parameter(torch.eye(dim))  # U
        self.turn_item = nn.Parameter(torch.eye(dim))  # V
        self.size_bias = nn.Parameter(torch.zeros(config.largest_size + 1))  # C
        self.compatibility = nn.Parameter(torch.zeros(dim))  # w
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.contents = Bipartite.of(data.bundle_item, self.sizes.items)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, choices = self.choices(phase, rows, data)
        return self._item_loss(users, choices) if phase is ITEMS else self._bundle_loss(users, choices)

    def _item_loss(self, users: Tensor, choices: Tensor) -> Tensor:
        user = F.embedding(users, self.user_factors)  # [rows, d]
        bias = pick(self.item_bias, choices)
        # x_ui = β_i + γ_u·γ_i
        scores = bias + torch.einsum("rd,rcd->rc", user, F.embedding(choices, self.item_factors))
        return self.config.item_weight * choice_loss(scores)

    def _bundle_loss(self, users: Tensor, choices: Tensor) -> Tensor:
        first_stage: tuple[Tensor, ...] = (self.user_factors, self.item_factors, self.item_bias)
        if not self.config.fine_tune:
            first_stage = tuple(table.detach() for table in first_stage)
        user_table, item_table, item_bias = first_stage
        # All bundles at once, because a batch and its negatives contain most of them.
        columns = self._columns(item_table, item_bias)
        total, squares, bias = self._parts(self.contents.sum_to_left(columns))
        lengths = self.contents.left.lengths
        vectors = self._bundle_vectors(total, lengths)
        constants = self._bundle_constants(total, squares, bias, lengths)
        user = F.embedding(users, user_table) @ self.turn_user.T  # [rows, d]
        scores = pick(constants, choices)
        scores = scores + torch.einsum("rd,rcd->rc", user, F.embedding(choices, vectors))
        return choice_loss(scores)

    # ── The bundle's score: user · vector + constant ─────────────────────────────────────────────

    def _columns(self, item_table: Tensor, item_bias: Tensor) -> Tensor:
        """γ_i, γ_i², β_i of every item."""
        return torch.cat([item_table, item_table.square(), item_bias[:, None]], dim=1)

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ γ_i, Σ γ_i², Σ β_i of each row's items."""
        dim = self.config.embedding_dim
        return sums[:, :dim], sums[:, dim : 2 * dim], sums[:, -1]

    def _sums(self, contents: Ragged) -> tuple[Tensor, Tensor, Tensor]:
        return self._parts(contents.sum_of(self._columns(self.item_factors, self.item_bias)))

    def _bundle_vectors(self, total: Tensor, lengths: Tensor) -> Tensor:
        return (total / lengths.clamp(min=1)[:, None]) @ self.turn_item.T  # [bundles, d]

    def _bundle_constants(self, total: Tensor, squares: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        """The part of the scores that does not depend on the user."""  # [bundles]
        # Σ_{i≠j} γ_ik γ_jk = (Σ_i γ_ik)² − Σ_i γ_ik²
        company = (total.square() - squares) @ self.compatibility / (lengths * (lengths - 1)).clamp(min=1)
        constants = bias / lengths.clamp(min=1) + self._size_bias(lengths) + company
        if self.bundle_bias is not None:
            # A bundle added after training has no bias.
            constants = constants + F.pad(self.bundle_bias, (0, len(constants) - len(self.bundle_bias)))
        return constants

    def _size_bias(self, lengths: Tensor) -> Tensor:
        return self.size_bias[lengths.clamp(max=self.config.largest_size)]

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def _users(self, histories: Histories) -> Tensor:
        return self.user_factors[self.known_users(histories)] @ self.turn_user.T  # [rows, d]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        total, squares, bias = self._sums(contents)
        vectors = self._bundle_vectors(total, contents.lengths)
        constants = self._bundle_constants(total, squares, bias, contents.lengths)
        return Factors(vectors[start:], constants[start:])

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        return self._users(histories)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        factors = self.factors_of_bundles(contents)
        return self._users(histories) @ factors.vectors.T + factors.bias  # [rows, bundles]

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """An item's score is the score of the bundle after adding the item to the row of `partial`."""
        user = self._users(histories)
        total, squares, bias = self._sums(partial)
        lengths = partial.lengths[:, None]  # [rows, 1]
        table = self.item_factors
        # The mean of n + 1 scores, from the sum of the n scores of the items in the bundle.
        inside = bias + (user * (total @ self.turn_item.T)).sum(1)  # [rows]
        scores = user @ self.turn_item @ table.T + self.item_bias + inside[:, None]
        # With j added, Σ_{i≠j} γ_i γ_j grows by 2 γ_j Σ_i γ_i.
        inside = (total.square() - squares) @ self.compatibility
        company = inside[:, None] + 2 * (total * self.compatibility) @ table.T
        pairs = (lengths * (lengths + 1)).clamp(min=1)
        return scores / (lengths + 1) + company / pairs + self._size_bias(lengths + 1)  # [rows, items]
