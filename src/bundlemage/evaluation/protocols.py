"""Asks a model the cases of a split. The results are ready for a table or for JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bundlemage.data.dataset import Positions
from bundlemage.data.splits import PAD, GenerationCases, MatchingCases, Split
from bundlemage.evaluation.metrics import DEFAULT_KS, ranking_metrics
from bundlemage.models.base import Completer, Interactions, Matcher, Model, SalesScorer, can, require
from bundlemage.models.ragged import Ragged

SCORES_AT_A_TIME = 2**25
"""The most scores of a chunk of cases that are in memory at a time."""

PerCase = dict[str, Tensor]
"""Metric → a value for each case."""


class Exam(ABC):
    """Cases on the data's device, for one model after another, or for a model that is learning."""

    def __init__(self, cases: int, width: int, data: Interactions, ks: Sequence[int]) -> None:
        """`width`: how many candidates the model scores for each case."""
        self.cases, self.width, self.data, self.ks = cases, width, data, ks
        self.device = data.user_item.device

    @abstractmethod
    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        """The scores of some cases' candidates, and the positives among the candidates."""

    def metrics(self, model: Model) -> PerCase:
        """The metrics of each case."""
        was_training = model.training
        model.eval()
        chunks = torch.split(torch.arange(self.cases, device=self.device), cases_at_a_time(self.width))
        with torch.inference_mode():
            parts = [ranking_metrics(*self.score(model, some), self.ks) for some in chunks if len(some)]
        model.train(was_training)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def tensor(self, positions: np.ndarray) -> Tensor:
        """Positions on the exam's device."""
        return torch.from_numpy(positions.astype(np.int64)).to(self.device)


class MatchingExam(Exam):
    """Users, and the bundles that they took. Histories come from the training data.

    Without fixed candidates every bundle is ranked except those that the user has in training. A model whose
    scores depend on sales scores the `new` bundles as bundles that came after training.
    """

    def __init__(
        self,
        cases: MatchingCases,
        data: Interactions,
        ks: Sequence[int] = DEFAULT_KS,
        new: Positions | None = None,
    ) -> None:
        super().__init__(len(cases), len(data.bundle_item), data, ks)
        self.new = None if new is None else self.tensor(new)
        self.users = self.tensor(cases.users)
        self.positives = Ragged.from_csr(cases.positives, self.device)
        self.candidates = None if cases.candidates is None else self.tensor(cases.candidates)
        if self.candidates is not None:
            self.positives = _columns(self.positives, self.candidates)

    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        matcher = require(model, Matcher)
        histories, contents = self.data.histories(self.users[chunk]), self.data.bundle_item
        positives = self.positives.rows(chunk)
        if self.candidates is not None:
            candidates = self.candidates[chunk]
            scores = matcher.score_candidates(histories, candidates.clamp(min=0), contents)
            model.checked("score_candidates", scores, *candidates.shape)
            return scores.masked_fill(candidates == PAD, -torch.inf), positives
        scores = matcher.bundle_scores(histories, contents)
        if self.new is not None and can(model, SalesScorer):
            scores[:, self.new] = model.score_new_bundles(histories, contents, contents.rows(self.new))
        return scores.masked_fill(histories.bundles.as_mask(scores.shape[1]), -torch.inf), positives


class GenerationExam(Exam):
    """Incomplete bundles, each to be completed for a user."""

    def __init__(self, cases: GenerationCases, data: Interactions, ks: Sequence[int] = DEFAULT_KS) -> None:
        super().__init__(len(cases), data.items, data.with_nobody, ks)
        self.users, self.bundles = self.tensor(cases.users), self.tensor(cases.bundles)
        self.partial = Ragged.from_csr(cases.partial, self.device)
        self.candidates = self.tensor(cases.candidates)
        self.positives = _columns(Ragged.from_csr(cases.positives, self.device), self.candidates)
        self.known_as = None if cases.known_as is None else self.tensor(cases.known_as)

    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        held_out = self.bundles[chunk]
        histories = self.data.histories(self.users[chunk])
        if self.known_as is not None:  # no user has a bundle that is still incomplete
            owned, target = histories.bundles, self.known_as[held_out]
            histories = replace(histories, bundles=owned.keep(owned.values != target[owned.row_of_entry()]))
        candidates, partial = self.candidates[held_out], self.partial.rows(held_out)
        scores = require(model, Completer).score_item_candidates(
            histories, partial, candidates.clamp(min=0), self.data.bundle_item
        )
        model.checked("score_item_candidates", scores, *candidates.shape)
        return scores.masked_fill(candidates == PAD, -torch.inf), self.positives.rows(held_out)


def cases_at_a_time(width: int) -> int:
    """How many cases are asked together, if the model scores `width` candidates for each."""
    return max(1, SCORES_AT_A_TIME // max(1, width))


def means(metrics: PerCase) -> dict[str, float]:
    """The mean of each metric over the cases that have one."""
    if not metrics:
        return {}
    # They are read at once, because each reading waits for the device.
    values = torch.stack([torch.nanmean(values) for values in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def _columns(positives: Ragged, candidates: Tensor) -> Ragged:
    """The positives as columns of the table of candidates."""
    row = positives.row_of_entry()
    columns = torch.empty_like(row)
    step = max(1, SCORES_AT_A_TIME // max(1, candidates.shape[1]))
    for start in range(0, len(row), step):
        some = slice(start, start + step)
        same = candidates[row[some]] == positives.values[some, None]  # [positives, width]
        if not bool(same.any(1).all()):
            raise ValueError("a positive is not among its case's candidates")
        columns[some] = same.int().argmax(1)
    return Ragged(columns, positives.offsets)


# ── Results ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Evaluation:
    """One model on the test cases of one split. A task without cases, or not learned, is None."""

    model: str
    dataset: str
    protocol: str
    matching: dict[str, float] | None
    matching_cases: int
    generation: dict[str, float] | None
    generation_cases: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluation_of(model: Model, split: Split, by_case: Mapping[str, PerCase]) -> Evaluation:
    """The means over all cases, from the metrics of each case."""
    tasks = {task: means(values) for task, values in by_case.items()}
    return Evaluation(
        model=model.title,
        dataset=split.dataset.name,
        protocol=split.protocol,
        matching=tasks.get("matching"),
        matching_cases=len(split.test) if split.test else 0,
        generation=tasks.get("generation"),
        generation_cases=len(split.generation) if split.generation else 0,
        notes=split.dataset.notes,
    )


def case_metrics(
    model: Model, split: Split, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, PerCase]:
    """Task → metric → a value for each test case, for the tasks of the split that the model does."""
    tasks = {}
    if split.test and can(model, Matcher):
        tasks["matching"] = MatchingExam(split.test, data, ks, split.new_bundles).metrics(model)
    if split.generation and can(model, Completer):
        tasks["generation"] = GenerationExam(split.generation, data, ks).metrics(model)
    return tasks


def tasks_not_learned(rows: Sequence[Evaluation]) -> list[str]:
    """The tasks in which the first row, a model, is not better than the second row, popularity."""
    scores = {task: [row.to_json()[task] for row in rows] for task in ("matching", "generation")}
    return [
        task
        for task, values in scores.items()
        if len(values) == 2 and all(values) and values[0]["ndcg@5"] <= values[1]["ndcg@5"]
    ]
