"""Compares two models on the same cases. Each model answers as the service would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bundlemage.core.answering import rows_at_a_time
from bundlemage.evaluation import DEFAULT_KS, PerCase, means, ranking_metrics
from bundlemage.live import Live
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.retraining.holding_out import Completion
from bundlemage.retraining.purchases import Case

DECISIVE = "ndcg@10"
"""The metric that decides which model is better."""
LONGEST = max(DEFAULT_KS)
"""The number of bundles or items in an answer."""
CLEARLY = 2.0
"""A difference is clear if it is greater than this many standard errors."""


@dataclass(frozen=True)
class ModelComparison:
    """The mean metrics of two models on the same cases."""

    cases: int
    serving: dict[str, float]
    candidate: dict[str, float]
    difference: float
    """The candidate's `DECISIVE` metric minus the serving model's."""
    standard_error: float
    """The standard error of the difference, over the cases."""

    def clearly_below(self, tolerance: float) -> bool:
        """Whether the candidate is worse by more than `tolerance`, and not only by chance."""
        return self.difference < -tolerance - CLEARLY * self.standard_error


def compare_matching(
    serving: Live, candidate: Live, cases: Sequence[Case], progress: Progress = in_silence
) -> ModelComparison:
    """Returns both models' metrics on purchases.

    The bundles that had been shown to a user are removed from both models' lists: a case is a purchase of a
    bundle that had not been shown, so with them the model that chose the shown bundles would be at a
    disadvantage. Lists are not steered: variety costs accuracy, which is not the model's fault.
    """

    def ranks(live: Live, batch: Sequence[Case]) -> list[list[int]]:
        longest = LONGEST + max(len(case.shown) for case in batch)
        histories = [case.history for case in batch]
        answers = live.recommend_many(histories, longest, diversity=0.0, match_popularity=0.0)
        lists = [
            [each.id for each in answer if each.id not in case.shown][:LONGEST]
            for case, answer in zip(batch, answers, strict=True)
        ]
        return [_ranks([case.bundle], found) for case, found in zip(batch, lists, strict=True)]

    return _compare(serving, candidate, cases, ranks, "cases", progress)


def compare_generation(
    serving: Live, candidate: Live, cases: Sequence[Completion], progress: Progress = in_silence
) -> ModelComparison:
    """Returns both models' metrics on bundles to complete. Items that the user has are not left out: a buyer
    of a bundle may have all of its items."""

    def ranks(live: Live, batch: Sequence[Completion]) -> list[list[int]]:
        questions = [(case.history, case.partial) for case in batch]
        answers = live.complete_many(questions, LONGEST, owned="show", stock="show")
        return [
            _ranks(case.hidden, [each.id for each in answer])
            for case, answer in zip(batch, answers, strict=True)
        ]

    return _compare(serving, candidate, cases, ranks, "bundles", progress)


def _ranks(wanted: Sequence[str], found: Sequence[str]) -> list[int]:
    """Returns the place of each wanted id among the found ones. What was not found comes after the list."""
    missing = iter(range(LONGEST, LONGEST + len(wanted)))
    return [found.index(name) if name in found else next(missing) for name in wanted]


def _compare(
    serving: Live,
    candidate: Live,
    cases: Sequence[Any],
    ranks: Callable[[Live, Sequence[Any]], list[list[int]]],
    what: str,
    progress: Progress,
) -> ModelComparison:
    def metrics(name: str, live: Live) -> PerCase:
        found: list[list[int]] = []
        step = rows_at_a_time(max(len(live.dataset.bundles), len(live.dataset.items)), live.shop.device)
        for start in range(0, len(cases), step):
            found += ranks(live, cases[start : start + step])
            progress(f"{what} of the {name} model", len(found), len(cases))
        # One column for each place. The columns after the list stand for what is not in it.
        width = LONGEST + max(map(len, found))
        scores = -torch.arange(width, dtype=torch.float32).expand(len(found), -1)
        return ranking_metrics(scores, Ragged.from_lists(found))

    old, new = metrics("serving", serving), metrics("new", candidate)
    difference = new[DECISIVE] - old[DECISIVE]
    return ModelComparison(
        cases=len(cases),
        serving=means(old),
        candidate=means(new),
        difference=float(difference.mean()),
        standard_error=float(difference.std() / len(cases) ** 0.5),
    )
