"""Asking a model the cases of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from bundlemage.data.splits import PAD, GenerationCases, MatchingCases
from bundlemage.evaluation.metrics import DEFAULT_KS, ranking_metrics
from bundlemage.models.base import Interactions, Model
from bundlemage.models.ragged import Ragged

SCORES_AT_A_TIME = 2**25
"""Bounds the dense block of scores that a chunk of cases makes."""

PerCase = dict[str, Tensor]


def matching_metrics(
    model: Model, cases: MatchingCases, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> PerCase:
    """Per-case metrics of matching. `data` is the training data: histories come from it.

    Without fixed candidates every bundle is ranked but those the user has in training.
    """
    device = data.user_item.device
    users = torch.from_numpy(cases.users.astype(np.int64)).to(device)
    positives = Ragged.from_csr(cases.positives, device)
    candidates = None if cases.candidates is None else _tensor(cases.candidates, device)

    def score(chunk: Tensor) -> tuple[Tensor, Ragged]:
        histories = data.histories(users[chunk])
        wanted = positives.rows(chunk)
        if candidates is not None:
            asked = candidates[chunk]
            scores = model.score_candidates(histories, asked.clamp(min=0), data.bundle_item)
            model.checked("score_candidates", scores, *asked.shape)
            return _among(scores, wanted, asked)
        scores = model.score_bundles(histories, data.bundle_item)
        model.checked("score_bundles", scores, len(histories), len(data.bundle_item))
        return scores.masked_fill(histories.bundles.as_mask(scores.shape[1]), -torch.inf), wanted

    return _in_chunks(model, len(cases), len(data.bundle_item), score, ks, device)


def generation_metrics(
    model: Model, cases: GenerationCases, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> PerCase:
    """Per-case metrics of completing the held-out bundles."""
    device = data.user_item.device
    users, bundles = _tensor(cases.users, device), _tensor(cases.bundles, device)
    partial, positives = Ragged.from_csr(cases.partial, device), Ragged.from_csr(cases.positives, device)
    candidates = _tensor(cases.candidates, device)

    def score(chunk: Tensor) -> tuple[Tensor, Ragged]:
        held_out = bundles[chunk]
        histories = data.histories(users[chunk])
        scores = model.score_items(histories, partial.rows(held_out), data.bundle_item)
        model.checked("score_items", scores, len(histories), cases.partial.shape[1])
        asked = candidates[held_out]
        return _among(scores.gather(1, asked.clamp(min=0)), positives.rows(held_out), asked)

    return _in_chunks(model, len(cases), cases.partial.shape[1], score, ks, device)


def means(metrics: PerCase) -> dict[str, float]:
    """The mean of each metric over the cases that have one."""
    return {name: float(torch.nanmean(values)) for name, values in metrics.items()}


def _tensor(positions: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(positions.astype(np.int64)).to(device)


def _among(scores: Tensor, positives: Ragged, candidates: Tensor) -> tuple[Tensor, Ragged]:
    """The candidates' scores without those of PAD, and the positives as columns of the candidate table."""
    chosen = scores.masked_fill(candidates == PAD, -torch.inf)
    row = positives.row_of_entry()
    found = candidates[row] == positives.values[:, None]  # [positives, width]
    if not bool(found.any(1).all()):
        raise ValueError("a positive is not among its case's candidates")
    return chosen, Ragged(found.int().argmax(1), positives.offsets)


def _in_chunks(
    model: Model,
    cases: int,
    width: int,
    score: Callable[[Tensor], tuple[Tensor, Ragged]],
    ks: Sequence[int],
    device: torch.device,
) -> PerCase:
    step = max(1, SCORES_AT_A_TIME // max(1, width))
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
