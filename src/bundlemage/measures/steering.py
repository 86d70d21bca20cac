"""What diversity and matched popularity cost: figures of lists on held-out cases, for several weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bundlemage.core.answering import Batch
from bundlemage.core.ownership import Goods
from bundlemage.core.ranking import Ranker, Ranking
from bundlemage.core.steering import POOL, Similar, Steering, popularity_groups, shares_of_groups, similarity
from bundlemage.data.dataset import binary_matrix
from bundlemage.data.splits import MatchingCases, Split
from bundlemage.evaluation import PerCase, means
from bundlemage.measures.lists import AnswerLists
from bundlemage.models.base import Interactions, Model
from bundlemage.models.ragged import Ragged, offsets_of
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.shop import ShopSettings

STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The weights that are compared, first of `diversity` and then of `match_popularity`."""
K = 10
"""The length of the lists."""
AT_A_TIME = 512
"""The number of lists that are chosen together."""


@dataclass(frozen=True)
class SteeringPoint:
    """The figures of lists of ten bundles, for one pair of weights."""

    diversity: float
    match_popularity: float
    metrics: Mapping[str, float | None]
    """Accuracy (`ndcg@5`, `recall@10`, …) and the measures of lists (`coverage@10`, …). `cosine@10` is the
    mean cosine of two bundles of a list, which `diversity` lowers. `misplaced@10` is the share of a list that
    is of another group of popularity than in the user's own bundles, which `match_popularity` lowers."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def steering_curve(
    model: Model,
    split: Split,
    cases: MatchingCases,
    data: Interactions,
    settings: ShopSettings,
    progress: Progress = in_silence,
) -> list[SteeringPoint]:
    """Returns the figures of lists for each weight of `STEPS`, with the other rules of the shop.

    `cases` are the test cases of matching, and `data` the histories. Lists are chosen from all bundles that a
    user does not have, as in answers, also if the cases have candidates of their own.
    """
    weights = [(step, 0.0) for step in STEPS] + [(0.0, step) for step in STEPS if step]
    lists = _Lists(model, AnswerLists(split, cases, data, (K,)), data, settings)
    found: list[list[PerCase]] = [[] for _ in weights]
    shown: list[list[Tensor]] = [[] for _ in weights]
    count = lists.answers.evaluator.cases
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for start in range(0, count, AT_A_TIME):
            progress("test users", start, count)
            chunk = torch.arange(start, min(start + AT_A_TIME, count), device=data.bundle_item.device)
            batch, pool = lists.pool(chunk)
            for number, pair in enumerate(weights):
                ranking = Steering(*pair).choose(model, batch, lists.ranker, pool, K)
                found[number].append(lists.of_cases(chunk, batch, ranking))
                shown[number].append(_listed(ranking))
    model.train(was_training)
    return [
        SteeringPoint(
            *pair,
            {
                **means({name: torch.cat([part[name] for part in parts]) for name in parts[0]}),
                **lists.of_lists(torch.cat(positions)),
            },
        )
        for pair, parts, positions in zip(weights, found, shown, strict=True)
    ]


class _Lists:
    """Ranks the bundles of test users as answers do, with the histories of the training data."""

    def __init__(
        self, model: Model, answers: AnswerLists, data: Interactions, settings: ShopSettings
    ) -> None:
        self.answers = answers
        self._model, self._data, self._settings = model, data, settings
        self._goods = Goods(data.bundle_item, data.items)
        contents = data.bundle_item
        sales = torch.bincount(data.user_bundle.values, minlength=len(contents))
        hidden = torch.where(contents.lengths > 0, 0.0, -torch.inf)
        self.ranker = Ranker(sales / sales.sum().clamp(min=1), hidden)
        self._groups = popularity_groups(self.ranker.shares)

    def pool(self, chunk: Tensor) -> tuple[Batch, Ranking]:
        """Returns the users of these cases, and the bundles that their lists are chosen from."""
        evaluator, contents = self.answers.evaluator, self._data.bundle_item
        histories = self._data.histories(evaluator.users[chunk])
        batch = Batch(histories, contents, self._goods.owned(histories, contents), self._goods)
        scores, _ = evaluator.score(self._model, chunk)
        demoted = self._goods.demoted(batch.owned, self._settings.owned, self._settings.mostly_owned)
        return batch, self.ranker.rank(scores, batch.no_history, [histories.bundles], POOL, demoted)

    def of_cases(self, chunk: Tensor, batch: Batch, ranking: Ranking) -> PerCase:
        """Returns the figures of each list."""
        positions = _listed(ranking)
        filled = positions >= 0
        listed = Ragged(positions[filled], offsets_of(filled.sum(1)))
        mixes = [shares_of_groups(self._groups, each) for each in (listed, batch.histories.bundles)]
        taken = self.answers.evaluator.positives.rows(chunk)
        is_taken = taken.as_mask(len(self._groups)).gather(1, positions.clamp(min=0)) & filled
        return {
            **_accuracy(is_taken, taken.lengths),
            f"cosine@{K}": _mean_cosine(similarity(self._model, batch, ranking.positions), filled),
            f"misplaced@{K}": (mixes[0] - mixes[1]).abs().sum(1) / 2,
        }

    def of_lists(self, positions: Tensor) -> dict[str, float | None]:
        """Returns the measures of all lists together."""
        rows, places = (positions >= 0).nonzero(as_tuple=True)
        shown = (rows.cpu().numpy(), positions[rows, places].cpu().numpy())
        return self.answers.bundles.measures(binary_matrix(*shown, (len(positions), len(self._groups))), K)


def _listed(ranking: Ranking) -> Tensor:
    """The bundles of each list; -1 after the last one."""  # [rows, k]
    place = torch.arange(ranking.positions.shape[1], device=ranking.positions.device)
    return ranking.positions.masked_fill(place >= ranking.counts[:, None], -1)


def _mean_cosine(similar: Similar, filled: Tensor) -> Tensor:
    """The mean over all pairs of two bundles of a list; nan for a list of one bundle."""  # [rows]
    total, pairs = torch.zeros((2, len(filled)), dtype=torch.float64, device=filled.device)
    for place in range(1, filled.shape[1]):
        both = filled[:, :place] & filled[:, place, None]
        cosines = similar(torch.full((len(filled),), place, device=filled.device))
        total += (cosines[:, :place] * both).sum(1)
        pairs += both.sum(1)
    means: Tensor = total / pairs
    return means


def _accuracy(is_taken: Tensor, taken: Tensor) -> PerCase:
    """nDCG and recall. `is_taken` says which bundles of a list the user took, of `taken` ones in all."""
    hits = is_taken.double()
    gains = 1 / torch.log2(torch.arange(hits.shape[1], device=hits.device, dtype=hits.dtype) + 2)
    metrics = {}
    for k in (5, K):
        ideal = gains[:k].cumsum(0)[taken.clamp(1, len(gains[:k])) - 1]
        metrics[f"ndcg@{k}"] = (hits * gains)[:, :k].sum(1) / ideal
        metrics[f"recall@{k}"] = hits[:, :k].sum(1) / taken
    return metrics
