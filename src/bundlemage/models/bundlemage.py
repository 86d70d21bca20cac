"""BundleMage, as in Section "Proposed Method" of the paper. Equations go by the paper's own labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from bundlemage.errors import UnsupportedError
from bundlemage.models.base import Factors, Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.bundlemage_sampled import SampledLosses
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.premix import Mixer, PreMix, feed_forward
from bundlemage.models.ragged import Ragged
from bundlemage.models.rows import Hidden, mean_of_rows
from bundlemage.models.space import Between, OneOf, Space


class BundleMageConfig(LearnedConfig):
    """The paper's settings, but for what gets there sooner (docs/performance.md). Its ablations are settings,
    too."""

    space: ClassVar[Space] = {
        **LearnedConfig.space,
        "embedding_dim": OneOf(64, 128, 200, 300),
        "dropout": Between(0.0, 0.7),
        "mask_bundles": Between(0.1, 0.9),
    }

    learning_rate: float = Field(0.004, gt=0)
    """Adam's step size. The paper's is 0.001."""
    weight_average: float = Field(0.99, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is then what is used; 0 for none."""
    embedding_dim: int = Field(200, ge=2, multiple_of=2)
    """d, the length of every vector; even, as it is halved inside."""
    shared_fraction: float = Field(0.5, ge=0, le=1)
    """How much of an item's two embeddings is one and the same; 0 is the ablation -Sep, 1 is -Sha."""
    mixer: Mixer = "gate"
    """How item and bundle history are mixed; `average` is the ablation -Avg."""
    tasks: Literal["both", "matching", "generation"] = "both"
    """What is learned; `matching` is the ablation -Lgen, `generation` is -Lmat."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """On the user's vector z_u and on the pair's vector z_b^(u)."""
    mask_bundles: float = Field(0.5, ge=0, le=1)
    """ρ, how much of a user's bundles is hidden while they are being predicted."""
    mask_items: float = Field(0.5, ge=0, le=1)
    """ψ, how much of a bundle's items is hidden while they are being predicted."""
    masking: Literal["row", "batch"] = "batch"
    """`row` hides that share of every user and bundle, as the paper says; `batch` hides that share of
    a batch's entries wherever they fall, as the program behind the paper's tables did."""
    loss_weighting: Literal["sum", "mean"] = "sum"
    """`mean` divides by the number of a user's bundles and a bundle's items, as the equations do;
    `sum` does not, as the program behind the paper's tables did, and measures better."""

    hide_target: bool = True
    """Whether the bundle that is being completed is left out of its owner's history meanwhile, as a bundle
    that does not exist yet will be. The program behind the paper's tables left it in; hidden measures better.
    """

    popularity_bias: bool = True
    """Whether the logarithm of a bundle's sales is added to its score for everyone. It is not learned: with
    it the first epoch already ranks like popularity, and what is learned is where a user differs."""
    pairs_per_bundle: int = Field(4, ge=0)
    """How many of a bundle's users it is completed for in an epoch, drawn anew each time; 0 for all."""
    sampled_softmax: int = Field(0, ge=0)
    """How many items, or bundles, a step compares the right ones with, drawn by popularity; 0 for all. It is
    for catalogues beyond a million items: a step then touches, and remembers, only the rows it needs."""


MATCHING = Phase("matching", over="users")
GENERATION = Phase("generation", over="user_bundle")


class _Table:
    """Vectors to be looked up and multiplied with, again and again while no weight changes."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows  # [rows, d]

    @cached_property
    def columns(self) -> Tensor:
        """Laid out so, the product with one vector takes a third of the time on a CPU."""
        return self.rows.T.contiguous()  # [d, rows]

    @cached_property
    def mean(self) -> Tensor:
        return self.rows.mean(0)  # [d]


@dataclass(frozen=True)
class _Contents:
    """What is in the bundles of training, and for each item whose row is here, the bundles that hold it."""

    whole: Ragged
    graph: Bipartite

    def __deepcopy__(self, memo: object) -> _Contents:
        return self  # never changed, so a model's copy shares it


class BundleMage(Model):
    """Bundle matching and generation that share a part of the item embeddings."""

    name: ClassVar[str] = "bundlemage"
    title: ClassVar[str] = "BundleMage"
    publication: ClassVar[str] = (
        "Jeon, Jang, Kim and Kang, Accurate Bundle Matching and Generation via Multitask Learning with "
        "Partially Shared Parameters, PLoS ONE 2023"
    )
    config_class: ClassVar[type[ModelConfig]] = BundleMageConfig

    def __init__(self, config: BundleMageConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        dim = config.embedding_dim
        shared = round(dim * config.shared_fraction)
        self.item_shared = nn.Parameter(torch.empty(sizes.items, shared))
        self.item_matching = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.item_generation = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.premix = PreMix(dim, config.mixer)
        self.project_user = nn.Linear(dim, dim // 2)  # W², b²
        self.project_bundle = nn.Linear(dim, dim // 2)  # W³, b³
        self.join = feed_forward(dim)  # FNN²
        self.dropout = nn.Dropout(config.dropout)
        self.popularity: Tensor
        if config.popularity_bias:
            self.register_buffer("popularity", torch.zeros(sizes.bundles))
        self._tables: dict[str, _Table] = {}
        self._embedded: tuple[Ragged, _Table] | None = None  # bundles' contents, and their vectors
        self._contents: _Contents | None = None
        self.division: Division = ALONE
        self.register_load_state_dict_post_hook(BundleMage._forget)  # type: ignore[no-untyped-call]
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        dim = self.config.embedding_dim
        # Xavier-normal over the whole [items, d] table, though it is stored in parts.
        spread = (2.0 / (self.sizes.items + dim)) ** 0.5
        for part in (self.item_shared, self.item_matching, self.item_generation):
            part.normal_(0, spread)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias, 0, 0.001)

    @property
    def matches(self) -> bool:
        return self.config.tasks != "generation"

    @property
    def generates(self) -> bool:
        return self.config.tasks != "matching"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Each epoch first all matching batches, then all generation batches."""
        generation = replace(GENERATION, at_most=self.config.pairs_per_bundle or None)
        return (MATCHING,) * self.matches + (generation,) * self.generates

    # ── Representations ──────────────────────────────────────────────────────────────────────────

    def matching_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_matching], dim=1)  # E¹ᵀ [items, d]

    def generation_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_generation], dim=1)  # E²ᵀ [items, d]

    def bundle_embeddings(self, item_table: Tensor, contents: Ragged) -> Tensor:
        """E¹XD⁻¹: a bundle is the mean of its items; an empty one is zero."""  # [bundles, d]
        if self._contents is not None and self._contents.whole is contents:
            sums = self.division.total(self._contents.graph.sum_to_left(item_table))
            return sums / contents.lengths.clamp(min=1)[:, None]
        return contents.mean_of(item_table)

    def user_vectors(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        """Eq. gate: z_u, of p_u and q_u."""
        z: Tensor = self.dropout(self.premix(from_items, from_bundles))
        return z  # [rows, d]

    def pair_vectors(self, users: Tensor, bundles: Tensor) -> Tensor:
        """Eq. pair_rep: z_b^(u) = FNN²([W²z_u + b²; W³z_b + b³])."""
        joined = torch.cat([self.project_user(users), self.project_bundle(bundles)], dim=1)
        z: Tensor = self.dropout(self.join(joined))
        return z  # [rows, d]

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    @property
    def fixed_shapes(self) -> bool:
        return self.config.masking == "batch" and not self.config.sampled_softmax

    @property
    def touches_rows(self) -> bool:
        return bool(self.config.sampled_softmax)

    @property
    def divided_tables(self) -> tuple[str, ...]:
        return ("item_shared", "item_matching", "item_generation")

    def check_divisible(self) -> None:
        if self.config.sampled_softmax:
            raise UnsupportedError(
                "sampled_softmax is for one process: with several, each compares with its share of the whole "
                "catalogue. Set sampled_softmax=0, or use one worker"
            )

    def divide(self, division: Division) -> None:
        self.division = division
        super().divide(division)

    def observe(self, data: Interactions) -> None:
        own = self.division.own_contents(data.bundle_item)
        self._contents = _Contents(data.bundle_item, Bipartite.of(own, len(self.item_shared)))
        if self.config.popularity_bias:
            self.popularity = data.user_bundle.counts(self.sizes.bundles).to(self.item_shared.dtype).log1p()
        if self.config.sampled_softmax:
            self._of_sample = SampledLosses(self.config.sampled_softmax, self.sizes, data)

    def _hidden(self, ratio: float) -> Hidden:
        return Hidden(ratio, each_row=self.config.masking == "row")

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        if self.config.sampled_softmax:
            return self._of_sample.loss(self, phase, rows, data)
        return (
            self.matching_loss(rows, data) if phase.name == "matching" else self.generation_loss(rows, data)
        )

    def matching_loss(self, users: Tensor, data: Interactions) -> Tensor:
        """Eq. matching_loss, for a batch of users."""
        item_table = self.matching_embeddings()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        p = self.division.mean_of_items(data, users, item_table)  # Eq. item_rep: p_u = E¹v_u / ‖v_u‖₁
        # Eq. bundle_rep: q_u = E¹XD⁻¹r̈_u / ‖r̈_u‖₁
        q = mean_of_rows(data.user_bundle, users, bundle_table, self._hidden(self.config.mask_bundles))
        z = self.user_vectors(p, q)
        weights = self.matching_weights(users, data)
        bias = self.popularity if self.config.popularity_bias else None
        return self.division.loss_over_bundles(z, bundle_table, data, users, weights, bias)

    def matching_weights(self, users: Tensor, data: Interactions) -> Tensor:
        weights = torch.ones_like(users, dtype=self.item_shared.dtype)
        if self.config.loss_weighting == "mean":
            weights = weights / data.user_bundle.lengths[users].clamp(min=1)  # 1 / ‖r_u‖₁
        return weights

    def generation_loss(self, pairs: Tensor, data: Interactions) -> Tensor:
        """Eq. generation_loss, for a batch of pairs of a user and a bundle."""
        users, targets = data.user_bundle.entries(pairs)
        item_table = self.matching_embeddings()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        p = self.division.mean_of_items(data, users, item_table)
        left_out = targets if self.config.hide_target else None
        q = mean_of_rows(data.user_bundle, users, bundle_table, without=left_out)
        table = self.generation_embeddings()
        # Eq. incomplete_bundle_rep: z_b = E²ẍ_b / ‖ẍ_b‖₁
        hidden = self._hidden(self.config.mask_items)
        partial = self.division.mean_of_contents(data, targets, table, hidden)
        z = self.pair_vectors(self.user_vectors(p, q), partial)
        weights = self.generation_weights(users, targets, data)
        return self.division.loss_over_items(z, table, data, targets, users, weights)

    def generation_weights(self, users: Tensor, targets: Tensor, data: Interactions) -> Tensor:
        weights = torch.ones_like(users, dtype=self.item_shared.dtype)
        if self.config.loss_weighting == "mean":
            # A batch is of pairs and the equation's mean is over users: pairs / users evens that out.
            weights = weights * (len(data.user_bundle.values) / len(data.user_bundle))
            weights = weights / data.user_bundle.lengths[users]  # 1 / ‖r_u‖₁
            weights = weights / data.bundle_item.lengths[targets].clamp(min=1)  # 1 / ‖x_b‖₁
        return weights

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def train(self, mode: bool = True) -> BundleMage:
        self._forget()
        super().train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> BundleMage:  # moving or casting the weights
        self._forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _forget(self, *_: object) -> None:
        """Weights may change from here on. (A tensor's version does not tell: fused Adam leaves it alone.)"""
        self._tables, self._embedded = {}, None

    # What is kept is looked up once and put in place whole, so that several threads may ask.

    def _table(self, name: Literal["items", "completing items"]) -> _Table:
        """Outside training nothing changes, so a table is put together only once."""
        table = self._tables.get(name)
        if self.training or table is None:
            make = self.matching_embeddings if name == "items" else self.generation_embeddings
            table = self._tables[name] = _Table(make())
        return table

    def _bundle_table(self, contents: Ragged) -> _Table:
        kept = self._embedded
        if self.training or kept is None or kept[0] is not contents:
            rows = self.bundle_embeddings(self._table("items").rows, contents)
            kept = self._embedded = (contents, _Table(rows))
        return kept[1]

    def _bias(self, bundles: int) -> Tensor:
        """A bundle that came later has had no time to sell, so it is taken for one like the median."""
        later = bundles - len(self.popularity)
        if not later or not len(self.popularity):
            return self.popularity if not later else self.popularity.new_zeros(later)
        return torch.cat([self.popularity, self.popularity.median().expand(later)])

    def _means(self, histories: Histories, contents: Ragged) -> tuple[Tensor, Tensor]:
        """p_u and q_u."""
        p = self.division.mean_of_histories(histories, self._table("items").rows)
        return p, histories.bundles.mean_of(self._bundle_table(contents).rows)

    def _encode(self, histories: Histories, contents: Ragged) -> Tensor:
        return self.user_vectors(*self._means(histories, contents))

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        """E¹XD⁻¹, by which bundles are matched."""  # [bundles, d]
        kept = self._embedded  # a look at a few other bundles does not take the place of the shop's own
        if kept is not None and kept[0] is contents:
            return kept[1].rows
        return self.bundle_embeddings(self._table("items").rows, contents)

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        if start:  # a few that came later do not take the place of the shop's own
            later = contents.rows(torch.arange(start, len(contents), device=contents.device))
            vectors = self.vectors_of_bundles(later)
        else:
            vectors = self._bundle_table(contents).rows
        if not self.config.popularity_bias:
            return Factors(vectors, vectors.new_zeros(len(vectors)))
        return Factors(vectors, self._bias(len(contents))[start:])

    def factors_of_people(self, histories: Histories, contents: Ragged) -> Tensor:
        kept = self._embedded
        if kept is not None and kept[0] is contents:
            return self._encode(histories, contents)
        # Of contents that a question brought along, only the bundles that somebody has are embedded.
        held, places = torch.unique(histories.bundles.values, return_inverse=True)
        p = self.division.mean_of_histories(histories, self._table("items").rows)
        q = Ragged(places, histories.bundles.offsets).mean_of(self.vectors_of_bundles(contents.rows(held)))
        return self.user_vectors(p, q)

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """The mean of g_u over its dimensions."""  # [rows]
        return self.premix.gate(*self._means(histories, contents)).mean(1)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Eq. matching_prob before its softmax: (E¹XD⁻¹)ᵀz_u."""
        z, table = self._encode(histories, contents), self._bundle_table(contents).columns
        if not self.config.popularity_bias:
            return z @ table  # [rows, bundles]
        return torch.addmm(self._bias(table.shape[1]), z, table)

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """As `score_bundles`, with only the new ones embedded."""  # [rows, new]
        scores = self._encode(histories, contents) @ new.mean_of(self._table("items").rows).T
        if not self.config.popularity_bias:
            return scores
        return scores + self._bias(len(contents) + len(new))[len(contents) :]

    def encoded(self, people: Histories, contents: Ragged) -> Tensor:
        return self._encode(people, contents)  # z_u [people, d]

    def bundle_fit(
        self, people: Tensor, which: Tensor, bundles: Tensor, contents: Ragged, among: int
    ) -> Tensor:
        z, table = people[which], self._bundle_table(contents)
        mean = table.mean if among == len(table.rows) else table.rows[:among].mean(0)
        fit = (z * (table.rows[bundles] - mean)).sum(1)  # [rows]
        if not self.config.popularity_bias:
            return fit
        bias = self._bias(len(contents))
        return fit + bias[bundles] - bias[:among].mean()

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Eq. reconstruction before its softmax: E²ᵀz_b^(u)."""
        table = self._table("completing items")
        z = self.pair_vectors(self._encode(histories, contents), partial.mean_of(table.rows))
        return z @ table.columns  # [rows, items]

    def item_fit(
        self, people: Tensor, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        table = self._table("completing items")
        z = self.pair_vectors(people[which], partial.mean_of(table.rows))
        return (z * (table.rows[items] - table.mean)).sum(1)  # [rows]

    def vectors_of_items(self) -> Tensor:
        """E², by which bundles are completed."""  # [items, d]
        return self._table("completing items").rows
