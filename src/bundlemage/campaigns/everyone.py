"""Scores all users for new bundles, batch by batch. Each user is compared once with the shop's bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from bundlemage.campaigns.chances import new_log_probabilities, normaliser, with_median_sales
from bundlemage.campaigns.new_bundles import Owners
from bundlemage.core.answering import SCORES_AT_A_TIME, SCORES_ON_A_GPU
from bundlemage.models.base import Factors, Histories, Indexable, Model, can, require
from bundlemage.models.ragged import Ragged

UserBatches: TypeAlias = Callable[[], Iterable[tuple[Sequence[str], Histories]]]
"""A function that returns all users in batches, each with ids and histories. It is called several times."""

MOST_KEPT = 2**26
"""Maximum number of entries of users' vectors that are kept in memory. They take 256 MiB."""


@dataclass(frozen=True)
class Encoded:
    """What is computed once for a batch of users."""

    log_sums: Tensor  # [users, 1]
    """As `normaliser`."""
    vectors: Tensor | None  # [users, d]
    """The users' vectors, if the model has them. None: they are computed again."""


@dataclass(frozen=True)
class UserScores:
    """The scores of a batch of users for several new bundles."""

    ids: Sequence[str]
    histories: Histories
    logs: Tensor  # [users, bundles]
    """Log-probabilities, as `new_log_probabilities`."""
    lacks: Tensor  # [users, bundles]
    """True if the user lacks an item of the bundle."""


class Everyone:
    """Scores all users for several bundles at a time. Only one batch of histories is in memory."""

    def __init__(
        self,
        model: Model,
        contents: Ragged,
        items: int,
        batches: UserBatches,
        pause: Callable[[], None],
    ) -> None:
        """`contents` has the items of the shop's bundles, which has this number of `items`. `pause` is called
        several times for each batch, and may raise an error to stop the work."""
        self.model, self.contents = model, contents
        self._items, self._batches, self._pause = items, batches, pause
        self._factors: Factors | None = None
        # Comparing users with all bundles of the shop is nearly all of the work, so it is done once for each
        # batch. The key tells whether the batch still has the same users: in a live shop, they may change.
        self._encoded: dict[int, tuple[int, Encoded]] = {}
        self._room = MOST_KEPT

    def scores(self, bundles: Sequence[Sequence[int]]) -> Iterator[UserScores]:
        """Yields the scores of all users for new bundles, given as positions of items."""
        contents, model = self.contents, self.model
        new = Ragged.from_lists(bundles, contents.device)
        owners, start = Owners(new, contents, self._items), len(contents)
        new_factors: Factors | None = None
        with torch.inference_mode():  # not around a yield: the caller may train in between
            if can(model, Indexable):
                if self._factors is None:
                    self._factors = model.factors_of_bundles(contents)
                new_factors = model.factors_of_bundles(contents.append(with_median_sales(model, new)), start)
        for number, (ids, histories) in enumerate(self._batches()):
            if not len(ids):
                continue
            with torch.inference_mode():
                known = self._encode(number, ids, histories)
                if new_factors is None:
                    logs = new_log_probabilities(model, histories, contents, new, known.log_sums)
                else:
                    vectors = known.vectors
                    if vectors is None:
                        vectors = require(model, Indexable).factors_of_users(histories, contents)
                    scores = torch.addmm(new_factors.bias, vectors, new_factors.vectors.T)
                    logs = model.checked("factors_of_users", scores, len(ids), len(new)) - known.log_sums
                lacks = ~owners.excluded(histories)
            yield UserScores(ids, histories, logs, lacks)

    def _encode(self, number: int, ids: Sequence[str], histories: Histories) -> Encoded:
        key = hash(tuple(ids))
        kept = self._encoded.get(number)
        if kept is not None and kept[0] == key:
            return kept[1]
        found = encoded(self.model, histories, self.contents, self._factors, self._pause)
        size = 0 if found.vectors is None else found.vectors.numel()
        self._room -= size
        self._encoded[number] = key, (found if self._room >= 0 else Encoded(found.log_sums, None))
        return found


def encoded(
    model: Model, histories: Histories, contents: Ragged, factors: Factors | None, pause: Callable[[], None]
) -> Encoded:
    """Compares a batch of users with the shop's bundles. `factors` are those of the bundles, if the model has
    them."""
    pause()
    if factors is None:
        return Encoded(normaliser(model, histories, contents), None)
    vectors = require(model, Indexable).factors_of_users(histories, contents)
    log_sums = log_sums_of(vectors, factors, pause)
    return Encoded(model.checked("factors_of_users", log_sums, len(histories), 1), vectors)


def log_sums_of(vectors: Tensor, factors: Factors, pause: Callable[[], None]) -> Tensor:
    """The log of the sum of exp(score) over all bundles, for each user.

    Scores are computed for some bundles at a time and in place, so that they stay in the processor's cache.
    """  # [users, 1]
    most = SCORES_AT_A_TIME if vectors.device.type == "cpu" else SCORES_ON_A_GPU
    width = max(1, most // max(1, len(vectors)))
    parts = []
    for start in range(0, len(factors.vectors), width):
        pause()
        block = slice(start, start + width)
        scores = torch.addmm(factors.bias[block], vectors, factors.vectors[block].T)
        highest = scores.amax(1, keepdim=True)
        parts.append(scores.sub_(highest).exp_().sum(1, keepdim=True).log_().add_(highest))
    return torch.cat(parts, dim=1).logsumexp(1, keepdim=True)
