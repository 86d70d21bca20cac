"""Asking a model the cases of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bundlemage.data.dataset import Positions
from bundlemage.data.splits import PAD, GenerationCases, MatchingCases
from bundlemage.evaluation.metrics import DEFAULT_KS, ranking_metrics
from bundlemage.models.base import Completer, Interactions, Matcher, Model, SalesScorer, can, require
from bundlemage.models.ragged import Ragged

SCORES_AT_A_TIME = 2**25
"""Bounds the dense block of scores that a chunk of cases makes."""

PerCase = dict[str, Tensor]


def matching_metrics(
    model: Model,
    cases: MatchingCases,
    data: Interactions,
    ks: Sequence[int] = DEFAULT_KS,
    new: Positions | None = None,
) -> PerCase:
    """Per-case metrics of matching. `data` is the training data: histories come from it.

    Without fixed candidates every bundle is ranked but those the user has in training. Of these, a model that
    credits new bundles with sales scores the `new` ones as such.
    """
    return MatchingExam(cases, data, ks, new).metrics(model)


class MatchingExam:
    """The cases on the data's device, to be asked of one model after another, or of one that is learning."""

    def __init__(
        self,
        cases: MatchingCases,
        data: Interactions,
        ks: Sequence[int] = DEFAULT_KS,
        new: Positions | None = None,
    ) -> None:
        self.data, self.ks = data, ks
        self.device = data.user_item.device
        self.new = None if new is None else _tensor(new, self.device)
        self.users = _tensor(cases.users, self.device)
        self.positives = Ragged.from_csr(cases.positives, self.device)
        self.candidates = None if cases.candidates is None else _tensor(cases.candidates, self.device)
        if self.candidates is not None:
            self.positives = _columns(self.positives, self.candidates)

    def metrics(self, model: Model) -> PerCase:
        return _in_chunks(
            model,
            len(self.users),
            len(self.data.bundle_item),
            lambda chunk: self._score(require(model, Matcher), chunk),
            self.ks,
            self.device,
        )

    def _score(self, model: Matcher, chunk: Tensor) -> tuple[Tensor, Ragged]:
        histories, contents = self.data.histories(self.users[chunk]), self.data.bundle_item
        wanted = self.positives.rows(chunk)
        if self.candidates is not None:
            candidates = self.candidates[chunk]
            scores = model.score_candidates(histories, candidates.clamp(min=0), contents)
            model.checked("score_candidates", scores, *candidates.shape)
            return scores.masked_fill(candidates == PAD, -torch.inf), wanted
        scores = model.bundle_scores(histories, contents)
        if self.new is not None and can(model, SalesScorer):
            scores[:, self.new] = model.score_new_bundles(histories, contents, contents.rows(self.new))
        return scores.masked_fill(histories.bundles.as_mask(scores.shape[1]), -torch.inf), wanted


def generation_metrics(
    model: Model, cases: GenerationCases, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> PerCase:
    """Per-case metrics of completing the held-out bundles."""
    return GenerationExam(cases, data, ks).metrics(model)


class GenerationExam:
    """As `MatchingExam`: incomplete bundles to be completed, each for a user."""

    def __init__(self, cases: GenerationCases, data: Interactions, ks: Sequence[int] = DEFAULT_KS) -> None:
        self.data, self.ks = data.with_nobody, ks
        self.device = device = data.user_item.device
        self.users, self.bundles = _tensor(cases.users, device), _tensor(cases.bundles, device)
        self.partial = Ragged.from_csr(cases.partial, device)
        self.candidates = _tensor(cases.candidates, device)
        self.positives = _columns(Ragged.from_csr(cases.positives, device), self.candidates)
        self.known_as = None if cases.known_as is None else _tensor(cases.known_as, device)

    def metrics(self, model: Model) -> PerCase:
        return _in_chunks(
            model,
            len(self.users),
            self.data.items,
            lambda chunk: self._score(require(model, Completer), chunk),
            self.ks,
            self.device,
        )

    def _score(self, model: Completer, chunk: Tensor) -> tuple[Tensor, Ragged]:
        held_out = self.bundles[chunk]
        histories = self.data.histories(self.users[chunk])
        if self.known_as is not None:  # nobody owns a bundle that is still being made
            owned, target = histories.bundles, self.known_as[held_out]
            histories = replace(histories, bundles=owned.keep(owned.values != target[owned.row_of_entry()]))
        asked = self.candidates[held_out]
        scores = model.score_item_candidates(
            histories, self.partial.rows(held_out), asked.clamp(min=0), self.data.bundle_item
        )
        model.checked("score_item_candidates", scores, *asked.shape)
        return scores.masked_fill(asked == PAD, -torch.inf), self.positives.rows(held_out)


def cases_at_a_time(width: int) -> int:
    """How many cases are asked together, where the model scores so many candidates for each."""
    return max(1, SCORES_AT_A_TIME // max(1, width))


def means(metrics: PerCase) -> dict[str, float]:
    """The mean of each metric over the cases that have one."""
    if not metrics:
        return {}
    # Read at once, as each reading waits for the device.
    values = torch.stack([torch.nanmean(values) for values in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def _tensor(positions: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(positions.astype(np.int64)).to(device)


def _columns(positives: Ragged, candidates: Tensor) -> Ragged:
    """The positives as columns of the table of candidates."""
    row = positives.row_of_entry()
    columns = torch.empty_like(row)
    step = max(1, SCORES_AT_A_TIME // max(1, candidates.shape[1]))
    for start in range(0, len(row), step):
        some = slice(start, start + step)
        found = candidates[row[some]] == positives.values[some, None]  # [positives, width]
        if not bool(found.any(1).all()):
            raise ValueError("a positive is not among its case's candidates")
        columns[some] = found.int().argmax(1)
    return Ragged(columns, positives.offsets)


def _in_chunks(
    model: Model,
    cases: int,
    width: int,
    score: Callable[[Tensor], tuple[Tensor, Ragged]],
    ks: Sequence[int],
    device: torch.device,
) -> PerCase:
    step = cases_at_a_time(width)
    was_training = model.training
    model.eval()
    parts: list[PerCase] = []
    with torch.inference_mode():
        for start in range(0, cases, step):
            chunk = torch.arange(start, min(start + step, cases), device=device)
            scores, positives = score(chunk)
            parts.append(ranking_metrics(scores, positives, ks))
    model.train(was_training)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
