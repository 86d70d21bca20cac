"""Finds models by name, in this package and in other packages. Builds models, and ensembles of several models
of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.errors import ConfigError
from bundlemage.models import baselines
from bundlemage.models.base import (
    Completer,
    Embedder,
    Factors,
    Gated,
    Histories,
    Indexable,
    Matcher,
    Model,
    Part,
    SalesScorer,
    Sizes,
    can,
    require,
)
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import LearnedConfig, ModelConfig, parse_config
from bundlemage.models.ragged import Ragged


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
    return {name: point.value for name, point in _others().items() if name in MODELS}


def make_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """The config of a model. Raises ConfigError if a setting is wrong."""
    return parse_config(model_class(name).config_class, settings)


def build(name: str, config: ModelConfig, sizes: Sizes) -> Model:
    """Builds an untrained model. Its initial weights depend only on the config and the sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # initial weights are drawn on the CPU
        return model_class(name)(config, sizes)


def _mean(kind: type[Model], method: str, encoded: bool = False) -> Callable[..., Tensor]:
    """Makes a method that returns the mean of the members' results. With `encoded`, the first argument is a
    list with an element for each member."""

    def mean(self: Ensemble, first: Any, *others: Any) -> Tensor:
        # Members are added up one after another: at most two score tensors are in memory.
        total: Tensor | None = None
        for number, member in enumerate(self._each(kind)):
            scores: Tensor = getattr(member, method)(first[number] if encoded else first, *others)
            total = scores if total is None else total + scores
        assert total is not None
        return total / len(self.members)

    return mean


class Ensemble(Completer, Indexable, SalesScorer, Embedder, Gated):
    """The mean of its members' scores. It supports the tasks that its members support.

    The log-probabilities of a row are its scores minus a constant for the row. So the mean of scores and the
    mean of log-probabilities also differ by a constant for each row: they give the same ranking and the same
    softmax. If members' scores are inner products, the mean score is an inner product, too.

    It is not in the registry of models: `Recommender` builds it from members of a registered model.
    """

    name = "ensemble"
    title = "Ensemble"

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__(parse_config(ModelConfig, {}), members[0].sizes)
        self.members = nn.ModuleList(members)
        first = members[0]
        self.title = f"{first.title} × {len(members)}"  # type: ignore[misc]
        self.knows_new_users = first.knows_new_users  # type: ignore[misc]
        self.training = first.training  # fitted members are in evaluation mode

    def does(self, kind: type[Model]) -> bool:
        return can(self._first, kind)

    @property
    def scores_candidates_apart(self) -> bool:
        return require(self._first, Matcher).scores_candidates_apart

    # All members know the same sales, so they assume the same sales for a new bundle.

    def assume_sales(self, sales: float) -> None:
        for member in self._each(SalesScorer):
            member.assume_sales(sales)

    def known_sales(self) -> Tensor:
        return require(self._first, SalesScorer).known_sales()

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return require(self._first, SalesScorer).popularity_bias(sales)

    @property
    def _first(self) -> Model:
        return self.members[0]  # type: ignore[return-value]

    def _each(self, kind: type[Part]) -> list[Part]:
        return [require(member, kind) for member in self.members]  # type: ignore[arg-type]

    score_bundles = _mean(Matcher, "score_bundles")
    score_candidates = _mean(Matcher, "score_candidates")
    score_new_bundles = _mean(Matcher, "score_new_bundles")
    score_items = _mean(Completer, "score_items")
    score_item_candidates = _mean(Completer, "score_item_candidates")
    item_share = _mean(Gated, "item_share")

    def merge_changes(self) -> None:
        for member in self._each(Model):
            member.merge_changes()

    def encoded(self, histories: Histories, contents: Ragged) -> list[Any]:
        """The encoded users of each member. The ensemble's fit is the mean of its members' fits."""
        return [member.encoded(histories, contents) for member in self._each(Model)]

    bundle_fit = _mean(Matcher, "bundle_fit", encoded=True)
    item_fit = _mean(Completer, "item_fit", encoded=True)

    def vectors_of_items(self) -> Tensor:
        return self._joined(lambda member: member.vectors_of_items())

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return self._joined(lambda member: member.vectors_of_bundles(contents))

    def _joined(self, vectors: Callable[[Embedder], Tensor]) -> Tensor:
        """Concatenates the members' unit vectors: a cosine of two results is the members' mean cosine."""
        each = [F.normalize(vectors(member), dim=1) for member in self._each(Embedder)]
        return torch.cat(each, dim=1)  # [rows, K·d]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """Concatenates the members' vectors. The product with `factors_of_users` is the mean score."""
        each = [member.factors_of_bundles(contents, start) for member in self._each(Indexable)]
        vectors = torch.cat([factors.vectors for factors in each], dim=1)  # [bundles, K·d]
        return Factors(vectors, torch.stack([factors.bias for factors in each]).mean(0))

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        each = [member.factors_of_users(histories, contents) for member in self._each(Indexable)]
        return torch.cat(each, dim=1) / len(each)  # [rows, K·d]


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
    return joined([build(model, member, sizes) for member in member_configs(model, config, members)])


def restored(
    model: str, config: ModelConfig, sizes: Sizes, members: int, weights: Mapping[str, Tensor]
) -> Model:
    """Builds a model or an ensemble with these weights. Raises ValueError if they do not fit.

    The model uses the tensors themselves. Memory is needed only for a model of another package, which may
    compute tensors that are not among its weights.
    """
    found = {name.split(".")[1] for name in weights if name.startswith("members.")}
    if members > 1 and members != len(found):
        raise ValueError(f"it is an ensemble of {members:,} members, and has the weights of {len(found):,}")
    own = model in MODELS
    with torch.device("meta") if own else nullcontext():
        built = build_ensemble(model, config, sizes, members)
    types = {name: tensor.dtype for name, tensor in built.state_dict().items()}
    try:
        built.load_state_dict(weights, assign=own)
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of {built.title}: {error}") from None
    for name, expected in types.items():
        tensor = weights[name]
        if tensor.dtype != expected:
            raise ValueError(f"the weights {name!r} are {tensor.dtype}; expected {expected}")
        # The sum is a quick test. Large finite numbers can add up to infinity, hence the second test.
        if own and not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the weights {name!r} have a value that is not a finite number")
    return built


def joined(members: Sequence[Model]) -> Model:
    """The members as one model. A single member is returned as it is."""
    return members[0] if len(members) == 1 else Ensemble(members)


def members_of(model: Model) -> int:
    """The number of members of a model; 1 for a model that is not an ensemble."""
    return len(model.members) if isinstance(model, Ensemble) else 1
