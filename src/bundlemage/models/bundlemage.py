"""BundleMage, as in Section "Proposed Method" of the paper. Names of equations are the paper's labels.

The settings under "How scores are formed" in config.py go beyond the paper: cosines with a temperature,
popularity as a term of the score, residual layers. The recipe `youshu/bundlemage-paper` switches them off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import UnsupportedError
from bundlemage.models.base import (
    Completer,
    ContentLearner,
    Divisible,
    Embedder,
    Factors,
    Gated,
    Histories,
    Indexable,
    Interactions,
    Matcher,
    Model,
    Phase,
    SalesScorer,
    Sizes,
)
from bundlemage.models.config import BundleMageConfig, Mixer
from bundlemage.models.content import ContentMap
from bundlemage.models.division import LossRows
from bundlemage.models.losses import Prior, fitted_weight
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import Contents, Hidden, Ragged, at_least, mean_of_rows
from bundlemage.models.sampled import SampledLosses

MATCHING = Phase("matching", over="users")
GENERATION = Phase("generation", over="user_bundle", learns_contents=True)
COMPLETIONS = Phase("generation", over="completions", learns_contents=True)
Task = Literal["matching", "generation"]

MOST_CHANGED = 0.25
"""If a larger share of the bundles has changed, all bundles are embedded again."""
MERGED_ROWS = 1000
"""`BundleMage.merge_changes` makes a new table if more rows than this have changed."""
SNAPSHOTS_KEPT = 3
"""Number of tables to keep of a shop whose bundles change: a long request may still use an earlier one."""


def feed_forward(dim: int) -> nn.Sequential:
    """FNN: ℝᵈ → ℝᵈᐟ² → ℝᵈ. A ReLU follows the first layer, but not the second."""
    return nn.Sequential(nn.Linear(dim, dim // 2), nn.ReLU(), nn.Linear(dim // 2, dim))


class PreMix(nn.Module):
    """Eq. gate: g_u = σ(W¹[p_u; q_u] + b¹), z_u = FNN¹(g_u ⊙ p_u + (1 − g_u) ⊙ q_u).

    It computes a weighted mean of two vectors, with a weight for each dimension, and applies a feed-forward
    network. In the paper it mixes a user's item history and bundle history. With `pair_mixer="gate"` the same
    layer also mixes a user with an incomplete bundle. With `residual` the mix is added to the output of FNN¹.
    """

    def __init__(self, dim: int, mixer: Mixer, residual: bool = False) -> None:
        super().__init__()
        self.weigh = nn.Linear(2 * dim, dim) if mixer == "gate" else None  # W¹, b¹
        self.transform = feed_forward(dim)  # FNN¹
        self.residual = residual

    def gate(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        """The weight of the first vector in each dimension. The second has one minus this weight."""
        if self.weigh is None:  # the ablation "-Avg"
            return torch.full_like(from_items, 0.5)
        return torch.sigmoid(self.weigh(torch.cat([from_items, from_bundles], dim=1)))  # g_u [rows, d]

    def forward(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        gate = self.gate(from_items, from_bundles)
        mix = gate * from_items + (1 - gate) * from_bundles
        z: Tensor = self.transform(mix)  # z_u [rows, d]
        return mix + z if self.residual else z


class VectorTable:
    """Vectors for scoring, in the layouts that products need."""

    def __init__(self, rows: Tensor, cosine: bool, stamps: Tensor | None = None) -> None:
        """`stamps` are those of the bundles (see `Contents`). Only a table with stamps can be the base of a
        `ChangedTable`."""
        self.rows = rows  # [rows, d]
        self.cosine, self.stamps = cosine, stamps

    @cached_property
    def factors(self) -> Tensor:
        """The vectors as used in scores: scaled to length one if scores are cosines."""
        return F.normalize(self.rows, dim=1) if self.cosine else self.rows  # [rows, d]

    @cached_property
    def columns(self) -> Tensor:
        """`factors`, transposed. A product with one vector then takes a third of the time on a CPU."""
        return self.factors.T.contiguous()  # [d, rows]

    @cached_property
    def mean(self) -> Tensor:
        return self.factors.mean(0)  # [d]

    def scores(self, z: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the product of each vector in `z` with each of `factors`, plus the bias."""
        return z @ self.columns if bias is None else torch.addmm(bias, z, self.columns)  # [z, rows]

    def rows_at(self, index: Tensor) -> Tensor:
        return self.rows[index]

    def factors_at(self, index: Tensor) -> Tensor:
        return self.factors[index]

    def mean_of(self, ragged: Ragged) -> Tensor:
        """`Ragged.mean_of` for the rows of this table."""
        return ragged.mean_of(self.rows)


class ChangedTable(VectorTable):
    """A table that differs from another one in a few rows. Those are stored here, and the others are shared.

    `factors` and `columns` are computed for all rows if they are asked for, but scores do not need them.
    """

    def __init__(
        self, base: VectorTable, places: Tensor, changed: Tensor, size: int, stamps: Tensor | None = None
    ) -> None:
        """`changed` has the vectors of the rows at `places`, which are in ascending order. The table has
        `size` rows."""
        self.base, self.places, self.changed = base, places, VectorTable(changed, base.cosine)
        self.cosine, self.stamps, self.size = base.cosine, stamps, size
        self.shared = min(len(base.rows), self.size)  # `places` may be among these rows

    @cached_property
    def rows(self) -> Tensor:  # type: ignore[override]
        rows = self.base.rows.new_empty(self.size, self.base.rows.shape[1])
        rows[: self.shared] = self.base.rows[: self.shared]
        rows[self.places] = self.changed.rows
        return rows

    @cached_property
    def mean(self) -> Tensor:
        total, base = self.base.mean * len(self.base.rows), self.base.factors
        gone = base[self.shared :].sum(0) + base[self.places[self.places < self.shared]].sum(0)
        return (total - gone + self.changed.factors.sum(0)) / self.size

    def scores(self, z: Tensor, bias: Tensor | None) -> Tensor:
        bias = z.new_zeros(self.size) if bias is None else bias
        scores, shared = z.new_empty(len(z), self.size), slice(self.shared)
        torch.addmm(bias[shared], z, self.base.columns[:, shared], out=scores[:, shared])
        scores[:, self.places] = self.changed.scores(z, bias[self.places])
        return scores

    def rows_at(self, index: Tensor) -> Tensor:
        rows = self.base.rows[index.clamp(max=len(self.base.rows) - 1)]
        if len(self.places):
            nearest = torch.searchsorted(self.places, index).clamp(max=len(self.places) - 1)
            here = self.places[nearest] == index
            rows[here] = self.changed.rows[nearest[here]]
        return rows

    def factors_at(self, index: Tensor) -> Tensor:
        rows = self.rows_at(index)
        return F.normalize(rows, dim=1) if self.cosine else rows

    def mean_of(self, ragged: Ragged) -> Tensor:
        used, places = torch.unique(ragged.values, return_inverse=True)
        return ragged.with_values(places).mean_of(self.rows_at(used))


def table_after(
    before: VectorTable, contents: Contents, embed: Callable[[Ragged], Tensor]
) -> VectorTable | None:
    """Returns the table of other contents, and embeds only rows that `before` does not have. Returns None if
    too many rows differ."""
    stamps, base = contents.stamps, before.base if isinstance(before, ChangedTable) else before
    if stamps is None or before.stamps is None or base.stamps is None:
        return None
    places = _different(base.stamps, stamps).nonzero()[:, 0]
    if len(places) > len(stamps) * MOST_CHANGED:
        return None
    is_new = _different(before.stamps, stamps)[places]
    rows = base.rows.new_empty(len(places), base.rows.shape[1])
    rows[~is_new] = before.rows_at(places[~is_new])
    rows[is_new] = embed(contents.rows(places[is_new]))
    return ChangedTable(base, places, rows, len(stamps), stamps)


def _different(before: Tensor, after: Tensor) -> Tensor:
    """True for each entry of `after` that is not the same in `before`."""
    both = min(len(before), len(after))
    different = torch.ones_like(after, dtype=torch.bool)
    different[:both] = before[:both] != after[:both]
    return different


class BundleMage(Completer, Divisible, Indexable, SalesScorer, Embedder, Gated, ContentLearner):
    """Bundle matching and generation that share a part of the item embeddings."""

    name = "bundlemage"
    title = "BundleMage"
    publication = (
        "Jeon, Jang, Kim and Kang, Accurate Bundle Matching and Generation via Multitask Learning with "
        "Partially Shared Parameters, PLoS ONE 2023"
    )
    config_class = BundleMageConfig
    config: BundleMageConfig
    reads_weights = True
    divided_tables = ("item_shared", "item_matching", "item_generation")

    def __init__(self, config: BundleMageConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        dim = config.embedding_dim
        shared = round(dim * config.shared_fraction)
        self.item_shared = nn.Parameter(torch.empty(sizes.items, shared))
        self.item_matching = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.item_generation = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.premix = PreMix(dim, config.mixer, config.residual)
        if config.pair_mixer == "join":
            self.project_user = nn.Linear(dim, dim // 2)  # W², b²
            self.project_bundle = nn.Linear(dim, dim // 2)  # W³, b³
            self.join = feed_forward(dim)  # FNN²
        else:
            self.carry_user = nn.Linear(dim, dim)  # maps z_u to the space of E²
            self.pair_mix = PreMix(dim, "gate", config.residual)
        self.dropout = nn.Dropout(config.dropout)
        # Its name puts its map beside the item tables in a saved model, so that they are aligned alike.
        self.item_features = ContentMap(sizes.items, shared + 2 * (dim - shared))
        # The vectors of items that came after training, by `item_features`.
        self._later_items: Tensor | None = None  # [later, width of the three tables]
        # Log-temperatures and popularity weights: first for matching, then for generation.
        self.log_temperatures: Tensor
        # Without a device, it would be lost if the model is built without memory to be loaded.
        temperatures = torch.tensor([config.temperature, config.generation_temperature], device="cpu").log()
        if config.learn_temperature:
            self.register_parameter("log_temperatures", nn.Parameter(temperatures))
        else:
            self.register_buffer("log_temperatures", temperatures, persistent=False)
        self.popularity_weights = self.new_buffer("popularity_weights", torch.zeros(2))
        self.sales = self.new_buffer("sales", torch.zeros(sizes.bundles))
        self.item_counts = self.new_buffer("item_counts", torch.zeros(sizes.items))  # bundles with the item
        # The number of sales that is assumed for a new bundle.
        self.new_bundle_credit = self.new_buffer("new_bundle_credit", torch.zeros(()))
        # With `propagation`: E¹ after the last epoch.
        self.spread_items = self.new_buffer("spread_items", torch.zeros(0, dim))
        # The items of the training bundles, and the graph between these bundles and this process's items.
        self._contents: tuple[Ragged, Bipartite] | None = None
        # Tables for scoring, and the objects that they were made from. Several threads may use a model: a
        # table never changes, it is only replaced by another one.
        self._tables: dict[str, tuple[object, VectorTable]] = {}
        self._snapshots: tuple[VectorTable, ...] = ()  # of bundles with stamps, the latest first
        self.register_load_state_dict_post_hook(BundleMage.forget_tables)  # type: ignore[no-untyped-call]
        # In training: the part of the scores that is the same for every user (popularity).
        self.bundle_prior: Prior | None = None
        self.item_prior: Prior | None = None
        # Xavier's standard deviation for the whole [items, d] table. The table is stored in parts.
        spread = config.initial_spread or (2.0 / (sizes.items + dim)) ** 0.5
        for part in (self.item_shared, self.item_matching, self.item_generation):
            nn.init.normal_(part, 0, spread)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias, 0, 0.001)

    def does(self, kind: type[Model]) -> bool:
        if kind is SalesScorer and not self.config.popularity_weight:
            return False
        if kind is ContentLearner:  # with propagation, an item's vector depends on its bundles in training
            return self.config.content and not self.config.propagation
        if issubclass(kind, Matcher):
            return self.config.tasks != "generation"
        return kind is not Completer or self.config.tasks != "matching"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In each epoch all matching batches come first, then all generation batches."""
        pairs = COMPLETIONS if self.config.every_bundle else GENERATION
        generation = replace(pairs, at_most=self.config.pairs_per_bundle or None)
        return (MATCHING,) * self.does(Matcher) + (generation,) * self.does(Completer)

    # ── Representations ──────────────────────────────────────────────────────────────────────────

    def matching_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_matching], dim=1)  # E¹ᵀ [items, d]

    def generation_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_generation], dim=1)  # E²ᵀ [items, d]

    def bundle_embeddings(self, item_table: Tensor, contents: Ragged) -> Tensor:
        """E¹XD⁻¹: the mean of each bundle's items. An empty bundle gets zeros."""  # [bundles, d]
        if self._contents is not None and self._contents[0] is contents:
            sums = self.division.total(self._contents[1].sum_to_left(item_table))
            return sums / contents.lengths.clamp(min=1)[:, None]
        return contents.mean_of(item_table)

    def matching_table(self) -> Tensor:
        """E¹. With `propagation`, items are averaged over their training bundles."""  # [items, d]
        table = self.matching_embeddings()
        if self.config.propagation:
            assert self._contents is not None
            graph, layer, total = self._contents[1], table, table
            for _ in range(self.config.propagation):
                layer = graph.mean_to_right(graph.mean_to_left(layer))
                total = total + layer
            table = total / (1 + self.config.propagation)
        return table

    def user_vectors(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        """Eq. gate: z_u from p_u and q_u."""
        z: Tensor = self.dropout(self.premix(from_items, from_bundles))
        return z  # [rows, d]

    def pair_vectors(self, users: Tensor, bundles: Tensor) -> Tensor:
        """Eq. pair_rep: z_b^(u) = FNN²([W²z_u + b²; W³z_b + b³]), or `PreMix` with a gate."""
        if self.config.pair_mixer == "join":
            joined = torch.cat([self.project_user(users), self.project_bundle(bundles)], dim=1)
            z: Tensor = self.join(joined)
            z = joined + z if self.config.residual else z
        else:
            z = self.pair_mix(self.carry_user(users), bundles)
        dropped: Tensor = self.dropout(z)
        return dropped  # [rows, d]

    # ── Scores: cosine / temperature + weight · popularity, or the paper's inner product ─────────

    @property
    def cosine(self) -> bool:
        return self.config.scores == "cosine"

    def query(self, z: Tensor, task: Task) -> Tensor:
        """Scales user vectors: their products with `factors` are the scores without the bias."""  # [rows, d]
        if not self.cosine:
            return z
        return F.normalize(z, dim=1) * (-self.log_temperatures[int(task == "generation")]).exp()

    def factors(self, table: Tensor) -> Tensor:
        return F.normalize(table, dim=1) if self.cosine else table  # [rows, d]

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    @property
    def fixed_shapes(self) -> bool:
        return self.config.masking == "batch" and not self.config.sampled_softmax

    @property
    def touches_rows(self) -> bool:
        return bool(self.config.sampled_softmax)

    def check_divisible(self) -> None:
        for setting in ("sampled_softmax", "propagation"):
            if getattr(self.config, setting):
                raise UnsupportedError(
                    f"{setting} needs a single process: set {setting}=0, or use one worker"
                )

    def observe(self, data: Interactions) -> None:
        contents = self.division.own_contents(data.bundle_item)
        self._contents = (data.bundle_item, Bipartite.of(contents, len(self.item_shared)))
        kind = self.item_shared.dtype
        self.sales = data.user_bundle.column_sums(self.sizes.bundles).to(kind)
        own: Tensor | float = 1  # what a sale adds to the sales
        if data.user_bundle.weights is not None:  # its weight differs; the bundle's mean stands for it
            own = self.sales / data.user_bundle.counts(self.sizes.bundles).clamp(min=1)
        self.item_counts = data.learned_contents().counts(self.sizes.items).to(kind)
        of_bundles, of_items = self.config.popularity_weight, self.config.item_popularity_weight
        weights = [of_bundles, of_items]
        if self.config.fit_popularity:
            weights = [
                of_bundles * fitted_weight(self.sales, own),
                of_items * fitted_weight(self.item_counts),
            ]
        self.popularity_weights = torch.tensor(weights, dtype=kind, device=self.sales.device)
        own_counts = self.division.own_items(self.item_counts)
        of_sales = Prior.of_counts(self.sales, self.popularity_weights[0], own)
        self.bundle_prior = of_sales if of_bundles else None
        self.item_prior = Prior.of_counts(own_counts, self.popularity_weights[1]) if of_items else None
        assumed = self.config.new_bundle_credit
        if not isinstance(assumed, str):
            self.assume_sales(assumed)
        elif len(self.sales):  # the median, until a number is fitted
            self.assume_sales(float(self.sales.median()))
        if self.config.sampled_softmax:
            self._of_sample = SampledLosses(self.config.sampled_softmax, self.sizes, data)

    def _hidden(self, ratio: float) -> Hidden:
        return Hidden(ratio, each_row=self.config.masking == "row")

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        if self.config.sampled_softmax:
            return self._of_sample.loss(self, phase, rows, data)
        loss = self.matching_loss if phase.name == "matching" else self.generation_loss
        return loss(rows, data)

    def matching_loss(self, users: Tensor, data: Interactions) -> Tensor:
        """Eq. matching_loss, for a batch of users."""
        item_table = self.matching_table()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        # Eq. item_rep: p_u = E¹v_u / ‖v_u‖₁
        p = self.division.mean_of_items(data, users, item_table, Hidden(self.config.item_dropout))
        # Eq. bundle_rep: q_u = E¹XD⁻¹r̈_u / ‖r̈_u‖₁
        q, _ = mean_of_rows(data.user_bundle, users, bundle_table, self._hidden(self.config.mask_bundles))
        z = self.query(self.user_vectors(p, q), "matching")
        rows = LossRows(z, users, self.row_weights(users, data), data.user_bundle, users)
        return self.division.loss_over("bundles", rows, self.factors(bundle_table), self.bundle_prior)

    def generation_loss(self, pairs: Tensor, data: Interactions) -> Tensor:
        """Eq. generation_loss, for a batch of pairs of a user and a bundle."""
        users, targets = data.completion(pairs)
        data = data.with_nobody
        item_table = self.matching_table()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        p = self.division.mean_of_items(data, users, item_table, Hidden(self.config.item_dropout))
        without = targets if self.config.hide_target else None
        q, _ = mean_of_rows(data.user_bundle, users, bundle_table, without=without)
        table = self.generation_embeddings()
        # Eq. incomplete_bundle_rep: z_b = E²ẍ_b / ‖ẍ_b‖₁
        partial = self.division.mean_of_contents(data, targets, table, self._hidden(self.config.mask_items))
        z = self.query(self.pair_vectors(self.user_vectors(p, q), partial), "generation")
        rows = LossRows(z, users, self.row_weights(users, data, targets, pairs), data.bundle_item, targets)
        return self.division.loss_over("items", rows, self.factors(table), self.item_prior)

    def row_weights(
        self,
        users: Tensor,
        data: Interactions,
        targets: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """The weight of each row of a loss. A row is a user; in generation, a user and a target bundle, and
        `pairs` are the rows of the phase, which may have weights of their own."""
        weight = 1.0 if targets is None else self.config.generation_weight
        weights = torch.full_like(users, weight, dtype=self.item_shared.dtype)
        if self.config.loss_weighting == "mean":
            if targets is not None:
                # The equation averages over users, but a batch holds pairs: multiply by pairs / users.
                weights = weights * (len(data.user_bundle.values) / self.sizes.users)
            weights = weights / at_least(data.user_bundle.row_sums()[users])  # 1 / ‖r_u‖₁
            if targets is not None:
                weights = weights / data.bundle_item.lengths[targets].clamp(min=1)  # 1 / ‖x_b‖₁
        own = None if pairs is None else data.pair_weights(pairs)
        return weights if own is None else weights * own

    # ── Items known by their content ─────────────────────────────────────────────────────────────

    @property
    def _item_parts(self) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
        return self.item_shared, self.item_matching, self.item_generation

    @property
    def assumed_item_count(self) -> Tensor:
        """The number of bundles that is assumed for an item that nobody has seen: the median."""
        known = self.item_counts[: len(self.item_shared)]
        return known[known > 0].median() if bool((known > 0).any()) else known.new_zeros(())

    def learn_content(self, items: pa.Table, train: BundleDataset) -> None:
        in_bundles, with_users = (
            np.bincount(matrix.indices, minlength=len(train.items))
            for matrix in (train.bundle_item, train.user_item)
        )
        counts = np.where(in_bundles > 0, in_bundles + with_users, 0)
        unseen = in_bundles + with_users == 0
        if len(unseen) != len(self.item_shared) or not counts.any():
            return
        self.item_features.learn(items, torch.cat(self._item_parts, dim=1), counts, unseen)
        places = self.item_features.unseen
        if len(places):
            with torch.no_grad():
                vectors = self.item_features.vectors(items.take(pa.array(places.cpu().numpy())))
                start = 0
                for part in self._item_parts:
                    part[places] = vectors[:, start : start + part.shape[1]]
                    start += part.shape[1]
                self.item_counts[places] = self.assumed_item_count
            self.forget_tables()

    def knows_by_content(self, items: pa.Table) -> npt.NDArray[np.bool_]:
        return self.item_features.knows(items) if self.item_features else np.zeros(len(items), bool)

    @property
    def known_by_content(self) -> frozenset[int]:
        later = range(len(self.item_shared), self.sizes.items)
        return frozenset(self.item_features.unseen.tolist()).union(later)

    def with_items(self, items: pa.Table, places: Sequence[int] | None = None) -> Self:
        if not self.item_features:
            raise UnsupportedError(
                "this model has learned nothing from the catalogue, so it cannot take up new items: give "
                "items a title, tags or vectors, and train it again"
            )
        known, size = len(self.item_shared), self.sizes.items
        at = torch.tensor(range(size, size + len(items)) if places is None else places, dtype=torch.int64)
        highest = max(size, int(at.max()) + 1 if len(at) else 0)
        model = copy(self)
        for kind in ("_parameters", "_buffers", "_modules"):  # a copy would share the dicts themselves
            setattr(model, kind, dict(getattr(self, kind)))
        with torch.no_grad():
            vectors = self.item_features.vectors(items)
            later = vectors.new_zeros(highest - known, vectors.shape[1])
            if self._later_items is not None:
                later[: len(self._later_items)] = self._later_items
            later[(at - known).to(later.device)] = vectors
            more = self.assumed_item_count.expand(highest - size)
            model.item_counts = torch.cat([self.item_counts, more])
        model._later_items = later
        model.sizes = replace(self.sizes, items=highest)
        # Shared: tables of the known items, and vectors of bundles, whose stamps tell which to make anew.
        tables = dict(self._tables)  # another thread may add to it
        model._tables = {name: kept for name, kept in tables.items() if name.startswith("known")}
        return model

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def settle(self, data: Interactions) -> None:
        if self.config.propagation:
            self.forget_tables()
            self.spread_items = self.matching_table()

    def train(self, mode: bool = True) -> Self:
        self.forget_tables()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:  # moving or casting the weights
        self.forget_tables()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forget_tables(self, *_: object) -> None:
        """Drops all tables when weights may change: by training, moving and loading. (A tensor's version
        cannot show a change: fused Adam does not increase it.)"""
        self._tables, self._snapshots = {}, ()

    def _kept(self, name: str, of: object) -> VectorTable | None:
        """The table of this name, if it was made from the same object."""
        entry = self._tables.get(name)
        return entry[1] if entry is not None and entry[0] is of else None

    def _table(self, name: str, of: object, rows: Callable[[], Tensor]) -> VectorTable:
        """Returns the kept table of this name for the object `of`, or makes it from `rows()`."""
        table = None if self.training else self._kept(name, of)
        if table is None:
            table = VectorTable(rows(), self.cosine)
            self._tables[name] = (of, table)
        return table

    def _item_table(self) -> VectorTable:
        """E¹, the item vectors used in matching."""
        rows = (lambda: self.spread_items) if self.config.propagation else self.matching_embeddings
        return self._with_later("items", self._table("known items", None, rows))

    def _completing_table(self) -> VectorTable:
        """E², the item vectors used in generation."""
        known = self._table("known, completing", None, self.generation_embeddings)
        return self._with_later("completing", known)

    def _with_later(self, name: str, known: VectorTable) -> VectorTable:
        """The table of the known items, followed by those that came after training."""
        later = self._later_items
        if later is None:
            return known
        table = self._kept(name, known)
        if table is None:
            shared, own = self.item_shared.shape[1], self.item_matching.shape[1]
            start = shared if name == "items" else shared + own
            rows = torch.cat([later[:, :shared], later[:, start : start + own]], dim=1)
            size = self.sizes.items
            places = torch.arange(size - len(later), size, device=later.device)
            table = ChangedTable(known, places, rows, size)
            self._tables[name] = (known, table)
        return table

    def _embed(self, contents: Ragged) -> Tensor:
        table = self._item_table()
        if self._later_items is not None:
            return table.mean_of(contents)
        return self.bundle_embeddings(table.rows, contents)

    def _mean_of_items(self, histories: Histories) -> Tensor:
        """p_u: the mean of each user's items."""  # [rows, d]
        table = self._item_table()
        if self._later_items is not None:
            return table.mean_of(histories.items)
        return self.division.mean_of_histories(histories, table.rows)

    def _bundle_table(self, contents: Ragged) -> VectorTable:
        """E¹XD⁻¹, the bundle vectors used in matching."""
        if not isinstance(contents, Contents) or contents.stamps is None or self.training:
            return self._table("bundles", contents, lambda: self._embed(contents))
        snapshots = self._snapshots
        for kept in snapshots:
            if kept.stamps is contents.stamps:
                return kept
        table = table_after(snapshots[0], contents, self._embed) if snapshots else None
        if table is None:
            table, snapshots = VectorTable(self._embed(contents), self.cosine, contents.stamps), ()
        self._snapshots = (table, *snapshots[: SNAPSHOTS_KEPT - 1])
        return table

    def _kept_bundles(self, contents: Ragged) -> VectorTable | None:
        """The table of a shop's bundles. None for other bundles, which must not replace the shop's table."""
        if isinstance(contents, Contents) and contents.stamps is not None:
            return self._bundle_table(contents)
        return self._kept("bundles", contents)

    def merge_changes(self) -> None:
        table = next(iter(self._snapshots), None)
        if isinstance(table, ChangedTable) and len(table.places) > MERGED_ROWS:
            merged = VectorTable(table.rows, self.cosine, table.stamps)
            _ = merged.columns, merged.mean  # computed here, so that no question waits for them
            self._snapshots = (merged,)

    def _bias(self, contents: Ragged, start: int = 0) -> Tensor | None:
        """The popularity term of the scores, for bundles from `start` on."""  # [bundles from start]
        if not self.config.popularity_weight:
            return None
        return self.popularity_bias(self.sales_of(contents, self.new_bundle_credit, start))

    def assume_sales(self, sales: float) -> None:
        self.new_bundle_credit = self.sales.new_tensor(sales)

    def known_sales(self) -> Tensor:
        return self.sales

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return self.popularity_weights[0] * sales.log1p()

    def _item_bias(self) -> Tensor | None:
        if not self.config.item_popularity_weight:
            return None
        return self.popularity_weights[1] * self.division.own_items(self.item_counts).log1p()

    def _means(self, histories: Histories, contents: Ragged) -> tuple[Tensor, Tensor]:
        """Returns p_u and q_u: the mean of each user's items, and of each user's bundles."""
        p = self._mean_of_items(histories)
        return p, self._bundle_table(contents).mean_of(histories.bundles)

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        """E¹XD⁻¹, the bundle vectors used in matching."""  # [bundles, d]
        kept = self._kept_bundles(contents)
        return self._embed(contents) if kept is None else kept.rows

    def cosines(self, contents: Ragged, vector: Tensor) -> Tensor:
        if not self.cosine:
            return super().cosines(contents, vector)
        return self._bundle_table(contents).scores(F.normalize(vector, dim=1), None)[0]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        if start:  # later bundles must not replace the shop's table
            later = contents.rows(torch.arange(start, len(contents), device=contents.device))
            vectors = self.factors(self.vectors_of_bundles(later))
        else:
            vectors = self._bundle_table(contents).factors
        bias = self._bias(contents, start)
        return Factors(vectors, vectors.new_zeros(len(vectors)) if bias is None else bias)

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        if self._kept_bundles(contents) is not None:
            return self.query(self.encoded(histories, contents), "matching")
        # For contents without a kept table, only the bundles in histories are embedded.
        held, places = torch.unique(histories.bundles.values, return_inverse=True)
        p = self._mean_of_items(histories)
        q = histories.bundles.with_values(places).mean_of(self.vectors_of_bundles(contents.rows(held)))
        return self.query(self.user_vectors(p, q), "matching")

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """For each user, the mean of the gate g_u: the weight of items against bundles."""  # [rows]
        return self.premix.gate(*self._means(histories, contents)).mean(1)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Eq. matching_prob before its softmax: (E¹XD⁻¹)ᵀz_u, or the cosine of the two vectors."""
        z = self.query(self.encoded(histories, contents), "matching")
        return self._bundle_table(contents).scores(z, self._bias(contents))  # [rows, bundles]

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """As `score_bundles`, but only for the bundles in `new`."""  # [rows, new]
        z = self.query(self.encoded(histories, contents), "matching")
        scores = z @ self.factors(self._item_table().mean_of(new)).T
        bias = self._bias(contents.append(new), len(contents))
        return scores if bias is None else scores + bias

    def encoded(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns z_u for each user."""  # [rows, d]
        return self.user_vectors(*self._means(histories, contents))

    def bundle_fit(
        self, users: Tensor, which: Tensor, bundles: Tensor, contents: Ragged, among: int
    ) -> Tensor:
        z, table = self.query(users[which], "matching"), self._bundle_table(contents)
        mean = table.mean if among == len(contents) else table.factors[:among].mean(0)
        factors, bias = self.factors(table.rows_at(bundles)), self._bias(contents)
        fit = (z * (factors - mean)).sum(1)  # [rows]
        return fit if bias is None else fit + bias[bundles] - bias[:among].mean()

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Eq. reconstruction before its softmax: E²ᵀz_b^(u), or the cosine of the two vectors."""
        z = self._pair_query(self.encoded(histories, contents), partial)
        return self._completing_table().scores(z, self._item_bias())  # [rows, items]

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        return self.division.scores_of(candidates, self.score_items(histories, partial, contents))

    def _pair_query(self, users: Tensor, partial: Ragged) -> Tensor:
        table = self._completing_table()
        if self._later_items is not None:
            inside = table.mean_of(partial)
        else:
            inside = self.division.mean_of_partial(partial, table.rows)
        return self.query(self.pair_vectors(users, inside), "generation")

    def item_fit(
        self, users: Tensor, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        table, bias = self._completing_table(), self._item_bias()
        fit = (self._pair_query(users[which], partial) * (table.factors_at(items) - table.mean)).sum(1)
        return fit if bias is None else fit + bias[items] - bias.mean()  # [rows]

    def vectors_of_items(self) -> Tensor:
        """E², the item vectors used in generation."""  # [items, d]
        return self._completing_table().rows
