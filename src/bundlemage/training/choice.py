"""What `auto` consists of in each task, and why: a record that is saved with the model, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bundlemage.models.auto import LEARNED, TASKS, AutoPart, describe


@dataclass(frozen=True)
class Tried:
    """A candidate, and how good it was on the validation cases."""

    model: str
    title: str
    settings: Mapping[str, Any]
    ndcg: float
    """nDCG@5 on the validation cases."""
    weight: float = 0.0
    """Its weight in the choice; 0 if it was not chosen."""


@dataclass(frozen=True)
class TaskChoice:
    """What was chosen for a task, and why."""

    reason: str
    """Why, in one or two sentences without the last full stop."""
    cases: int = 0
    """Number of validation cases."""
    ndcg: float | None = None
    """nDCG@5 of the choice on the validation cases; None if there were no cases."""
    tried: tuple[Tried, ...] = ()
    """All candidates, the best first. Of each closed form only the best settings are listed."""


@dataclass(frozen=True)
class Choice:
    """What `auto` consists of in each task, and why. None for a task that it does not do."""

    matching: TaskChoice | None = None
    generation: TaskChoice | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def closed_forms(self) -> dict[str, Mapping[str, Any]]:
        """The best settings of each closed form, to show beside the model."""
        tried = [each for task in TASKS if (own := getattr(self, task)) is not None for each in own.tried]
        return {each.model: each.settings for each in tried if each.model != LEARNED}


def sentences(choice: Choice, parts: Sequence[AutoPart]) -> list[str]:
    """The choice in plain words, one sentence for each task."""
    lines = []
    for task, question in (("matching", "To match bundles"), ("generation", "To complete bundles")):
        own = getattr(choice, task)
        if own is not None:
            only = [
                part.model_copy(update={other: 0.0 for other in TASKS if other != task}) for part in parts
            ]
            lines.append(f"{question}: {describe(only)}. {own.reason}.")
    return lines
