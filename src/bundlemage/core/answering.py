"""Ranks candidates (bundles or items) for the encoded questions of one user or of a million users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bundlemage.core.history import User
from bundlemage.core.ownership import Goods
from bundlemage.core.ranking import Ranker, Ranking, top
from bundlemage.core.shop import Candidates, Shop
from bundlemage.models.base import Completer, Embedder, Histories, Matcher, Model, require
from bundlemage.models.ragged import Ragged
from bundlemage.wire.shop import OwnedRule, ShopSettings

ROWS_AT_A_TIME = 1024
"""The maximum number of questions in one pass of the model."""
SCORES_AT_A_TIME = 2**21
"""Target number of scores in one pass on a CPU. They take 8 MB, which fits into the processor's cache."""
SCORES_ON_A_GPU = 2**25
FEWEST_ROWS = 32
"""Minimum number of rows in one pass: with fewer, a matrix product is slow."""


@dataclass(frozen=True)
class Batch:
    """Questions of several users about the same candidates. Positions in tensors stand for ids."""

    histories: Histories
    contents: Ragged
    """The items of each bundle: first the candidates, then other bundles that the histories refer to."""
    owned: Ragged
    """The items in `goods` that each user owns, alone or in a bundle, in ascending order."""
    goods: Goods
    """The items of the same bundles as in `contents`, also those that the model does not know."""
    partial: Ragged | None = None
    """Bundles to complete, one for each history; None if bundles are to be recommended."""

    def rows(self, index: Tensor) -> Batch:
        """Returns the questions of the chosen users."""
        partial = None if self.partial is None else self.partial.rows(index)
        owned = self.owned.rows(index)
        return Batch(self.histories.rows(index), self.contents, owned, self.goods, partial)

    @cached_property
    def barred(self) -> Ragged | None:
        """The bundles that each user must not see, because of what the user rejected; None if there are
        none."""
        return self.goods.barred(self.histories)

    def left_out(self, owned: OwnedRule) -> list[Ragged]:
        """The bundles that no answer may have: those that each user rejected, and under a rule other than
        `show` those that the user bought."""
        bought = [] if owned == "show" else [self.histories.bundles.strong]
        return bought if self.barred is None else [*bought, self.barred]

    @property
    def no_history(self) -> Tensor:
        """True for each user who has neither items nor bundles."""  # [rows] bool
        return without_history(self.histories)


def without_history(histories: Histories) -> Tensor:
    """True for each user who has neither items nor bundles."""  # [rows] bool
    return (histories.items.lengths == 0) & (histories.bundles.lengths == 0)


def rows_at_a_time(candidates: int, device: torch.device) -> int:
    """Returns the number of rows to score in one pass. It bounds the memory for any number of candidates."""
    scores = SCORES_AT_A_TIME if device.type == "cpu" else SCORES_ON_A_GPU
    return max(1, min(ROWS_AT_A_TIME, max(FEWEST_ROWS, scores // max(1, candidates))))


def slices(histories: Histories, rows: int) -> Iterator[Histories]:
    """Yields the histories in parts of `rows` rows. Only the offsets are copied."""
    for start in range(0, len(histories), rows):
        end = min(start + rows, len(histories))
        yield histories.between(start, end)


def batch_of(
    shop: Shop,
    histories: Histories,
    contents: Ragged,
    partial: Ragged | None = None,
    users: Sequence[User] = (),
) -> Batch:
    """Returns the questions of users with these histories. `users` may be empty if they are unknown."""
    owned = shop.owned(users, histories, contents)
    return Batch(histories, contents, owned, shop.goods(contents), partial)


def exact_ranking(model: Model, batch: Batch, ranker: Ranker, k: int, rules: ShopSettings) -> Ranking:
    """Returns the k best candidates for each question. All candidates are scored. `rules` say what happens to
    what the users own."""
    histories, contents, partial = batch.histories, batch.contents, batch.partial
    no_history = batch.no_history
    if partial is None:
        matcher = require(model, Matcher)
        scores = matcher.bundle_scores(histories, contents)
        # Bundles after the candidates come from histories and have no id. They cannot be recommended.
        scores = scores[:, : len(ranker.shares)]
        demoted = batch.goods.demoted(batch.owned, rules.owned, rules.mostly_owned)
        ranking = ranker.rank(scores, no_history, batch.left_out(rules.owned), k, demoted)
        return replace(ranking, popular=no_history | True) if matcher.ranks_by_sales else ranking
    scores = require(model, Completer).item_scores(histories, partial, contents).clone()
    # The probabilities are those of the next item, so items that are in the bundle have none.
    scores[partial.row_of_entry(), partial.values] = -torch.inf
    hide = [partial] if rules.owned == "show" else [partial, batch.owned]
    if histories.rejected_items is not None:
        hide.append(histories.rejected_items)
    return ranker.rank(scores, no_history & (partial.lengths == 0), hide, k)


def nearest(
    model: Model, contents: Ragged, vector: Tensor, candidates: Candidates, k: int, exclude: int | None = None
) -> Ranking:
    """Returns the k bundles whose vectors have the highest cosine with `vector`, as a ranking with one row.
    The cosine is the score. The bundle at the position `exclude` is left out. Sold-out bundles come last if
    the candidates say so."""
    with torch.inference_mode():
        order = require(model, Embedder).cosines(contents, vector) + candidates.hidden
        if exclude is not None:
            order[exclude] = -torch.inf
        places = order
        if candidates.available is not None:
            places = torch.where(candidates.available == candidates.hidden, order, order - 3.0)  # below -1
        _, positions = top(places[None], min(k, len(order)), candidates.shares, candidates.ids)
        values = order[positions]
    counts = torch.isfinite(values).sum(1)
    return Ranking(positions, values, counts, torch.zeros_like(counts, dtype=torch.bool), values)
