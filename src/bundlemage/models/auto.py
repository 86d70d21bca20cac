"""`auto`: BundleMage, closed forms, or a blend of them, whichever was best on the validation cases.

`training/choosing.py` makes the choice. Here it is data: a list of parts with their weights in each task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bundlemage.models.base import Matcher, Model, Sizes, can
from bundlemage.models.blend import Blend
from bundlemage.models.config import BundleMageConfig, ModelConfig
from bundlemage.models.registry import AUTO, build_ensemble, make_config, model_class

TASKS = ("matching", "generation")
LEARNED = "bundlemage"
"""The part of `auto` that learns. Its settings are those of `auto`."""


class AutoPart(BaseModel):
    """One of the models of `auto`.

    In each task a part's score is multiplied by its scale, which makes it a log-probability (apart from a
    constant for each user), and by its weight. The weights of a task add up to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    """The name of a model."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Its settings. Empty for BundleMage, whose settings are those of `auto`."""
    ensemble: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of models that are trained and averaged."""
    matching: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The weight in matching; 0 if the part takes no part in it."""
    generation: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The weight in generation."""
    matching_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The factor that turns a score for a bundle into a log-probability."""
    generation_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The factor that turns a score for an item into a log-probability."""

    @model_validator(mode="after")
    def _is_trained_so(self) -> Self:
        """Refuses what training never makes. A forged model could ask for very many members that way."""
        if self.model == AUTO:
            raise ValueError(f"{AUTO!r} cannot be a part of itself")
        if self.ensemble > 1 and self.model != LEARNED:
            raise ValueError(f"only {LEARNED!r} can be an ensemble, not {self.model!r}")
        return self

    @property
    def title(self) -> str:
        """The title of the part's model."""
        title = model_class(self.model).title
        return title if self.ensemble == 1 else f"{title} × {self.ensemble}"


class AutoConfig(BundleMageConfig):
    """The settings of BundleMage, which is one of the candidates, and the parts that training has chosen."""

    parts: tuple[AutoPart, ...] = Field(
        (AutoPart(model=LEARNED, matching=1.0, generation=1.0),), min_length=1, max_length=16
    )
    """What training has chosen. Leave it out: training sets it."""

    @model_validator(mode="after")
    def _names_each_model_once(self) -> Self:
        names = [part.model for part in self.parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"parts: {', '.join(twice)} is there more than once")
        return self

    @property
    def used_parts(self) -> list[AutoPart]:
        """The parts for the tasks of the setting `tasks`. A part without any weight is there for its vectors,
        which tell similar bundles."""
        off = {task: 0.0 for task in TASKS if self.tasks not in ("both", task)}
        used = [part.model_copy(update=off) for part in self.parts]
        return [
            now
            for part, now in zip(self.parts, used, strict=True)
            if now.matching or now.generation or not (part.matching or part.generation)
        ]

    @property
    def learns(self) -> bool:
        """Whether BundleMage is one of the parts."""
        return any(part.model == LEARNED for part in self.used_parts)

    def learned(self) -> BundleMageConfig:
        """The settings of the part that learns."""
        return BundleMageConfig(**self.model_dump(exclude={"parts"}))

    def config_of(self, part: AutoPart) -> ModelConfig:
        """The settings of a part."""
        if part.model == LEARNED:
            return self.learned()
        return make_config(part.model, {**part.settings, "device": self.device, "seed": self.seed})


class Auto(Blend):
    """BundleMage, closed forms, or a blend of them, chosen for each task on the validation cases."""

    name = "auto"
    title = "Auto"
    config_class = AutoConfig
    reads_weights = True
    config: AutoConfig

    def __init__(self, config: AutoConfig, sizes: Sizes, fitted: Mapping[str, Model] | None = None) -> None:
        """`fitted` are models by name that are used instead of new ones."""
        parts = config.used_parts
        members = [
            (fitted or {}).get(part.model)
            or build_ensemble(part.model, config.config_of(part), sizes, part.ensemble)
            for part in parts
        ]
        super().__init__(
            members,
            [part.matching * part.matching_scale for part in parts],
            [part.generation * part.generation_scale for part in parts],
            self.title,
            config,
        )
        self.parts = tuple(parts)

    @property
    def forecaster(self) -> Matcher:
        """BundleMage, if it is a part: it knows a new bundle by its items. Other parts score it like similar
        bundles whose buyers they know, and their scores change more with the data that they are fitted on."""
        learned = self.part(LEARNED)
        return learned if learned is not None and can(learned, Matcher) else self

    def part(self, name: str) -> Model | None:
        """The member that is a model of this name, or None."""
        numbers = [number for number, part in enumerate(self.parts) if part.model == name]
        return self.member(numbers[0]) if numbers else None


def describe(parts: Sequence[AutoPart]) -> str:
    """Names the parts of each task, such as `EASE; to complete Item co-occurrence`."""
    texts = {}
    for task in TASKS:
        weighted = sorted(
            ((getattr(part, task), part.title) for part in parts if getattr(part, task)), reverse=True
        )
        texts[task] = " + ".join(
            title if len(weighted) == 1 else f"{weight:.0%} {title}" for weight, title in weighted
        )
    matching, generation = texts["matching"], texts["generation"]
    if not matching or not generation or matching == generation:
        return matching or generation
    return f"{matching}; to complete {generation}"
