"""The validation cases, asked by one process or by several together."""

from __future__ import annotations

from dataclasses import replace

import torch

from bundlemage.data.splits import MatchingCases
from bundlemage.evaluation.metrics import ranking_metrics
from bundlemage.evaluation.protocols import MatchingExam, means
from bundlemage.models.base import Interactions, Model
from bundlemage.models.division import Division
from bundlemage.models.ragged import Ragged


class DividedExam:
    """Each process asks about its own users; all get the same means, over all cases in their order."""

    def __init__(self, cases: MatchingCases, data: Interactions, division: Division) -> None:
        self.group, self.count = division.group, len(cases)
        self.mine = division.cases_of(torch.from_numpy(cases.users.astype("int64")))
        if self.mine is not None:
            rows = self.mine.numpy()
            candidates = None if cases.candidates is None else cases.candidates[rows]
            cases = replace(
                cases, users=cases.users[rows], positives=cases.positives[rows], candidates=candidates
            )
        self.exam = MatchingExam(cases, data)
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
