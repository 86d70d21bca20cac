"""The rows of a live model: the bundle of each row, and the items of that bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.data.dataset import BundleDataset, binary_matrix, row_of
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.models.base import Interactions
from bundlemage.models.ragged import Contents
from bundlemage.store.records import Bundle

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BundleRows:
    """The bundles of training in the model's order, followed by later bundles in the order of their arrival.

    Bundles have the items that they contain in the shop now, also the bundles of training. The dataset has no
    users: each question comes with the user's current history.
    """

    dataset: BundleDataset
    device: torch.device
    sales: Tensor | None = None  # [bundles of training]
    """The sales of the bundles of training. None if the model's scores do not depend on sales."""
    expected: Mapping[str, float | str] = field(default_factory=dict)
    """For a bundle, its expected sales as a number, or the id of another bundle that sells as often. They are
    used only for bundles that came after training."""

    @classmethod
    def of(cls, trained: BundleDataset, device: torch.device, sales: Tensor | None = None) -> BundleRows:
        """Makes the rows of a model before the shop's catalogue is read: all bundles are empty."""
        nothing = np.zeros(0, np.int64)
        return cls(_dataset(trained, trained.bundles.ids, nothing, nothing), device, sales)

    def after(self, bundles: Sequence[Bundle]) -> BundleRows:
        """Adds or changes bundles. Returns the same object if no contents and no expected sales changed."""
        changes = {bundle.id: _expected(bundle) for bundle in bundles}
        if any(self.expected.get(name) != value for name, value in changes.items()):
            expected = {
                name: value for name, value in {**self.expected, **changes}.items() if value is not None
            }
            return replace(self, expected=expected).after(bundles)
        dataset = self.dataset
        items, places = dataset.items.known_positions, dataset.bundles.known_positions
        new = [bundle.id for bundle in bundles if bundle.id not in places]
        new_places = {name: len(places) + number for number, name in enumerate(new)}
        rows: dict[int, list[int]] = {}
        for bundle in bundles:
            place = places.get(bundle.id)
            inside = sorted({items[name] for name in bundle.items if name in items})
            if place is None:
                rows[new_places[bundle.id]] = inside
            elif inside != row_of(dataset.bundle_item, place).tolist():
                rows[place] = inside
        if not rows:
            return self
        kept = np.isin(self._owners, list(rows), invert=True)
        owners = np.repeat(np.array(list(rows), np.int64), [len(row) for row in rows.values()])
        members = np.fromiter(chain.from_iterable(rows.values()), np.int64, len(owners))
        owners = np.concatenate([self._owners[kept], owners])
        members = np.concatenate([dataset.bundle_item.indices[kept], members])
        return replace(self, dataset=_dataset(dataset, (*dataset.bundles, *new), owners, members))

    @cached_property
    def interactions(self) -> Interactions:
        """The rows as a model takes them. It is cached: a model embeds the same object only once."""
        plain = Interactions.of(self.dataset, self.device)
        expected = self._expected_sales()
        if expected is None:
            return plain
        return replace(plain, bundle_item=Contents.of(plain.bundle_item, expected))

    def _expected_sales(self) -> Tensor | None:
        """The expected sales of bundles that came after training; nan if none are given."""  # [bundles]
        if self.sales is None:
            return None
        places = self.dataset.bundles.known_positions
        later = [name for name in self.expected if name in places and places[name] >= len(self.sales)]
        if not later:
            return None
        expected = torch.full((len(places),), torch.nan, device=self.device)
        expected[[places[name] for name in later]] = torch.tensor(
            [self._sales_of(name, self.sales) for name in later], device=self.device
        )
        return expected

    def _sales_of(self, name: str, sales: Tensor) -> float:
        """Follows `sells_like` from bundle to bundle until it finds a number. Returns nan if none."""
        places = self.dataset.bundles.known_positions
        passed: set[str] = set()
        while name not in passed:
            place = places.get(name, len(sales))
            if place < len(sales):
                return float(sales[place])
            passed.add(name)
            expected = self.expected.get(name)
            if not isinstance(expected, str):
                return math.nan if expected is None else expected
            name = expected
        return math.nan  # the bundles refer to each other in a circle

    @cached_property
    def filled(self) -> dict[str, int]:
        """The positions of the bundles that contain at least one item known to the model."""
        sizes = np.diff(self.dataset.bundle_item.indptr)
        return {name: place for name, place in self.dataset.bundles.known_positions.items() if sizes[place]}

    @cached_property
    def _owners(self) -> Positions:
        return np.repeat(np.arange(len(self.dataset.bundles)), np.diff(self.dataset.bundle_item.indptr))


def _expected(bundle: Bundle) -> float | str | None:
    return bundle.sells_like if bundle.expected_sales is None else bundle.expected_sales


def _dataset(
    trained: BundleDataset, names: Sequence[str], owners: Positions, members: Positions
) -> BundleDataset:
    items = len(trained.items)
    return BundleDataset(
        sparse.csr_matrix((0, items), dtype=np.float32),
        sparse.csr_matrix((0, len(names)), dtype=np.float32),
        binary_matrix(owners, members, (len(names), items)),
        Vocabulary("user", ()),
        trained.items,
        Vocabulary("bundle", names),
        name=trained.name,
    )
