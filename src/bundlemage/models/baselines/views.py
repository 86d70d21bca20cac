"""Models that compute several vectors (views) of each user and bundle, from three graphs: CrossCBR, MultiCBR,
CoHeat and BundleGT."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Phase, Sizes
from bundlemage.models.baselines.graphs import GraphConfig, GraphModel, first_vectors
from bundlemage.models.config import Between, OneOf
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.neighbours import Bipartite, Neighbours, attend
from bundlemage.models.ragged import Ragged


class ViewsConfig(GraphConfig):
    """The settings of models with several views of users and bundles."""

    space = GraphConfig.space | {
        "weight_decay": OneOf(0.0, 0.00001, 0.00004, 0.0001),
        "layers": OneOf(1, 2),
    }

    weight_decay: float = Field(0.00004, ge=0)
    ego_penalty: float = Field(0.0, ge=0)
    layers: int = Field(1, ge=1, le=32)
    """The number of propagation steps on each graph."""
    augmentation: Literal["none", "edges", "messages", "noise"] = "none"
    """The random change in training. `edges` drops edges, `messages` sets some numbers of the propagated
    vectors to zero, and `noise` adds noise to these vectors."""
    disturbance: float = Field(0.2, ge=0, lt=1)
    """The probability that an edge or a number is dropped, or the length of the noise."""


class ViewsModel(GraphModel):
    """A model with several views of users and bundles, from three graphs. A subclass defines the views."""

    config: ViewsConfig

    def spread(self, graph: Bipartite, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the first vectors, not scaled, plus those of all later LightGCN layers, each scaled to
        length one."""
        left, right = graph.connected(left, right)
        layers = self.disturbed(graph).layers(left, right, self.config.layers)
        for left_layer, right_layer in layers[1:]:
            left = left + F.normalize(self.shaken(left_layer))
            right = right + F.normalize(self.shaken(right_layer))
        return left, right

    def disturbed(self, graph: Bipartite) -> Bipartite:
        """Returns the graph. In training with the augmentation `edges`, some edges are dropped."""
        if self.training and self.config.augmentation == "edges":
            return graph.thinned(self.config.disturbance)
        return graph

    def shaken(self, table: Tensor) -> Tensor:
        """Returns the vectors. In training, `messages` and `noise` change them at random."""
        if not self.training:
            return table
        if self.config.augmentation == "messages":
            return F.dropout(table, self.config.disturbance)
        if self.config.augmentation == "noise":
            noise = F.normalize(torch.rand_like(table)) * self.config.disturbance
            return table + table.sign() * noise
        return table


Tables = tuple[Tensor, Tensor]
"""Two tensors: one for users and one for bundles."""


class CrossCBRConfig(ViewsConfig):
    """The weight and the temperature of the contrastive loss are those published for Youshu.

    Without `weight_decay` the model stops improving after a dozen epochs, and is less accurate.
    """

    space = ViewsConfig.space | {
        "contrast": Between(0.005, 0.5, log=True),
        "temperature": Between(0.1, 0.5),
    }

    contrast: float = Field(0.04, ge=0)
    """λ₁: the weight of the contrastive loss."""
    temperature: float = Field(0.25, gt=0)
    """τ: the number that divides cosines in the contrastive loss."""


class CrossCBR(ViewsModel):
    """The sum of the scores of two views: by items (a bundle is the mean of its items), and by bundles. Two
    contrastive losses, for users and for bundles, are added to the pairwise loss.

    A node without an edge in a graph has a zero vector in that view (our choice).
    """

    name = "crosscbr"
    title = "CrossCBR"
    publication = (
        "Ma, He, Zhang, Wang and Chua, CrossCBR: Cross-view Contrastive Learning for Bundle Recommendation, "
        "KDD 2022"
    )
    config_class: ClassVar[type[CrossCBRConfig]] = CrossCBRConfig
    config: CrossCBRConfig

    def propagate(self) -> tuple[Tensor, Tensor]:
        users_by_items, items = self.spread(self.user_item, self.users, self.items)
        by_items = self.disturbed(self.bundle_item).mean_to_left(items)
        users_by_bundles, by_bundles = self.spread(self.user_bundle, self.users, self.bundles)
        # The product of the joined vectors is the sum of the two views' products.
        return torch.cat([users_by_items, users_by_bundles], dim=1), torch.cat([by_items, by_bundles], dim=1)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        users, bundles = data.user_bundle.entries(rows)
        tables = self.propagate()
        loss = self.compare(self.biased(*tables), users, bundles)
        if self.config.contrast:
            for first, second in self.contrasted(tables, (users, bundles)):
                agreement = contrastive_loss(first, second, self.config.temperature)
                loss = loss + self.config.contrast * agreement / 2
        return loss

    def contrasted(self, tables: Tables, chosen: Tables) -> list[tuple[Tensor, ...]]:
        """Returns two views of the chosen users, and two views of the chosen bundles.

        `tables` has the vectors of all users and of all bundles, and `chosen` the positions of a batch.
        """
        return [F.embedding(rows, table).chunk(2, dim=1) for table, rows in zip(tables, chosen, strict=True)]


class MultiCBRConfig(CrossCBRConfig):
    """Vector length, batch size and learning rate are published. Weights and augmentation are ours."""

    space = CrossCBRConfig.space | {
        "user_bundle_weight": Between(0.0, 1.0),
        "user_item_weight": Between(0.0, 1.0),
        "bundle_item_weight": Between(0.0, 1.0),
        "augmentation": OneOf("none", "edges", "noise"),
    }

    user_bundle_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by user-bundle edges in the fused vectors."""
    user_item_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by user-item edges. In this view a bundle is the mean of its items."""
    bundle_item_weight: float = Field(1 / 3, ge=0)
    """The weight of the view by bundle-item edges. In this view a user is the mean of the user's items."""


class MultiCBR(CrossCBR):
    """A score is the product of a user's and a bundle's fused vectors: weighted sums over three views.

    The contrastive loss compares a batch's fused vectors with a second, randomly changed copy. With the
    augmentation `none` it compares them with themselves, which moves different vectors apart. From the
    publication: the three views, fusion before the contrast, two contrastive losses (users and bundles), the
    pairwise loss. Our choices: layers are scaled to length one and added, as in CrossCBR; nodes without an
    edge are zero; the values of the weights.
    """

    name = "multicbr"
    title = "MultiCBR"
    publication = (
        "Ma, He, Wang, Wei, Du, Fu and Chua, MultiCBR: Multi-view Contrastive Learning for Bundle "
        "Recommendation, TOIS 2024"
    )
    config_class = MultiCBRConfig
    config: MultiCBRConfig

    def propagate(self) -> tuple[Tensor, Tensor]:
        config = self.config
        users_by_bundles, bundles_by_users = self.spread(self.user_bundle, self.users, self.bundles)
        users_by_items, items = self.spread(self.user_item, self.users, self.items)
        bundles_by_items = self.disturbed(self.bundle_item).mean_to_left(items)
        bundles_by_contents, items = self.spread(self.bundle_item, self.bundles, self.items)
        users_by_contents = self.disturbed(self.user_item).mean_to_left(items)
        users = (
            config.user_bundle_weight * users_by_bundles
            + config.user_item_weight * users_by_items
            + config.bundle_item_weight * users_by_contents
        )
        bundles = (
            config.user_bundle_weight * bundles_by_users
            + config.user_item_weight * bundles_by_items
            + config.bundle_item_weight * bundles_by_contents
        )
        return users, bundles

    def contrasted(self, tables: Tables, chosen: Tables) -> list[tuple[Tensor, ...]]:
        copies = tables if self.config.augmentation == "none" else self.propagate()
        return [
            (F.embedding(rows, table), F.embedding(rows, copy))
            for table, copy, rows in zip(tables, copies, chosen, strict=True)
        ]


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """InfoNCE: a cross-entropy loss. Each row of `first` must find the same row among all rows of `second`.
    The logits are cosine / τ. Returns the mean over rows."""
    rows = torch.arange(len(first) + 1, device=first.device)
    itself = Ragged(rows[:-1], rows)
    return multinomial_loss(
        F.normalize(first) / temperature, F.normalize(second), itself, torch.ones_like(first[:, 0])
    )


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

    def __init__(self, config: CoHeatConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.history_users = first_vectors(sizes.users, dim)
        # A parameter without a gradient, so that it is saved, resumed and averaged with the others.
        self.epochs_done = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.item_vectors = self.new_buffer("item_vectors", torch.zeros(sizes.items, 0))

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
                first, second = (
                    F.normalize(F.embedding(chosen, view)) for view in (by_history, by_affiliation)
                )
                loss = loss + self.config.agreement * agreement_loss(first, second)
        if self.training:
            with torch.no_grad():
                self.epochs_done.add_(1 / self.steps_per_epoch)
        return loss

    def settle(self, data: Interactions) -> None:
        super().settle(data)
        was_training = self.training
        self.eval()
        self.item_vectors = self.spread(self.user_item, self.users, self.items)[1]
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


def agreement_loss(first: Tensor, second: Tensor) -> Tensor:
    """Alignment plus uniformity of two views with rows of length one (Wang and Isola, ICML 2020).
    Alignment: the mean of ‖x − y‖², where x and y are the same row in the two views. Uniformity of a view:
    log mean exp(−2 ‖x − x′‖²)."""
    alignment = (first - second).square().sum(1).mean()
    return alignment + (_uniformity(first) + _uniformity(second)) / 2


def _uniformity(rows: Tensor) -> Tensor:
    # ‖x − x′‖² = 2 − 2 x·x′ for rows of length one
    return (4 * rows @ rows.T - 4).exp().mean().log()


class BundleGTConfig(ViewsConfig):
    """The vector length and batch size are the published ones. The sizes of the attention are ours."""

    space = ViewsConfig.space | {
        "weight_decay": GraphConfig.space["weight_decay"],
        "augmentation": OneOf("none", "edges"),
        "attention_dim": OneOf(8, 16, 32),
        "attention_dropout": Between(0.0, 0.5),
    }

    weight_decay: float = Field(0.0, ge=0)
    ego_penalty: float = Field(0.0001, ge=0)
    attention_dim: int = Field(16, ge=1)
    """The length of queries and keys."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """The probability that a token is hidden from attention during training."""


class BundleGT(ViewsModel):
    """The sum of the scores of two views: LightGCN on the user-bundle graph, and attention over tokens.

    From the publication: items are tokens, and their vectors are propagated on the user-item graph. A
    bundle's strategy-aware vector is the result of attention over its items; a user's vector is the result of
    attention over the user's bundles and items. The user-bundle graph and the pairwise loss are also
    published. The full text was not available, so these are our choices: a bundle's query comes from its
    vector on the user-bundle graph, and a user's query from the user's vectors on both graphs; one layer, one
    head, no value matrix, no feed-forward layer; one softmax over a user's bundles and items together; a
    user's vector on the user-item graph is added to the result of attention; nodes without an edge have zero
    vectors."""

    name = "bundlegt"
    title = "BundleGT"
    publication = "Wei, Liu, Ma, Wang, Nie and Chua, Strategy-aware Bundle Recommender System, SIGIR 2023"
    config_class = BundleGTConfig
    config: BundleGTConfig

    def __init__(self, config: BundleGTConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        self.bundle_query, self.item_key, self.user_query, self.user_item_key, self.user_bundle_key = (
            nn.Linear(dim, config.attention_dim, bias=False) for _ in range(5)
        )

    def observe(self, data: Interactions) -> None:
        super().observe(data)
        bundles, items = self.sizes.bundles, self.sizes.items
        contents = data.bundle_item
        self.tokens_of_bundles = Neighbours(contents.row_of_entry(), contents.values, bundles, items)
        # A user's tokens are bundles and items. Items are numbered after the bundles.
        owners = torch.cat([data.user_bundle.row_of_entry(), data.user_item.row_of_entry()])
        owned = torch.cat([data.user_bundle.values, data.user_item.values + bundles])
        self.tokens_of_users = Neighbours(owners, owned, self.sizes.users, bundles + items)

    def propagate(self) -> tuple[Tensor, Tensor]:
        users_by_bundles, bundles = self.spread(self.user_bundle, self.users, self.bundles)
        users_by_items, items = self.spread(self.user_item, self.users, self.items)
        by_strategy = self._attended(
            self.bundle_query(bundles), self.item_key(items), items, self.tokens_of_bundles
        )
        tokens = torch.cat([by_strategy, items])
        keys = torch.cat([self.user_bundle_key(by_strategy), self.user_item_key(items)])
        queries = self.user_query(users_by_bundles + users_by_items)
        users = users_by_items + self._attended(queries, keys, tokens, self.tokens_of_users)
        # The product of the joined vectors is the sum of the two views' products.
        return torch.cat([users_by_bundles, users], dim=1), torch.cat([bundles, by_strategy], dim=1)

    def _attended(self, queries: Tensor, keys: Tensor, tokens: Tensor, near: Neighbours) -> Tensor:
        kept = None
        if self.training and self.config.attention_dropout:
            kept = torch.rand(len(near.row), device=near.row.device) >= self.config.attention_dropout
        # softmax(q · k / √a), as in a transformer
        return attend(tokens, queries / self.config.attention_dim**0.5, keys, near, kept, product=True)
