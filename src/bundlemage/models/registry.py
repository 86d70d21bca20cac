"""Finds models by name, in this package and in other packages. Builds models, and ensembles of several models
of the same kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

from bundlemage.errors import ConfigError
from bundlemage.models import baselines
from bundlemage.models.base import Completer, Matcher, Model, Sizes
from bundlemage.models.blend import Blend
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import LearnedConfig, ModelConfig, parse_config


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
    """The entry points of other packages' models, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


AUTO = "auto"
"""The name of `models.auto.Auto`, which consists of other models. It is not among `MODELS`."""


def model_names() -> tuple[str, ...]:
    """The names of all models, sorted."""
    return tuple(sorted({AUTO, *MODELS, *_others()}))


def model_class(name: str) -> type[Model]:
    """Returns the class of a model. Raises ConfigError if it is unknown or cannot be loaded."""
    if name in MODELS:
        return MODELS[name]
    if name == AUTO:
        from bundlemage.models.auto import Auto  # it builds models by their names, as this module does

        return Auto
    others = _others()
    if name in others:
        return _loaded(others[name])
    known = model_names()
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown model {name!r}; the models are: {', '.join(known)}.{hint}")


def _loaded(point: EntryPoint) -> type[Model]:
    """Loads the class of another package's model, and checks it."""
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
        raise ConfigError(f"{where} has the name {getattr(kind, 'name', None)!r}; the names must agree")
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"{where} has no method {', '.join(map(repr, missing))}")
    return kind


def names_taken() -> dict[str, str]:
    """Models of other packages that have the name of a model of this package: name →
    "package.module:Class"."""
    return {name: point.value for name, point in _others().items() if name in MODELS or name == AUTO}


def make_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """The config of a model. Raises ConfigError if a setting is wrong."""
    return parse_config(model_class(name).config_class, settings)


def build(name: str, config: ModelConfig, sizes: Sizes) -> Model:
    """Builds an untrained model. Its initial weights depend only on the config and the sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # initial weights are drawn on the CPU
        return model_class(name)(config, sizes)


def check_ensemble(members: int, model: str) -> None:
    """Raises ConfigError if the number of members is below 1, or if all members would be the same."""
    if not isinstance(members, int) or isinstance(members, bool) or members < 1:
        raise ConfigError(f"ensemble is {members!r}; it is the number of members to train, 1 or more")
    if members > 1 and not issubclass(model_class(model).config_class, LearnedConfig):
        raise ConfigError(
            f"{model} does not learn by steps, so all members of an ensemble would be the same: leave "
            "'ensemble' out"
        )


def member_configs(model: str, config: ModelConfig, members: int) -> list[ModelConfig]:
    """The config of each member. Only the seeds differ: seed, seed + 1, seed + 2 and so on."""
    if members == 1:
        return [config]
    return [make_config(model, {**config.model_dump(), "seed": config.seed + k}) for k in range(members)]


def build_ensemble(model: str, config: ModelConfig, sizes: Sizes, members: int) -> Model:
    """Builds an untrained model: a single model, or an ensemble of several members."""
    if model == AUTO:  # its parts know their number of members
        return build(model, config, sizes)
    return joined([build(model, member, sizes) for member in member_configs(model, config, members)])


def restored(
    model: str, config: ModelConfig, sizes: Sizes, members: int, weights: Mapping[str, Tensor]
) -> Model:
    """Builds a model or an ensemble with these weights. Raises ValueError if they do not fit.

    The model uses the tensors themselves. Memory is needed only for a model of another package, which may
    compute tensors that are not among its weights.
    """
    found = {name.split(".")[1] for name in weights if name.startswith("members.")}
    if members > 1 and model != AUTO and members != len(found):
        raise ValueError(f"it is an ensemble of {members:,} members, and has the weights of {len(found):,}")
    own = model in MODELS or model == AUTO
    with torch.device("meta") if own else nullcontext():
        built = build_ensemble(model, config, sizes, members)
    types = {name: tensor.dtype for name, tensor in chain(built.named_parameters(), built.named_buffers())}
    try:
        built.load_state_dict(weights, assign=own)
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of {built.title}: {error}") from None
    for name, tensor in weights.items():
        expected = types[name]
        if tensor.dtype != expected:
            raise ValueError(f"the weights {name!r} are {tensor.dtype}; expected {expected}")
        # The sum is a quick test. Large finite numbers can add up to infinity, hence the second test.
        if own and not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the weights {name!r} have a value that is not a finite number")
    return built


def joined(members: Sequence[Model]) -> Model:
    """The members as one model, whose scores are the mean. A single member is returned as it is."""
    if len(members) == 1:
        return members[0]
    share = [1 / len(members)] * len(members)
    return Blend(members, share, share, f"{members[0].title} × {len(members)}")
