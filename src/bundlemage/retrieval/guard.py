"""Builds an index of bundles, and refuses it if its recall is too low compared to an exact search."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bundlemage.core.answering import Batch, exact_ranking, rows_at_a_time, slices
from bundlemage.core.ranking import Ranking
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError, RecallError
from bundlemage.models.base import Histories, Indexable, Model, require
from bundlemage.progress import Progress
from bundlemage.retrieval.index import MEASURED_AT, BundleIndex, faiss_or_fail

LEAST_BUNDLES = 20_000
"""With fewer bundles, an exact search is faster for one user. (For many users an index is still faster.)"""
ASKED = 500
"""The number of users in the sample that measures recall."""
SAMPLES = (2**12, 2**13, 2**14, 2**15)
"""Sizes of the bundle sample that estimates a sum over all bundles. The first good enough size is used."""
GOOD_ENOUGH = 0.05
"""Maximum relative error of a score for 95% of users. If it is larger, a larger sample is tried."""


@dataclass(frozen=True)
class IndexReport:
    """The size and the quality of an index."""

    bundles: int
    kind: Literal["ivf-flat", "exact"]
    recall: float
    """The share of the users' ten best bundles (by an exact search) that the index finds."""
    asked: int
    """The number of users for whom the recall was measured."""
    score_error: float
    """The relative error of scores for 95% of users is at most this. It is the same factor for all bundles of
    a user, so their order and their ratios are exact."""
    seconds: float
    """The time to build the index and to measure it."""
    answered_exactly: int = 0
    """The number of these users with so many bundles that their search is exact. `recall` excludes them."""
    looked_further: int = 0
    """The number of these users for whom the cells contained too few bundles. This lowers `recall`. A real
    question would then search more cells, and finally search exactly."""
    cells: int = 0
    probed: int = 0
    """The number of cells that a search for ten bundles reads. With larger k or a filter it is larger."""
    sampled: int = 0
    """The number of bundles in the sample that estimates the sum over all bundles."""

    def __str__(self) -> str:
        if self.kind == "exact":
            return (
                f"{self.bundles:,} bundles: an exact search is faster for so few, so the search stays exact"
            )
        return (
            f"{self.bundles:,} bundles in {self.cells:,} cells, {self.probed:,} of them searched: recall@"
            f"{MEASURED_AT} {self.recall:.3f} ({self.asked:,} users), scores within {self.score_error:.1%} "
            f"(95% of users), {self.seconds:.1f} s to build and measure"
        )


def build_index(
    model: Model,
    shop: Shop,
    least_recall: float,
    *,
    least_bundles: int,
    most_share: float,
    seed: int,
    progress: Progress,
) -> tuple[BundleIndex | None, IndexReport]:
    """Build an index. Returns the index, or None if there are too few bundles for one; and its report.

    The parameters are those of `Asker.use_index`. Raises `RecallError` if the recall is too low.
    """
    for name, share in (("least_recall", least_recall), ("most_share", most_share)):
        if not 0 < share <= 1:
            raise ConfigError(f"{name!r} is {share!r}; it must be a share above 0 and up to 1")
    began = time.perf_counter()
    faiss_or_fail()
    searched = require(model, Indexable)
    with torch.inference_mode():
        factors = searched.factors_of_bundles(shop.interactions.bundle_item)
        shown = int((shop.bundles().hidden == 0).sum())
        if shown < max(1, least_bundles):
            return None, IndexReport(shown, "exact", 1.0, 0, 0.0, time.perf_counter() - began)
        histories = _some_users(shop, seed)
        index = BundleIndex(searched, shop, factors, histories, most_share, seed, progress)
        index.take_sample(SAMPLES[0], seed)
        trial = _Trial(index, histories, progress)
        recall = 0.0
        efforts = [2**step for step in range(index.most_cells.bit_length()) if 2**step < index.most_cells]
        for effort in (*efforts, index.most_cells):
            index.probed = effort
            recall = trial.recall()
            progress("cells searched", effort, index.cells, f"recall@{MEASURED_AT} {recall:.3f}")
            if recall >= least_recall:
                break
        else:
            raise RecallError(
                f"the index finds {recall:.2%} of the {MEASURED_AT} best bundles of {trial.asked:,} users "
                f"when it searches {index.probed:,} of {index.cells:,} cells, but at least "
                f"{least_recall:.2%} was asked for. The index is not used, and the search stays exact. Lower "
                "least_recall, raise most_share, or do not use an index"
            )
        error = math.inf
        for size in SAMPLES:
            index.take_sample(size, seed)
            error = trial.score_error()
            if error <= GOOD_ENOUGH:
                break
    return index, IndexReport(
        bundles=shown,
        kind="ivf-flat",
        recall=recall,
        asked=trial.asked,
        score_error=error,
        seconds=time.perf_counter() - began,
        answered_exactly=trial.exactly,
        looked_further=trial.lacking,
        cells=index.cells,
        probed=index.probed,
        sampled=len(index.sample),
    )


def _some_users(shop: Shop, seed: int) -> Histories:
    """The histories of a random sample of the users who have an item or a bundle."""
    everyone = Batch(shop.everyone(), shop.interactions.bundle_item)
    users = (~everyone.nothing).nonzero()[:, 0].cpu().numpy()
    if not len(users):
        raise RecallError(
            "no user of this shop has an item or a bundle, so an index cannot be measured: do not use one"
        )
    chosen = np.random.default_rng(seed).choice(users, min(ASKED, len(users)), replace=False)
    return shop.interactions.histories(torch.from_numpy(chosen).to(shop.device))


class _Trial:
    """Compares an index with an exact search, for a sample of users."""

    def __init__(self, index: BundleIndex, histories: Histories, progress: Progress) -> None:
        self.index = index
        shop = index.shop
        self.asked = len(histories)
        self.exactly = 0
        """The number of users who own so many bundles that the index is not used."""
        self.lacking = 0
        """The number of users for whom the index found too few bundles in the first cells."""
        ranker = shop.bundles().ranker()
        self.hidden = ranker.hidden
        progress(f"an exact search for {self.asked:,} users, to compare with", 0, 0)
        parts = slices(histories, rows_at_a_time(len(ranker.shares), shop.device))
        batches = (Batch(part, shop.interactions.bundle_item) for part in parts)
        self._exact = [
            (batch, exact_ranking(index.model, batch, ranker, MEASURED_AT, include_owned=False))
            for batch in batches
        ]

    def _pairs(self) -> Iterator[tuple[Ranking, Ranking, Tensor, Tensor, Tensor]]:
        """Yields for each batch: the exact ranking; the ranking by the index; a mask [user, place, place] of
        equal bundles; a mask of users whom the index answered; a mask of users with too few results."""
        for batch, exact in self._exact:
            k = exact.positions.shape[1]
            ranking, searched, lacking = self.index.searched(
                batch, self.hidden, k, include_owned=False, once=True
            )
            true, other = _named(exact), _named(ranking)
            same = (true[:, :, None] == other[:, None, :]) & (true >= 0)[:, :, None]
            yield exact, ranking, same, searched, lacking

    def recall(self) -> float:
        """Returns the share of the exact answers that the index finds."""
        hits = wanted = self.lacking = self.exactly = 0
        for exact, _, same, searched, lacking in self._pairs():
            hits += int(same.sum())
            wanted += int(exact.counts[searched].sum())
            self.lacking += int(lacking.sum())
            self.exactly += int((~searched).sum())
        return hits / wanted if wanted else 0.0

    def score_error(self) -> float:
        """Returns the 95% quantile over users of the largest relative error of a score in both rankings."""
        errors = []
        for exact, ranking, same, *_ in self._pairs():
            row, one, other = same.nonzero(as_tuple=True)
            true = exact.chances[row, one].clamp(min=torch.finfo(exact.chances.dtype).tiny)
            off = ((ranking.chances[row, other] - true) / true).abs()
            errors.append(off.new_zeros(len(exact)).scatter_reduce(0, row, off, "amax").cpu())
        return float(torch.cat(errors).quantile(0.95))


def _named(ranking: Ranking) -> Tensor:
    """The positions in a ranking, with -1 in the unused places of each row."""
    places = torch.arange(ranking.positions.shape[1], device=ranking.positions.device)
    return ranking.positions.masked_fill(places >= ranking.counts[:, None], -1)
