"""`auto` on every kind of generated shop: it is never clearly below the best of its candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bundlemage import Recommender, SplitPlan
from bundlemage.data.splits import GenerationCases, MatchingCases, Split
from bundlemage.evaluation import case_metrics
from bundlemage.models.auto import LEARNED, TASKS
from bundlemage.models.base import Interactions
from bundlemage.sample.generate import sample_shop
from bundlemage.sample.kinds import GAMES, KINDS, shop_of_kind
from bundlemage.scorecard import competitors

Values = npt.NDArray[np.float64]
QUICK: dict[str, Any] = {"embedding_dim": 16, "epochs": 8, "learning_rate": 0.016, "device": "cpu"}
"""With large steps BundleMage learns something in a few epochs: it is a part of `auto` in most shops."""
ERRORS = 3.0
"""A difference below minus this many standard errors is clear."""
LEAST_MEAN = -0.02
"""The lowest mean difference over all kinds. The candidate that is the best on the test cases was lucky, too:
a part of the difference is chance."""


def split_of(kind: str, seed: int) -> Split:
    shop = sample_shop(seed=seed).dataset if kind == GAMES else shop_of_kind(kind, seed).dataset
    return SplitPlan(seed=seed).divide(shop)


def by_group(values: Values, cases: MatchingCases | GenerationCases) -> Values:
    """The users of a held-out bundle are asked the same question, so a bundle is one value."""
    if isinstance(cases, MatchingCases):
        return values
    return np.array([values[cases.bundles == bundle].mean() for bundle in np.unique(cases.bundles)])


def compared(kind: str, seed: int, settings: Mapping[str, Any]) -> dict[str, tuple[float, float, str]]:
    """For each task: nDCG@5 of auto minus that of the best candidate, its standard error, and its name."""
    split = split_of(kind, seed)
    fitted = Recommender("auto", seed=seed, **settings).fit(split, progress=False, calibrate=False)
    data = Interactions.of(split.train, fitted.shop.device)
    found = {}
    models = [each.model for each in competitors(fitted, split)]
    assert models[1].name == LEARNED
    measured = [case_metrics(model, split, data) for model in models]
    for task, cases in zip(TASKS, (split.test, split.generation), strict=True):
        assert cases is not None
        own, *others = (
            (by_group(values[task]["ndcg@5"].double().numpy(), cases), model.title)
            for values, model in zip(measured, models, strict=True)
            if task in values
        )
        assert len(others) >= 3
        best, title = max(others, key=lambda each: float(each[0].mean()))
        difference = own[0] - best
        error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
        found[task] = (float(difference.mean()), error, title)
    return found


def check(found: Mapping[tuple[Any, ...], dict[str, tuple[float, float, str]]]) -> None:
    for task in TASKS:
        for kind, of_task in found.items():
            difference, error, title = of_task[task]
            assert difference >= -ERRORS * error - 1e-9, (task, kind, title, difference, error)
        mean = float(np.mean([of_task[task][0] for of_task in found.values()]))
        assert mean >= LEAST_MEAN, (task, mean, found)


def test_it_is_never_clearly_below_its_best_candidate() -> None:
    check({(kind,): compared(kind, 0, QUICK) for kind in (GAMES, *KINDS)})


@pytest.mark.slow
def test_nor_is_it_with_its_own_settings() -> None:
    check(
        {
            (kind, seed): compared(kind, seed, {"device": "cpu"})
            for kind in (GAMES, *KINDS)
            for seed in range(3)
        }
    )
