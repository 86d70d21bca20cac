"""The catalogue at one of its versions, and its records as filters see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Facts, Mask, Shelf
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.store.records import Bundle, CatalogueChange, Item


@dataclass(frozen=True)
class Stock:
    """All items and bundles that the shop ever had. It never changes: `after` returns another one."""

    version: int
    items: Mapping[str, Item]
    bundles: Mapping[str, Bundle]
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each item that is in a bundle, the bundles that contain it."""

    def after(self, change: CatalogueChange) -> Stock:
        """The stock with the changed items and bundles."""
        return Stock(
            change.version,
            {**self.items, **{item.id: item for item in change.items}},
            {**self.bundles, **{bundle.id: bundle for bundle in change.bundles}},
            {**self.holders, **self._moved(change.bundles)},
        )

    def _moved(self, bundles: Iterable[Bundle]) -> dict[str, tuple[str, ...]]:
        moved: dict[str, list[str]] = {}
        for bundle in bundles:
            before = self.bundles.get(bundle.id)
            for name in before.items if before else ():
                moved.setdefault(name, list(self.holders[name])).remove(bundle.id)
            for name in bundle.items:
                moved.setdefault(name, list(self.holders.get(name, ()))).append(bundle.id)
        return {name: tuple(holders) for name, holders in moved.items()}

    def affected(self, change: CatalogueChange) -> set[str]:
        """The bundles that a change may have made sellable or not. `self` is the stock after the change."""
        held = (self.holders.get(item.id, ()) for item in change.items)
        return {bundle.id for bundle in change.bundles}.union(*held)

    def sellable(self, bundle: Bundle) -> bool:
        """Whether a bundle can be sold: neither it nor one of its items is withdrawn."""
        return not bundle.withdrawn and not any(self._gone(name) for name in bundle.items)

    def in_stock(self, bundle: Bundle) -> bool:
        """Whether each of a bundle's items is in stock, also those that are newer than the model."""
        return bool(bundle.items) and all(
            self.items[name].stock for name in bundle.items if name in self.items
        )

    @property
    def tells_stock(self) -> bool:
        """Whether the stock of any item is known, also of those that are newer than the model."""
        return any(item.stock is not None for item in self.items.values())

    def _gone(self, name: str) -> bool:
        item = self.items.get(name)
        return item is None or item.withdrawn


EMPTY = Stock(0, {}, {})


class _Titles(Sequence[str | None]):
    """Titles that are looked up one by one: an answer needs only a few of them."""

    def __init__(self, ids: Vocabulary, records: Mapping[str, Item | Bundle]) -> None:
        self._ids, self._records = ids, records

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: Any) -> Any:
        record = self._records.get(self._ids[place])
        return record.title if record else None


class RecordShelf(Shelf):
    """Records of the store as a shelf. A column is made when a filter first needs it, so that a change of
    the catalogue is cheap. What the model knows and the shop does not has no title, price or tag."""

    def __init__(
        self, ids: Vocabulary, records: Mapping[str, Item | Bundle], in_stock: Callable[[], Mask | None]
    ) -> None:
        super().__init__(ids, None)
        self._records, self._in_stock = records, in_stock

    @cached_property
    def titles(self) -> Sequence[str | None]:
        """The titles, by position."""
        return _Titles(self.ids, self._records)

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """The prices, by position; nan where a price is not known."""
        records = map(self._records.get, self.ids)
        prices = np.array([record.price if record else None for record in records], np.float64)
        if np.isnan(prices).all():
            raise self.lacks("price")
        return prices

    @cached_property
    def tagged(self) -> dict[str, npt.NDArray[np.int64]]:
        """For each tag, the positions of the items or bundles that have it."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, record in enumerate(map(self._records.get, self.ids)):
            for tag in record.tags if record else ():
                places[tag].append(place)
        if not places:
            raise self.lacks("tags")
        return {tag: np.array(positions, np.int64) for tag, positions in places.items()}

    @cached_property
    def in_stock(self) -> Mask:
        """True for each item or bundle that is in stock."""
        in_stock = self._in_stock()
        if in_stock is None:
            raise self.lacks("stock")
        return in_stock

    def facts(self, place: int) -> Facts:
        """What the catalogue says about the item or bundle at a position."""
        record = self._records.get(self.ids[place])
        return Facts(record.title, record.price, tuple(record.tags)) if record else Facts()

    @property
    def tells_stock(self) -> bool:
        """Whether any stock is known."""
        return self._in_stock() is not None


def shelves(
    items: Vocabulary, bundles: Vocabulary, stock: Stock, bundles_in_stock: Mask
) -> tuple[Shelf, Shelf]:
    """The shelves of items and of bundles, of which `bundles_in_stock` says which are in stock."""

    def items_in_stock() -> Mask | None:
        known = [item.stock if item else None for item in map(stock.items.get, items)]
        return None if all(count is None for count in known) else np.array(list(map(bool, known)), bool)

    return (
        RecordShelf(items, stock.items, items_in_stock),
        RecordShelf(bundles, stock.bundles, lambda: bundles_in_stock if stock.tells_stock else None),
    )
