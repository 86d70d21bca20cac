"""Settings. Each hyperparameter is written once, with its meaning; an unknown one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundlemage.errors import ConfigError
from bundlemage.models.space import Between, OneOf, Space

SelectBy = Literal["matching", "generation", "both"]


class ModelConfig(BaseModel):
    """What every model has."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    space: ClassVar[Space] = {}
    """What `bundlemage tune` searches if not told otherwise: the settings that matter most, each with its
    default among the values."""

    seed: int = Field(0, ge=0, lt=2**32)
    """Everything random follows from it: first weights, order of batches, masks, dropout."""
    device: str = "auto"
    """`auto` (CUDA, then MPS, then CPU), or a name such as `cpu`, `cuda`, `cuda:1`, `mps`."""


class LearnedConfig(ModelConfig):
    """What every model has that learns by gradient steps."""

    space: ClassVar[Space] = {
        "learning_rate": Between(0.0003, 0.03, log=True),
        "weight_decay": OneOf(0.0, 0.000001, 0.00001, 0.0001),
        "batch_size": OneOf(250, 500, 1000, 2000),
    }

    epochs: int = Field(200, ge=1)
    """The most passes over the training data."""
    patience: int = Field(50, ge=1)
    """Stop after this many epochs without a better value on validation. A small shop has few steps in an
    epoch and learns nothing visible in the first dozens."""
    select_by: SelectBy = "matching"
    """Which task's validation cases choose the epoch that is kept."""
    batch_size: int = Field(2000, ge=1)
    """The most users, or (user, bundle) pairs, per step."""
    min_steps: int = Field(1, ge=1)
    """The fewest steps of a phase in an epoch: a small shop gets smaller batches."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's step size."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Whether the step size stays, or falls along a half cosine to nothing at the last of `epochs`."""
    weight_decay: float = Field(0.00001, ge=0)
    """Added to the gradient as weight_decay × weight."""
    weight_average: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is then what is used; 0 for none."""


Config = TypeVar("Config", bound=BaseModel)


def parse_config(config_class: type[Config], settings: Mapping[str, Any]) -> Config:
    """Settings to a config, with one message that names every wrong one."""
    try:
        return config_class(**settings)
    except ValidationError as error:
        known = config_class.model_fields
        lines = []
        for fault in error.errors():
            key = ".".join(map(str, fault["loc"]))
            if fault["type"] == "extra_forbidden":
                lines.append(f"unknown setting {key!r}; the settings are: {', '.join(sorted(known))}")
            else:
                lines.append(f"setting {key!r} is {fault['input']!r}: {fault['msg'].lower()}")
        raise ConfigError("; ".join(lines)) from None
