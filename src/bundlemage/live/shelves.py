"""Records of the catalogue as filters see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Facts, Mask, Shelf
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.store.records import Bundle, Item


class _Titles(Sequence[str | None]):
    """Looked up one by one: of all of them an answer needs ten."""

    def __init__(self, ids: Vocabulary, records: Mapping[str, Item | Bundle]) -> None:
        self._ids, self._records = ids, records

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: Any) -> Any:
        record = self._records.get(self._ids[place])
        return record.title if record else None


class RecordShelf(Shelf):
    """A column is worked out when a filter first asks for it, so that a change of the catalogue is cheap."""

    def __init__(
        self,
        ids: Vocabulary,
        records: Mapping[str, Item | Bundle],
        unknown: Callable[[str], Item | Bundle],
        in_stock: Callable[[], Mask | None] | None = None,
    ) -> None:
        super().__init__(ids, None)
        self._records, self._unknown, self._stocked = records, unknown, in_stock

    @cached_property
    def _in_order(self) -> list[Item | Bundle]:
        return [self._records.get(name) or self._unknown(name) for name in self.ids]

    @cached_property
    def titles(self) -> Sequence[str | None]:
        return _Titles(self.ids, self._records)

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        prices = np.array([record.price for record in self._in_order], np.float64)  # None: not a number
        if np.isnan(prices).all():
            raise self.lacks("price")
        return prices

    @cached_property
    def tagged(self) -> dict[str, npt.NDArray[np.int64]]:
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, record in enumerate(self._in_order):
            for tag in record.tags:
                places[tag].append(place)
        if not places:
            raise self.lacks("tags")
        return {tag: np.array(found, np.int64) for tag, found in places.items()}

    @cached_property
    def in_stock(self) -> Mask:
        stocked = self._stocked() if self._stocked else self._own_stock()
        if stocked is None:
            raise self.lacks("stock")
        return stocked

    def facts(self, place: int) -> Facts:
        record = self._records.get(self.ids[place])
        return Facts(record.title, record.price, tuple(record.tags)) if record else Facts()

    @property
    def tells_stock(self) -> bool:
        return (self._stocked() if self._stocked else self._own_stock()) is not None

    def _own_stock(self) -> Mask | None:
        stocks = [getattr(record, "stock", None) for record in self._in_order]
        if all(stock is None for stock in stocks):
            return None
        return np.array([bool(stock) for stock in stocks], bool)
