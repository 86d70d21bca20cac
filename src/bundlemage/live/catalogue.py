"""One version of the catalogue, and its records in the form that filters need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bundlemage.core.filters import Facts, Mask, Shelf
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.store.records import Bundle, CatalogueChange, Item


@dataclass(frozen=True)
class Stock:
    """All items and bundles that the shop ever had. The object never changes: `after` returns a new one."""

    version: int
    items: Mapping[str, Item]
    bundles: Mapping[str, Bundle]
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each item that is in a bundle, the bundles that contain it."""

    def after(self, change: CatalogueChange) -> Stock:
        """Returns the stock with the changed items and bundles."""
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
        """The ids of bundles that a change may have put on sale or off sale. `self` is the stock after it."""
        held = (self.holders.get(item.id, ()) for item in change.items)
        return {bundle.id for bundle in change.bundles}.union(*held)

    def sellable(self, bundle: Bundle) -> bool:
        """Whether a bundle can be sold: the bundle and all of its items are known and not withdrawn."""
        return not bundle.withdrawn and not any(self._gone(name) for name in bundle.items)

    def in_stock(self, bundle: Bundle) -> bool:
        """Whether all items of a bundle are in stock, also items that are newer than the model."""
        return bool(bundle.items) and all(
            self.items[name].stock for name in bundle.items if name in self.items
        )

    @property
    def tells_stock(self) -> bool:
        """Whether the catalogue has a stock for any item, also for items that are newer than the model."""
        return any(item.stock is not None for item in self.items.values())

    def _gone(self, name: str) -> bool:
        item = self.items.get(name)
        return item is None or item.withdrawn


EMPTY = Stock(0, {}, {})
_TYPES = {"price": pa.float64(), "tags": pa.list_(pa.string()), "stock": pa.int64()}


class RecordShelf(Shelf):
    """A shelf made from the store's records. A column is made when a filter first needs it, so a change of
    the catalogue is cheap. Items and bundles that only the model knows have no title, price or tag."""

    def __init__(
        self,
        ids: Vocabulary,
        records: Mapping[str, Item | Bundle],
        stock: Callable[[], pa.Array | None] | None = None,
    ) -> None:
        """`stock` computes the column `stock` of bundles, because a bundle's record has no stock."""
        super().__init__(ids, None)
        self._records, self._stock = records, stock
        self._columns: dict[str, pa.Array | None] = {}

    def _values(self, name: str) -> Any:
        if name not in self._columns:
            if name == "stock" and self._stock is not None:
                self._columns[name] = self._stock()
            else:
                values = [getattr(record, name, None) for record in map(self._records.get, self.ids)]
                known = [value or None for value in values] if name == "tags" else values
                self._columns[name] = pa.array(known, _TYPES[name])
        return self._columns[name]

    def title(self, place: int) -> str | None:
        """The title at a position, or None."""
        record = self._records.get(self.ids[place])
        return record.title if record else None

    def facts(self, place: int) -> Facts:
        """Title, price and tags of the item or bundle at a position."""
        record = self._records.get(self.ids[place])
        return Facts(record.title, record.price, tuple(record.tags)) if record else Facts()


def shelves(
    items: Vocabulary, bundles: Vocabulary, stock: Stock, bundles_in_stock: Mask
) -> tuple[Shelf, Shelf]:
    """Returns the shelves of items and of bundles. `bundles_in_stock` marks the bundles in stock."""

    def bundle_stock() -> pa.Array | None:
        return pa.array(bundles_in_stock.astype(np.int64)) if stock.tells_stock else None

    return RecordShelf(items, stock.items), RecordShelf(bundles, stock.bundles, bundle_stock)
