"""A model that is asked about more items than it knows, as a part of a blend whose other parts know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from bundlemage.models.base import (
    Completer,
    Embedder,
    Factors,
    Gated,
    Histories,
    Indexable,
    Matcher,
    Model,
    SalesScorer,
    can,
    require,
)
from bundlemage.models.ragged import Contents, KeptForLast, Ragged


class KnownItems(Completer, Indexable, SalesScorer, Embedder, Gated):
    """Leaves items that came after training out of histories and bundles before it asks the model inside.

    The model inside is not registered as a module, so its weights are not counted twice.
    """

    def __init__(self, inner: Model, items: int, fill: Literal["mean", "lowest"]) -> None:
        """`items` is the number of all items. A later item gets the mean or the lowest score of a row."""
        super().__init__(inner.config, replace(inner.sizes, items=items))
        self._inside = (inner,)  # in a tuple, or PyTorch would register it
        self.name, self.title = inner.name, inner.title  # type: ignore[misc]
        self.knows_new_users = inner.knows_new_users  # type: ignore[misc]
        self.fill = fill
        self.training = inner.training
        self._reduced: KeptForLast[Ragged] = KeptForLast()

    @property
    def inner(self) -> Model:
        """The model that knows fewer items."""
        return self._inside[0]

    def does(self, kind: type[Model]) -> bool:
        return can(self.inner, kind)

    def _rows(self, rows: Ragged) -> Ragged:
        """The rows without later items."""
        kept = rows.keep(rows.values < self.inner.sizes.items)
        if isinstance(rows, Contents):
            return replace(kept, stamps=rows.stamps)  # type: ignore[call-arg]
        return kept

    def _contents(self, contents: Ragged) -> Ragged:
        return self._reduced.of(contents, lambda: self._rows(contents))

    def _histories(self, histories: Histories) -> Histories:
        return replace(histories, items=self._rows(histories.items))

    def _asked(self, histories: Histories, contents: Ragged) -> tuple[Histories, Ragged]:
        return self._histories(histories), self._contents(contents)

    def merge_changes(self) -> None:
        self.inner.merge_changes()

    # ── Matching ─────────────────────────────────────────────────────────────────────────────────

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return require(self.inner, Matcher).score_bundles(*self._asked(histories, contents))

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        histories, contents = self._asked(histories, contents)
        return require(self.inner, Matcher).score_candidates(histories, candidates, contents)

    @property
    def scores_candidates_apart(self) -> bool:
        return require(self.inner, Matcher).scores_candidates_apart

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        histories, contents = self._asked(histories, contents)
        return require(self.inner, Matcher).score_new_bundles(histories, contents, self._rows(new))

    @property
    def ranks_by_sales(self) -> bool:
        return require(self.inner, Matcher).ranks_by_sales

    def encoded(self, histories: Histories, contents: Ragged) -> Any:
        return self.inner.encoded(*self._asked(histories, contents))

    def bundle_fit(self, users: Any, which: Tensor, bundles: Tensor, contents: Ragged, among: int) -> Tensor:
        inner = require(self.inner, Matcher)
        return inner.bundle_fit(users, which, bundles, self._contents(contents), among)

    # ── Completing ───────────────────────────────────────────────────────────────────────────────

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        histories, contents = self._asked(histories, contents)
        known = require(self.inner, Completer).score_items(histories, self._rows(partial), contents)
        later = self.sizes.items - known.shape[1]
        fill = known.mean(1, keepdim=True) if self.fill == "mean" else known.amin(1, keepdim=True)
        return torch.cat([known, fill.expand(-1, later)], dim=1)

    def item_fit(self, users: Any, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged) -> Tensor:
        inner = require(self.inner, Completer)
        later = items >= inner.sizes.items
        some = items.masked_fill(later, 0)
        fit = inner.item_fit(users, which, self._rows(partial), some, self._contents(contents))
        return fit.masked_fill(later, 0.0)  # like the mean item

    # ── Vectors and sales ────────────────────────────────────────────────────────────────────────

    def vectors_of_items(self) -> Tensor:
        known = require(self.inner, Embedder).vectors_of_items()
        return torch.cat([known, known.new_zeros(self.sizes.items - len(known), known.shape[1])])

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return require(self.inner, Embedder).vectors_of_bundles(self._contents(contents))

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        return require(self.inner, Gated).item_share(*self._asked(histories, contents))

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        return require(self.inner, Indexable).factors_of_bundles(self._contents(contents), start)

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        return require(self.inner, Indexable).factors_of_users(*self._asked(histories, contents))

    def assume_sales(self, sales: float) -> None:
        require(self.inner, SalesScorer).assume_sales(sales)

    def known_sales(self) -> Tensor:
        return require(self.inner, SalesScorer).known_sales()

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return require(self.inner, SalesScorer).popularity_bias(sales)
