"""Several trained members of one model, which answer as one."""

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
    """A method for the mean of members' results. `encoded`: its first argument has a part for each member."""

    def mean(self: Ensemble, first: Any, *others: Any) -> Tensor:
        # Members are added up one after another, so that the scores of at most two are in memory.
        total: Tensor | None = None
        for number, member in enumerate(self._each(kind)):
            scores: Tensor = getattr(member, method)(first[number] if encoded else first, *others)
            total = scores if total is None else total + scores
        assert total is not None
        return total / len(self.members)

    return mean


class Ensemble(Completer, Indexable, SalesScorer, Embedder, Gated):
    """The mean of its members' scores. It does what its members do.

    A member's log-probabilities are its scores less one number for the row, the logarithm of the softmax's
    denominator. So the mean of scores and the mean of log-probabilities differ by one number for the row:
    they rank alike, and have the same softmax. If members' scores are products of two vectors, so is the
    mean.

    It has no name of its own: `Recommender` builds it of members by their name.
    """

    name = "ensemble"
    title = "Ensemble"

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__(parse_config(ModelConfig, {}), members[0].sizes)
        self.members = nn.ModuleList(members)
        first = members[0]
        self.title = f"{first.title} × {len(members)}"  # type: ignore[misc]
        self.knows_new_users = first.knows_new_users  # type: ignore[misc]
        self.training = first.training  # fitted members are not in training any more

    def does(self, kind: type[Model]) -> bool:
        return can(self._first, kind)

    @property
    def scores_candidates_apart(self) -> bool:
        return require(self._first, Matcher).scores_candidates_apart

    # Members learn from the same sales, so they credit a new bundle alike.

    def credit_new_bundles(self, sales: float) -> None:
        for member in self._each(SalesScorer):
            member.credit_new_bundles(sales)

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

    # ── Fits: a mean of members' scores less their means is the mean of members' fits ────────────

    def encoded(self, people: Histories, contents: Ragged) -> list[Any]:
        """Users in each member's form."""
        return [member.encoded(people, contents) for member in self._each(Model)]

    bundle_fit = _mean(Matcher, "bundle_fit", encoded=True)
    item_fit = _mean(Completer, "item_fit", encoded=True)

    # ── Vectors ──────────────────────────────────────────────────────────────────────────────────

    def vectors_of_items(self) -> Tensor:
        return self._joined(lambda member: member.vectors_of_items())

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return self._joined(lambda member: member.vectors_of_bundles(contents))

    def _joined(self, vectors: Callable[[Embedder], Tensor]) -> Tensor:
        """Members' vectors of length one, joined. A cosine of two of them is the mean of members' cosines."""
        each = [F.normalize(vectors(member), dim=1) for member in self._each(Embedder)]
        return torch.cat(each, dim=1)  # [rows, K·d]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """Members' vectors, joined, so that a product with `factors_of_users` is the mean score."""
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
    """The settings of each member. Only the seed differs: it counts up from the config's seed."""
    if members == 1:
        return [config]
    return [make_config(model, {**config.model_dump(), "seed": config.seed + k}) for k in range(members)]


def build_ensemble(model: str, config: ModelConfig, sizes: Sizes, members: int) -> Model:
    """A model with its first weights: a single model, or an ensemble of several members."""
    return joined([build(model, one, sizes) for one in member_configs(model, config, members)])


def joined(members: Sequence[Model]) -> Model:
    """The members as one model. A single member is returned as it is."""
    return members[0] if len(members) == 1 else Ensemble(members)


def members_of(model: Model) -> int:
    """The number of members of a model, 1 if it is no ensemble."""
    return len(model.members) if isinstance(model, Ensemble) else 1
