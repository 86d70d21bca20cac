"""BundleMage's two losses against a sample of a large catalogue: the same equations as in `bundlemage.py`, on
no more than the rows that a step touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.base import Interactions, Phase, Sizes
from bundlemage.models.ragged import Ragged, mask_each_row, mask_whole_batch
from bundlemage.models.sampled import Drawn, Part, Sampler, sampled_loss

if TYPE_CHECKING:
    from bundlemage.models.bundlemage import BundleMage


class SampledLosses:
    """What is drawn from, and the losses on what was drawn."""

    def __init__(self, size: int, sizes: Sizes, data: Interactions) -> None:
        sales = data.user_bundle.counts(sizes.bundles)
        # How often an item is a right one: once for each user of each bundle it is in.
        seen = torch.zeros(sizes.items, dtype=torch.float64, device=sales.device)
        seen.index_add_(0, data.bundle_item.values, sales.double()[data.bundle_item.row_of_entry()])
        self.bundles, self.items = Sampler(sales, size), Sampler(seen, size)

    def __deepcopy__(self, memo: object) -> SampledLosses:
        return self  # never changed, so a model's copy shares it

    def loss(self, model: BundleMage, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        of_phase = self.matching if phase.name == "matching" else self.generation
        return of_phase(model, rows, data)

    def matching(self, model: BundleMage, users: Tensor, data: Interactions) -> Tensor:
        history, drawn = data.histories(users), self.bundles.draw()
        bundles = Part.of(history.bundles.values, drawn.ids)
        contents = data.bundle_item.rows(bundles.ids)
        items = Part.of(history.items.values, contents.values)
        shared, own = (_rows(part, items.ids) for part in (model.item_shared, model.item_matching))
        item_table = torch.cat([shared, own], dim=1)
        bundle_table = Ragged(items.places[1], contents.offsets).mean_of(item_table)
        taken = Ragged(bundles.places[0], history.bundles.offsets)
        p = self._seen(model, Ragged(items.places[0], history.items.offsets)).mean_of(item_table)
        q = _masked(model, taken, model.config.mask_bundles).mean_of(bundle_table)
        here = Drawn(bundles.places[1], drawn.log_expected)
        prior = model.bundle_prior
        prior = None if prior is None else prior.part(bundles.ids)
        weights = model.matching_weights(users, data)
        z = model.query(model.user_vectors(p, q), "matching")
        return sampled_loss(z, model.factors(bundle_table), taken, here, weights, prior)

    def generation(self, model: BundleMage, pairs: Tensor, data: Interactions) -> Tensor:
        users, targets = data.completion(pairs)
        data = data.with_nobody
        history, drawn = data.histories(users), self.items.draw()
        owned = history.bundles
        if model.config.hide_target:
            owned = owned.keep(owned.values != targets[owned.row_of_entry()])
        bundles = Part.of(owned.values)
        contents, whole = data.bundle_item.rows(bundles.ids), data.bundle_item.rows(targets)
        items = Part.of(history.items.values, contents.values, whole.values, drawn.ids)
        shared = _rows(model.item_shared, items.ids)
        item_table = torch.cat([shared, _rows(model.item_matching, items.ids)], dim=1)
        table = torch.cat([shared, _rows(model.item_generation, items.ids)], dim=1)
        bundle_table = Ragged(items.places[1], contents.offsets).mean_of(item_table)
        p = self._seen(model, Ragged(items.places[0], history.items.offsets)).mean_of(item_table)
        q = Ragged(bundles.places[0], owned.offsets).mean_of(bundle_table)
        whole = Ragged(items.places[2], whole.offsets)
        partial = _masked(model, whole, model.config.mask_items).mean_of(table)
        z = model.query(model.pair_vectors(model.user_vectors(p, q), partial), "generation")
        here = Drawn(items.places[3], drawn.log_expected)
        prior = model.item_prior
        prior = None if prior is None else prior.part(items.ids)
        weights = model.generation_weights(users, targets, data)
        return sampled_loss(z, model.factors(table), whole, here, weights, prior)

    def _seen(self, model: BundleMage, items: Ragged) -> Ragged:
        """What a step sees of its users' items."""
        return mask_whole_batch(items, model.config.item_dropout) if model.config.item_dropout else items


def _rows(table: Tensor, touched: Tensor) -> Tensor:
    return F.embedding(touched, table, sparse=True)  # [touched, ·], with a gradient of these rows alone


def _masked(model: BundleMage, rows: Ragged, ratio: float) -> Ragged:
    return (mask_each_row if model.config.masking == "row" else mask_whole_batch)(rows, ratio)
