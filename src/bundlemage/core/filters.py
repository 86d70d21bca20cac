"""Which candidates an answer may name at all: a filter, and the things it is asked about."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import ConfigError, UnknownIdError

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Filter:
    """What may be shown. Every condition that is given must hold; one that is not given holds for all.

    A price or a stock that the catalogue does not know is neither in a range nor in stock: nobody who asked
    for at most 20 wants to find out at the till.
    """

    exclude: Collection[str | int] = ()
    """Ids that must not be shown. An id that the shop does not have is no error: it will not be shown. So a
    block list may be older or newer than the model."""
    among: Collection[str | int] | None = None
    """Show only these. Ids that the shop does not have are passed over, so that a campaign does not go down
    for one bundle that is newer than the model; but if it has none of them, that is an error, as nothing
    could ever be shown."""
    tags: Collection[str] = ()
    """Show what has at least one of these tags."""
    min_price: float | None = None
    max_price: float | None = None
    in_stock: bool = False
    """Show what can be sold: an item whose stock is above 0, a bundle all of whose items are so."""

    def __post_init__(self) -> None:
        for name in ("exclude", "among", "tags"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"a filter's {name!r} is a list, not one text: write [{given!r}]")
            if given is not None:
                object.__setattr__(self, name, frozenset(map(str, given)))
        for name in ("min_price", "max_price"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, str) or math.isnan(given)):
                raise ConfigError(f"a filter's {name!r} is {given!r}; a number is wanted")
        if self.min_price is not None and self.max_price is not None and self.min_price > self.max_price:
            raise ConfigError(
                f"a filter's 'min_price' {self.min_price:g} is above its 'max_price' {self.max_price:g}: "
                "no price is between them"
            )

    def to_json(self) -> dict[str, Any]:
        """In one order, so that equal filters are written alike."""
        return {
            name: sorted(given) if isinstance(given, frozenset) else given
            for name, given in asdict(self).items()
        }

    @property
    def asks_for_price(self) -> bool:
        return self.min_price is not None or self.max_price is not None


class Facts(NamedTuple):
    """What the catalogue says of one thing."""

    title: str | None = None
    price: float | None = None
    tags: tuple[str, ...] = ()


_A = {"price": "a price", "tags": "a tag", "stock": "a stock"}


class Shelf:
    """Things of one kind as a filter sees them, each column looked up once."""

    def __init__(self, ids: Vocabulary, catalogue: pa.Table | None, parts: Parts | None = None) -> None:
        self.ids = ids
        self.catalogue = catalogue
        self.parts = parts
        """For bundles: the items in them, whose stock is the bundle's where it has none of its own."""

    @classmethod
    def of_items(cls, dataset: BundleDataset) -> Shelf:
        return cls(dataset.items, dataset.catalogue.items if dataset.catalogue else None)

    @classmethod
    def of_bundles(cls, dataset: BundleDataset, items: Shelf) -> Shelf:
        table = dataset.catalogue.bundles if dataset.catalogue else None
        return cls(dataset.bundles, table, Parts(dataset.bundle_item, items))

    def allowed(self, where: Filter, more: Iterable[tuple[str, Collection[int]]] = ()) -> Mask:
        """True for each thing that may be shown; then for each of `more`, things that came later.

        Of those the catalogue knows nothing, so they have no price and no tag; `more` has ids and items.
        """
        later = list(more)
        names = [name for name, _ in later]
        mask = np.concatenate([self._by_catalogue(where), _later(self.parts, where, later)])
        places = dict(zip(names, range(len(self.ids), len(mask)), strict=True))
        if where.among is not None:
            listed = np.zeros_like(mask)
            listed[self._places(where.among, places)] = True
            if where.among and not listed.any():
                raise UnknownIdError(self.ids.kind, sorted(map(str, where.among)), [*self.ids, *names])
            mask &= listed
        mask[self._places(where.exclude, places)] = False
        return mask

    def _places(self, wanted: Iterable[str | int], later: dict[str, int]) -> list[int]:
        names = list(map(str, wanted))
        known = self.ids.known(names)
        return [*self.ids.positions(known).tolist(), *(later[name] for name in names if name in later)]

    def _by_catalogue(self, where: Filter) -> Mask:
        mask = np.ones(len(self.ids), dtype=bool)
        if where.tags:
            tagged = np.zeros_like(mask)
            for tag in where.tags:
                tagged[self.tagged.get(tag, [])] = True
            mask &= tagged
        if where.min_price is not None:
            mask &= self.prices >= where.min_price  # not a number: False
        if where.max_price is not None:
            mask &= self.prices <= where.max_price
        if where.in_stock:
            mask &= self.in_stock
        return mask

    @cached_property
    def titles(self) -> Sequence[str | None]:
        """May be empty: nothing has one."""
        found: Sequence[str | None] = [] if self.catalogue is None else self.catalogue["title"].to_pylist()
        return found

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """Not a number where a price is not known."""
        prices: npt.NDArray[np.float64] = self._column("price").to_numpy(zero_copy_only=False)
        return prices

    @cached_property
    def tagged(self) -> dict[str, npt.NDArray[np.int64]]:
        """For each tag the positions of what has it."""
        column = self._column("tags")
        row = pc.list_parent_indices(column).to_numpy()
        coded = column.flatten().dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        return {
            tag: row[order[edges[number] : edges[number + 1]]]
            for number, tag in enumerate(coded.dictionary.to_pylist())
        }

    @cached_property
    def in_stock(self) -> Mask:
        if self.parts is not None and not self._has("stock"):
            return self.parts.all_in_stock()
        stock = self._column("stock").fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(stock > 0)

    def title(self, place: int) -> str | None:
        return self.titles[place] if place < len(self.titles) else None

    def facts(self, place: int) -> Facts:
        if self.catalogue is None:
            return Facts()
        row = self.catalogue.slice(place, 1).to_pylist()[0]
        return Facts(row["title"], row["price"], tuple(row["tags"] or ()))

    @property
    def tells_stock(self) -> bool:
        """Whether the stock of anything is known."""
        return self._has("stock")

    def lacks(self, name: str) -> ConfigError:
        kind = "item" if name == "stock" else self.ids.kind  # a bundle is in stock if all its items are
        return ConfigError(
            f"cannot filter by {name}: no {kind} has {_A[name]}. Put a column {name!r} into the "
            f"table of {kind}s (see 'bundlemage data check') and train again, or tell the live service: "
            f"PUT /v1/{kind}s/ID"
        )

    def _has(self, name: str) -> bool:
        table = self.catalogue
        return table is not None and name in table.column_names and table[name].null_count < len(table)

    def _column(self, name: str) -> Any:
        if not self._has(name):
            raise self.lacks(name)
        assert self.catalogue is not None
        return self.catalogue[name].combine_chunks()


class Parts:
    """What bundles are made of, for a bundle's stock."""

    def __init__(self, bundle_item: Any, items: Shelf) -> None:
        self.bundle_item = bundle_item
        self.items = items

    def all_in_stock(self) -> Mask:
        missing = np.flatnonzero(~self.items.in_stock)
        lacking = np.asarray(np.isin(self.bundle_item.indices, missing), dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(lacking)])  # in all entries up to each one
        edges = self.bundle_item.indptr
        return np.asarray(before[edges[1:]] == before[edges[:-1]])

    def in_stock(self, items: Collection[int]) -> bool:
        return bool(self.items.in_stock[list(items)].all())


def _later(parts: Parts | None, where: Filter, later: list[tuple[str, Collection[int]]]) -> Mask:
    known = not where.tags and not where.asks_for_price
    return np.array(
        [known and (not where.in_stock or parts is None or parts.in_stock(items)) for _, items in later],
        dtype=bool,
    )
