"""Neural networks: NCF (NeuMF), DAM and VAE-CF (Mult-VAE)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Learner, Matcher, Phase, Sizes
from bundlemage.models.baselines.factors import BUNDLES, ITEMS, PAIRS, PairsConfig, PairsModel, random_vectors
from bundlemage.models.config import Between, LearnedConfig, OneOf
from bundlemage.models.losses import choice_loss, multinomial_loss
from bundlemage.models.ragged import Ragged, pick

NCF_SPREAD = 0.01
"""Standard deviation of NCF's initial vectors, as published."""
DAM_SPREAD = 0.1
"""Standard deviation of DAM's initial vectors. With less, the mean of a bundle's items would be too small."""
HIDDEN_AT_A_TIME = 2**22
"""Maximum number of values in the first hidden layer while NCF scores: 16 MiB of float32. More values would
not fit into a CPU's caches, and scoring would be slower."""
NUMBERS_AT_A_TIME = 2**27
"""Maximum number of temporary values while DAM scores: 512 MiB of float32."""
USERS = Phase("users", over="users")


class NCFConfig(PairsConfig):
    """Settings of NeuMF. It is trained without the publication's pre-training."""

    space = PairsConfig.space | {
        "dropout": Between(0.0, 0.7),
        "negatives": OneOf(1, 4, 8),
    }

    embedding_dim: int = Field(200, ge=1)
    """The length of vectors. Users and bundles have two vectors each: one for GMF, one for the MLP."""
    layers: int = Field(3, ge=1, le=32)
    """The number of hidden layers. The first has `embedding_dim` units, each further layer half as many."""
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
        self.user_factors = random_vectors(sizes.users, dim, NCF_SPREAD)  # pᴳ
        self.bundle_factors = random_vectors(sizes.bundles, dim, NCF_SPREAD)  # qᴳ
        self.user_vectors = random_vectors(sizes.users, dim, NCF_SPREAD)  # pᴹ
        self.bundle_vectors = random_vectors(sizes.bundles, dim, NCF_SPREAD)  # qᴹ
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        bound = (3 / (len(self.join_factors) + len(self.join_hidden))) ** 0.5
        nn.init.uniform_(self.join_factors, -bound, bound)
        nn.init.uniform_(self.join_hidden, -bound, bound)

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        # Without vectors, the log loss is lowest if each bundle's bias is log(positives / negatives). One
        # is added to both counts, for bundles without a buyer.
        counts = data.user_bundle.counts(self.sizes.bundles)
        drawn = self.config.negatives * len(data.user_bundle.values) / max(1, self.sizes.bundles)
        with torch.no_grad():
            self.bundle_bias.copy_(counts.log1p() - math.log1p(drawn))

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """The log loss: the target is 1 for bundles that the user took, and 0 for drawn negatives."""
        users, bundles = self.choices(phase, rows, data)  # [rows], [rows, 1 + negatives]
        logits = self.pair_logits(users, bundles)
        targets = torch.zeros_like(logits)
        targets[:, 0] = 1
        return F.binary_cross_entropy_with_logits(logits, targets)

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
        if bool((candidates >= self.sizes.bundles).any()):  # later bundles need the scores of all others
            return super().score_candidates(histories, candidates, contents)
        step = max(1, HIDDEN_AT_A_TIME // max(1, candidates.shape[1] * self.config.embedding_dim))
        users = torch.split(self.known_users(histories), step)
        chunks = zip(users, torch.split(candidates, step), strict=True)
        return torch.cat([self.pair_logits(*chunk) for chunk in chunks])

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        factors = F.embedding(self.known_users(histories), self.user_factors) * self.join_factors
        scores = torch.addmm(self.bundle_bias, factors, self.bundle_factors.T)  # [rows, bundles]
        user = self.user_part(F.embedding(self.known_users(histories), self.user_vectors))  # [rows, width]
        bundle = self.bundle_part(self.bundle_vectors)  # [bundles, width]
        step = max(1, HIDDEN_AT_A_TIME // max(1, bundle.numel()))
        hidden = [self._tower(chunk[:, None] + bundle) for chunk in user.split(step)]
        if hidden:
            scores = scores + torch.cat(hidden)
        return self.with_later(scores, contents)


class DAMConfig(PairsConfig):
    """Settings of DAM, which alternates BPR over items and BPR over bundles."""

    space = PairsConfig.space | {
        "dropout": Between(0.0, 0.7),
        "bundle_bias": OneOf(False, True),
    }

    hidden_dims: tuple[PositiveInt, ...] = Field((100, 50), min_length=1, max_length=32)
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
        self.user_factors = random_vectors(sizes.users, dim, DAM_SPREAD)  # p
        self.item_factors = random_vectors(sizes.items, dim, DAM_SPREAD)  # v
        self.attended_factors = random_vectors(sizes.items, dim, DAM_SPREAD)  # a
        widths = [dim if config.pooling == "product" else 3 * dim, *config.hidden_dims]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.judge_item = nn.Linear(widths[-1], 1, bias=False)
        self.judge_bundle = nn.Linear(widths[-1], 1, bias=False)
        self.bundle_bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (ITEMS,) * bool(self.config.item_weight) + (BUNDLES,)

    def attend(self, users: Tensor, bundles: Ragged) -> Tensor:
        """Returns f_ub for each row: `users` has the user's vector, and `bundles` has the bundle's items."""
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

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, choices = self.choices(phase, rows, data)
        if phase is BUNDLES:
            return choice_loss(self._score_some(users, choices, data.bundle_item))
        user = F.embedding(users, self.user_factors)[:, None].expand(-1, choices.shape[1], -1)
        scores = self.judge_item(self._hidden(user, F.embedding(choices, self.item_factors)))[:, :, 0]
        return self.config.item_weight * choice_loss(scores)

    def _score_some(self, users: Tensor, choices: Tensor, contents: Ragged) -> Tensor:
        """Returns the scores of the bundles `choices[n]` for each user `users[n]`."""  # [rows, choices]
        repeated = users.repeat_interleave(choices.shape[1], output_size=choices.numel())
        bundles = contents.rows(choices.flatten())
        scores = self.pair_scores(F.embedding(repeated, self.user_factors), bundles).view_as(choices)
        if self.bundle_bias is None:
            return scores
        bias = F.pad(self.bundle_bias, (0, len(contents) - len(self.bundle_bias)))
        return scores + pick(bias, choices)

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        typical = len(contents.values) // max(1, len(contents)) + 1  # items in a bundle
        per_user = candidates.shape[1] * self.user_factors.shape[1] * (2 * typical + 4)
        step = max(1, NUMBERS_AT_A_TIME // max(1, per_user))
        blocks = zip(
            torch.split(self.known_users(histories), step), torch.split(candidates, step), strict=True
        )
        return torch.cat([self._score_some(users, some, contents) for users, some in blocks])

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Scores a few users at a time, because the bundles' vectors differ for every user."""
        users = self.user_factors[self.known_users(histories)]  # [rows, d]
        # Temporary values per user: vectors and a layer per bundle, attention per entry, scores per item.
        width = 2 * users.shape[1] + 2 * max(self.config.hidden_dims)
        per_user = len(contents) * width + 8 * len(contents.values) + self.sizes.items
        at_a_time = max(1, NUMBERS_AT_A_TIME // max(1, per_user))
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
        """Uses A[p ⊙ f] + Bp + Cf = (A diag(p) + C)f + Bp: a third of the work for many bundles."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        of_product, *of_each = first.weight.tensor_split(first.in_features // users.shape[1], dim=1)
        kernel, constant = of_product * users[:, None], first.bias.expand(len(users), -1)  # [users, h, d]
        if of_each:
            kernel, constant = kernel + of_each[1], constant + users @ of_each[0].T
        return F.relu(
            torch.baddbmm(constant[:, None], vectors, kernel.transpose(1, 2))
        )  # [users, bundles, h]


class VAECFConfig(LearnedConfig):
    """The default sizes and dropout are those of the publication."""

    space = LearnedConfig.space | {
        "embedding_dim": OneOf(64, 128, 200),
        "hidden_dim": OneOf(300, 600),
        "dropout": Between(0.0, 0.8),
        "kl_weight": Between(0.0, 1.0),
        "anneal_steps": OneOf(0, 500, 2000),
    }

    embedding_dim: int = Field(200, ge=1)
    """K, the length of a user's latent vector."""
    hidden_dim: int = Field(600, ge=1)
    """The number of units in the hidden layers of the encoder and the decoder."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """The dropout rate on the encoder's input, the user's bundles."""
    kl_weight: float = Field(0.2, ge=0)
    """The final value of β, the weight of the KL divergence of latent vectors from N(0, I)."""
    anneal_steps: int = Field(2000, ge=0)
    """The number of steps in which β rises from 0 to `kl_weight`; 0 starts at `kl_weight`."""
    bundle_bias: bool = False
    """Whether the bias of each bundle in the last layer starts at log(1 + sales), not near zero."""


class VAECF(Matcher, Learner):
    """A user's bundles → hidden layer → normal distribution of z → hidden layer → bundles' probabilities."""

    name = "vae-cf"
    title = "VAE-CF"
    publication = (
        "Liang, Krishnan, Hoffman and Jebara, Variational Autoencoders for Collaborative Filtering, WWW 2018"
    )
    config_class = VAECFConfig
    config: VAECFConfig
    phases = (USERS,)

    def __init__(self, config: VAECFConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        hidden, dim = config.hidden_dim, config.embedding_dim
        # The first layer is a table with a row for each bundle: only the rows of a user's bundles are read.
        self.encoder_table = nn.Parameter(torch.empty(sizes.bundles, hidden))
        self.encoder_bias = nn.Parameter(torch.empty(hidden))
        self.latent = nn.Linear(hidden, 2 * dim)  # to μ and log σ²
        self.decoder = nn.Linear(dim, hidden)
        self.decoder_table = nn.Parameter(torch.empty(sizes.bundles, hidden))
        self.decoder_bias = nn.Parameter(torch.empty(sizes.bundles))
        # A buffer, so that a resumed run continues annealing.
        self.steps_done = self.new_buffer("steps_done", torch.zeros((), dtype=torch.int64))
        for weight in (self.encoder_table, self.latent.weight, self.decoder.weight, self.decoder_table):
            nn.init.xavier_uniform_(weight)
        for bias in (self.encoder_bias, self.latent.bias, self.decoder.bias, self.decoder_bias):
            nn.init.normal_(bias, 0, 0.001)

    def observe(self, data: Interactions) -> None:
        if self.config.bundle_bias:
            with torch.no_grad():
                self.decoder_bias.copy_(data.user_bundle.counts(self.sizes.bundles).log1p())

    def encode(self, bundles: Ragged) -> tuple[Tensor, Tensor]:
        """Returns μ and log σ² of each user's latent vector. Before dropout, the input has length 1."""
        share = bundles.lengths.to(self.encoder_table.dtype).clamp(min=1).rsqrt()
        entries = F.dropout(share[bundles.row_of_entry()], self.config.dropout, self.training)
        hidden = torch.tanh(bundles.weighted_sum_of(self.encoder_table, entries) + self.encoder_bias)
        mean, log_variance = self.latent(hidden).chunk(2, dim=1)
        return mean, log_variance  # [rows, K] each

    def decode(self, z: Tensor) -> Tensor:  # [rows, hidden]
        return torch.tanh(self.decoder(z))

    def kl_weight_now(self) -> Tensor:
        """Returns β for the current step. It rises linearly up to `kl_weight`."""
        if not self.config.anneal_steps:
            return torch.full_like(self.encoder_bias[0], self.config.kl_weight)
        return (self.steps_done / self.config.anneal_steps).clamp(max=1) * self.config.kl_weight

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """−ELBO_β: −Σ_i x_ui log π_i(z_u) + β · KL(q(z_u | x_u) ‖ N(0, I)), averaged over users."""
        bundles = data.user_bundle.rows(rows)
        mean, log_variance = self.encode(bundles)
        z = mean
        if self.training:
            z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        hidden = self.decode(z)
        # The bias is one more column of the table. Its hidden unit is always 1.
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
        table = torch.cat([self.decoder_table, self.decoder_bias[:, None]], dim=1)
        likelihood = multinomial_loss(hidden, table, bundles, torch.ones_like(hidden[:, 0]))
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        weight = self.kl_weight_now()
        if self.training:
            self.steps_done += 1
        return likelihood + weight * divergence

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns the logits of π at z = μ."""
        mean, _ = self.encode(self.named_bundles(histories))
        scores = torch.addmm(self.decoder_bias, self.decode(mean), self.decoder_table.T)
        return self.with_later(scores, contents)  # [rows, bundles]
