"""Models with a vector for each user, learned from pairs of a user and an item or bundle: BPR, BR and EFM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import (
    Completer,
    Factors,
    Histories,
    Indexable,
    Interactions,
    Learner,
    Matcher,
    Phase,
    Sizes,
)
from bundlemage.models.config import Between, LearnedConfig, OneOf
from bundlemage.models.losses import Negatives, choice_loss, pairwise_loss
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import Ragged, pick

ITEMS = Phase("items", over="user_item")
BUNDLES = Phase("bundles", over="user_bundle")
PAIRS = Phase("pairs", over="user_bundle")
CONTENTS = Phase("contents", over="bundle_item")
BPR_SPREAD = 0.01
"""Standard deviation of BPR's initial vectors. It is so small that initial scores are almost only biases."""


class PairsConfig(LearnedConfig):
    """The settings of models that learn from pairs."""

    space = LearnedConfig.space | {"embedding_dim": OneOf(64, 128, 200)}

    embedding_dim: int = Field(200, ge=1)
    """The length of every vector."""
    negatives: int = Field(1, ge=1)
    """The number of negatives that are drawn for each item or bundle of a user in an epoch."""


class PairsModel(Matcher, Learner):
    """A model with a vector for each training user. It learns from pairs of a user and an item or bundle."""

    knows_new_users = False
    config: PairsConfig

    def observe(self, data: Interactions) -> None:
        self.negatives = {
            over: Negatives(data.user_item, self.sizes.items)
            if over == "user_item"
            else Negatives(data.user_bundle, self.sizes.bundles)
            for over in {phase.over for phase in self.phases} & {"user_item", "user_bundle"}
        }

    def choices(self, phase: Phase, pairs: Tensor, data: Interactions) -> tuple[Tensor, Tensor]:
        """Returns each pair's user, and its choices: first the item or bundle taken, then the negatives."""
        matrix = data.user_item if phase.over == "user_item" else data.user_bundle
        users, taken = matrix.entries(pairs)
        drawn = self.negatives[phase.over].draw(users, self.config.negatives)
        return users, torch.cat([taken[:, None], drawn], dim=1)  # [pairs], [pairs, 1 + negatives]


def random_vectors(count: int, dim: int, spread: float) -> nn.Parameter:
    """A table of vectors from a normal distribution with standard deviation `spread`."""
    return nn.Parameter(torch.randn(count, dim) * spread)


def factor_loss(user: Tensor, choices: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    """The BPR loss of the result of `PairsModel.choices`. A score is user · row of `table` + bias."""
    scores = torch.einsum("rd,rcd->rc", user, F.embedding(choices, table))
    return choice_loss(scores if bias is None else scores + pick(bias, choices))


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
        self.user_vectors = random_vectors(sizes.users, config.embedding_dim, BPR_SPREAD)
        self.bundle_vectors = random_vectors(sizes.bundles, config.embedding_dim, BPR_SPREAD)
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
        return self.with_later(scores, contents)


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

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.contents = Bipartite.of(data.bundle_item, self.sizes.items)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, choices = self.choices(phase, rows, data)
        first_stage: tuple[Tensor, ...] = (self.user_factors, self.item_factors, self.item_bias)
        if phase is BUNDLES and not self.config.fine_tune:
            first_stage = tuple(table.detach() for table in first_stage)
        user_table, item_table, item_bias = first_stage
        user = F.embedding(users, user_table)  # [rows, d]
        if phase is ITEMS:  # x_ui = β_i + γ_u·γ_i
            return self.config.item_weight * factor_loss(user, choices, item_table, item_bias)
        # All bundles at once, because a batch and its negatives contain most of them.
        sums = self.contents.sum_to_left(_columns(item_table, item_bias))
        factors = self._factors(sums, self.contents.left.lengths)
        return factor_loss(user @ self.turn_user.T, choices, factors.vectors, factors.bias)

    def _sums(self, contents: Ragged) -> Tensor:
        return contents.sum_of(_columns(self.item_factors, self.item_bias))

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ γ_i, Σ γ_i², Σ β_i of each row's items."""
        dim = self.config.embedding_dim
        return sums[:, :dim], sums[:, dim : 2 * dim], sums[:, -1]

    def _factors(self, sums: Tensor, lengths: Tensor) -> Factors:
        """The factors of bundles, from the sums of their items' columns and their numbers of items."""
        total, squares, bias = self._parts(sums)
        vectors = (total / lengths.clamp(min=1)[:, None]) @ self.turn_item.T  # [bundles, d]
        # Σ_{i≠j} γ_ik γ_jk = (Σ_i γ_ik)² − Σ_i γ_ik²
        pair_term = (total.square() - squares) @ self.compatibility / (lengths * (lengths - 1)).clamp(min=1)
        constants = bias / lengths.clamp(min=1) + self._size_bias(lengths) + pair_term
        if self.bundle_bias is not None:
            # A bundle added after training has no bias.
            constants = constants + F.pad(self.bundle_bias, (0, len(constants) - len(self.bundle_bias)))
        return Factors(vectors, constants)

    def _size_bias(self, lengths: Tensor) -> Tensor:
        return self.size_bias[lengths.clamp(max=self.config.largest_size)]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        factors = self._factors(self._sums(contents), contents.lengths)
        return Factors(factors.vectors[start:], factors.bias[start:])

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        return self.user_factors[self.known_users(histories)] @ self.turn_user.T  # [rows, d]

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        factors = self.factors_of_bundles(contents)
        return self.factors_of_users(histories, contents) @ factors.vectors.T + factors.bias

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """An item's score is the score of the bundle after adding the item to the row of `partial`."""
        user = self.factors_of_users(histories, contents)
        total, squares, bias = self._parts(self._sums(partial))
        lengths = partial.lengths[:, None]  # [rows, 1]
        table = self.item_factors
        # The mean of n + 1 scores, from the sum of the n scores of the items in the bundle.
        inside = bias + (user * (total @ self.turn_item.T)).sum(1)  # [rows]
        scores = user @ self.turn_item @ table.T + self.item_bias + inside[:, None]
        # With j added, Σ_{i≠j} γ_i γ_j grows by 2 γ_j Σ_i γ_i.
        inside = (total.square() - squares) @ self.compatibility
        pair_term = inside[:, None] + 2 * (total * self.compatibility) @ table.T
        pairs = (lengths * (lengths + 1)).clamp(min=1)
        return scores / (lengths + 1) + pair_term / pairs + self._size_bias(lengths + 1)  # [rows, items]


def _columns(item_table: Tensor, item_bias: Tensor) -> Tensor:
    """γ_i, γ_i², β_i of every item."""
    return torch.cat([item_table, item_table.square(), item_bias[:, None]], dim=1)


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
    negative sampling: for items i and j of bundle b, σ(q_i·(c_j + h_b)) is trained towards 1. If i is
    replaced by one of k items, drawn in proportion to their number of bundles, it is trained towards 0. The
    optimum is the same mutual information minus log k, but not cut off at zero. Only the publication's
    abstract was available. To model its item-item-list co-occurrence, we add the bundle's vector to the
    context vector c_j."""

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

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        if phase is CONTENTS:
            return self.config.content_weight * self._content_loss(rows, data.bundle_item)
        users, choices = self.choices(phase, rows, data)
        user = F.embedding(users, self.user_factors)
        if phase is ITEMS:
            return self.config.item_weight * factor_loss(user, choices, self.item_factors)
        return factor_loss(user, choices, self.bundle_factors, self.bundle_bias)

    def companions(self, pairs: Tensor, contents: Ragged) -> Tensor:
        """Draws another item of the bundle for each bundle-item pair; the same item if it is the only one."""
        bundles, _ = contents.entries(pairs)
        starts, lengths = contents.offsets[bundles], contents.lengths[bundles]
        # Move 1 to n - 1 places forward in the row. After its end, continue at its start.
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

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        scores = self.user_factors[self.known_users(histories)] @ self.bundle_factors.T  # p_u·h_b
        if self.bundle_bias is not None:
            scores = scores + self.bundle_bias
        return self.with_later(scores, contents)  # [rows, bundles]
