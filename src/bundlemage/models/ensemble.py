"""An ensemble: several models of the same kind that answer with their mean score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.errors import ConfigError
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
from bundlemage.models.config import LearnedConfig, ModelConfig, parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config, model_class


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

    # ── Scores ───────────────────────────────────────────────────────────────────────────────────

    score_bundles = _mean(Matcher, "score_bundles")
    score_candidates = _mean(Matcher, "score_candidates")
    score_new_bundles = _mean(Matcher, "score_new_bundles")
    score_items = _mean(Completer, "score_items")
    score_item_candidates = _mean(Completer, "score_item_candidates")
    item_share = _mean(Gated, "item_share")

    # ── Fits (score minus mean score): the ensemble's fit is the mean of its members' fits ───────

    def encoded(self, people: Histories, contents: Ragged) -> list[Any]:
        """The encoded users of each member."""
        return [member.encoded(people, contents) for member in self._each(Model)]

    bundle_fit = _mean(Matcher, "bundle_fit", encoded=True)
    item_fit = _mean(Completer, "item_fit", encoded=True)

    # ── Vectors ──────────────────────────────────────────────────────────────────────────────────

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
    """The settings of each member. Only the seeds differ: seed, seed + 1, seed + 2 and so on."""
    if members == 1:
        return [config]
    return [make_config(model, {**config.model_dump(), "seed": config.seed + k}) for k in range(members)]


def build_ensemble(model: str, config: ModelConfig, sizes: Sizes, members: int) -> Model:
    """Builds an untrained model: a single model, or an ensemble of several members."""
    return joined([build(model, one, sizes) for one in member_configs(model, config, members)])


def joined(members: Sequence[Model]) -> Model:
    """The members as one model. A single member is returned as it is."""
    return members[0] if len(members) == 1 else Ensemble(members)


def members_of(model: Model) -> int:
    """The number of members of a model; 1 for a model that is not an ensemble."""
    return len(model.members) if isinstance(model, Ensemble) else 1
