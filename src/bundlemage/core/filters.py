"""Filters decide which candidates an answer may contain. A `Shelf` holds the columns
that filters read, such as prices and tags."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bundlemage.core.ownership import Floats, full_price
from bundlemage.data.dataset import BundleDataset, Vocabulary
from bundlemage.errors import ConfigError, UnknownIdError, is_number

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Filter:
    """Conditions on items or bundles. Only those that meet every condition may be shown.

    The price of a bundle is the one that answers show: its own, or else the sum of its items' prices minus
    its discount. An item or bundle whose price is unknown fails every condition on the price. One whose stock
    is unknown is not in stock.
    """

    exclude: Collection[str | int] = ()
    """Ids that must not be shown. Unknown ids are ignored: a block list may be older or newer than the
    model."""
    among: Collection[str | int] | None = None
    """Show only these ids. Unknown ids are ignored, so that one bundle that is newer than the model does not
    stop a campaign. If all of them are unknown, that is an error: nothing could ever be shown."""
    tags: Collection[str] = ()
    """Show only items or bundles with at least one of these tags. If nothing has any of them, that is an
    error."""
    min_price: float | None = None
    max_price: float | None = None
    in_stock: bool = False
    """Show only items with a stock above 0, and bundles that are in stock (see `Shelf.in_stock`)."""

    def __post_init__(self) -> None:
        for name in ("exclude", "among", "tags"):
            values = getattr(self, name)
            if isinstance(values, str):
                raise ConfigError(f"a filter's {name!r} is a list, not a string: write [{values!r}]")
            if values is not None:
                if not isinstance(values, Iterable):
                    raise ConfigError(f"a filter's {name!r} is {values!r}; expected a list")
                object.__setattr__(self, name, frozenset(map(str, values)))
        for name in ("min_price", "max_price"):
            price = getattr(self, name)
            if price is not None and not (is_number(price) or price in (math.inf, -math.inf)):
                raise ConfigError(f"a filter's {name!r} is {price!r}; expected a number")
        if self.min_price is not None and self.max_price is not None and self.min_price > self.max_price:
            raise ConfigError(
                f"a filter's 'min_price' {self.min_price:g} is above its 'max_price' {self.max_price:g}: "
                "no price is between them"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the conditions by name. Lists are sorted, so that equal filters give equal JSON."""
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(self).items()
        }


class Facts(NamedTuple):
    """What the catalogue says about one item or bundle."""

    title: str | None = None
    price: float | None = None
    tags: tuple[str, ...] = ()
    image_url: str | None = None


_WITH_ARTICLE = {"price": "a price", "tags": "a tag", "stock": "a stock"}


class Shelf:
    """All items, or all bundles, with the columns that filters read. Each column is read once."""

    is_complete = True
    """Whether a tag that nothing has is a mistake. In a live catalogue, it may come with the next change."""

    def __init__(
        self, ids: Vocabulary, catalogue: pa.Table | None, contents: Any = None, items: Shelf | None = None
    ) -> None:
        """`contents` and `items` are for bundles: the matrix of their items, and the shelf of the items."""
        self.ids, self.catalogue, self.contents, self.items = ids, catalogue, contents, items
        self._full_prices: dict[int, Floats] = {}

    @staticmethod
    def of(dataset: BundleDataset) -> tuple[Shelf, Shelf]:
        """The shelves of a dataset's items and of its bundles."""
        tables = dataset.catalogue
        items = Shelf(dataset.items, tables.items if tables else None)
        bundles = tables.bundles if tables else None
        return items, Shelf(dataset.bundles, bundles, dataset.bundle_item, items)

    def allowed(
        self, where: Filter, more: Iterable[tuple[str, Collection[int]]] = (), decimals: int = 2
    ) -> Mask:
        """Returns True for each item or bundle that may be shown. The new bundles in `more` come last.

        `more` has the id of each new bundle and the positions of its items. New bundles are not in the
        catalogue: they have no tag, and cost the sum of their items' prices. Computed prices are rounded to
        `decimals`.
        """
        new = list(more)
        names = [name for name, _ in new]
        new_mask = [not where.tags and (not where.in_stock or self.all_in_stock(items)) for _, items in new]
        mask = np.concatenate([self._by_catalogue(where), np.array(new_mask, dtype=bool)])
        if where.min_price is not None or where.max_price is not None:
            mask &= self._priced(where, [items for _, items in new], decimals)
        places = dict(zip(names, range(len(self.ids), len(mask)), strict=True))
        if where.among is not None:
            listed = np.zeros_like(mask)
            listed[self._places(where.among, places)] = True
            if where.among and not listed.any():
                raise UnknownIdError(self.ids.kind, sorted(map(str, where.among)), [*self.ids, *names])
            mask &= listed
        mask[self._places(where.exclude, places)] = False
        return mask

    def _places(self, ids: Iterable[str | int], new: dict[str, int]) -> list[int]:
        """Returns the positions of ids. `new` has those of new bundles. Unknown ids are ignored."""
        names = list(map(str, ids))
        known = self.ids.known(names)
        return [*self.ids.positions(known).tolist(), *(new[name] for name in names if name in new)]

    def _by_catalogue(self, where: Filter) -> Mask:
        mask = np.ones(len(self.ids), dtype=bool)
        if where.tags:
            tagged = np.zeros_like(mask)
            if self.is_complete and self.tagged.keys().isdisjoint(where.tags):
                raise ConfigError(self.no_such_tag(min(where.tags)))
            for tag in where.tags:
                tagged[self.tagged.get(tag, [])] = True
            mask &= tagged
        if where.in_stock:
            mask &= self.in_stock
        return mask

    def _priced(self, where: Filter, new: Sequence[Collection[int]], decimals: int) -> Mask:
        """True for each item or bundle whose price is within the bounds. The new bundles come last."""
        prices = np.concatenate([self.full_prices(decimals), self._prices_of_new(new, decimals)])
        if np.isnan(prices).all():
            raise self._lacks("price")
        within: Mask = ~np.isnan(prices)
        if where.min_price is not None:
            within &= prices >= where.min_price
        if where.max_price is not None:
            within &= prices <= where.max_price
        return within

    def _prices_of_new(self, new: Sequence[Collection[int]], decimals: int) -> Floats:
        prices = (self.items or self).numbers("price") if new else np.empty(0)
        sums = np.array([prices[list(items)].sum() for items in new], np.float64)
        unknown = np.full(len(new), np.nan)
        return full_price(unknown, sums, unknown, decimals)

    def full_prices(self, decimals: int) -> Floats:
        """Returns the prices that answers show, by position; nan where a price is not known. That of a bundle
        is its own, or else the sum of its items' prices minus its discount, rounded to `decimals`."""
        if decimals not in self._full_prices:
            own, sums, discounts = self.price_parts
            prices = self._full_prices[decimals] = full_price(own, sums, discounts, decimals)
            prices.flags.writeable = False  # others get the same array
        return self._full_prices[decimals]

    @cached_property
    def price_parts(self) -> Floats:
        """The own prices, the sums of the items' prices, and the discounts; nan where something is not known.
        Items have only the first."""  # [3, items or bundles]
        own = self.numbers("price")
        if self.items is None:
            nothing = np.full_like(own, np.nan)
            return np.stack([own, nothing, nothing])
        sizes = np.diff(self.contents.indptr)
        bundle = np.repeat(np.arange(len(sizes)), sizes)
        prices = self.items.numbers("price")[self.contents.indices]
        sums = np.bincount(bundle, prices, minlength=len(sizes)).astype(np.float64)
        sums[sizes == 0] = np.nan
        return np.stack([own, sums, self.numbers("discount")])

    def no_such_tag(self, tag: str) -> str:
        """Returns an error message for a tag that no item or bundle has, with similar tags."""
        close = get_close_matches(tag, list(self.tagged), n=3)
        hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        return f"no {self.ids.kind} has the tag {tag!r}.{hint}"

    @cached_property
    def titles(self) -> Sequence[str | None]:
        """The titles, by position; empty if there is no catalogue."""
        titles: Sequence[str | None] = [] if self.catalogue is None else self.catalogue["title"].to_pylist()
        return titles

    @cached_property
    def _images(self) -> Sequence[str | None]:
        images = self._values("image_url")
        return [] if images is None else cast("list[str | None]", images.to_pylist())

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """The own prices, by position; nan where a price is not known. Raises `ConfigError` if none is."""
        prices: npt.NDArray[np.float64] = self.column("price").to_numpy(zero_copy_only=False)
        return prices

    @cached_property
    def tagged(self) -> dict[str, npt.NDArray[np.int64]]:
        """For each tag, the positions of the items or bundles that have it."""
        column = self.column("tags")
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
        """True for each item or bundle that is in stock.

        If the catalogue has no stock of bundles, a bundle is in stock if all its items are.
        """
        if self.items is None or self.has("stock"):
            stock = self.column("stock").fill_null(0).to_numpy(zero_copy_only=False)
            return np.asarray(stock > 0)
        return ~self._with_any(~self.items.in_stock)

    @cached_property
    def sold_out(self) -> Mask:
        """True for each item whose stock is known and 0, and for each bundle with such an item."""
        if self.items is not None:
            return self._with_any(self.items.sold_out)
        stock = self._values("stock")
        if stock is None:
            return np.zeros(len(self.ids), bool)
        return np.asarray(pc.less_equal(stock, 0).fill_null(False).to_numpy(zero_copy_only=False))

    def _with_any(self, items: Mask) -> Mask:
        """True for each bundle that contains one of these items."""
        found = items[self.contents.indices].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(found)])  # the number of such items before each entry
        edges = self.contents.indptr
        return np.asarray(before[edges[1:]] > before[edges[:-1]])

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column of numbers; nan where it is unknown, or everywhere if there is no such column."""
        values = self._values(name)
        if values is None:
            return np.full(len(self.ids), np.nan)
        numbers: npt.NDArray[np.float64] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return numbers

    def any_sold_out(self, items: Collection[int]) -> bool:
        """Whether one of the items of a new bundle is sold out."""
        return bool((self.items or self).sold_out[list(items)].any())

    def all_in_stock(self, items: Collection[int]) -> bool:
        """Whether all the items of a new bundle are in stock."""
        return bool((self.items or self).in_stock[list(items)].all())

    def title(self, place: int) -> str | None:
        """The title at a position, or None."""
        return self.titles[place] if place < len(self.titles) else None

    def image_url(self, place: int) -> str | None:
        """The address of the image at a position, or None."""
        return self._images[place] if place < len(self._images) else None

    def facts(self, place: int) -> Facts:
        """What the catalogue says about the item or bundle at a position."""
        if self.catalogue is None:
            return Facts()
        row = self.catalogue.slice(place, 1).to_pylist()[0]
        return Facts(row["title"], row["price"], tuple(row["tags"] or ()), row["image_url"])

    @property
    def costs(self) -> npt.NDArray[np.float64]:
        """What each item costs the shop, by position; 0 where it is not known."""
        costs = self._values("cost")
        return np.zeros(len(self.ids)) if costs is None else np.nan_to_num(costs.to_numpy(False))

    @property
    def stock_known(self) -> bool:
        """Whether the catalogue has the stock of any item or bundle."""
        return self.has("stock")

    def column(self, name: str) -> Any:
        """Returns a column of the catalogue as an Arrow array; raises `ConfigError` if it has no values."""
        if not self.has(name):
            raise self._lacks(name)
        return self._values(name)

    def _lacks(self, name: str) -> ConfigError:
        """Returns the error for a filter by a column that has no values."""
        # A bundle is in stock if all its items are, and without a price it costs as much as its items.
        kind = "item" if name == "stock" else self.ids.kind
        kinds = ["bundle", "item"] if (name, kind) == ("price", "bundle") else [kind]
        tables = " or of ".join(f"{each}s" for each in kinds)
        routes = " or ".join(f"PUT /v1/{each}s/ID" for each in kinds)
        return ConfigError(
            f"cannot filter by {name}: no {kind} has {_WITH_ARTICLE[name]}. Put a column {name!r} into the "
            f"table of {tables} (see 'bundlemage data check') and train again, or send it to the service: "
            f"{routes}"
        )

    def has(self, name: str) -> bool:
        """Whether the catalogue has a value in a column."""
        values = self._values(name)
        return values is not None and values.null_count < len(values)

    def _values(self, name: str) -> Any:
        """A column as an Arrow array; None if the catalogue does not have it."""
        table = self.catalogue
        return table[name].combine_chunks() if table is not None and name in table.column_names else None
