"""The catalogue at one of its versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bundlemage.store.records import Bundle, CatalogueChange, Item


@dataclass(frozen=True)
class Stock:
    """All items and bundles that the shop ever had. It never changes: `after` gives another."""

    version: int
    items: Mapping[str, Item]
    bundles: Mapping[str, Bundle]
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each item that is in a bundle, the bundles that it is in."""

    def after(self, change: CatalogueChange) -> Stock:
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
        """The bundles that a change may have made sellable or not; asked of the stock after it."""
        held = (self.holders.get(item.id, ()) for item in change.items)
        return {bundle.id for bundle in change.bundles}.union(*held)

    def sellable(self, bundle: Bundle) -> bool:
        """A bundle with an item that is sold no more cannot be sold either."""
        return not bundle.withdrawn and not any(self._gone(name) for name in bundle.items)

    def in_stock(self, bundle: Bundle) -> bool:
        """Whether there is one of each of its items, also of those that are newer than the model."""
        return bool(bundle.items) and all(
            self.items[name].stock for name in bundle.items if name in self.items
        )

    def _gone(self, name: str) -> bool:
        item = self.items.get(name)
        return item is None or item.withdrawn


EMPTY = Stock(0, {}, {})
