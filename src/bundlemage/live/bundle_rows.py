"""The rows of a live model: which bundle is in which row, and which items are in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.models.base import Interactions
from bundlemage.models.ragged import Contents
from bundlemage.store.records import Bundle

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BundleRows:
    """The bundles of training first, in the model's order, then those that came later, in theirs.

    The contents are those in the shop now, also for bundles of training. The dataset has no users: each
    question comes with what the user has at that moment.
    """

    dataset: BundleDataset
    device: torch.device
    sales: Tensor | None = None  # [bundles of training]
    """How often the bundles of training have sold; None for a model whose scores do not depend on that."""
    expected: Mapping[str, float | str] = field(default_factory=dict)
    """Expected sales of bundles: a number, or the id of another bundle that sells as often. Only those of
    bundles that came later are used."""

    @classmethod
    def of(
        cls,
        trained: BundleDataset,
        bundles: Mapping[str, Bundle],
        device: torch.device,
        sales: Tensor | None = None,
    ) -> BundleRows:
        """The rows for a model's training data and the shop's bundles; `sales` are those of training."""
        later = sorted(name for name in bundles if name not in trained.bundles)
        names = (*trained.bundles, *later)
        items = trained.items.known_positions
        rows = [_row(bundles[name], items) if name in bundles else [] for name in names]
        expected = {
            name: sales_of for name, bundle in bundles.items() if (sales_of := _expected(bundle)) is not None
        }
        return cls(_dataset(trained, names, *_entries(rows)), device, sales, expected)

    def after(self, bundles: Iterable[Bundle]) -> BundleRows:
        """The rows with these bundles new or changed; the same object if no contents and no expected sales
        have changed."""
        bundles = list(bundles)
        changes = {bundle.id: _expected(bundle) for bundle in bundles}
        if any(self.expected.get(name) != value for name, value in changes.items()):
            expected = {
                name: value for name, value in {**self.expected, **changes}.items() if value is not None
            }
            return replace(self, expected=expected).after(bundles)
        dataset = self.dataset
        items, places = dataset.items.known_positions, dataset.bundles.known_positions
        changed: dict[int, list[int]] = {}
        later: dict[str, list[int]] = {}
        for bundle in bundles:
            place, row = places.get(bundle.id), _row(bundle, items)
            if place is None:
                later[bundle.id] = row
            elif row != self._contents(place):
                changed[place] = row
        if not changed and not later:
            return self
        kept = np.isin(self._owners, list(changed), invert=True)
        owners, members = _entries(list(changed.values()))
        new_owners, new_members = _entries(list(later.values()))
        return replace(
            self,
            dataset=_dataset(
                dataset,
                (*dataset.bundles, *later),
                np.concatenate(
                    [self._owners[kept], np.array(list(changed), np.int64)[owners], new_owners + len(places)]
                ),
                np.concatenate([dataset.bundle_item.indices[kept], members, new_members]),
            ),
        )

    @cached_property
    def interactions(self) -> Interactions:
        """The same object as long as the contents stay, so that a model need not embed them again."""
        plain = Interactions.of(self.dataset, self.device)
        expected = self._expected_sales()
        if expected is None:
            return plain
        return replace(plain, bundle_item=Contents.of(plain.bundle_item, expected))

    def _expected_sales(self) -> Tensor | None:
        """The expected sales of each bundle that came later; nan where none are given."""  # [bundles]
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
        """Follows `sells_like` from bundle to bundle until it reaches a number; nan if there is none."""
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
        return math.nan  # each sells like the other

    @cached_property
    def filled(self) -> dict[str, int]:
        """The positions of the bundles that contain an item that the model knows."""
        sizes = np.diff(self.dataset.bundle_item.indptr)
        return {name: place for name, place in self.dataset.bundles.known_positions.items() if sizes[place]}

    @cached_property
    def _owners(self) -> Positions:
        return np.repeat(np.arange(len(self.dataset.bundles)), np.diff(self.dataset.bundle_item.indptr))

    def _contents(self, place: int) -> list[int]:
        matrix = self.dataset.bundle_item
        contents: list[int] = matrix.indices[matrix.indptr[place] : matrix.indptr[place + 1]].tolist()
        return contents


def _row(bundle: Bundle, items: Mapping[str, int]) -> list[int]:
    """The positions of a bundle's items that the model knows."""
    return sorted({items[name] for name in bundle.items if name in items})


def _expected(bundle: Bundle) -> float | str | None:
    return bundle.sells_like if bundle.expected_sales is None else bundle.expected_sales


def _entries(rows: Sequence[Sequence[int]]) -> tuple[Positions, Positions]:
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return owners, np.fromiter((member for row in rows for member in row), np.int64, len(owners))


def _dataset(
    trained: BundleDataset,
    names: Sequence[str],
    owners: Positions,
    members: Positions,
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
