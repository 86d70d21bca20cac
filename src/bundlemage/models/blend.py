"""A weighted sum of several models' scores, which is itself a model: an ensemble, or the choice of `auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.data.dataset import BundleDataset
from bundlemage.models.base import (
    Completer,
    ContentLearner,
    Embedder,
    Factors,
    Gated,
    Histories,
    Indexable,
    Interactions,
    Matcher,
    Model,
    Part,
    SalesScorer,
    can,
    require,
)
from bundlemage.models.config import ModelConfig, parse_config
from bundlemage.models.known_items import KnownItems
from bundlemage.models.ragged import Ragged


def _sum(kind: type[Model], method: str, encoded: bool = False) -> Callable[..., Tensor]:
    """Makes a method that returns the weighted sum of the members' results. With `encoded`, the first
    argument is a list with an element for each member."""

    def weighted_sum(self: Blend, first: Any, *others: Any) -> Tensor:
        # Members are added up one after another: at most two score tensors are in memory.
        total: Tensor | None = None
        for number, factor in self.factors_for(kind):
            member = require(self.member(number), kind)
            scores: Tensor = getattr(member, method)(first[number] if encoded else first, *others)
            scores = scores if factor == 1 else scores * factor
            total = scores if total is None else total + scores
        assert total is not None
        return total

    return weighted_sum


class Blend(Completer, Indexable, SalesScorer, Embedder, Gated, ContentLearner):
    """The weighted sum of its members' scores, with weights of its own for each task.

    The log-probabilities of a row are its scores minus a constant for the row. So a weighted sum of scores
    and one of log-probabilities differ by a constant for each row: they give the same ranking and the same
    softmax. If members' scores are inner products, their weighted sum is an inner product, too.
    """

    name = "blend"
    title = "Blend"

    def __init__(
        self,
        members: Sequence[Model],
        matching: Sequence[float],
        generation: Sequence[float],
        title: str,
        config: ModelConfig | None = None,
    ) -> None:
        """`matching` and `generation` are the factors of the members' scores; 0 leaves a member out."""
        super().__init__(config or parse_config(ModelConfig, {}), members[0].sizes)
        self.members = nn.ModuleList(members)
        self.matching, self.generation = tuple(matching), tuple(generation)
        self.title = title  # type: ignore[misc]
        self.knows_new_users = all(  # type: ignore[misc]
            member.knows_new_users for member in members
        )
        self.training = members[0].training  # fitted members are in evaluation mode

    def member(self, number: int) -> Model:
        """The member at an index."""
        return self.members[number]  # type: ignore[return-value]

    def factors_for(self, kind: type[Model]) -> list[tuple[int, float]]:
        """The index and the factor of each member that counts in the task of `kind`."""
        factors = self.generation if issubclass(kind, Completer) else self.matching
        return [(number, factor) for number, factor in enumerate(factors) if factor]

    @property
    def half_life(self) -> float | None:
        own = super().half_life
        return own if hasattr(self.config, "half_life") else self.member(0).half_life

    def does(self, kind: type[Model]) -> bool:
        """The tasks of its members. It is `Indexable` if every member that matches is."""
        if kind is Embedder or kind is ContentLearner:
            return bool(self._each(kind))
        if kind is Gated:
            return bool(self._gated())
        able = [can(self.member(number), kind) for number, _ in self.factors_for(kind)]
        return bool(able) and (any(able) if kind is SalesScorer else all(able))

    def observe(self, data: Interactions) -> None:
        for member in self._each(Model):
            member.observe(data)

    def _gated(self) -> list[Gated]:
        """The members with a gate that count in matching."""
        members = (self.member(number) for number, _ in self.factors_for(Matcher))
        return [member for member in members if can(member, Gated)]

    def _each(self, kind: type[Part]) -> list[Part]:
        """The members that have a part."""
        return [member for member in self.members if can(member, kind)]  # type: ignore[arg-type]

    # ── Scores ───────────────────────────────────────────────────────────────────────────────────

    score_bundles = _sum(Matcher, "score_bundles")
    score_candidates = _sum(Matcher, "score_candidates")
    score_new_bundles = _sum(Matcher, "score_new_bundles")
    score_items = _sum(Completer, "score_items")
    score_item_candidates = _sum(Completer, "score_item_candidates")

    @property
    def scores_candidates_apart(self) -> bool:
        return all(
            require(self.member(number), Matcher).scores_candidates_apart
            for number, _ in self.factors_for(Matcher)
        )

    @property
    def ranks_by_sales(self) -> bool:
        members = (self.member(number) for number, _ in self.factors_for(Matcher))
        return all(require(member, Matcher).ranks_by_sales for member in members)

    def merge_changes(self) -> None:
        for member in self._each(Model):
            member.merge_changes()

    def encoded(self, histories: Histories, contents: Ragged) -> list[Any]:
        """The encoded users of each member. A fit of the blend is the sum of its members' fits."""
        return [member.encoded(histories, contents) for member in self._each(Model)]

    bundle_fit = _sum(Matcher, "bundle_fit", encoded=True)
    item_fit = _sum(Completer, "item_fit", encoded=True)

    # ── Items known by their content ─────────────────────────────────────────────────────────────

    def learn_content(self, items: pa.Table, train: BundleDataset) -> None:
        for member in self._each(ContentLearner):
            member.learn_content(items, train)

    def knows_by_content(self, items: pa.Table) -> npt.NDArray[np.bool_]:
        # All members of an ensemble learned from the same catalogue.
        return self._each(ContentLearner)[0].knows_by_content(items)

    @property
    def known_by_content(self) -> frozenset[int]:
        return self._each(ContentLearner)[0].known_by_content

    def with_items(self, items: pa.Table, places: Sequence[int] | None = None) -> Self:
        """Members that know items only by who has them score a new item like the mean item. So what the
        others say about it decides. If no other member completes bundles, a new item ranks last there."""
        size = self.sizes.items
        at = range(size, size + len(items)) if places is None else places
        highest = max(size, *(place + 1 for place in at)) if len(at) else size
        learn = {number for number, member in enumerate(self.members) if can(member, ContentLearner)}  # type: ignore[arg-type]
        fill: Literal["mean", "lowest"] = (
            "mean" if learn & {number for number, _ in self.factors_for(Completer)} else "lowest"
        )
        members: list[Model] = []
        for number in range(len(self.members)):
            member = self.member(number)
            if can(member, ContentLearner):
                members.append(member.with_items(items, at))
            else:
                inner = member.inner if isinstance(member, KnownItems) else member
                members.append(KnownItems(inner, highest, fill))
        blend = copy(self)
        blend._modules = {**self._modules, "members": nn.ModuleList(members)}
        blend.sizes = replace(self.sizes, items=highest)
        return blend

    # ── Sales of new bundles ─────────────────────────────────────────────────────────────────────

    def assume_sales(self, sales: float) -> None:
        for member in self._each(SalesScorer):
            member.assume_sales(sales)

    def known_sales(self) -> Tensor:
        return self._each(SalesScorer)[0].known_sales()  # all members know the same sales

    def popularity_bias(self, sales: Tensor) -> Tensor:
        members = ((self.member(number), factor) for number, factor in self.factors_for(Matcher))
        terms = [
            factor * member.popularity_bias(sales) for member, factor in members if can(member, SalesScorer)
        ]
        return torch.stack(terms).sum(0)

    # ── Vectors ──────────────────────────────────────────────────────────────────────────────────

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """The mean of the shares of the members that have a gate."""  # [rows]
        return torch.stack([member.item_share(histories, contents) for member in self._gated()]).mean(0)

    def vectors_of_items(self) -> Tensor:
        return self._joined(lambda member: member.vectors_of_items())

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return self._joined(lambda member: member.vectors_of_bundles(contents))

    def _joined(self, vectors: Callable[[Embedder], Tensor]) -> Tensor:
        """Concatenates the members' unit vectors: a cosine of two results is the members' mean cosine."""
        each = [F.normalize(vectors(member), dim=1) for member in self._each(Embedder)]
        return torch.cat(each, dim=1)  # [rows, K·d]

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """Concatenates the members' vectors. The product with `factors_of_users` is the weighted sum."""
        each = [
            (require(self.member(number), Indexable).factors_of_bundles(contents, start), factor)
            for number, factor in self.factors_for(Matcher)
        ]
        vectors = torch.cat([factors.vectors for factors, _ in each], dim=1)  # [bundles, K·d]
        return Factors(vectors, torch.stack([factors.bias * factor for factors, factor in each]).sum(0))

    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        each = [
            require(self.member(number), Indexable).factors_of_users(histories, contents) * factor
            for number, factor in self.factors_for(Matcher)
        ]
        return torch.cat(each, dim=1)  # [rows, K·d]
