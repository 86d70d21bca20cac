"""Sampled softmax, for a catalogue that is too large to use in every step, and BundleMage's losses with it.

The positives are compared with a sample of the catalogue. A sampled member is weighted by its number of draws
divided by the expected number (Bengio and Senécal, Adaptive Importance Sampling to Accelerate Training of a
Neural Probabilistic Language Model, IEEE TNN 2008). The equations are those of `bundlemage.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.losses import Prior
from bundlemage.models.ragged import Ragged, Unchanging, mask_each_row, mask_whole_batch

if TYPE_CHECKING:
    from bundlemage.models.bundlemage import BundleMage

UNIFORM_SHARE = 0.1
"""The share of a sample that is drawn uniformly, so that it also contains members that nobody bought."""


class Drawn(NamedTuple):
    """The distinct drawn items or bundles. In the softmax's sum, each has the weight exp(-log_expected)."""

    ids: Tensor  # [drawn]
    log_expected: Tensor  # [drawn]


class Sampler:
    """Draws samples of a catalogue: most members by popularity, some uniformly."""

    def __init__(self, popularity: Tensor, size: int) -> None:
        """`popularity`: how often each member is a positive. A catalogue of at most `size` is used whole."""
        self.size, self.members = size, len(popularity)
        self.device = popularity.device
        if self.members > size:
            share = popularity.double() / popularity.sum().clamp(min=1)
            self.uniform_draws = max(1, round(size * UNIFORM_SHARE)) if bool(popularity.any()) else size
            chance = (share * (size - self.uniform_draws) + self.uniform_draws / self.members) / size
            self.log_expected = (chance * size).log().float()
            self.cumulative = share.cumsum(0)

    def draw(self) -> Drawn:
        """Draws a sample."""
        if self.members <= self.size:
            all_members = torch.arange(self.members, device=self.device)
            return Drawn(all_members, torch.zeros(self.members, device=self.device))
        points = torch.rand(self.size - self.uniform_draws, device=self.device, dtype=torch.float64)
        popular = torch.searchsorted(self.cumulative, points * self.cumulative[-1]).clamp(
            max=self.members - 1
        )
        uniform = torch.randint(self.members, (self.uniform_draws,), device=self.device)
        ids, times = torch.unique(torch.cat([popular, uniform]), return_counts=True)
        return Drawn(ids, self.log_expected[ids] - times.log())


def sampled_loss(
    z: Tensor,
    table: Tensor,
    positives: Ragged,
    drawn: Drawn,
    row_weights: Tensor,
    prior: Prior | None = None,
) -> Tensor:
    """`multinomial_loss` with an estimate of the softmax's sum over the catalogue. The estimate adds a row's
    positives and the weighted drawn members that are not positives. All ids are rows of `table`."""
    row = positives.row_of_entry()
    right = (F.embedding(row, z) * F.embedding(positives.values, table)).sum(1)  # [entries]
    others = z @ F.embedding(drawn.ids, table).T - drawn.log_expected  # [rows, drawn]
    if prior is not None:
        right = right + (prior.bias + prior.shift)[positives.values]
        others = others + prior.bias[drawn.ids]
    column = torch.full((len(table),), len(drawn.ids), device=z.device)
    column[drawn.ids] = torch.arange(len(drawn.ids), device=z.device)
    hit = torch.zeros(len(z), len(drawn.ids) + 1, dtype=torch.bool, device=z.device)
    hit[row, column[positives.values]] = True
    others = others.masked_fill(hit[:, :-1], -torch.inf)
    highest = torch.full((len(z),), -torch.inf, device=z.device, dtype=z.dtype)
    highest = highest.scatter_reduce(0, row, right.detach(), "amax")
    if len(drawn.ids):
        highest = torch.maximum(highest, others.detach().amax(1))
    highest = torch.where(highest.isfinite(), highest, 0.0)  # for a row without positives and drawn members
    total = (others - highest[:, None]).exp().sum(1)
    total = total.index_add(0, row, (right - F.embedding(row, highest[:, None])[:, 0]).exp())
    counts = positives.row_sums().to(z.dtype)
    normaliser = torch.where(counts > 0, total.clamp(min=torch.finfo(z.dtype).tiny).log() + highest, 0.0)
    if positives.weights is not None:
        right = right * positives.weights.to(z.dtype)
    likelihood = torch.zeros_like(normaliser).index_add(0, row, right)
    return (row_weights * (counts * normaliser - likelihood)).sum() / max(1, len(z))


def touched(*ids: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the sorted distinct ids of several tensors, and each tensor's positions in them."""
    distinct, inverse = torch.unique(torch.cat(ids), return_inverse=True)
    return distinct, inverse.split([len(tensor) for tensor in ids])


class SampledLosses(Unchanging):
    """BundleMage's samplers of bundles and items, and its losses on the samples."""

    def __init__(self, size: int, sizes: Sizes, data: Interactions) -> None:
        sales = data.user_bundle.column_sums(sizes.bundles)
        # An item is a positive once for each sale of each bundle that contains it.
        counts = torch.zeros(sizes.items, dtype=torch.float64, device=sales.device)
        counts.index_add_(0, data.bundle_item.values, sales.double()[data.bundle_item.row_of_entry()])
        self.bundles, self.items = Sampler(sales, size), Sampler(counts, size)

    def loss(self, model: BundleMage, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """Returns the loss of one batch. `rows` are the batch's rows of `phase.over`."""
        of_phase = self._matching if phase.name == "matching" else self._generation
        return of_phase(model, rows, data)

    def _matching(self, model: BundleMage, users: Tensor, data: Interactions) -> Tensor:
        history, drawn = data.histories(users), self.bundles.draw()
        bundles, (taken_places, drawn_places) = touched(history.bundles.values, drawn.ids)
        contents = data.bundle_item.rows(bundles)
        items, (item_places, content_places) = touched(history.items.values, contents.values)
        item_table = torch.cat([_rows(model.item_shared, items), _rows(model.item_matching, items)], dim=1)
        bundle_table = Ragged(content_places, contents.offsets).mean_of(item_table)
        taken = history.bundles.with_values(taken_places)
        p = _seen(model, history.items.with_values(item_places)).mean_of(item_table)
        q = _masked(model, taken, model.config.mask_bundles).mean_of(bundle_table)
        prior = None if model.bundle_prior is None else model.bundle_prior.part(bundles)
        weights = model.row_weights(users, data)
        z = model.query(model.user_vectors(p, q), "matching")
        here = Drawn(drawn_places, drawn.log_expected)
        return sampled_loss(z, model.factors(bundle_table), taken, here, weights, prior)

    def _generation(self, model: BundleMage, pairs: Tensor, data: Interactions) -> Tensor:
        users, targets = data.completion(pairs)
        data = data.with_nobody
        history, drawn = data.histories(users), self.items.draw()
        owned = history.bundles
        if model.config.hide_target:
            owned = owned.keep(owned.values != targets[owned.row_of_entry()])
        bundles, (owned_places,) = touched(owned.values)
        contents, whole = data.bundle_item.rows(bundles), data.bundle_item.rows(targets)
        items, places = touched(history.items.values, contents.values, whole.values, drawn.ids)
        shared = _rows(model.item_shared, items)
        item_table = torch.cat([shared, _rows(model.item_matching, items)], dim=1)
        table = torch.cat([shared, _rows(model.item_generation, items)], dim=1)
        bundle_table = Ragged(places[1], contents.offsets).mean_of(item_table)
        p = _seen(model, history.items.with_values(places[0])).mean_of(item_table)
        q = owned.with_values(owned_places).mean_of(bundle_table)
        whole = Ragged(places[2], whole.offsets)
        partial = _masked(model, whole, model.config.mask_items).mean_of(table)
        z = model.query(model.pair_vectors(model.user_vectors(p, q), partial), "generation")
        prior = None if model.item_prior is None else model.item_prior.part(items)
        weights = model.row_weights(users, data, targets, pairs)
        here = Drawn(places[3], drawn.log_expected)
        return sampled_loss(z, model.factors(table), whole, here, weights, prior)


def _seen(model: BundleMage, items: Ragged) -> Ragged:
    """The users' items without those that `item_dropout` hides in this step."""
    return mask_whole_batch(items, model.config.item_dropout) if model.config.item_dropout else items


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, table, sparse=True)  # [ids, ·], with a sparse gradient of these rows


def _masked(model: BundleMage, rows: Ragged, ratio: float) -> Ragged:
    return (mask_each_row if model.config.masking == "row" else mask_whole_batch)(rows, ratio)
