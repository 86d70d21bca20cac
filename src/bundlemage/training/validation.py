"""Computes the value of an epoch from the validation cases of both tasks. The best epoch is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bundlemage.data.splits import GenerationCases, MatchingCases, Split, completion_cases
from bundlemage.evaluation import Evaluator, GenerationEvaluator, MatchingEvaluator, means
from bundlemage.models.base import Completer, Interactions, Learner, Matcher, Model, Sizes, can
from bundlemage.models.baselines.rules import Popularity
from bundlemage.models.config import LearnedConfig, ModelConfig, SelectBy, parse_config
from bundlemage.models.division import Division
from bundlemage.training.history import SELECTION_METRIC

FLOOR = 0.001
"""Minimum of nDCG@5 in the ratio to popularity. A lower nDCG@5 counts as this value."""


def learning_data(split: Split, device: torch.device, half_life: float | None = None) -> Interactions:
    """Returns the training data. If test cases of generation come from bundles in the training data, they
    are held out: matching learns from them, and generation does not."""
    data = Interactions.of(split.train, device, half_life)
    tested = None if split.generation is None else split.generation.known_as
    if tested is None:
        return data
    held_out = torch.zeros(len(split.train.bundles), dtype=torch.bool, device=device)
    held_out[torch.from_numpy(tested.astype(np.int64)).to(device)] = True
    return replace(data, held_out=held_out)


class EpochValue(NamedTuple):
    """The metrics of both tasks after an epoch, and the value of the epoch."""

    matching: dict[str, float]
    generation: dict[str, float]
    value: float | None


@dataclass(frozen=True)
class ValidationCases:
    """The validation cases. The bundles in `held_out` must not be used to learn generation."""

    matching: MatchingCases | None = None
    generation: GenerationCases | None = None
    held_out: Tensor | None = field(default=None, repr=False)
    select_by: SelectBy = "both"

    @classmethod
    def of(cls, model: Model, config: ModelConfig, split: Split) -> ValidationCases:
        """Returns the cases of a split for the model's tasks, according to the setting `select_by`."""
        select_by = config.select_by if isinstance(config, LearnedConfig) else "matching"
        matching = split.validation if split.validation and can(model, Matcher) else None
        completes = can(model, Completer) and can(model, Learner) and select_by != "matching"
        # With the protocol `none` (a live shop) a model learns from every bundle, so none is held out.
        completes = completes and split.protocol != "none"
        tested = None if split.generation is None else split.generation.known_as
        chosen = completion_cases(split.train, split.plan, split.histories, tested) if completes else None
        if chosen is None and tested is None:
            return cls(matching)
        held_out = np.zeros(len(split.train.bundles), bool) if chosen is None else chosen[0]
        if tested is not None:
            held_out[tested] = True
        if chosen is None:
            return cls(matching, held_out=torch.from_numpy(held_out))
        return cls(matching, chosen[1], torch.from_numpy(held_out), select_by)

    @property
    def metric(self) -> str:
        """The name of `EpochValue.value`."""
        both = self.select_by == "both" and self.matching is not None and self.generation is not None
        return "times popularity" if both else SELECTION_METRIC


class Validation:
    """Evaluates a model on the validation cases, which are kept on the device."""

    def __init__(self, cases: ValidationCases, data: Interactions, division: Division) -> None:
        self.tasks = {
            task: _SharedEvaluator(task_cases, data, division)
            for task, task_cases in (("matching", cases.matching), ("generation", cases.generation))
            if task_cases is not None
        }
        self.counted = ("matching", "generation") if cases.select_by == "both" else (cases.select_by,)
        self.popularity: dict[str, float] = {}
        if len(self.tasks) == 2:
            sizes = Sizes(len(data.user_bundle), data.items, len(data.bundle_item))
            rival = Popularity(parse_config(ModelConfig, {}), sizes).to(data.user_bundle.device)
            rival.bundle_counts.copy_(data.user_bundle.column_sums(sizes.bundles))
            rival.item_counts.copy_(division.item_sales(data))
            self.popularity = {
                task: evaluator.means(rival)[SELECTION_METRIC] for task, evaluator in self.tasks.items()
            }

    def of(self, model: Model) -> EpochValue:
        """Returns the metrics and the value of a model with its current weights."""
        metrics = {task: evaluator.means(model) for task, evaluator in self.tasks.items()}
        values = {
            task: each[SELECTION_METRIC] for task, each in metrics.items() if each and task in self.counted
        }
        value = next(iter(values.values()), None)
        if len(values) == 2:
            # The geometric mean of the ratios: a gain of 10% counts the same in both tasks.
            ratios = [max(each, FLOOR) / max(self.popularity[task], FLOOR) for task, each in values.items()]
            value = math.prod(ratios) ** (1 / 2) if any(values.values()) else 0.0
        return EpochValue(metrics.get("matching", {}), metrics.get("generation", {}), value)


class _SharedEvaluator:
    """Evaluates cases with several processes. Each process evaluates its users; all get the overall means."""

    def __init__(
        self, cases: MatchingCases | GenerationCases, data: Interactions, division: Division
    ) -> None:
        self.group, self.count = division.group, len(cases)
        self.own_rows = division.cases_of(torch.from_numpy(cases.users.astype("int64")))
        own = cases.chosen(slice(None) if self.own_rows is None else self.own_rows.numpy())
        self.evaluator: Evaluator = (
            GenerationEvaluator(own, data, division=division)
            if isinstance(own, GenerationCases)
            else MatchingEvaluator(own, data)
        )

    def means(self, model: Model) -> dict[str, float]:
        metrics = self.evaluator.metrics(model)
        if self.own_rows is not None and self.group is not None:
            own_rows = self.own_rows.to(self.evaluator.device)
            names = (f"{kind}@{k}" for k in self.evaluator.ks for kind in ("recall", "ndcg"))
            for name in names:  # also in a process without cases
                all_cases = torch.zeros(self.count, device=own_rows.device)
                if name in metrics:
                    all_cases[own_rows] = metrics[name].to(all_cases.dtype)
                metrics[name] = self.group.add_(all_cases)
        return means(metrics)
