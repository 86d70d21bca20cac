"""Several trained members of one model, which answer as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.errors import ConfigError
from bundlemage.models.base import Factors, Histories, Model, Sizes
from bundlemage.models.config import LearnedConfig, ModelConfig, parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config, model_class


class Ensemble(Model):
    """The mean of its members' scores.

    A member's log-probabilities are its scores less one number for the row, the logarithm of the softmax's
    denominator. So the mean of scores and the mean of log-probabilities differ by one number for the row:
    they rank alike, and have the same softmax. Means of scores also stay products of two vectors where the
    members' are.

    It is not a model by name: `Recommender` builds it of members that are.
    """

    name: ClassVar[str] = "ensemble"
    title: ClassVar[str] = "Ensemble"

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__(parse_config(ModelConfig, {}), members[0].sizes)
        self.members = nn.ModuleList(members)
        first = members[0]
        self.title = f"{first.title} × {len(members)}"  # type: ignore[misc]
        self.knows_new_users = first.knows_new_users  # type: ignore[misc]
        self.training = first.training  # fitted members are not in training any more, nor is their mean

    @property
    def matches(self) -> bool:
        return self._first.matches

    @property
    def generates(self) -> bool:
        return self._first.generates

    @property
    def scores_candidates_apart(self) -> bool:
        return self._first.scores_candidates_apart

    # Members learn from the same sales, so they credit a new bundle with the same.

    @property
    def credits_new_bundles(self) -> bool:
        return self._first.credits_new_bundles

    def credit_new_bundles(self, sales: float) -> None:
        for member in self._each:
            member.credit_new_bundles(sales)

    def known_sales(self) -> Tensor:
        return self._first.known_sales()

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return self._first.popularity_bias(sales)

    @property
    def _first(self) -> Model:
        return self._each[0]

    @property
    def _each(self) -> list[Model]:
        return list(self.members)  # type: ignore[arg-type]

    def _mean(self, asked: Callable[[Model], Tensor]) -> Tensor:
        """Added up one after another, so that no more than two members' scores are in memory."""
        first, *others = self._each
        total = asked(first)
        for member in others:
            total = total + asked(member)
        return total / len(self.members)

    # ── Scores ───────────────────────────────────────────────────────────────────────────────────

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return self._mean(lambda member: member.score_bundles(histories, contents))

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        return self._mean(lambda member: member.score_candidates(histories, candidates, contents))

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        return self._mean(lambda member: member.score_new_bundles(histories, contents, new))

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return self._mean(lambda member: member.score_items(histories, partial, contents))

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        return self._mean(
            lambda member: member.score_item_candidates(histories, partial, candidates, contents)
        )

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        return self._mean(lambda member: member.item_share(histories, contents))

    # ── Fits: a mean of members' scores less their means is the mean of members' fits ────────────

    def encoded(self, people: Histories, contents: Ragged) -> list[Any]:
        """People as each member takes them."""
        return [member.encoded(people, contents) for member in self._each]

    def bundle_fit(
        self, people: list[Any], which: Tensor, bundles: Tensor, contents: Ragged, among: int
    ) -> Tensor:
        encoded = iter(people)
        return self._mean(lambda member: member.bundle_fit(next(encoded), which, bundles, contents, among))

    def item_fit(
        self, people: list[Any], which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        encoded = iter(people)
        return self._mean(lambda member: member.item_fit(next(encoded), which, partial, items, contents))

    # ── Vectors ──────────────────────────────────────────────────────────────────────────────────

    def vectors_of_items(self) -> Tensor:
        return self._joined(lambda member: member.vectors_of_items())

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return self._joined(lambda member: member.vectors_of_bundles(contents))

    def _joined(self, asked: Callable[[Model], Tensor]) -> Tensor:
        """Members' vectors of length one side by side: a cosine of two is the mean of members' cosines."""
        return torch.cat([F.normalize(asked(member), dim=1) for member in self._each], dim=1)  # [rows, K·d]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """Members' vectors side by side, so that a product with `factors_of_people` is the mean score."""
        each = [member.factors_of_bundles(contents, start) for member in self._each]
        vectors = torch.cat([factors.vectors for factors in each], dim=1)  # [bundles, K·d]
        return Factors(vectors, torch.stack([factors.bias for factors in each]).mean(0))

    def factors_of_people(self, histories: Histories, contents: Ragged) -> Tensor:
        each = [member.factors_of_people(histories, contents) for member in self._each]
        return torch.cat(each, dim=1) / len(each)  # [rows, K·d]


def check_ensemble(members: int, model: str) -> None:
    """Whether so many members of a model make sense.

    Raises:
        ConfigError: if the number is not one from 1 up, or members of the model would all be the same.
    """
    if not isinstance(members, int) or isinstance(members, bool) or members < 1:
        raise ConfigError(f"ensemble is {members!r}; it is how many members are trained, a number from 1 up")
    if members > 1 and not issubclass(model_class(model).config_class, LearnedConfig):
        raise ConfigError(
            f"{model} does not learn by steps, so all members of an ensemble would be the same: leave "
            "'ensemble' out"
        )


def member_configs(model: str, config: ModelConfig, members: int) -> list[ModelConfig]:
    """The settings of each member: they differ in the seed alone, which counts up from the config's."""
    if members == 1:
        return [config]
    return [make_config(model, {**config.model_dump(), "seed": config.seed + k}) for k in range(members)]


def build_ensemble(model: str, config: ModelConfig, sizes: Sizes, members: int) -> Model:
    """A model with its first weights: one by its name, or several as an ensemble."""
    return joined([build(model, one, sizes) for one in member_configs(model, config, members)])


def joined(members: Sequence[Model]) -> Model:
    """The members as one model; a single one is itself."""
    return members[0] if len(members) == 1 else Ensemble(members)


def members_of(model: Model) -> int:
    """How many members a model has; 1 where it is none of several."""
    return len(model.members) if isinstance(model, Ensemble) else 1
