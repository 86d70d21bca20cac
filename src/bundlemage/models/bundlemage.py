"""BundleMage, as in Section "Proposed Method" of the paper. Equations go by the paper's own labels.

The settings under "How scores are formed" go beyond the paper: cosines with a temperature, popularity as a
term of the score, residual layers. The recipe `youshu/bundlemage-paper` switches them off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.base import Factors, Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.bipartite import Bipartite
from bundlemage.models.bundlemage_config import BundleMageConfig
from bundlemage.models.bundlemage_sampled import SampledLosses
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.losses import Prior, fitted_weight
from bundlemage.models.premix import PreMix, feed_forward
from bundlemage.models.ragged import Contents, Ragged
from bundlemage.models.rows import Hidden, mean_of_rows
from bundlemage.models.tables import KnownContents, Table

__all__ = ["BundleMage", "BundleMageConfig"]


MATCHING = Phase("matching", over="users")
GENERATION = Phase("generation", over="user_bundle")
COMPLETIONS = Phase("generation", over="completions")
Task = Literal["matching", "generation"]


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
        self.premix = PreMix(dim, config.mixer, config.residual)
        if config.pair_mixer == "join":
            self.project_user = nn.Linear(dim, dim // 2)  # W², b²
            self.project_bundle = nn.Linear(dim, dim // 2)  # W³, b³
            self.join = feed_forward(dim)  # FNN²
        else:
            self.carry_user = nn.Linear(dim, dim)  # z_u among the vectors of generation
            self.pair_mix = PreMix(dim, "gate", config.residual)
        self.dropout = nn.Dropout(config.dropout)
        # Of matching and of generation: the logarithms of the temperatures, and the weights of popularity.
        self.log_temperatures: Tensor
        self.popularity_weights: Tensor
        temperatures = torch.tensor([config.temperature, config.generation_temperature]).log()
        if config.learn_temperature:
            self.register_parameter("log_temperatures", nn.Parameter(temperatures))
        else:
            self.register_buffer("log_temperatures", temperatures, persistent=False)
        self.register_buffer("popularity_weights", torch.zeros(2))
        self.sales: Tensor
        self.item_counts: Tensor
        self.new_bundle_credit: Tensor
        self.spread_items: Tensor
        self.register_buffer("sales", torch.zeros(sizes.bundles))
        self.register_buffer("item_counts", torch.zeros(sizes.items))  # bundles that hold the item
        self.register_buffer("new_bundle_credit", torch.zeros(()))  # sales that a new bundle is credited with
        self.register_buffer("spread_items", torch.zeros(0, dim))  # with `propagation`: the last epoch's E¹
        self._tables: dict[str, Table] = {}
        self._embedded: tuple[Ragged, Table] | None = None  # bundles' contents, and their vectors
        self._contents: KnownContents | None = None
        # While learning: what a score has for everyone alike, of each bundle and of each item that is here.
        self.bundle_prior: Prior | None = None
        self.item_prior: Prior | None = None
        self.division: Division = ALONE
        self.register_load_state_dict_post_hook(BundleMage._forget)  # type: ignore[no-untyped-call]
        self._initialise()
        if config.propagation and config.sampled_softmax:
            raise ConfigError(
                "propagation walks over all bundles in each step, which sampled_softmax is there to avoid: "
                "set one of them to 0"
            )

    @torch.no_grad()
    def _initialise(self) -> None:
        dim = self.config.embedding_dim
        # Xavier-normal over the whole [items, d] table, though it is stored in parts.
        spread = self.config.initial_spread or (2.0 / (self.sizes.items + dim)) ** 0.5
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
        pairs = COMPLETIONS if self.config.every_bundle else GENERATION
        generation = replace(pairs, at_most=self.config.pairs_per_bundle or None)
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

    def matching_table(self) -> Tensor:
        """E¹, with `propagation` spread over the bundles of training."""  # [items, d]
        table = self.matching_embeddings()
        if self.config.propagation:
            assert self._contents is not None
            graph, layer, total = self._contents.graph, table, table
            for _ in range(self.config.propagation):
                layer = graph.mean_to_right(graph.mean_to_left(layer))
                total = total + layer
            table = total / (1 + self.config.propagation)
        return table

    def user_vectors(self, from_items: Tensor, from_bundles: Tensor) -> Tensor:
        """Eq. gate: z_u, of p_u and q_u."""
        z: Tensor = self.dropout(self.premix(from_items, from_bundles))
        return z  # [rows, d]

    def pair_vectors(self, users: Tensor, bundles: Tensor) -> Tensor:
        """Eq. pair_rep: z_b^(u) = FNN²([W²z_u + b²; W³z_b + b³]), or a mix by a gate."""
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
        """A vector whose products with `factors` are the scores, but for the bias."""  # [rows, d]
        if not self.cosine:
            return z
        return F.normalize(z, dim=1) * (-self.log_temperatures[_PLACE[task]]).exp()

    def factors(self, table: Tensor) -> Tensor:
        return F.normalize(table, dim=1) if self.cosine else table  # [rows, d]

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
        if self.config.propagation:
            raise UnsupportedError("propagation is for one process: set propagation=0, or use one worker")

    def divide(self, division: Division) -> None:
        self.division = division
        super().divide(division)

    def observe(self, data: Interactions) -> None:
        own = self.division.own_contents(data.bundle_item)
        self._contents = KnownContents(data.bundle_item, Bipartite.of(own, len(self.item_shared)))
        kind = self.item_shared.dtype
        self.sales = data.user_bundle.counts(self.sizes.bundles).to(kind)
        self.item_counts = data.learned_contents().counts(self.sizes.items).to(kind)
        asked = self.config.popularity_weight, self.config.item_popularity_weight
        fits = [fitted_weight(counts) for counts in (self.sales, self.item_counts)]
        weights = [
            weight * fit if self.config.fit_popularity else weight
            for weight, fit in zip(asked, fits, strict=True)
        ]
        self.popularity_weights = torch.tensor(weights, dtype=kind, device=self.sales.device)
        own_counts = self.division.own_items(self.item_counts)
        self.bundle_prior = Prior.of_counts(self.sales, self.popularity_weights[0]) if asked[0] else None
        self.item_prior = Prior.of_counts(own_counts, self.popularity_weights[1]) if asked[1] else None
        credit = self.config.new_bundle_credit
        if not isinstance(credit, str):
            self.credit_new_bundles(credit)
        elif len(self.sales):  # until it is fitted, a new bundle is taken for one like the median
            self.credit_new_bundles(float(self.sales.median()))
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
        item_table = self.matching_table()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        # Eq. item_rep: p_u = E¹v_u / ‖v_u‖₁
        p = self.division.mean_of_items(data, users, item_table, Hidden(self.config.item_dropout))
        # Eq. bundle_rep: q_u = E¹XD⁻¹r̈_u / ‖r̈_u‖₁
        q = mean_of_rows(data.user_bundle, users, bundle_table, self._hidden(self.config.mask_bundles))
        z = self.query(self.user_vectors(p, q), "matching")
        weights = self.matching_weights(users, data)
        factors = self.factors(bundle_table)
        return self.division.loss_over_bundles(z, factors, data, users, weights, self.bundle_prior)

    def matching_weights(self, users: Tensor, data: Interactions) -> Tensor:
        weights = torch.ones_like(users, dtype=self.item_shared.dtype)
        if self.config.loss_weighting == "mean":
            weights = weights / data.user_bundle.lengths[users].clamp(min=1)  # 1 / ‖r_u‖₁
        return weights

    def generation_loss(self, pairs: Tensor, data: Interactions) -> Tensor:
        """Eq. generation_loss, for a batch of pairs of a user and a bundle."""
        users, targets = data.completion(pairs)
        data = data.with_nobody
        item_table = self.matching_table()
        bundle_table = self.bundle_embeddings(item_table, data.bundle_item)
        p = self.division.mean_of_items(data, users, item_table, Hidden(self.config.item_dropout))
        left_out = targets if self.config.hide_target else None
        q = mean_of_rows(data.user_bundle, users, bundle_table, without=left_out)
        table = self.generation_embeddings()
        # Eq. incomplete_bundle_rep: z_b = E²ẍ_b / ‖ẍ_b‖₁
        hidden = self._hidden(self.config.mask_items)
        partial = self.division.mean_of_contents(data, targets, table, hidden)
        z = self.query(self.pair_vectors(self.user_vectors(p, q), partial), "generation")
        weights = self.generation_weights(users, targets, data)
        prior = self.item_prior
        return self.division.loss_over_items(z, self.factors(table), data, targets, users, weights, prior)

    def generation_weights(self, users: Tensor, targets: Tensor, data: Interactions) -> Tensor:
        weights = torch.full_like(users, self.config.generation_weight, dtype=self.item_shared.dtype)
        if self.config.loss_weighting == "mean":
            # A batch is of pairs and the equation's mean is over users: pairs / users evens that out.
            weights = weights * (len(data.user_bundle.values) / self.sizes.users)
            weights = weights / data.user_bundle.lengths[users].clamp(min=1)  # 1 / ‖r_u‖₁
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

    def _table(self, name: Literal["items", "completing items"]) -> Table:
        """Outside training nothing changes, so a table is put together only once."""
        table = self._tables.get(name)
        if self.training or table is None:
            table = self._tables[name] = Table(self._rows_of(name), self.cosine)
        return table

    def _rows_of(self, name: Literal["items", "completing items"]) -> Tensor:
        if name == "completing items":
            return self.generation_embeddings()
        return self.spread_items if self.config.propagation else self.matching_embeddings()

    def settle(self, data: Interactions) -> None:
        if self.config.propagation:
            self._forget()
            self.spread_items = self.matching_table()

    def _bundle_table(self, contents: Ragged) -> Table:
        kept = self._embedded
        if self.training or kept is None or kept[0] is not contents:
            rows = self.bundle_embeddings(self._table("items").rows, contents)
            kept = self._embedded = (contents, Table(rows, self.cosine))
        return kept[1]

    def _bias(self, contents: Ragged, start: int = 0) -> Tensor | None:
        """What the scores of bundles from `start` on have for everyone alike.

        A bundle that came after training has had no time to sell, so it is credited with some sales: those
        that are expected of it, if somebody says so.
        """  # [bundles from start]
        if not self.config.popularity_weight:
            return None
        later = len(contents) - len(self.sales)
        new = self.new_bundle_credit.expand(later)[max(0, start - len(self.sales)) :]
        sales = torch.cat([self.sales[start:], new]) if later else self.sales[start:]
        if isinstance(contents, Contents):
            expected = contents.expected_sales[start:].to(sales)
            sales = torch.where(expected.isnan(), sales, expected)
        return self.popularity_bias(sales)

    @property
    def credits_new_bundles(self) -> bool:
        return self.matches and bool(self.config.popularity_weight)

    def credit_new_bundles(self, sales: float) -> None:
        self.new_bundle_credit = self.sales.new_tensor(sales)

    def known_sales(self) -> Tensor:
        if not self.credits_new_bundles:
            raise self._no_credit()
        return self.sales

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return self.popularity_weights[0] * sales.log1p()

    def _item_bias(self) -> Tensor | None:
        if not self.config.item_popularity_weight:
            return None
        return self.popularity_weights[1] * self.division.own_items(self.item_counts).log1p()

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
            vectors = self.factors(self.vectors_of_bundles(later))
        else:
            vectors = self._bundle_table(contents).factors
        bias = self._bias(contents, start)
        return Factors(vectors, vectors.new_zeros(len(vectors)) if bias is None else bias)

    def factors_of_people(self, histories: Histories, contents: Ragged) -> Tensor:
        kept = self._embedded
        if kept is not None and kept[0] is contents:
            return self.query(self._encode(histories, contents), "matching")
        # Of contents that a question brought along, only the bundles that somebody has are embedded.
        held, places = torch.unique(histories.bundles.values, return_inverse=True)
        p = self.division.mean_of_histories(histories, self._table("items").rows)
        q = Ragged(places, histories.bundles.offsets).mean_of(self.vectors_of_bundles(contents.rows(held)))
        return self.query(self.user_vectors(p, q), "matching")

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """The mean of g_u over its dimensions."""  # [rows]
        return self.premix.gate(*self._means(histories, contents)).mean(1)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Eq. matching_prob before its softmax: (E¹XD⁻¹)ᵀz_u; or the cosine between the two."""
        z = self.query(self._encode(histories, contents), "matching")
        table, bias = self._bundle_table(contents).columns, self._bias(contents)
        return z @ table if bias is None else torch.addmm(bias, z, table)  # [rows, bundles]

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """As `score_bundles`, with only the new ones embedded."""  # [rows, new]
        z = self.query(self._encode(histories, contents), "matching")
        scores = z @ self.factors(new.mean_of(self._table("items").rows)).T
        bias = self._bias(contents.append(new), len(contents))
        return scores if bias is None else scores + bias

    def encoded(self, people: Histories, contents: Ragged) -> Tensor:
        return self._encode(people, contents)  # z_u [people, d]

    def bundle_fit(
        self, people: Tensor, which: Tensor, bundles: Tensor, contents: Ragged, among: int
    ) -> Tensor:
        z, table = self.query(people[which], "matching"), self._bundle_table(contents)
        mean = table.mean if among == len(table.rows) else table.factors[:among].mean(0)
        fit = (z * (table.factors[bundles] - mean)).sum(1)  # [rows]
        bias = self._bias(contents)
        return fit if bias is None else fit + bias[bundles] - bias[:among].mean()

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Eq. reconstruction before its softmax: E²ᵀz_b^(u); or the cosine between the two."""
        z = self._pair_query(self._encode(histories, contents), partial)
        columns, bias = self._table("completing items").columns, self._item_bias()
        return z @ columns if bias is None else torch.addmm(bias, z, columns)  # [rows, items]

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        return self.division.scores_of(candidates, self.score_items(histories, partial, contents))

    def _pair_query(self, people: Tensor, partial: Ragged) -> Tensor:
        inside = self.division.mean_of_partial(partial, self._table("completing items").rows)
        return self.query(self.pair_vectors(people, inside), "generation")

    def item_fit(
        self, people: Tensor, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        table, bias = self._table("completing items"), self._item_bias()
        fit = (self._pair_query(people[which], partial) * (table.factors[items] - table.mean)).sum(1)
        return fit if bias is None else fit + bias[items] - bias.mean()  # [rows]

    def vectors_of_items(self) -> Tensor:
        """E², by which bundles are completed."""  # [items, d]
        return self._table("completing items").rows


_PLACE: dict[Task, int] = {"matching": 0, "generation": 1}
