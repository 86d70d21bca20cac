"""Every model by its name: those of this package, and those that other packages bring along."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from bundlemage.errors import ConfigError
from bundlemage.models.base import Model, Sizes
from bundlemage.models.baselines.bgcn import BGCN
from bundlemage.models.baselines.bpr import BPR
from bundlemage.models.baselines.br import BR
from bundlemage.models.baselines.bundlegt import BundleGT
from bundlemage.models.baselines.co_occurrence import CoOccurrence
from bundlemage.models.baselines.coheat import CoHeat
from bundlemage.models.baselines.crosscbr import CrossCBR
from bundlemage.models.baselines.dam import DAM
from bundlemage.models.baselines.ease import Ease
from bundlemage.models.baselines.ease_items import EaseItems
from bundlemage.models.baselines.efm import EFM
from bundlemage.models.baselines.gram_smot import GramSmot
from bundlemage.models.baselines.item_knn import ItemKnn
from bundlemage.models.baselines.item_popularity import ItemPopularity
from bundlemage.models.baselines.lightgcn import LightGCN
from bundlemage.models.baselines.multicbr import MultiCBR
from bundlemage.models.baselines.ncf import NCF
from bundlemage.models.baselines.owned_share import OwnedShare
from bundlemage.models.baselines.popularity import Popularity
from bundlemage.models.baselines.ppmi_svd import PpmiSvd
from bundlemage.models.baselines.random import Random
from bundlemage.models.baselines.vae_cf import VAECF
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import ModelConfig, parse_config

_CLASSES: tuple[type[Model], ...] = (
    BundleMage,
    # The paper's rivals, in its order
    Random,
    Popularity,
    ItemPopularity,
    BPR,
    NCF,
    VAECF,
    BR,
    EFM,
    DAM,
    BGCN,
    GramSmot,
    # Beyond the paper: for matching, then for generation
    LightGCN,
    CrossCBR,
    MultiCBR,
    BundleGT,
    CoHeat,
    Ease,
    ItemKnn,
    OwnedShare,
    CoOccurrence,
    PpmiSvd,
    EaseItems,
)
MODELS: Mapping[str, type[Model]] = {model.name: model for model in _CLASSES}
"""The models of this package."""

ENTRY_POINTS = "bundlemage.models"
"""The group under which another package names its models: `name = "package.module:Class"`."""


def _brought() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def model_names() -> tuple[str, ...]:
    return tuple(sorted({*MODELS, *_brought()}))


def model_class(name: str) -> type[Model]:
    if name in MODELS:
        return MODELS[name]
    brought = _brought()
    if name in brought:
        return _loaded(brought[name])
    known = model_names()
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"unknown model {name!r}; the models are: {', '.join(known)}.{hint}")


def _loaded(point: EntryPoint) -> type[Model]:
    where = f"the model {point.name!r} of {point.value}"
    try:
        found = point.load()
    except Exception as error:  # another package's code may fail in any way
        raise ConfigError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise ConfigError(f"{where} is not a subclass of bundlemage.models.base.Model")
    if not isinstance(getattr(found, "title", None), str):
        raise ConfigError(f"{where} has no title: give the class one")
    if getattr(found, "name", None) != point.name:
        raise ConfigError(f"{where} calls itself {getattr(found, 'name', None)!r}: the two must be the same")
    return found


def names_taken() -> dict[str, str]:
    """Models of other packages that cannot be had, as this package has one of that name: name → where."""
    return {name: point.value for name, point in _brought().items() if name in MODELS}


def make_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    return parse_config(model_class(name).config_class, settings)


def build(name: str, config: ModelConfig, sizes: Sizes) -> Model:
    """A model with its first weights, which follow from the seed and not from what ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # the CPU's alone: first weights are drawn there
        return model_class(name)(config, sizes)
