"""Computes the value of an epoch from the validation cases of both tasks. The best epoch is used.

An exam is a set of cases, prepared for evaluating models.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bundlemage.data.splits import GenerationCases, MatchingCases, Split, completion_cases
from bundlemage.evaluation.metrics import ranking_metrics
from bundlemage.evaluation.protocols import Exam, GenerationExam, MatchingExam, means
from bundlemage.models.base import Completer, Interactions, Learner, Matcher, Model, Sizes, can
from bundlemage.models.baselines.rules import Popularity
from bundlemage.models.config import LearnedConfig, ModelConfig, SelectBy, parse_config
from bundlemage.models.division import Division
from bundlemage.models.ragged import Ragged
from bundlemage.training.history import SELECTION_METRIC

FLOOR = 0.001
"""Smallest nDCG@5 in the ratio to popularity: lower values are replaced by this one."""


class Verdict(NamedTuple):
    """The metrics of both tasks after an epoch, and the value of the epoch."""

    matching: dict[str, float]
    generation: dict[str, float]
    value: float | None


@dataclass(frozen=True)
class Judges:
    """The validation cases. The bundles in `held_out` must not be used to learn generation."""

    matching: MatchingCases | None = None
    generation: GenerationCases | None = None
    held_out: Tensor | None = field(default=None, repr=False)
    select_by: SelectBy = "both"

    @classmethod
    def of(cls, model: Model, config: ModelConfig, split: Split) -> Judges:
        """Returns the cases of a split for the model's tasks, according to the setting `select_by`."""
        select_by = config.select_by if isinstance(config, LearnedConfig) else "matching"
        has_cases = split.validation is not None and len(split.validation) > 0
        matching = split.validation if can(model, Matcher) and has_cases else None
        completes = can(model, Completer) and can(model, Learner) and select_by != "matching"
        # With the protocol `none` (a live shop) a model learns from every bundle, so none is held out.
        chosen = completion_cases(split.train, split.plan) if completes and split.protocol != "none" else None
        if chosen is None:
            return cls(matching)
        return cls(matching, chosen[1], torch.from_numpy(chosen[0]), select_by)

    @property
    def metric(self) -> str:
        """The name of `Verdict.value`."""
        both = self.select_by == "both" and self.matching is not None and self.generation is not None
        return "times popularity" if both else SELECTION_METRIC


class Judgement:
    """Evaluates a model on the validation cases, which are kept on the device."""

    def __init__(self, judges: Judges, data: Interactions, division: Division) -> None:
        self.exams = {
            task: _SharedExam(cases, data, division)
            for task, cases in (("matching", judges.matching), ("generation", judges.generation))
            if cases is not None
        }
        self.tasks = ("matching", "generation") if judges.select_by == "both" else (judges.select_by,)
        self.popularity: dict[str, float] = {}
        if len(self.exams) == 2:
            sizes = Sizes(len(data.user_bundle), data.items, len(data.bundle_item))
            rival = Popularity(parse_config(ModelConfig, {}), sizes).to(data.user_bundle.device)
            rival.bundle_counts.copy_(data.user_bundle.counts(sizes.bundles))
            rival.item_counts.copy_(division.item_sales(data))
            self.popularity = {task: exam.means(rival)[SELECTION_METRIC] for task, exam in self.exams.items()}

    def of(self, model: Model) -> Verdict:
        """Returns the metrics and the value of a model with its current weights."""
        metrics = {task: exam.means(model) for task, exam in self.exams.items()}
        values = {
            task: each[SELECTION_METRIC] for task, each in metrics.items() if each and task in self.tasks
        }
        return Verdict(metrics.get("matching", {}), metrics.get("generation", {}), self._value(values))

    def _value(self, values: dict[str, float]) -> float | None:
        if len(values) < 2:
            return next(iter(values.values()), None)
        if not any(values.values()):
            return 0.0
        # The geometric mean of the ratios: a gain of 10% counts the same in both tasks.
        times = 1.0
        for task, value in values.items():
            times *= max(value, FLOOR) / max(self.popularity[task], FLOOR)
        return float(times ** (1 / len(values)))


class _SharedExam:
    """An exam for several processes. Each evaluates its own users; all get the means over all cases."""

    def __init__(
        self, cases: MatchingCases | GenerationCases, data: Interactions, division: Division
    ) -> None:
        self.group, self.count = division.group, len(cases)
        self.mine = division.cases_of(torch.from_numpy(cases.users.astype("int64")))
        rows = slice(None) if self.mine is None else self.mine.numpy()
        self.exam: Exam
        if isinstance(cases, GenerationCases):
            own = replace(cases, users=cases.users[rows], bundles=cases.bundles[rows])
            self.exam = GenerationExam(own, data)
        else:
            candidates = None if cases.candidates is None else cases.candidates[rows]
            users, positives = cases.users[rows], cases.positives[rows]
            own_cases = replace(cases, users=users, positives=positives, candidates=candidates)
            self.exam = MatchingExam(own_cases, data)
        self.names = list(ranking_metrics(torch.zeros(0, 1), Ragged.from_lists([]), self.exam.ks))

    def means(self, model: Model) -> dict[str, float]:
        metrics = self.exam.metrics(model)
        if self.mine is not None and self.group is not None:
            mine = self.mine.to(self.exam.device)
            for name in self.names:  # also in a process without cases
                everyone = torch.zeros(self.count, device=self.exam.device)
                if name in metrics:
                    everyone[mine] = metrics[name].to(everyone.dtype)
                metrics[name] = self.group.add_(everyone)
        return means(metrics)
