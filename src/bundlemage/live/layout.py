"""Where things stand in a model's arrays: which bundle in which row, and what is in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.models.base import Interactions
from bundlemage.models.ragged import Contents
from bundlemage.store.records import Bundle


@dataclass(frozen=True)
class Layout:
    """The model's own bundles first, as it expects them, then those that came later, as they came.

    Contents of the model's own are what the shop says now. Nobody owns anything here: people are asked about
    with what they have at that moment.
    """

    dataset: BundleDataset
    device: torch.device
    sales: Tensor | None = None  # [bundles of training]
    """How often the model knows its own bundles to have sold; None where it does not go by that."""
    expected: Mapping[str, float | str] = field(default_factory=dict)
    """What bundles are expected to sell: a number, or the name of another that they sell like. It counts for
    those that came later."""

    @classmethod
    def of(
        cls,
        trained: BundleDataset,
        bundles: Mapping[str, Bundle],
        device: torch.device,
        sales: Tensor | None = None,
    ) -> Layout:
        later = sorted(name for name in bundles if name not in trained.bundles)
        names = (*trained.bundles, *later)
        items = trained.items.known_positions
        rows = [_row(bundles[name], items) if name in bundles else [] for name in names]
        expected = {name: said for name, bundle in bundles.items() if (said := _said(bundle)) is not None}
        return cls(_dataset(trained, names, *_entries(rows)), device, sales, expected)

    def after(self, bundles: Iterable[Bundle]) -> Layout:
        """With these bundles new or changed; the very same where none has other contents, or is expected to
        sell otherwise, than before."""
        bundles = list(bundles)
        said = {bundle.id: _said(bundle) for bundle in bundles}
        if any(self.expected.get(name) != value for name, value in said.items()):
            expected = {name: value for name, value in {**self.expected, **said}.items() if value is not None}
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
        return Layout(
            _dataset(
                dataset,
                (*dataset.bundles, *later),
                np.concatenate(
                    [self._owners[kept], np.array(list(changed), np.int64)[owners], new_owners + len(places)]
                ),
                np.concatenate([dataset.bundle_item.indices[kept], members, new_members]),
            ),
            self.device,
            self.sales,
            self.expected,
        )

    @cached_property
    def interactions(self) -> Interactions:
        """One object as long as the contents stay: by it a model knows that it need not embed them again."""
        found = Interactions.of(self.dataset, self.device)
        expected = self._expected_sales()
        if expected is None:
            return found
        return replace(found, bundle_item=Contents.of(found.bundle_item, expected))

    def _expected_sales(self) -> Tensor | None:
        """What is expected of each bundle that came later; nan where nothing is said."""  # [bundles]
        if self.sales is None:
            return None
        places = self.dataset.bundles.known_positions
        later = [name for name in self.expected if name in places and places[name] >= len(self.sales)]
        if not later:
            return None
        found = torch.full((len(places),), torch.nan, device=self.device)
        found[[places[name] for name in later]] = torch.tensor(
            [self._sales_of(name, self.sales) for name in later], device=self.device
        )
        return found

    def _sales_of(self, name: str, sales: Tensor) -> float:
        """From one bundle to the next that it sells like, until a number is found; nan if none is."""
        places = self.dataset.bundles.known_positions
        passed: set[str] = set()
        while name not in passed:
            place = places.get(name, len(sales))
            if place < len(sales):
                return float(sales[place])
            passed.add(name)
            said = self.expected.get(name)
            if not isinstance(said, str):
                return math.nan if said is None else said
            name = said
        return math.nan  # they sell like each other

    @cached_property
    def filled(self) -> dict[str, int]:
        """The places of the bundles that have something in them that the model knows."""
        sizes = np.diff(self.dataset.bundle_item.indptr)
        return {name: place for name, place in self.dataset.bundles.known_positions.items() if sizes[place]}

    @cached_property
    def _owners(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.repeat(np.arange(len(self.dataset.bundles)), np.diff(self.dataset.bundle_item.indptr))

    def _contents(self, place: int) -> list[int]:
        matrix = self.dataset.bundle_item
        contents: list[int] = matrix.indices[matrix.indptr[place] : matrix.indptr[place + 1]].tolist()
        return contents


def _row(bundle: Bundle, items: Mapping[str, int]) -> list[int]:
    """What is in a bundle, as far as the model knows it."""
    return sorted({items[name] for name in bundle.items if name in items})


def _said(bundle: Bundle) -> float | str | None:
    return bundle.sells_like if bundle.expected_sales is None else bundle.expected_sales


def _entries(
    rows: Sequence[Sequence[int]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return owners, np.fromiter((member for row in rows for member in row), np.int64, len(owners))


def _dataset(
    trained: BundleDataset,
    names: Sequence[str],
    owners: np.ndarray[tuple[int], np.dtype[np.int64]],
    members: np.ndarray[tuple[int], np.dtype[np.int64]],
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
