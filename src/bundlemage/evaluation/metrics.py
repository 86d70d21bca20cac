"""Ranking metrics as pure functions. A tie counts as its expectation over all orders of the tied candidates,
so that a model with equal scores for everything has the metrics of chance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged

DEFAULT_KS = (5, 10, 20)
COMPARISONS = 2**25
"""How many comparisons of scores are in memory at a time."""


def tie_intervals(scores: Tensor, positives: Ragged) -> tuple[Tensor, Tensor]:
    """For each positive, the number of candidates with a higher score, and with the same score (itself
    included).

    `scores` is [cases, candidates]; a score of −∞ means no candidate. Both results are [positives].
    """
    if torch.isnan(scores).any() or torch.isposinf(scores).any():
        raise ValueError("a score is not a number or infinite, so there is no ranking")
    case = positives.row_of_entry()
    own = scores[case, positives.values]  # [positives]
    higher, equal = torch.empty_like(case), torch.empty_like(case)
    step = max(1, COMPARISONS // max(1, scores.shape[1]))
    for start in range(0, len(case), step):
        chunk = slice(start, start + step)
        rows, mine = scores[case[chunk]], own[chunk, None]
        higher[chunk] = (rows > mine).sum(1)
        equal[chunk] = (rows == mine).sum(1)
    return higher, equal


def ranking_metrics(scores: Tensor, positives: Ragged, ks: Sequence[int] = DEFAULT_KS) -> dict[str, Tensor]:
    """`recall@k` and `ndcg@k` of every case, each [cases], in float64.

    Recall is the share of a case's positives among the first k. The ideal ranking of nDCG has all positives
    first. A case without positives has nan.
    """
    higher, equal = tie_intervals(scores, positives)
    device, cases = scores.device, len(positives)
    width = max(1, scores.shape[1], *ks)
    # MPS has no float64.
    real = torch.float32 if device.type == "mps" else torch.float64
    gains = 1 / torch.log2(torch.arange(width, device=device, dtype=real) + 2)
    cumulative = torch.cat([gains.new_zeros(1), gains.cumsum(0)])  # DCG of a perfect list of each length
    row, counts = positives.row_of_entry(), positives.lengths
    metrics = {}
    for k in ks:
        first, last = higher.clamp(max=k), (higher + equal).clamp(max=k)
        hits = (last - first).to(real) / equal
        gain = (cumulative[last] - cumulative[first]) / equal
        ideal = cumulative[counts.clamp(max=k)]
        metrics[f"recall@{k}"] = gains.new_zeros(cases).index_add_(0, row, hits) / counts
        metrics[f"ndcg@{k}"] = gains.new_zeros(cases).index_add_(0, row, gain) / ideal
    return metrics
