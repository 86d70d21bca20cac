"""CoHeat: scores a bundle by its items and by its buyers. Buyers weigh more the more it has sold."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.config import Between
from bundlemage.models.graphs import ViewsConfig, ViewsModel, first_vectors
from bundlemage.models.ragged import Ragged


class CoHeatConfig(ViewsConfig):
    """The published design. Values that the publication does not give are ours."""

    space = ViewsConfig.space | {
        "highest_temperature": Between(2.0, 500.0, log=True),
        "agreement": Between(0.005, 1.0, log=True),
    }

    highest_temperature: float = Field(20.0, ge=1)
    """ε: the final temperature. The temperature ψ divides a bundle's sales; it rises from 1 to ε."""
    heating_epochs: int = Field(50, ge=1)
    """T: the number of epochs until the temperature reaches ε. The publication uses the total number of
    epochs, which is unknown if a run can stop early or be resumed."""
    agreement: float = Field(0.02, ge=0)
    """λ₁: the weight of the loss for alignment and uniformity of the two views."""


class CoHeat(ViewsModel):
    """A pair's score is γ · history score + (1 − γ) · affiliation score, with γ = tanh(sales / ψ).

    The history view is the user-bundle graph. The affiliation view is the user-item graph; a bundle is the
    mean of its items. ψ rises during training: weight moves from history, which is learned sooner, to
    affiliation. From the publication: the two views, γ, the heating ψ = ε^(t/T), alignment and uniformity,
    the pairwise loss. Our choices: layers are scaled to length one and added, as in CrossCBR; nodes without
    an edge are zero; t grows with every step; with `bundle_bias`, a bundle without sales has no bias, so it
    gets the same score as a bundle with the same items that was added after training.
    """

    name = "coheat"
    title = "CoHeat"
    publication = (
        "Jeon, Lee, Yun and Kang, Cold-start Bundle Recommendation via Popularity-based Coalescence and "
        "Curriculum Heating, AAAI 2024"
    )
    config_class = CoHeatConfig
    config: CoHeatConfig
    views = 2

    def __init__(self, config: CoHeatConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.history_users = first_vectors(sizes.users, dim)
        # A parameter without a gradient, so that it is saved, resumed and averaged with the others.
        self.epochs_done = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.item_vectors = self.new_buffer("item_vectors", torch.zeros(sizes.items, dim))

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        self.sales = data.user_bundle.counts(self.sizes.bundles)[:, None].to(self.bundles.dtype)
        self.steps_per_epoch = max(1, -(-len(data.user_bundle.values) // self.config.batch_size))

    def ego_tables(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return (self.users, self.history_users), (self.bundles,)

    def history_weights(self) -> Tensor:
        """Returns γ of each bundle at the current temperature: 0 without sales, near 1 with many sales."""
        share = (self.epochs_done / self.config.heating_epochs).clamp(max=1)
        temperature = (share * math.log(self.config.highest_temperature)).exp()  # ψ = ε^(t/T)
        return torch.tanh(self.sales / temperature)  # [bundles, 1]

    def both_views(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Returns the vectors of users and bundles in the history view, then in the affiliation view."""
        history = self.spread(self.user_bundle, self.history_users, self.bundles)
        users, items = self.spread(self.user_item, self.users, self.items)
        return history, (users, self.disturbed(self.bundle_item).mean_to_left(items))

    def joined(
        self, history: tuple[Tensor, Tensor], affiliation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Joins the views: the product of the joined vectors is the weighted sum of both views' products."""
        weight = self.history_weights()
        users = torch.cat([history[0], affiliation[0]], dim=1)
        return users, torch.cat([weight * history[1], (1 - weight) * affiliation[1]], dim=1)

    def propagate(self) -> tuple[Tensor, Tensor]:
        return self.joined(*self.both_views())

    def biased(self, users: Tensor, bundles: Tensor) -> tuple[Tensor, Tensor]:
        if self.bias is None:
            return users, bundles
        bias = self.bias * (self.sales > 0)
        return torch.cat([users, torch.ones_like(users[:, :1])], 1), torch.cat([bundles, bias], 1)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        views = self.both_views()
        loss = self.compare(self.biased(*self.joined(*views)), users, bundles)
        if self.config.agreement:
            for by_history, by_affiliation, chosen in zip(*views, (users, bundles), strict=True):
                one, other = (F.normalize(F.embedding(chosen, view)) for view in (by_history, by_affiliation))
                loss = loss + self.config.agreement * agreement_loss(one, other)
        if self.training:
            with torch.no_grad():
                self.epochs_done.add_(1 / self.steps_per_epoch)
        return loss

    def settle(self, data: Interactions) -> None:
        super().settle(data)
        was_training = self.training
        self.eval()
        self.item_vectors.copy_(self.spread(self.user_item, self.users, self.items)[1])
        self.train(was_training)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Scores bundles of the training data by both views, and later bundles only by their items."""
        users = self.user_vectors[self.known_users(histories)]
        scores = users @ self.bundle_vectors.T  # [rows, bundles]
        known, dim = self.sizes.bundles, self.config.embedding_dim
        if len(contents) == known:
            return scores
        later = contents.rows(torch.arange(known, len(contents), device=contents.device))
        by_items = users[:, dim : 2 * dim] @ later.mean_of(self.item_vectors).T
        return torch.cat([scores, by_items], dim=1)


def agreement_loss(one: Tensor, other: Tensor) -> Tensor:
    """Alignment plus uniformity of two views with rows of length one (Wang and Isola, ICML 2020).
    Alignment: mean ‖x − y‖² of a row in both. Uniformity of a view: log mean exp(−2 ‖x − x′‖²)."""
    alignment = (one - other).square().sum(1).mean()
    return alignment + (_uniformity(one) + _uniformity(other)) / 2


def _uniformity(rows: Tensor) -> Tensor:
    # ‖x − x′‖² = 2 − 2 x·x′ for rows of length one
    return (4 * rows @ rows.T - 4).exp().mean().log()
