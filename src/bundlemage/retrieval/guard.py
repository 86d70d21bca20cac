"""An index is used only if it finds enough of what an exact search finds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bundlemage.core.answering import Questions, exact_ranking, rows_at_a_time
from bundlemage.core.bulk import slices
from bundlemage.core.ranking import Ranking
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError, RecallError
from bundlemage.models.base import Histories, Model
from bundlemage.retrieval.index import MEASURED_AT, BundleIndex, faiss_or_fail

LEAST_BUNDLES = 20_000
"""With fewer, a look at each is the faster answer for one person. (For many at once an index still gains.)"""
ASKED = 500
"""How many users recall is measured with."""
SAMPLES = (2**12, 2**13, 2**14, 2**15)
"""Sizes of the sample for the sum over all bundles: the first that is good enough is used."""
GOOD_ENOUGH = 0.05
"""By how much of itself a score may be off, for 95 of 100 users, before a larger sample is tried."""


@dataclass(frozen=True)
class IndexReport:
    """What was built, and how good it is."""

    bundles: int
    kind: Literal["ivf-flat", "exact"]
    recall: float
    """How much of the ten best bundles of each user, as an exact search finds them, the index finds, too."""
    asked: int
    """How many users that was measured with."""
    score_error: float
    """By how much of itself a score is off for all but 5 of 100 users. It is the same factor for all bundles
    of a person, so that their order, and what one is to another, is exact."""
    seconds: float
    """To build it and to measure it."""
    answered_exactly: int = 0
    """How many of the users asked have so many bundles that they are answered by an exact search; `recall` is
    of the others."""
    looked_further: int = 0
    """For how many of the users asked the cells held too few bundles. What was not found counts as missed in
    `recall`; whoever asks is answered from more cells, and in the end by an exact search."""
    cells: int = 0
    probed: int = 0
    """Into how many cells a search for ten looks; for more, or with a filter, into more."""
    sampled: int = 0
    """How many bundles the sum over all is estimated from, beside those that are found."""

    def __str__(self) -> str:
        if self.kind == "exact":
            return (
                f"{self.bundles:,} bundles: so few are looked at one by one sooner, so the search stays exact"
            )
        return (
            f"{self.bundles:,} bundles in {self.cells:,} cells, {self.probed:,} of them looked into: recall@"
            f"{MEASURED_AT} {self.recall:.3f} ({self.asked:,} users), scores within {self.score_error:.1%} "
            f"(95 of 100 users), {self.seconds:.1f} s to build and measure"
        )


def built(
    model: Model,
    shop: Shop,
    least_recall: float,
    *,
    least_bundles: int,
    most_share: float,
    seed: int,
    say: Callable[[str], None],
) -> tuple[BundleIndex | None, IndexReport]:
    """An index that has passed, or None where there are too few bundles for one; and a report."""
    for name, share in (("least_recall", least_recall), ("most_share", most_share)):
        if not 0 < share <= 1:
            raise ConfigError(f"{name!r} is {share!r}; a share above 0 and up to 1 is wanted")
    began = time.perf_counter()
    faiss_or_fail()
    with torch.inference_mode():
        factors = model.factors_of_bundles(shop.interactions.bundle_item)
        shown = int((shop.bundles().hidden == 0).sum())
        if shown < max(1, least_bundles):
            return None, IndexReport(shown, "exact", 1.0, 0, 0.0, time.perf_counter() - began)
        histories = _asked(shop, seed)
        index = BundleIndex(model, shop, factors, histories, most_share, seed, say)
        index.take_sample(SAMPLES[0], seed)
        trial = _Trial(index, histories, say)
        recall = 0.0
        for effort in _efforts(index.most_cells):
            index.probed = effort
            recall = trial.recall()
            say(f"{effort:,} of {index.cells:,} cells looked into: recall@{MEASURED_AT} {recall:.3f}")
            if recall >= least_recall:
                break
        else:
            raise RecallError(
                f"the index finds {recall:.2%} of the {MEASURED_AT} best bundles of {trial.asked:,} users "
                f"though it looks into {index.probed:,} of {index.cells:,} cells, and at least "
                f"{least_recall:.2%} was asked for. It is not used, and the search stays exact. Ask for less "
                "(least_recall), let it look at more (most_share), or go without an index"
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


def _efforts(most: int) -> Iterator[int]:
    effort = 1
    while effort < most:
        yield effort
        effort *= 2
    yield most


def _asked(shop: Shop, seed: int) -> Histories:
    """Some users who have anything at all."""
    everyone = Questions(shop.everyone(), shop.interactions.bundle_item)
    users = (~everyone.nothing).nonzero()[:, 0].cpu().numpy()
    if not len(users):
        raise RecallError(
            "nobody in this shop has an item or a bundle, so what an index finds cannot be measured: go "
            "without one"
        )
    chosen = np.random.default_rng(seed).choice(users, min(ASKED, len(users)), replace=False)
    return shop.interactions.histories(torch.from_numpy(chosen).to(shop.device))


class _Trial:
    """What is best for some users, and what an index makes of that."""

    def __init__(self, index: BundleIndex, histories: Histories, say: Callable[[str], None]) -> None:
        self.index = index
        self.histories = histories
        shop = index.shop
        self.asked = len(self.histories)
        self.exactly = 0
        """How many of them own so much that the index is not asked."""
        self.lacking = 0
        """For how many of them the index found fewer than there are, so that it would look further."""
        self.ranker = shop.bundles().ranker()
        say(f"an exact search for {self.asked:,} users, to compare with")
        rows = rows_at_a_time(len(self.ranker.shares), shop.device)
        self._exact = [
            exact_ranking(index.model, self._questions(part), self.ranker, MEASURED_AT, include_owned=False)
            for part in slices(self.histories, rows)
        ]

    def _questions(self, part: Histories) -> Questions:
        return Questions(part, self.index.shop.interactions.bundle_item)

    def _pairs(self) -> Iterator[tuple[Ranking, Ranking, Tensor, Tensor, Tensor]]:
        """As it is, and as the index alone has it; True where the two name the same; True for whom it has
        searched; True for whom it has too few."""
        start = 0
        for exact in self._exact:
            rows = torch.arange(start, start + len(exact), device=exact.positions.device)
            questions, k = self._questions(self.histories.rows(rows)), exact.positions.shape[1]
            found, searched, lacking = self.index.searched(
                questions, self.ranker.hidden, k, include_owned=False, once=True
            )
            there, here = _named(exact), _named(found)
            same = (there[:, :, None] == here[:, None, :]) & (there >= 0)[:, :, None]
            yield exact, found, same, searched, lacking
            start += len(exact)

    def recall(self) -> float:
        hits = wanted = self.lacking = self.exactly = 0
        for exact, _, same, searched, lacking in self._pairs():
            hits += int(same.sum())
            wanted += int(exact.counts[searched].sum())
            self.lacking += int(lacking.sum())
            self.exactly += int((~searched).sum())
        return hits / wanted if wanted else 0.0

    def score_error(self) -> float:
        """Of bundles that both name, as a share of the exact score."""
        errors = []
        for exact, found, same, *_ in self._pairs():
            row, one, other = same.nonzero(as_tuple=True)
            true = exact.chances[row, one].clamp(min=torch.finfo(exact.chances.dtype).tiny)
            off = ((found.chances[row, other] - true) / true).abs()
            errors.append(off.new_zeros(len(exact)).scatter_reduce(0, row, off, "amax").cpu())
        return float(torch.cat(errors).quantile(0.95))


def _named(ranking: Ranking) -> Tensor:
    """Positions, and -1 in the places that say nothing."""
    places = torch.arange(ranking.positions.shape[1], device=ranking.positions.device)
    return ranking.positions.masked_fill(places >= ranking.counts[:, None], -1)
