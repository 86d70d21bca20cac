"""Ids to positions and back, for one dataset on one device: what lies between a question and a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError
from bundlemage.models.base import Histories, Interactions
from bundlemage.models.ragged import Ragged

Id: TypeAlias = str | int


@dataclass(frozen=True)
class History:
    """What someone has, whether the shop knows them or not. A bundle without an id is given by its items."""

    items: Sequence[Id] = ()
    bundles: Sequence[Id | Sequence[Id]] = ()


User: TypeAlias = Id | History
NewBundles: TypeAlias = Mapping[str, Sequence[Id]]


@dataclass(frozen=True)
class Recommendation:
    """One answer. `score` is a probability over all candidates, or for `popular` a share of all sales."""

    id: str
    title: str | None
    score: float
    rank: int
    source: Literal["model", "popular"]


@dataclass(frozen=True)
class Candidates:
    """What an answer may name: ids, titles, and each one's share of all sales."""

    ids: tuple[str, ...]
    titles: Sequence[str | None]
    """May be shorter than `ids`: the rest have none."""
    shares: Tensor  # [candidates]

    def answer(self, position: int, score: float, rank: int, popular: bool) -> Recommendation:
        title = self.titles[position] if position < len(self.titles) else None
        return Recommendation(self.ids[position], title, score, rank, "popular" if popular else "model")


class Shop:
    """A dataset made ready to answer questions from."""

    def __init__(self, dataset: BundleDataset, device: torch.device) -> None:
        self.dataset = dataset
        self.device = device
        self.interactions = Interactions.of(dataset, device)

    @cached_property
    def items(self) -> Candidates:
        catalogue = self.dataset.catalogue
        titles = catalogue.item_titles() if catalogue else []
        return Candidates(self.dataset.items.ids, titles, self._shares(self.dataset.user_item))

    @cached_property
    def bundles(self) -> Candidates:
        catalogue = self.dataset.catalogue
        titles = catalogue.bundle_titles() if catalogue else []
        return Candidates(self.dataset.bundles.ids, titles, self._shares(self.dataset.user_bundle))

    def bundles_and(self, new: NewBundles) -> Candidates:
        """The shop's bundles and further ones, which nobody has bought yet."""
        for name in new:
            if name in self.dataset.bundles:
                raise ConfigError(f"new bundle {name!r} has the id of a bundle that the shop has already")
        if not new:
            return self.bundles
        shares = torch.cat([self.bundles.shares, self.bundles.shares.new_zeros(len(new))])
        return Candidates(self.bundles.ids + tuple(new), self.bundles.titles, shares)

    def item_positions(self, items: Sequence[Id]) -> list[int]:
        if isinstance(items, str):
            raise ConfigError(f"items are a list of ids, not one text: write [{items!r}]")
        return sorted(set(self.dataset.items.positions(map(str, items)).tolist()))

    def encode(self, users: Sequence[User], new: NewBundles | None = None) -> tuple[Histories, Ragged]:
        """Histories as positions, and the contents of the shop's, the new and the nameless bundles.

        New bundles come right after the shop's own, nameless ones of the histories last.
        """
        contents = _Contents(self, new or {})
        items: list[Iterable[int]] = []
        bundles: list[Iterable[int]] = []
        positions: list[int] = []
        for user in users:
            if isinstance(user, History):
                items.append(self.item_positions(user.items))
                bundles.append(contents.positions(user.bundles))
                positions.append(-1)
            else:
                row = self.dataset.users.position(str(user))
                items.append(_row(self.dataset.user_item, row))
                bundles.append(_row(self.dataset.user_bundle, row))
                positions.append(row)
        histories = Histories(
            Ragged.from_lists(items, self.device),
            Ragged.from_lists(bundles, self.device),
            torch.tensor(positions, dtype=torch.int64, device=self.device),
        )
        return histories, contents.ragged()

    def _shares(self, matrix: Any) -> Tensor:
        sales = np.bincount(matrix.indices, minlength=matrix.shape[1])
        return torch.from_numpy((sales / max(1, sales.sum())).astype(np.float32)).to(self.device)


class _Contents:
    """The contents of bundles, growing by those that questions bring along."""

    def __init__(self, shop: Shop, new: NewBundles) -> None:
        self.shop = shop
        self.known = len(shop.dataset.bundles)
        self.added = [shop.item_positions(items) for items in new.values()]
        self.places = {name: self.known + number for number, name in enumerate(new)}

    def positions(self, bundles: Sequence[Id | Sequence[Id]]) -> list[int]:
        if isinstance(bundles, str):
            raise ConfigError(f"bundles are a list of ids, not one text: write [{bundles!r}]")
        found: dict[int, None] = {}
        for bundle in bundles:
            if isinstance(bundle, str | int | np.integer):
                name = str(bundle)
                place = self.places.get(name)
                found[self.shop.dataset.bundles.position(name) if place is None else place] = None
            else:
                self.added.append(self.shop.item_positions(bundle))
                found[self.known + len(self.added) - 1] = None
        return list(found)

    def ragged(self) -> Ragged:
        known = self.shop.interactions.bundle_item
        return known.append(Ragged.from_lists(self.added, self.shop.device)) if self.added else known


def _row(matrix: Any, row: int) -> list[int]:
    positions: list[int] = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
    return positions


def best(
    scores: Tensor, hidden: Tensor, popular: Tensor, candidates: Candidates, k: int
) -> list[list[Recommendation]]:
    """The k likeliest candidates of each row, without the hidden ones.

    Rows marked `popular` have nothing for a model to go by, so they get what sells most, and say so.
    """
    chances = torch.where(popular[:, None], candidates.shares, scores.softmax(1))  # [rows, candidates]
    # Ranked by the scores themselves: far down, probabilities are too small to tell apart.
    order = torch.where(popular[:, None], candidates.shares, scores).masked_fill(hidden, -torch.inf)
    top = order.topk(min(k, order.shape[1]), dim=1)
    chosen = chances.gather(1, top.indices)
    answers = []
    left = torch.isfinite(top.values).sum(1).tolist()  # what is hidden ranks last
    rows = zip(top.indices.tolist(), chosen.tolist(), popular.tolist(), left, strict=True)
    for positions, values, is_popular, count in rows:
        shown = zip(positions[:count], values[:count], strict=True)
        answers.append(
            [
                candidates.answer(position, value, rank, is_popular)
                for rank, (position, value) in enumerate(shown, start=1)
            ]
        )
    return answers
