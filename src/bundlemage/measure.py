"""A model beside popularity, so that a figure means something."""

from __future__ import annotations

from bundlemage.data.splits import Split
from bundlemage.evaluation.results import Evaluation
from bundlemage.recommender import Recommender


def evaluate_beside_popularity(recommender: Recommender, split: Split) -> list[Evaluation]:
    """The model's row and, so that a figure means something, popularity's."""
    return [model.evaluate(split) for model in beside_popularity(recommender, split)]


def beside_popularity(recommender: Recommender, split: Split) -> list[Recommender]:
    """The model, and popularity learned from the same split, unless it is that already."""
    if recommender.model_name == "popularity":
        return [recommender]
    return [recommender, Recommender("popularity", device=str(recommender.shop.device)).fit(split)]


def tasks_not_learned(rows: list[Evaluation]) -> list[str]:
    """The tasks in which the model, the first row, does not beat the popularity of the second."""
    scores = {task: [row.to_json()[task] for row in rows] for task in ("matching", "generation")}
    return [
        task
        for task, found in scores.items()
        if len(found) == 2 and all(found) and found[0]["ndcg@5"] <= found[1]["ndcg@5"]
    ]
