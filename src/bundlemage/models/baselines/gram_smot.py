"""GRAM-SMOT: graph attention over users, items and bundles. Scores are negative squared distances."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bundlemage.errors import ConfigError
from bundlemage.models.base import Completer, Histories, Interactions, Learner, Matcher, Model, Phase, Sizes
from bundlemage.models.baselines.factors import random_vectors
from bundlemage.models.config import Between, LearnedConfig, OneOf
from bundlemage.models.losses import Negatives, multinomial_loss
from bundlemage.models.neighbours import Neighbours, attend
from bundlemage.models.ragged import Ragged

TRAINING = Phase("nearness", over="users")
USERS, ITEMS, BUNDLES = KINDS = range(3)


class GramSmotConfig(LearnedConfig):
    """The published design. Settings that we added are marked (ours)."""

    space = LearnedConfig.space | {
        "embedding_dim": OneOf(64, 128, 200),
        "dropout": Between(0.0, 0.8),
        "hide_bundles": Between(0.1, 0.9),
    }

    embedding_dim: int = Field(200, ge=1)
    """d: the length of every vector. It must be a multiple of `heads`."""
    layers: int = Field(1, ge=1, le=32)
    """The number of attention layers."""
    heads: int = Field(1, ge=1)
    """The number of attention heads. Each head uses its own part of the dimensions."""
    user_embedding: bool = True
    """Whether users have learned vectors. If not, the first layer computes a user's vector only from the
    user's neighbours, and no node attends to users in that layer (ours)."""
    residual: bool = True
    """Whether a node's vector is added to the result of attention (ours)."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """The dropout rate on the input of the first layer and the output of the last layer."""
    edge_dropout: float = Field(0.2, ge=0, lt=1)
    """The share of user-item and bundle-item pairs whose edges are hidden in a training step."""
    hide_bundles: float = Field(0.5, ge=0, lt=1)
    """The share of user-bundle pairs whose edges are hidden in a training step. A visible edge would reveal
    the bundle that the model must predict."""
    loss: Literal["hinge", "softmax"] = "softmax"
    """`hinge`: the published loss, with sampled negatives. `softmax` (ours): compares each positive with all
    bundles, or items, by the same distance."""
    margin: float = Field(0.5, gt=0)
    """`hinge`: how much larger the squared distance of a negative must be than that of a positive."""
    negatives: int = Field(50, ge=1)
    """`hinge`: the number of negatives drawn for each positive."""
    rank_weights: bool = True
    """`hinge`: whether a positive is weighted by the logarithm of its estimated rank, as in collaborative
    metric learning."""
    unit_ball: bool = False
    """Whether vectors longer than 1 are scaled to length 1, as in collaborative metric learning."""
    sharpness: float = Field(1.0, gt=0)
    """The factor for squared distances (at most 4 with `unit_ball`) in losses and bundle scores."""
    bundle_bias: bool = True
    """Whether each bundle has a bias. Its initial value is log(1 + sales) (ours)."""
    item_weight: float = Field(0.1, ge=0)
    """The weight of the loss over user-item pairs. With 0 the model cannot complete bundles."""
    diversity: float = Field(0.0, ge=0)
    """Generation: the weight of the penalty for an item's similarity to the items in the bundle."""


class Graph:
    """The edges between all nodes. Users are numbered first, then items, then bundles. A node has an edge to
    itself. With `from_users=False` no node attends to users."""

    def __init__(self, data: Interactions, sizes: Sizes, from_users: bool = True) -> None:
        counts = (sizes.users, sizes.items, sizes.bundles)
        self.first = (0, sizes.users, sizes.users + sizes.items)
        nodes = sum(counts)
        device = data.user_item.device
        relations = (
            (USERS, BUNDLES, data.user_bundle),
            (USERS, ITEMS, data.user_item),
            (BUNDLES, ITEMS, data.bundle_item),
        )
        self.bundle_pairs, self.pairs = len(data.user_bundle.values), 0
        parts: list[list[tuple[Tensor, Tensor, Tensor]]] = [[], [], []]
        for left, right, matrix in relations:
            row, column = matrix.row_of_entry(), matrix.values
            pair = torch.arange(self.pairs, self.pairs + len(row), device=device)
            self.pairs += len(row)
            parts[left].append((row, column + self.first[right], pair))
            if from_users or left != USERS:
                parts[right].append((column, row + self.first[left], pair))
        for kind in KINDS:
            itself = torch.arange(counts[kind], device=device)
            never_hidden = torch.full_like(itself, self.pairs)
            if from_users or kind != USERS:
                parts[kind].append((itself, itself + self.first[kind], never_hidden))
        self.near = []
        for kind in KINDS:
            rows, values, pairs = (torch.cat(part) for part in zip(*parts[kind], strict=True))
            self.near.append(Neighbours(rows, values, counts[kind], nodes, pairs))

    def hide(self, bundles: float, others: float) -> Tensor:
        """Draws which pairs are visible in a step. The last entry, for self-edges, is True."""  # [pairs + 1]
        kept = torch.rand(self.pairs + 1, device=self.near[USERS].row.device)
        kept[: self.bundle_pairs] -= bundles
        kept[self.bundle_pairs : self.pairs] -= others
        return kept >= 0


class AttentionLayer(nn.Module):
    """A layer of graph attention for nodes of three kinds. Each node has one softmax over all its neighbours.
    Each pair of node kind and neighbour kind has its own matrix W and its own bias of attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Parameter(torch.empty(3, 3, dim, dim))  # W, by kind of node and of neighbour
        self.ask = nn.Parameter(torch.empty(3, heads, dim // heads))  # the first half of the vector a
        self.offer = nn.Parameter(torch.empty(3, heads, dim // heads))  # the second half of the vector a
        self.offer_bias = nn.Parameter(torch.zeros(3, 3, heads))
        for weights in (self.project, self.ask, self.offer):
            for part in weights.flatten(0, -3):
                nn.init.xavier_uniform_(part)

    def forward(
        self, tables: list[Tensor], graph: Graph, kept: Tensor | None, kinds: tuple[int, ...]
    ) -> list[Tensor]:
        """Returns new vectors of nodes of `kinds`. The vectors of other nodes stay unchanged."""
        updated = list(tables)
        for kind in kinds:
            parts = [table @ self.project[kind, other] for other, table in enumerate(tables)]  # W h_j
            offered = [self._scores(part, self.offer[kind]) for part in parts]
            offered = [score + self.offer_bias[kind, other] for other, score in enumerate(offered)]
            query = self._scores(parts[kind], self.ask[kind])
            near = graph.near[kind]
            seen = None if kept is None else kept[near.pair]
            updated[kind] = attend(torch.cat(parts), query, torch.cat(offered), near, seen)
        return updated

    def _scores(self, table: Tensor, direction: Tensor) -> Tensor:
        return torch.einsum("nhd,hd->nh", table.view(len(table), self.heads, -1), direction)


class GramSmot(Matcher, Completer, Learner):
    """Moves users near the bundles and items that they take. Attention computes each node's final vector, its
    place, from its neighbours.

    From the publication: the graph of three kinds of nodes and three kinds of edges, graph attention,
    squared Euclidean distance instead of a product, a ranking loss over user-bundle and user-item pairs,
    greedy generation. Our choices: a matrix for each kind of node; one softmax over neighbours of all kinds;
    where residuals, dropout and ELU are applied; hidden edges; the softmax loss; the bundle bias; and the
    submodular term of generation, a graph cut. The value of a bundle is the nearness of its items to the
    user, minus `diversity` × (1 + cosine) / 2 for each pair of its items.
    """

    name = "gram-smot"
    title = "GRAM-SMOT"
    publication = (
        "Vijaikumar, Shevade and Murty, GRAM-SMOT: Top-N Personalized Bundle Recommendation via Graph "
        "Attention Networks and Submodular Optimization, ECML PKDD 2020"
    )
    config_class = GramSmotConfig
    knows_new_users = False
    config: GramSmotConfig
    phases = (TRAINING,)

    def __init__(self, config: GramSmotConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        if dim % config.heads:
            raise ConfigError(
                f"setting 'embedding_dim' is {dim} and 'heads' is {config.heads}: "
                "the first must be a multiple of the second"
            )
        self.user_vectors = random_vectors(sizes.users, dim, 0.1) if config.user_embedding else None
        self.item_vectors = random_vectors(sizes.items, dim, 0.1)
        self.bundle_vectors = random_vectors(sizes.bundles, dim, 0.1)
        self.attention = nn.ModuleList(AttentionLayer(dim, config.heads) for _ in range(config.layers))
        self.bias = nn.Parameter(torch.zeros(sizes.bundles)) if config.bundle_bias else None
        self.dropout = nn.Dropout(config.dropout)
        self.log_sales = self.new_buffer("log_sales", torch.zeros(sizes.bundles))
        self.user_places = self.new_buffer("user_places", torch.zeros(sizes.users, dim))
        self.item_places = self.new_buffer("item_places", torch.zeros(sizes.items, dim))
        self.bundle_places = self.new_buffer("bundle_places", torch.zeros(sizes.bundles, dim))

    def does(self, kind: type[Model]) -> bool:
        return kind is not Completer or self.config.item_weight > 0

    def observe(self, data: Interactions) -> None:
        config = self.config
        whole = Graph(data, self.sizes) if config.user_embedding or config.layers > 1 else None
        # If users have no learned vectors, no node attends to users in the first layer.
        begin = whole if whole and config.user_embedding else Graph(data, self.sizes, from_users=False)
        self.graphs = [begin] + [whole or begin] * (config.layers - 1)
        self.not_owned = Negatives(data.user_bundle, self.sizes.bundles)
        self.items_not_owned = Negatives(data.user_item, self.sizes.items)
        if config.bundle_bias:
            self.log_sales.copy_(data.user_bundle.counts(self.sizes.bundles).log1p())

    def places(self, kinds: tuple[int, ...] = (USERS, ITEMS, BUNDLES)) -> list[Tensor]:
        """Returns the places of users, items and bundles with the current weights.

        The last layer computes only the places of `kinds`.
        """
        config = self.config
        if self.user_vectors is None:
            users = self.item_vectors.new_zeros(self.sizes.users, config.embedding_dim)
        else:
            users = self.dropout(self.user_vectors)
        tables = [users, self.dropout(self.item_vectors), self.dropout(self.bundle_vectors)]
        # Every layer hides the same pairs. Otherwise another layer would reveal a hidden pair.
        kept = self.graphs[0].hide(config.hide_bundles, config.edge_dropout) if self.training else None
        for number, layer in enumerate(self.attention):
            last = number + 1 == len(self.attention)
            updated = layer(tables, self.graphs[number], kept, kinds if last else (USERS, ITEMS, BUNDLES))
            if not last:
                updated = [F.elu(table) for table in updated]
            if config.residual:
                updated = [
                    new + old if new is not old else old for new, old in zip(updated, tables, strict=True)
                ]
            tables = updated
        if config.unit_ball:
            tables = [table / table.norm(dim=1, keepdim=True).clamp(min=1) for table in tables]
        return tables

    def biases(self) -> Tensor:
        """Returns the part of each bundle's score that is the same for every user."""  # [bundles]
        return self.log_sales if self.bias is None else self.log_sales + self.bias

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        completes = self.does(Completer)
        kinds = (USERS, ITEMS, BUNDLES) if completes else (USERS, BUNDLES)
        users, items, bundles = self.places(kinds)
        users = self.dropout(users.index_select(0, rows))
        total = self._ranking(
            users, rows, bundles, self.biases(), data.user_bundle.rows(rows), self.not_owned
        )
        if completes:
            taken = data.user_item.rows(rows)
            no_bias = items.new_zeros(len(items))
            by_items = self._ranking(users, rows, items, no_bias, taken, self.items_not_owned)
            total = total + self.config.item_weight * by_items
        return total

    def _ranking(
        self, users: Tensor, rows: Tensor, table: Tensor, bias: Tensor, taken: Ragged, others: Negatives
    ) -> Tensor:
        config = self.config
        if config.loss == "softmax":
            return softmax_loss(users, table, bias, taken, config.sharpness)
        which = taken.row_of_entry()
        wrong = others.draw(rows[which], config.negatives)  # [positives, negatives]
        # Compute all distances at once: the vectors of all negatives would need many times the memory.
        near = (bias + config.sharpness * nearness(users, table)).flatten()
        begin = which * len(table)
        near_right, near_wrong = near[begin + taken.values], near[begin[:, None] + wrong]
        total = hinge_loss(near_right, near_wrong, config.margin, len(table), config.rank_weights)
        return total / max(1, len(rows))

    def settle(self, data: Interactions) -> None:
        was_training = self.training
        self.eval()
        self.user_places, self.item_places, self.bundle_places = self.places()
        self.train(was_training)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        near = self.config.sharpness * nearness(
            self.user_places[self.known_users(histories)], self.bundle_places
        )
        return self.with_later(near + self.biases(), contents)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        near = nearness(self.user_places[self.known_users(histories)], self.item_places)  # [rows, items]
        if self.config.diversity:
            directions = F.normalize(self.item_places, dim=1)
            alike = partial.sum_of(directions) @ directions.T + partial.lengths[:, None]
            near = near - self.config.diversity * alike / 2
        return near


def nearness(places: Tensor, table: Tensor) -> Tensor:
    """Returns −‖u − v‖² for every place u and every row v of the table."""  # [places, rows]
    squares = places.square().sum(1)[:, None] + table.square().sum(1)
    return 2 * places @ table.T - squares


def softmax_loss(places: Tensor, table: Tensor, bias: Tensor, taken: Ragged, sharpness: float) -> Tensor:
    """Cross-entropy of logits bias − sharpness · ‖u − v‖²: a sum over positives, a mean over rows."""
    # ‖u‖² is the same for all v and can be left out. The rest is [2su, 1] · [v, β − s‖v‖²].
    level = bias - sharpness * table.square().sum(1)
    left = torch.cat([2 * sharpness * places, torch.ones_like(places[:, :1])], dim=1)
    right = torch.cat([table, level[:, None]], dim=1)
    return multinomial_loss(left, right, taken, torch.ones_like(places[:, 0]))


def hinge_loss(
    right: Tensor, wrong: Tensor, margin: float, catalogue: int, rank_weights: bool = True
) -> Tensor:
    """Returns Σ w · mean [margin + wrong − right]₊: a mean over a positive's negatives, a sum over positives.

    w is log(1 + rank). The rank is estimated from the share of negatives that are too near (Hsieh et al.,
    Collaborative Metric Learning, WWW 2017). Without `rank_weights` w is 1.
    """
    violation = F.relu(margin + wrong - right[:, None])  # [positives, negatives]
    if not rank_weights:
        return violation.mean(1).sum()
    rank = (violation.detach() > 0).to(violation.dtype).mean(1) * catalogue
    return (rank.log1p() * violation.mean(1)).sum()
