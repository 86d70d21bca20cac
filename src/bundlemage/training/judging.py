"""What an epoch is worth: the validation cases of both tasks, asked by one process or by several together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bundlemage.data.splits import GenerationCases, MatchingCases, Split, completion_cases
from bundlemage.evaluation.metrics import ranking_metrics
from bundlemage.evaluation.protocols import GenerationExam, MatchingExam, means
from bundlemage.models.base import Completer, Interactions, Learner, Matcher, Model, Sizes, can
from bundlemage.models.baselines.popularity import Popularity
from bundlemage.models.config import LearnedConfig, ModelConfig, SelectBy, parse_config
from bundlemage.models.division import Division
from bundlemage.models.ragged import Ragged
from bundlemage.training.history import SELECTION_METRIC

FLOOR = 0.001
"""A smaller nDCG@5 counts as this much where two tasks are weighed against each other."""


@dataclass(frozen=True)
class Verdict:
    """The metrics of both tasks after an epoch, and the one number that epochs are compared by."""

    matching: dict[str, float]
    generation: dict[str, float]
    value: float | None


@dataclass(frozen=True)
class Judges:
    """The cases that choose the epoch; `held_out` are the bundles that generation must not learn from."""

    matching: MatchingCases | None = None
    generation: GenerationCases | None = None
    held_out: Tensor | None = field(default=None, repr=False)
    select_by: SelectBy = "both"

    @classmethod
    def of(cls, model: Model, config: ModelConfig, split: Split) -> Judges:
        """As the setting `select_by` says, of what the model does and the split has cases for."""
        select_by = config.select_by if isinstance(config, LearnedConfig) else "matching"
        has_cases = split.validation is not None and len(split.validation) > 0
        matching = split.validation if can(model, Matcher) and has_cases else None
        completes = can(model, Completer) and can(model, Learner) and select_by != "matching"
        # Trained on everything, as for a live shop, a model is not to lose a bundle either.
        chosen = completion_cases(split.train, split.plan) if completes and split.protocol != "none" else None
        if chosen is None:
            return cls(matching)
        return cls(matching, chosen[1], torch.from_numpy(chosen[0]), select_by)

    @property
    def metric(self) -> str:
        """What `Verdict.value` is, in words."""
        both = self.select_by == "both" and self.matching is not None and self.generation is not None
        return "times popularity" if both else SELECTION_METRIC

    def on(self, data: Interactions, division: Division) -> Judgement:
        return Judgement(self, data, division)


class Judgement:
    """The cases on a device, to be asked of a model after each epoch."""

    def __init__(self, judges: Judges, data: Interactions, division: Division) -> None:
        self.matching = None if judges.matching is None else _Shared(judges.matching, data, division)
        self.generation = None if judges.generation is None else _Shared(judges.generation, data, division)
        self.tasks = ("matching", "generation") if judges.select_by == "both" else (judges.select_by,)
        self.popularity: dict[str, float] = {}
        if self.matching is not None and self.generation is not None:
            self.popularity = self._popularity(data, division)

    def of(self, model: Model) -> Verdict:
        matching = {} if self.matching is None else self.matching.means(model)
        generation = {} if self.generation is None else self.generation.means(model)
        found = {
            task: metrics[SELECTION_METRIC]
            for task, metrics in (("matching", matching), ("generation", generation))
            if metrics and task in self.tasks
        }
        return Verdict(matching, generation, self._value(found))

    def _value(self, found: dict[str, float]) -> float | None:
        if len(found) < 2:
            return next(iter(found.values()), None)
        if not any(found.values()):
            return 0.0
        # The geometric mean: a tenth more in one task is worth as much as a tenth more in the other.
        times = 1.0
        for task, value in found.items():
            times *= max(value, FLOOR) / max(self.popularity[task], FLOOR)
        return float(times ** (1 / len(found)))

    def _popularity(self, data: Interactions, division: Division) -> dict[str, float]:
        assert self.matching is not None
        assert self.generation is not None
        sizes = Sizes(len(data.user_bundle), data.items, len(data.bundle_item))
        rival = Popularity(parse_config(ModelConfig, {}), sizes).to(data.user_bundle.device)
        rival.bundle_counts.copy_(data.user_bundle.counts(sizes.bundles))
        rival.item_counts.copy_(division.item_sales(data))
        found = {"matching": self.matching.means(rival), "generation": self.generation.means(rival)}
        return {task: metrics[SELECTION_METRIC] for task, metrics in found.items()}


class _Shared:
    """Each process asks about its own users; all get the same means, over all cases in their order."""

    def __init__(
        self, cases: MatchingCases | GenerationCases, data: Interactions, division: Division
    ) -> None:
        self.group, self.count = division.group, len(cases)
        self.mine = division.cases_of(torch.from_numpy(cases.users.astype("int64")))
        if self.mine is not None:
            rows = self.mine.numpy()
            if isinstance(cases, GenerationCases):
                cases = replace(cases, users=cases.users[rows], bundles=cases.bundles[rows])
            else:
                candidates = None if cases.candidates is None else cases.candidates[rows]
                cases = replace(
                    cases, users=cases.users[rows], positives=cases.positives[rows], candidates=candidates
                )
        self.exam: MatchingExam | GenerationExam = (
            GenerationExam(cases, data) if isinstance(cases, GenerationCases) else MatchingExam(cases, data)
        )
        self.names = list(ranking_metrics(torch.zeros(0, 1), Ragged.from_lists([]), self.exam.ks))

    def means(self, model: Model) -> dict[str, float]:
        metrics = self.exam.metrics(model)
        if self.mine is not None and self.group is not None:
            mine = self.mine.to(self.exam.device)
            for name in self.names:  # also where there is no case here
                everyone = torch.zeros(self.count, device=self.exam.device)
                if name in metrics:
                    everyone[mine] = metrics[name].to(everyone.dtype)
                metrics[name] = self.group.add_(everyone)
        return means(metrics)
