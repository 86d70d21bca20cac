"""Ranking metrics as pure functions. If scores are equal, a metric is its mean over all orders of the ties.

A model with equal scores for all candidates therefore has the metrics of a random ranking.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged

DEFAULT_KS = (5, 10, 20)
COMPARISONS = 2**25
"""Maximum number of comparisons of scores in memory at the same time."""


def tie_intervals(scores: Tensor, positives: Ragged) -> tuple[Tensor, Tensor]:
    """Returns for each positive the number of candidates with a higher score, and with the same score.

    The second number includes the positive itself. `scores` is [cases, candidates]; a score of −∞ means that
    there is no candidate. Both results are [positives].
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
    """Returns `recall@k` and `ndcg@k` for each k. Each is a tensor [cases], in float64 (on MPS in float32).

    Recall is the share of a case's positives that are among the first k candidates. For nDCG, the ideal
    ranking has all positives first. The value of a case without positives is nan.
    """
    higher, equal = tie_intervals(scores, positives)
    device, cases = scores.device, len(positives)
    width = max(1, scores.shape[1], *ks)
    # MPS has no float64.
    real = torch.float32 if device.type == "mps" else torch.float64
    gains = 1 / torch.log2(torch.arange(width, device=device, dtype=real) + 2)
    cumulative = torch.cat(
        [gains.new_zeros(1), gains.cumsum(0)]
    )  # the DCG if the first 0, 1, 2, … candidates are all positives
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
