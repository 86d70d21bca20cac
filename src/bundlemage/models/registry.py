"""Every model by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bundlemage.errors import ConfigError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.baselines.popularity import Popularity
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import ModelConfig, parse_config

MODELS: Mapping[str, type[Model]] = {model.name: model for model in (BundleMage, Popularity)}


def model_class(name: str) -> type[Model]:
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; the models are: {', '.join(sorted(MODELS))}")
    return MODELS[name]


def make_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    return parse_config(model_class(name).config_class, settings)


def build(name: str, config: ModelConfig, sizes: Sizes) -> Model:
    """A model with its first weights, which follow from the seed and not from what ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # the CPU's alone: first weights are drawn there
        return model_class(name)(config, sizes)
