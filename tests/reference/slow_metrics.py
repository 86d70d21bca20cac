"""Ranking metrics by brute force: every ordering that the scores allow is written out and averaged.

Candidates of equal score may stand in any order. The metric of a tied ranking is its mean over all
those orders, so a constant scorer gets exactly what a random one gets in expectation. Only for a
handful of candidates: the number of orders grows as the factorials of the tie groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import fsum, log2


def rankings(scores: Sequence[float]) -> Iterator[list[int]]:
    """Every order of the candidates, best first, in which no candidate precedes one of higher score."""
    tie_groups = [
        [candidate for candidate, score in enumerate(scores) if score == level]
        for level in sorted(set(scores), reverse=True)
    ]
    for arrangement in product(*(permutations(group) for group in tie_groups)):
        yield [candidate for group in arrangement for candidate in group]


def expected_recall_at_k(scores: Sequence[float], relevant: Sequence[bool], k: int) -> float:
    """The share of all positives that is among the first k, averaged over tied orders."""
    return _mean([recall_at_k(ranking, relevant, k) for ranking in rankings(scores)])


def expected_ndcg_at_k(scores: Sequence[float], relevant: Sequence[bool], k: int) -> float:
    """DCG@k over the best DCG@k there could be, averaged over tied orders; relevance is 0 or 1."""
    return _mean([ndcg_at_k(ranking, relevant, k) for ranking in rankings(scores)])


def expected_at_k(kind: str, scores: Sequence[float], relevant: Sequence[bool], k: int) -> float:
    """Any of the metrics of `AT_K`, averaged over tied orders."""
    return _mean([AT_K[kind](ranking, relevant, k) for ranking in rankings(scores)])


def recall_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """Hits among the first k, over all positives (not over min(k, positives))."""
    return sum(relevant[candidate] for candidate in ranking[:k]) / _positives(relevant)


def ndcg_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """The ideal ranking starts with min(k, positives) positives."""
    gained = fsum(discount(rank) for rank, candidate in enumerate(ranking[:k], 1) if relevant[candidate])
    ideal = fsum(discount(rank) for rank in range(1, min(k, _positives(relevant)) + 1))
    return gained / ideal


def mrr_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """One over the rank of the first hit; 0 without a hit among the first k."""
    _positives(relevant)
    return next((1 / rank for rank, candidate in enumerate(ranking[:k], 1) if relevant[candidate]), 0.0)


def hit_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """Whether there is a hit among the first k."""
    _positives(relevant)
    return float(any(relevant[candidate] for candidate in ranking[:k]))


def precision_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """Hits among the first k, over k, also if there are fewer candidates."""
    _positives(relevant)
    return sum(relevant[candidate] for candidate in ranking[:k]) / k


def map_at_k(ranking: Sequence[int], relevant: Sequence[bool], k: int) -> float:
    """The precision at each hit among the first k, summed, over all positives."""
    hits, gained = 0, []
    for rank, candidate in enumerate(ranking[:k], 1):
        if relevant[candidate]:
            hits += 1
            gained.append(hits / rank)
    return fsum(gained) / _positives(relevant)


def discount(rank: int) -> float:
    """What a hit at this rank is worth; the first rank is 1."""
    return 1.0 / log2(rank + 1)


def _positives(relevant: Sequence[bool]) -> int:
    count = sum(relevant)
    if not count:
        raise ValueError("a ranking without positives has no recall and no nDCG")
    return count


AT_K = {
    "recall": recall_at_k,
    "ndcg": ndcg_at_k,
    "mrr": mrr_at_k,
    "hit": hit_at_k,
    "precision": precision_at_k,
    "map": map_at_k,
}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
