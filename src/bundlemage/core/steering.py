"""Chooses a user's list from the best candidates, so that it is varied and fits the user's own popularity.

Both are greedy: the list is filled place by place, each time with the candidate of the highest value

    (1 - diversity - match_popularity) · relevance - diversity · similarity - match_popularity · misplaced

`relevance` is 1 for the user's best candidate and 0 for the last one of the `POOL`. `similarity` is the
highest cosine with a bundle that was chosen before (maximal marginal relevance, Carbonell and Goldstein,
1998). `misplaced` counts the places of the list so far that are of another group of popularity than in the
user's own bundles (calibration, Steck, 2018). Of equal values, the better ranked candidate is chosen. Scores
do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from bundlemage.core.answering import Batch
from bundlemage.core.ownership import Goods
from bundlemage.core.ranking import Ranker, Ranking
from bundlemage.models.base import Embedder, Model, can
from bundlemage.models.ragged import Ragged
from bundlemage.wire.shop import ShopSettings

POOL = 200
"""The number of candidates, the best of each user, that lists of up to 100 are chosen from. It is the same
for all these lengths, so a shorter list is the beginning of a longer one. A longer list is chosen from twice
as many candidates as its length."""
GROUPS = 3
"""Popularity groups: the best sellers that make the first third of all sales, the second third, the rest."""
SLOTS_AT_A_TIME = 2**14
"""The maximum number of candidates, of all users together, whose vectors are in memory at the same time."""
DECIMALS = 5
"""Cosines are rounded to so many decimals, so that equal bundles stay equal in a batch of any size."""

Similar: TypeAlias = Callable[[Tensor], Tensor]
"""For a place in the pool of each row, [rows], returns the cosines of all bundles of the pool with the bundle
at that place, [rows, pool]."""


@dataclass(frozen=True)
class Steering:
    """How much a list gives up for variety, and for the popularity that the user is used to."""

    diversity: float
    match_popularity: float

    @classmethod
    def of(cls, rules: ShopSettings) -> Steering | None:
        """Returns the steering of a shop or a question; None if both of its weights are 0."""
        if not (rules.diversity or rules.match_popularity):
            return None
        return cls(rules.diversity, rules.match_popularity)

    def choose(self, model: Model, batch: Batch, ranker: Ranker, pool: Ranking, k: int) -> Ranking:
        """Returns lists of up to k bundles, chosen from the best candidates of each row of the batch."""
        rows = max(1, SLOTS_AT_A_TIME // max(1, pool.positions.shape[1]))
        groups = popularity_groups(ranker.shares) if self.match_popularity else None
        chosen = [
            self._chosen(model, batch.rows(part), ranker, pool.rows(part), k, groups)
            for part in torch.split(torch.arange(len(pool), device=pool.positions.device), rows)
        ]
        if not chosen:
            return pool
        places = torch.cat(chosen)  # [rows, k]
        return Ranking(
            pool.positions.gather(1, places),
            pool.chances.gather(1, places),
            pool.counts.clamp(max=places.shape[1]),
            pool.popular,
            pool.order.gather(1, places),
        )

    def _chosen(
        self, model: Model, batch: Batch, ranker: Ranker, pool: Ranking, k: int, groups: Tensor | None
    ) -> Tensor:
        """Returns the chosen places of the pool, in the order of the list."""  # [rows, k]
        value = max(0.0, 1 - self.diversity - self.match_popularity) * relevance(pool, batch, ranker)
        value = (value - _comes_last(pool, ranker)).masked_fill(~_filled(pool), -torch.inf)
        similar = similarity(model, batch, pool.positions) if self.diversity else None
        mix = None if groups is None else _Mix.of(groups, batch.histories.bundles, pool.positions)
        closest, chosen = torch.zeros_like(value), list[Tensor]()
        for number in range(min(k, value.shape[1])):
            now = value - self.diversity * closest
            if mix is not None:
                now -= self.match_popularity * mix.misplaced(number)
            pick = now.argmax(1)  # the first of equal ones
            chosen.append(pick)
            value.scatter_(1, pick[:, None], -torch.inf)
            if similar is not None:
                cosines = similar(pick)
                closest = cosines if number == 0 else torch.maximum(closest, cosines)
            if mix is not None:
                mix.add(pick)
        return torch.stack(chosen, 1) if chosen else pool.positions[:, :0]


def pool_size(steering: Steering | None, k: int) -> int:
    """Returns the number of candidates that a list of k bundles is chosen from."""
    return k if steering is None else max(POOL, 2 * k)


def relevance(pool: Ranking, batch: Batch, ranker: Ranker) -> Tensor:
    """Returns how well each candidate fits: 1 for the best of the pool, 0 for the last. In between, it is in
    proportion to the logarithm of the probability, or for users without a history of the sales."""
    real = _real(pool.order)
    by_sales = batch.no_history[:, None]
    sold = ranker.shares[ranker.shares > 0]
    least = float(sold.min()) if len(sold) else 1.0
    logs = torch.where(by_sales, pool.order.to(real).clamp(min=least).log(), pool.order.to(real))
    filled = _filled(pool)
    best = logs.masked_fill(~filled, -torch.inf).amax(1, keepdim=True)
    last = logs.masked_fill(~filled, torch.inf).amin(1, keepdim=True)
    span = torch.where(best > last, best - last, 1.0)
    return ((logs - last) / span).masked_fill(~filled, 0.0)


def similarity(model: Model, batch: Batch, positions: Tensor) -> Similar:
    """Returns the cosines between the bundles at `positions`, [rows, pool]: of the model's vectors, or of the
    bundles' items if the model has no vectors."""
    if not can(model, Embedder):
        return _overlap(batch.goods, positions)
    different, place = torch.unique(positions, return_inverse=True)
    vectors = F.normalize(model.vectors_of_bundles(batch.contents.rows(different)).float(), dim=1)
    row = torch.arange(len(positions), device=positions.device)
    if len(different) ** 2 <= 8 * positions.numel():  # few bundles for many users: each cosine once
        table = (vectors @ vectors.T).round(decimals=DECIMALS)
        return lambda pick: table[place[row, pick][:, None], place]
    pool = vectors[place]  # [rows, pool, d]
    return lambda pick: (pool[row, pick][:, None] @ pool.mT)[:, 0].round(decimals=DECIMALS)


def _overlap(goods: Goods, positions: Tensor) -> Similar:
    """Cosines of the bundles' items: the number of shared items over the geometric mean of the two sizes."""
    different, place = np.unique(positions.cpu().numpy(), return_inverse=True)
    chosen = goods.contents.rows(torch.from_numpy(different).to(positions.device))
    sizes = chosen.lengths.clamp(min=1).cpu().numpy()
    entries = np.repeat(sizes**-0.5, chosen.lengths.cpu().numpy())
    inside = sparse.csr_matrix(
        (entries, chosen.values.cpu().numpy(), chosen.offsets.cpu().numpy()), (len(different), goods.items)
    )
    pools = [inside[pool] for pool in place.reshape(positions.shape)]

    def similar(pick: Tensor) -> Tensor:
        found = [(pool @ pool[at].T).toarray()[:, 0] for pool, at in zip(pools, pick.tolist(), strict=True)]
        return torch.from_numpy(np.stack(found)).to(positions.device).round(decimals=DECIMALS)

    return similar


def popularity_groups(shares: Tensor) -> Tensor:
    """Returns the group of each bundle, given its share of all sales: 0 for the best sellers that together
    make the first third of the sales, 1 for those of the second third, 2 for the rest. Bundles that sold
    equally often are in the same group."""  # [bundles]
    sold, order = shares.cpu().double().sort(descending=True, stable=True)
    sold /= sold.sum().clamp(min=1e-12)
    before = sold.cumsum(0) - sold  # what all bundles before this one sold
    # Of equal ones, the sales before the first one count.
    first = torch.searchsorted(-sold, -sold)
    groups = (GROUPS * before[first] + 1e-6).long().clamp(max=GROUPS - 1)
    return torch.empty_like(groups).scatter_(0, order, groups).to(shares.device)


def shares_of_groups(groups: Tensor, bundles: Ragged) -> Tensor:
    """Returns the share of each popularity group in each row of bundles; nan for a row without bundles."""
    known = bundles.keep(bundles.values < len(groups))  # others have no id and no sales
    keys = known.row_of_entry() * GROUPS + groups[known.values]
    counts = torch.bincount(keys, minlength=len(known) * GROUPS).view(-1, GROUPS).to(_real(groups))
    return counts / counts.sum(1, keepdim=True)


class _Mix:
    """The groups of popularity in the lists so far, and in the bundles that the users have."""

    def __init__(self, groups: Tensor, wanted: Tensor) -> None:
        self._groups = groups  # [rows, pool]
        self._wanted = wanted  # [rows, groups], nan for users without a bundle, who have no wish
        self._counts = torch.zeros_like(wanted)

    @classmethod
    def of(cls, groups: Tensor, owned: Ragged, positions: Tensor) -> _Mix:
        return cls(groups[positions], shares_of_groups(groups, owned))

    def misplaced(self, number: int) -> Tensor:
        """Returns for each candidate how many of the first `number + 1` places would be of another group than
        in the user's own bundles."""  # [rows, pool]
        each = torch.eye(GROUPS, dtype=self._wanted.dtype, device=self._wanted.device)
        counts = self._counts[:, None] + each  # [rows, group of the candidate, groups]
        misplaced = (counts - (number + 1) * self._wanted[:, None]).abs().sum(2) / 2
        return misplaced.nan_to_num(0.0).gather(1, self._groups).round(decimals=DECIMALS)

    def add(self, pick: Tensor) -> None:
        """Count the candidates that were chosen."""
        group = self._groups.gather(1, pick[:, None])
        self._counts.scatter_add_(1, group, torch.ones_like(group, dtype=self._counts.dtype))


def _comes_last(pool: Ranking, ranker: Ranker) -> Tensor:
    """Returns a number that is larger than all values for candidates that rank after all others."""
    if ranker.available is None:
        return pool.order.new_zeros(())
    last = ranker.available[pool.positions] != ranker.hidden[pool.positions]
    return last.to(pool.order.dtype) * 1e6


def _filled(pool: Ranking) -> Tensor:
    return torch.arange(pool.positions.shape[1], device=pool.counts.device) < pool.counts[:, None]


def _real(like: Tensor) -> torch.dtype:
    """The most exact type of numbers that the device has: MPS has no float64."""
    return torch.float32 if like.device.type == "mps" else torch.float64
