"""What variety and matched popularity cost: figures of lists on held-out cases, for several weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bundlemage.core.answering import Batch
from bundlemage.core.ownership import Goods
from bundlemage.core.ranking import Ranker, Ranking
from bundlemage.core.steering import POOL, Similar, Steering, popularity_groups, shares_of_groups, similarity
from bundlemage.data.dataset import Positions
from bundlemage.data.splits import MatchingCases
from bundlemage.evaluation import MatchingEvaluator, PerCase, means
from bundlemage.models.base import Interactions, Model
from bundlemage.models.ragged import Ragged, offsets_of
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.shop import ShopSettings

STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The weights that are compared, first of `diversity` and then of `match_popularity`."""
K = 10
"""The length of the lists."""
AT_A_TIME = 512
"""The number of test cases whose lists are chosen together."""


@dataclass(frozen=True)
class SteeringPoint:
    """The figures of lists of ten bundles, for one pair of weights. Each is the mean over the test cases."""

    diversity: float
    match_popularity: float
    ndcg_5: float
    recall_5: float
    ndcg_10: float
    recall_10: float
    coverage: float
    """The share of the shop's bundles that are in any of the lists."""
    variety: float
    """How different the bundles of a list are: 1 minus their mean cosine."""
    popularity_lift: float
    """How often the bundles of a list sold, over how often the user's own bundles did. With 1, both are
    equally popular."""
    misplaced: float
    """The share of a list that is of another group of popularity than in the user's own bundles."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def steering_curve(
    model: Model,
    cases: MatchingCases,
    data: Interactions,
    settings: ShopSettings,
    new: Positions | None = None,
    progress: Progress = in_silence,
) -> list[SteeringPoint]:
    """Returns the figures of lists for each weight of `STEPS`. The other rules are those of the shop.

    `data` are the histories, and `new` the bundles that are new in the cases. Lists are chosen from all
    bundles that a user does not have, as in answers, also if the cases have candidates of their own.
    """
    weights = [(step, 0.0) for step in STEPS] + [(0.0, step) for step in STEPS if step]
    lists = _Lists(model, cases, data, settings, new)
    found: list[list[PerCase]] = [[] for _ in weights]
    shown = torch.zeros(len(weights), len(data.bundle_item), dtype=torch.bool)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(cases), AT_A_TIME):
            progress("test cases", start, len(cases))
            chunk = torch.arange(start, min(start + AT_A_TIME, len(cases)), device=data.bundle_item.device)
            batch, pool = lists.pool(chunk)
            for number, pair in enumerate(weights):
                ranking = Steering(*pair).choose(model, batch, lists.ranker, pool, K)
                shown[number, torch.from_numpy(ranking.answers()[2])] = True
                found[number].append(lists.figures(chunk, batch, ranking))
    model.train(was_training)
    coverage = shown.sum(1) / max(1, int((data.bundle_item.lengths > 0).sum()))
    return [
        SteeringPoint(
            *pair,
            coverage=float(share),
            **means({name: torch.cat([part[name] for part in parts]) for name in parts[0]}),
        )
        for pair, share, parts in zip(weights, coverage, found, strict=True)
    ]


class _Lists:
    """Ranks the bundles of test cases as answers do, with the histories of the training data."""

    def __init__(
        self,
        model: Model,
        cases: MatchingCases,
        data: Interactions,
        settings: ShopSettings,
        new: Positions | None,
    ) -> None:
        self._model, self._data, self._settings = model, data, settings
        self._evaluator = MatchingEvaluator(replace(cases, candidates=None), data, (5, K), new)
        self._taken = Ragged.from_csr(cases.positives, self._evaluator.device)
        self._goods = Goods(data.bundle_item, data.items)
        contents = data.bundle_item
        self._sales = torch.bincount(data.user_bundle.values, minlength=len(contents))
        shares = self._sales / self._sales.sum().clamp(min=1)
        self.ranker = Ranker(shares, torch.where(contents.lengths > 0, 0.0, -torch.inf))
        self._groups = popularity_groups(shares)

    def pool(self, chunk: Tensor) -> tuple[Batch, Ranking]:
        """Returns the users of these cases, and the bundles that their lists are chosen from."""
        evaluator, contents = self._evaluator, self._data.bundle_item
        histories = self._data.histories(evaluator.users[chunk])
        batch = Batch(histories, contents, self._goods.owned(histories, contents), self._goods)
        scores, _ = evaluator.score(self._model, chunk)
        demoted = self._goods.demoted(batch.owned, self._settings.owned, self._settings.mostly_owned)
        hide = [histories.bundles]
        return batch, self.ranker.rank(scores, batch.no_history, hide, POOL, demoted)

    def figures(self, chunk: Tensor, batch: Batch, ranking: Ranking) -> PerCase:
        """Returns the figures of each list."""
        filled = torch.arange(ranking.positions.shape[1], device=chunk.device) < ranking.counts[:, None]
        return {
            **_accuracy(self._taken.rows(chunk), ranking, filled, len(self._data.bundle_item)),
            "variety": _variety(similarity(self._model, batch, ranking.positions), filled),
            **self._popularity(batch.histories.bundles, ranking, filled),
        }

    def _popularity(self, own: Ragged, ranking: Ranking, filled: Tensor) -> PerCase:
        own_sales = own.mean_of(self._sales[:, None].double())[:, 0]
        sales = (self._sales[ranking.positions] * filled).sum(1) / ranking.counts
        listed = Ragged(ranking.positions[filled], offsets_of(ranking.counts))
        mixes = [shares_of_groups(self._groups, bundles) for bundles in (listed, own)]
        return {
            "popularity_lift": sales / own_sales.where(own_sales > 0, torch.nan),
            "misplaced": (mixes[0] - mixes[1]).abs().sum(1) / 2,
        }


def _accuracy(taken: Ragged, ranking: Ranking, filled: Tensor, bundles: int) -> PerCase:
    hits = (taken.as_mask(bundles).gather(1, ranking.positions) & filled).double()
    gains = 1 / torch.log2(torch.arange(hits.shape[1], device=hits.device, dtype=torch.float64) + 2)
    metrics = {}
    for k in (5, K):
        ideal = torch.cumsum(gains[:k], 0)[taken.lengths.clamp(1, k) - 1]
        metrics[f"ndcg_{k}"] = (hits * gains)[:, :k].sum(1) / ideal
        metrics[f"recall_{k}"] = hits[:, :k].sum(1) / taken.lengths
    return metrics


def _variety(similar: Similar, filled: Tensor) -> Tensor:
    """1 minus the mean cosine of two bundles of each list; nan for a list of one bundle."""
    total, pairs = torch.zeros((2, len(filled)), dtype=torch.float64, device=filled.device)
    for place in range(1, filled.shape[1]):
        both = filled[:, :place] & filled[:, place, None]
        cosines = similar(torch.full((len(filled),), place, device=filled.device))
        total += (cosines[:, :place] * both).sum(1)
        pairs += both.sum(1)
    variety: Tensor = 1 - total / pairs
    return variety
