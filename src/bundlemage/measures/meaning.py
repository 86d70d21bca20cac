"""What each measure means, in one sentence. Terminal, reports, JSON, the page and the docs use this table."""

from __future__ import annotations

from collections.abc import Iterable

MEANING = {
    "recall": "The share of the right answers that are among the first k.",
    "ndcg": "Like recall, but a right answer at rank r counts 1 / log2(r + 1), and the best possible order "
    "has 1.",
    "mrr": "1 divided by the rank of the first right answer, or 0 if it is not among the first k.",
    "hit": "The share of the cases with a right answer among the first k.",
    "precision": "The share of the first k answers that are right.",
    "map": "The precision at the rank of each right answer among the first k, summed up and divided by the "
    "number of right answers.",
    "coverage": "The share of the catalogue that is in at least one list.",
    "novelty": "How rare answers are: the mean of -log2 of the share of users who have them in training, so "
    "1 more means half as many users.",
    "gini": "How unevenly the lists show the catalogue: 0 if all of it is shown equally often, near 1 if all "
    "lists show the same few.",
    "diversity": "How different the answers of a list are: the mean Jaccard distance of two of them, from 0 "
    "(alike) to 1 (nothing in common).",
    "lift": "How many times as popular answers are as what users have in training; 1 is equally popular.",
}
"""The name of each measure → its meaning. `NAME@k` is the measure of the first k answers."""

TITLES = {"ndcg": "nDCG", "mrr": "MRR", "hit": "Hit rate", "map": "MAP", "lift": "Popularity lift"}
"""Titles that are not just the name with a capital letter."""

LIST_MEASURES = ("coverage", "novelty", "gini", "diversity", "lift")
"""The measures of whole lists. All others are means over test cases."""

SHOWN = tuple(f"{name}@{k}" for name in ("ndcg", "recall") for k in (5, 10, 20))
"""The metrics of cases that tables show. JSON has all of them."""

SLICE_SHOWN = ("ndcg@5", "recall@20")
"""The metrics that tables of slices show."""
SLICE_METRICS = ("ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@20", "mrr@10", "hit@10")
"""The metrics of slices in JSON."""
FEWEST_CASES, FEWEST_GROUPS = 30, 10
"""The figures of a slice with fewer cases, or with cases of fewer held-out bundles, say little."""
FEW = "few"
"""Marks such a slice."""
FEW_MEANS = (
    f"fewer than {FEWEST_CASES} cases, or cases of fewer than {FEWEST_GROUPS} held-out bundles, so the "
    "figures say little."
)


def title(metric: str) -> str:
    """Returns the title of a metric, such as `nDCG@5` for `ndcg@5`."""
    name, at, k = metric.partition("@")
    return TITLES.get(name, name.capitalize()) + at + k


def meanings(metrics: Iterable[str]) -> dict[str, str]:
    """Returns the meaning of each measure among these metrics, in the order of `MEANING`."""
    names = {metric.partition("@")[0] for metric in metrics}
    return {name: sentence for name, sentence in MEANING.items() if name in names}
