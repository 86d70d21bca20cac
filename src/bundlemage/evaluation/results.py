"""What an evaluation found, ready for a table or for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bundlemage.data.splits import Split
from bundlemage.evaluation.protocols import generation_metrics, matching_metrics, means
from bundlemage.models.base import Interactions, Model


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
    """Ask a fitted model the test cases of both tasks. `data` is `split.train` on the model's device."""
    test, generation = split.test, split.generation
    return Evaluation(
        model=model.title,
        dataset=split.dataset.name,
        protocol=split.protocol,
        matching=means(matching_metrics(model, test, data)) if test and model.matches else None,
        matching_cases=len(test) if test else 0,
        generation=means(generation_metrics(model, generation, data))
        if generation and model.generates
        else None,
        generation_cases=len(generation) if generation else 0,
        notes=split.dataset.notes,
    )
