"""The registry of models by name: the models of this package and of other packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any

import torch

from bundlemage.errors import ConfigError
from bundlemage.models import baselines
from bundlemage.models.base import Completer, Matcher, Model, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import ModelConfig, parse_config


def _own() -> Iterator[type[Model]]:
    """Yields BundleMage, and the classes in `baselines` that define a name."""
    yield BundleMage
    for module in iter_modules(baselines.__path__, f"{baselines.__name__}."):
        for kind in vars(import_module(module.name)).values():
            of_module = isinstance(kind, type) and kind.__module__ == module.name
            if of_module and issubclass(kind, Model) and "name" in vars(kind):
                yield kind


MODELS: Mapping[str, type[Model]] = {model.name: model for model in _own()}
"""The models of this package."""

ENTRY_POINTS = "bundlemage.models"
"""The group of entry points in which another package registers models: `name = "package.module:Class"`."""


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def model_names() -> tuple[str, ...]:
    """The names of all models, sorted."""
    return tuple(sorted({*MODELS, *_others()}))


def model_class(name: str) -> type[Model]:
    """Returns the class of a model. Raises ConfigError if it is unknown or cannot be loaded."""
    if name in MODELS:
        return MODELS[name]
    others = _others()
    if name in others:
        return _loaded(others[name])
    known = model_names()
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown model {name!r}; the models are: {', '.join(known)}.{hint}")


def _loaded(point: EntryPoint) -> type[Model]:
    where = f"the model {point.name!r} of {point.value}"
    try:
        kind = point.load()
    except Exception as error:  # another package's code may fail in any way
        raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        raise ConfigError(f"{where} is not a subclass of bundlemage.models.base.Model")
    if not issubclass(kind, Matcher | Completer):
        raise ConfigError(f"{where} is neither a Matcher nor a Completer: derive the class from one of them")
    if not isinstance(getattr(kind, "title", None), str):
        raise ConfigError(f"{where} has no title: give the class one")
    if getattr(kind, "name", None) != point.name:
        raise ConfigError(f"{where} calls itself {getattr(kind, 'name', None)!r}: the two must be the same")
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"{where} has no method {', '.join(map(repr, missing))}")
    return kind


def names_taken() -> dict[str, str]:
    """Models of other packages that have the name of a model of this package: name →
    "package.module:Class"."""
    return {name: point.value for name, point in _others().items() if name in MODELS}


def make_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """The config of a model. Raises ConfigError if a setting is wrong."""
    return parse_config(model_class(name).config_class, settings)


def build(name: str, config: ModelConfig, sizes: Sizes) -> Model:
    """Builds an untrained model. Its initial weights depend only on the seed and the sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # initial weights are drawn on the CPU
        return model_class(name)(config, sizes)
