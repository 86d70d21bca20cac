"""VAE-CF: a variational autoencoder of a user's bundles, with a multinomial likelihood (Mult-VAE)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Learner, Matcher, Phase, Sizes
from bundlemage.models.config import Between, LearnedConfig, OneOf
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.ragged import Ragged

USERS = Phase("users", over="users")


class VAECFConfig(LearnedConfig):
    """Sizes and dropout as in the publication."""

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
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for weight in (self.encoder_table, self.latent.weight, self.decoder.weight, self.decoder_table):
            nn.init.xavier_uniform_(weight)
        for bias in (self.encoder_bias, self.latent.bias, self.decoder.bias, self.decoder_bias):
            nn.init.normal_(bias, 0, 0.001)

    def observe(self, data: Interactions) -> None:
        if self.config.bundle_bias:
            with torch.no_grad():
                self.decoder_bias.copy_(data.user_bundle.counts(self.sizes.bundles).log1p())

    def encode(self, bundles: Ragged) -> tuple[Tensor, Tensor]:
        """Returns μ and log σ² of each user's latent vector. The input has length 1 before
        dropout."""  # [rows, K]
        share = bundles.lengths.to(self.encoder_table.dtype).clamp(min=1).rsqrt()
        entries = F.dropout(share[bundles.row_of_entry()], self.config.dropout, self.training)
        hidden = torch.tanh(bundles.weighted_sum_of(self.encoder_table, entries) + self.encoder_bias)
        mean, log_variance = self.latent(hidden).chunk(2, dim=1)
        return mean, log_variance

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
        return self.with_unnamed(scores, contents)  # [rows, bundles]
