"""Retraining in shops whose customers mostly buy what they are shown: the truly better model is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buying_shop import tried

SEEDS = range(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serving", "candidate", "size"),
    [
        ("item-knn", None, {"bought": 1}),  # the same model, which has learned from little
        ("item-popularity", "ease", {}),
        ("owned-share", "item-knn", {}),
        # Two close models: the difference is about 0.02, which is twice the standard error of a comparison.
        ("ease", "item-knn", {"users": 2000}),
    ],
)
def test_a_better_model_is_published(
    serving: str, candidate: str | None, size: dict[str, int], tmp_path: Path
) -> None:
    trials = [tried(seed, serving, candidate, tmp_path, **size) for seed in SEEDS]
    assert all(trial.candidate > trial.serving for trial in trials)
    assert sum(not trial.published for trial in trials) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serving", "candidate"),
    [("item-knn", "random"), ("ease", "item-popularity"), ("item-knn", "owned-share")],
)
def test_a_worse_model_is_not_published(serving: str, candidate: str, tmp_path: Path) -> None:
    trials = [tried(seed, serving, candidate, tmp_path) for seed in SEEDS]
    assert all(trial.candidate < trial.serving for trial in trials)
    assert sum(trial.published for trial in trials) <= 1
