"""The results of an evaluation, ready for a table or for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bundlemage.data.splits import Split
from bundlemage.evaluation.metrics import DEFAULT_KS
from bundlemage.evaluation.protocols import GenerationExam, MatchingExam, PerCase, means
from bundlemage.models.base import Completer, Interactions, Matcher, Model, can


@dataclass(frozen=True)
class Evaluation:
    """One model on the test cases of one split. A task without cases, or not learned, is None."""

    model: str
    dataset: str
    protocol: str
    matching: dict[str, float] | None
    matching_cases: int
    generation: dict[str, float] | None
    generation_cases: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(model: Model, split: Split, data: Interactions) -> Evaluation:
    """Asks a fitted model the test cases of both tasks. `data` is `split.train` on the model's device."""
    return evaluation_of(model, split, case_metrics(model, split, data))


def evaluation_of(model: Model, split: Split, by_case: Mapping[str, PerCase]) -> Evaluation:
    """The means over all cases, from the metrics of each case."""
    tasks = {task: means(values) for task, values in by_case.items()}
    return Evaluation(
        model=model.title,
        dataset=split.dataset.name,
        protocol=split.protocol,
        matching=tasks.get("matching"),
        matching_cases=len(split.test) if split.test else 0,
        generation=tasks.get("generation"),
        generation_cases=len(split.generation) if split.generation else 0,
        notes=split.dataset.notes,
    )


def case_metrics(
    model: Model, split: Split, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, PerCase]:
    """Task → metric → a value for each test case, for the tasks of the split that the model does."""
    tasks = {}
    if split.test and can(model, Matcher):
        tasks["matching"] = MatchingExam(split.test, data, ks, split.new_bundles).metrics(model)
    if split.generation and can(model, Completer):
        tasks["generation"] = GenerationExam(split.generation, data, ks).metrics(model)
    return tasks


def tasks_not_learned(rows: Sequence[Evaluation]) -> list[str]:
    """The tasks in which the first row, a model, is not better than the second row, popularity."""
    scores = {task: [row.to_json()[task] for row in rows] for task in ("matching", "generation")}
    return [
        task
        for task, values in scores.items()
        if len(values) == 2 and all(values) and values[0]["ndcg@5"] <= values[1]["ndcg@5"]
    ]
