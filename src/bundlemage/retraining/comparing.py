"""Two models asked for the same held-out bundles, as the service would be: with the catalogue as it is now,
among all bundles that can be sold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bundlemage.core.answering import rows_at_a_time
from bundlemage.data.splits import Split
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.evaluation.metrics import DEFAULT_KS, ranking_metrics
from bundlemage.evaluation.protocols import PerCase, means
from bundlemage.live import Live, Question, Stock
from bundlemage.models.ragged import Ragged
from bundlemage.recommender import Recommender
from bundlemage.store.records import Owned, Sales

DECISIVE = "ndcg@10"
LONGEST = max(DEFAULT_KS)
"""How long the lists are that are asked for."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same cases: the mean of each metric."""

    cases: int
    serving: dict[str, float]
    candidate: dict[str, float]
    difference: float
    """Of `DECISIVE`: above 0 the candidate is better."""
    standard_error: float
    """Of the difference, over the cases: about so far it would be elsewhere with other users."""


def compare(
    serving: Recommender,
    candidate: Recommender,
    split: Split,
    stock: Stock,
    progress: Callable[[int, int], None],
) -> Comparison:
    """Both on the test cases of a split, each with all that its user has but what is asked for."""
    assert split.test is not None
    questions, sales = _questions(split), _sales(split)
    wanted = [split.dataset.bundles[bundle] for bundle in split.test.positives.indices]
    old, new = (
        _asked(
            Live(model, stock, sales), questions, wanted, partial(_from, progress, before, 2 * len(wanted))
        )
        for model, before in ((serving, 0), (candidate, len(wanted)))
    )
    difference = new[DECISIVE] - old[DECISIVE]
    return Comparison(
        cases=len(wanted),
        serving=means(old),
        candidate=means(new),
        difference=float(difference.mean()),
        standard_error=float(difference.std() / len(wanted) ** 0.5),
    )


def _from(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _asked(
    live: Live, questions: Sequence[Question], wanted: Sequence[str], told: Callable[[int], None]
) -> PerCase:
    """The metrics of each case, by the list that the service would show."""
    places: list[list[int]] = []
    step = rows_at_a_time(len(live.shop.dataset.bundles), live.shop.device)
    for start in range(0, len(questions), step):
        some = slice(start, start + step)
        for answer, bundle in zip(live.answer(questions[some]), wanted[some], strict=True):
            if isinstance(answer, Exception):
                raise answer
            shown = [recommendation.id for recommendation in answer]
            places.append([shown.index(bundle) if bundle in shown else LONGEST])
        told(len(places))
    # A column stands for a place of the list, and the last one for what is not in it.
    scores = -torch.arange(LONGEST + 1, dtype=torch.float32).expand(len(places), -1)
    return ranking_metrics(scores, Ragged.from_lists(places))


def _questions(split: Split) -> list[Question]:
    assert split.test is not None
    data = split.dataset
    questions = []
    for user, held_out in zip(split.test.users.tolist(), split.test.positives.indices.tolist(), strict=True):
        bundles = _names(data.user_bundle, user, data.bundles)
        bundles.remove(data.bundles[held_out])
        owned = Owned(tuple(_names(data.user_item, user, data.items)), tuple(bundles))
        questions.append(Question(owned, LONGEST))
    return questions


def _names(matrix: Any, row: int, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary[place] for place in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]]


def _sales(split: Split) -> Sales:
    """As the store's would be, had nobody bought yet what is asked for."""
    assert split.test is not None
    data = split.dataset
    items = np.bincount(data.user_item.indices, minlength=len(data.items))
    bundles = np.bincount(data.user_bundle.indices, minlength=len(data.bundles))
    bundles -= np.bincount(split.test.positives.indices, minlength=len(data.bundles))
    return Sales(
        dict(zip(data.items, items.tolist(), strict=True)),
        dict(zip(data.bundles, bundles.tolist(), strict=True)),
    )
