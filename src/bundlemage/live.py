"""A model together with the current catalogue of a live shop. Each question brings the user's history.

The objects here never change: a change of the catalogue makes a new `Stock` and a new `Live`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from bundlemage.artifact.files import artifact_version, describe_artifact
from bundlemage.asker import Asker
from bundlemage.core.filters import Facts, Filter, Mask, Shelf
from bundlemage.core.history import History, Id, NewBundles, User, bought
from bundlemage.core.ownership import Floats, Goods, rows_of_pairs
from bundlemage.core.shop import Recommendation, Shop, Trade
from bundlemage.data.dataset import (
    BundleDataset,
    Vocabulary,
    binary_matrix,
    row_of,
    with_columns,
    with_rows,
)
from bundlemage.data.events import DAY, UNDATED, Weights
from bundlemage.data.layered import changed
from bundlemage.designer.solver import cp
from bundlemage.errors import ArtifactError, MissingExtraError, UnknownIdError, UnsupportedError
from bundlemage.models.base import (
    Completer,
    ContentLearner,
    Histories,
    Interactions,
    Matcher,
    Model,
    SalesScorer,
    can,
    known_by_content,
)
from bundlemage.models.content import items_table
from bundlemage.models.ragged import Contents, Ragged
from bundlemage.recommender import Recommender
from bundlemage.store.records import Bundle, CatalogueChange, Item, ModelRecord, Owned, Sales
from bundlemage.wire.answers import Known
from bundlemage.wire.images import scheme_of_image
from bundlemage.wire.shop import BundleRules, OwnedRule, StockRule

Positions: TypeAlias = npt.NDArray[np.int64]
NO_SALES = Sales({}, {})
UNPUBLISHED = ModelRecord("", "", "", {})
_STAMPS = count(1)
"""The stamps of contents (see `Contents.stamps`). Each change takes the next one."""


@dataclass(frozen=True)
class Stock:
    """All items and bundles that the shop ever had, also withdrawn ones."""

    version: int
    items: Mapping[str, Item]
    bundles: Mapping[str, Bundle]
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each item that is in a bundle, the bundles that contain it."""
    image_schemes: frozenset[str] = frozenset()
    """`http` and `https`, if an image of an item or a bundle has such an address now or had one before."""

    def after(self, change: CatalogueChange) -> Stock:
        """Returns the stock with the changed items and bundles."""
        new_holders: dict[str, list[str]] = {}
        for bundle in change.bundles:
            old = self.bundles.get(bundle.id)
            for name in old.items if old else ():
                new_holders.setdefault(name, list(self.holders[name])).remove(bundle.id)
            for name in bundle.items:
                new_holders.setdefault(name, list(self.holders.get(name, ()))).append(bundle.id)
        return Stock(
            change.version,
            changed(self.items, {item.id: item for item in change.items}),
            changed(self.bundles, {bundle.id: bundle for bundle in change.bundles}),
            changed(self.holders, {name: tuple(holders) for name, holders in new_holders.items()}),
            self.image_schemes.union(_image_schemes(chain(change.items, change.bundles))),
        )

    def affected(self, change: CatalogueChange, before: Stock) -> set[str]:
        """The ids of bundles that a change may have put on sale, off sale, in stock or out of stock. `before`
        is the stock before the change, and `self` the stock after it."""
        held = (
            self.holders.get(item.id, ())
            for item in change.items
            if _availability(item) != _availability(before.items.get(item.id))
        )
        return {bundle.id for bundle in change.bundles}.union(*held)

    def repriced(self, change: CatalogueChange, before: Stock) -> list[Bundle]:
        """The changed bundles, and those that contain an item whose price has changed."""
        held = (
            self.holders.get(item.id, ())
            for item in change.items
            if item.price != getattr(before.items.get(item.id), "price", None)
        )
        names = dict.fromkeys(chain((bundle.id for bundle in change.bundles), *held))
        return [self.bundles[name] for name in names]

    def sellable(self, bundle: Bundle) -> bool:
        """Whether a bundle can be sold: the bundle and all of its items are known and not withdrawn."""
        items = map(self.items.get, bundle.items)
        return not bundle.withdrawn and all(item is not None and not item.withdrawn for item in items)

    def in_stock(self, bundle: Bundle) -> bool:
        """Whether all items of a bundle are in stock, also items newer than the model."""
        return bool(bundle.items) and all(
            self.items[name].stock for name in bundle.items if name in self.items
        )

    def sold_out(self, bundle: Bundle) -> bool:
        """Whether an item of a bundle is sold out, also an item newer than the model."""
        return any(_sold_out(self.items.get(name)) for name in bundle.items)


def _image_schemes(things: Iterable[Item | Bundle]) -> Iterable[str]:
    schemes = {scheme_of_image(thing.image_url) for thing in things if thing.image_url}
    return filter(None, schemes)


def _sold_out(item: Item | None) -> bool:
    """Whether the stock of an item is known and 0."""
    return item is not None and item.stock is not None and item.stock <= 0


def _price(thing: Item | Bundle | None) -> float:
    """The own price; nan if it is unknown."""
    return math.nan if thing is None or thing.price is None else thing.price


def _content(item: Item | None) -> tuple[Any, ...]:
    """What a model may learn from the record of an item."""
    if item is None:
        return ()
    return item.title, item.description, item.tags, item.price, item.vector


def _availability(item: Item | None) -> tuple[bool, bool, bool] | None:
    return None if item is None else (item.withdrawn, bool(item.stock), _sold_out(item))


EMPTY = Stock(0, {}, {})
_TYPES = {
    "price": pa.float64(),
    "discount": pa.float64(),
    "tags": pa.list_(pa.string()),
    "stock": pa.int64(),
    "cost": pa.float64(),
}


class RecordShelf(Shelf):
    """A shelf made from the store's records. A column is made when a filter first needs it. After a change of
    the catalogue, the new shelf takes over the columns of the old one, and only changed entries are read.
    Items and bundles that only the model knows have no title, price or tag."""

    is_complete = False

    def __init__(
        self,
        ids: Vocabulary,
        stock: Stock,
        in_stock: Mask | None = None,
        sold_out: Mask | None = None,
        before: RecordShelf | None = None,
        changes: Sequence[Item | Bundle] = (),
    ) -> None:
        """`in_stock` marks the bundles in stock, and `sold_out` those with a sold-out item. Both are None for
        items: their records hold the stock. `before` is the shelf before `changes`."""
        super().__init__(ids, None)
        self._stock, self._in_stock = stock, in_stock
        if sold_out is not None:
            vars(self)["sold_out"] = sold_out  # instead of the cached property
        self._records: Mapping[str, Item | Bundle] = stock.items if in_stock is None else stock.bundles
        self._columns: dict[str, pa.Array | None] = {}
        if before is not None:
            known = [record for record in changes if record.id in ids]
            self._take_over(before, known, [ids.known_positions[record.id] for record in known])

    def _take_over(
        self, before: RecordShelf, changes: Sequence[Item | Bundle], places: Sequence[int]
    ) -> None:
        """Fill in the cached properties of `Shelf` that the shelf before the changes has. A column that is
        empty now is left out: `Shelf` raises an error if a filter needs it. `changes` also has the bundles
        that contain an item with another price."""
        kept, new = vars(before), np.arange(len(before.ids), len(self.ids))
        if "price_parts" in kept:
            parts = np.append(kept["price_parts"], np.full((3, len(new)), np.nan), axis=1)
            parts[:, places] = self._parts_of(changes)
            vars(self)["price_parts"] = parts
        if "prices" in kept:
            prices = np.append(kept["prices"], np.full(len(new), np.nan))
            prices[places] = [np.nan if record.price is None else record.price for record in changes]
            if not np.isnan(prices).all():
                vars(self)["prices"] = prices
        if "in_stock" in kept and self._in_stock is None:
            in_stock = np.append(kept["in_stock"], np.zeros(len(new), bool))
            in_stock[places] = [bool(record.stock) for record in changes if isinstance(record, Item)]
            if in_stock.any():
                vars(self)["in_stock"] = in_stock
        if "sold_out" in kept and self._in_stock is None:
            sold_out = np.append(kept["sold_out"], np.zeros(len(new), bool))
            sold_out[places] = [_sold_out(record) for record in changes if isinstance(record, Item)]
            vars(self)["sold_out"] = sold_out
        if "tagged" in kept:
            tagged: dict[str, Positions] = dict(kept["tagged"])
            for record, place in zip(changes, places, strict=True):
                # An item that was not known yet, and is now by its content, has no entries.
                old = before._records.get(record.id) if record.id in before.ids else None
                for tag in set(old.tags if old else ()):
                    tagged[tag] = tagged[tag][tagged[tag] != place]
                for tag in record.tags:
                    tagged[tag] = np.append(tagged.get(tag, new[:0]), place)
            tagged = {tag: positions for tag, positions in tagged.items() if len(positions)}
            if tagged:
                vars(self)["tagged"] = tagged

    @cached_property
    def price_parts(self) -> Floats:
        return self._parts_of([self._records.get(name) for name in self.ids])

    def _parts_of(self, records: Sequence[Item | Bundle | None]) -> Floats:
        """The price parts of these records (see `Shelf.price_parts`)."""
        parts = np.full((3, len(records)), np.nan)
        parts[0] = [_price(record) for record in records]
        for place, record in enumerate(records):
            if isinstance(record, Bundle) and record.items:
                parts[1, place] = sum(_price(self._stock.items.get(name)) for name in set(record.items))
                parts[2, place] = math.nan if record.discount is None else record.discount
        return parts

    def _values(self, name: str) -> Any:
        if name not in self._columns:
            values: Any
            if name == "stock" and self._in_stock is not None:
                # Stock is known if any item has one, even an item that is newer than the model.
                is_known = any(item.stock is not None for item in self._stock.items.values())
                values = self._in_stock.astype(np.int64) if is_known else None
            else:
                values = [getattr(record, name, None) for record in map(self._records.get, self.ids)]
                if name == "tags":
                    values = [tags or None for tags in values]
            self._columns[name] = None if values is None else pa.array(values, _TYPES[name])
        return self._columns[name]

    def title(self, place: int) -> str | None:
        """The title at a position, or None."""
        record = self._records.get(self.ids[place])
        return record.title if record else None

    def image_url(self, place: int) -> str | None:
        """The address of the image at a position, or None."""
        record = self._records.get(self.ids[place])
        return record.image_url if record else None

    def facts(self, place: int) -> Facts:
        """Title, price and tags of the item or bundle at a position."""
        record = self._records.get(self.ids[place])
        if record is None:
            return Facts()
        return Facts(record.title, record.price, tuple(record.tags), record.image_url)


@dataclass(frozen=True)
class BundleRows:
    """The training bundles in the model's order, followed by later bundles in the order of their arrival.
    Items are in the same order: those of the training data, then later ones that the model knows by content.

    Every bundle has its current items, which may differ from its items in training. The dataset has no users:
    each question comes with the user's current history.
    """

    dataset: BundleDataset
    device: torch.device
    sales: Tensor | None  # [training bundles]
    """The sales of the training bundles. None if the model's scores do not depend on sales."""
    interactions: Interactions
    """The rows as input of a model, with their expected sales and their stamps."""
    expected: Mapping[str, float | str | None] = field(default_factory=dict)
    """Bundle id → its expected sales: a number, or the id of another bundle that sells as often. Only entries
    of bundles that were added after training are used."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """The entries of `expected` that are ids of bundles added after training, whose sales may change."""
    newer: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The position of a bundle → its items that are newer than the model, if there are any."""

    @classmethod
    def of(cls, trained: BundleDataset, device: torch.device, sales: Tensor | None = None) -> BundleRows:
        """Makes the rows of a model before the shop's catalogue is read: all bundles are empty."""
        items, bundles = len(trained.items), Vocabulary("bundle", trained.bundles.ids)
        dataset = BundleDataset(
            binary_matrix([], [], (0, items)),
            binary_matrix([], [], (0, len(bundles))),
            binary_matrix([], [], (len(bundles), items)),
            Vocabulary("user", ()),
            trained.items,
            bundles,
            name=trained.name,
        )
        stamps = torch.full((len(bundles),), next(_STAMPS), device=device)
        unknown = torch.full((len(bundles),), torch.nan, device=device)
        return cls(dataset, device, sales, _interactions(dataset, unknown, stamps))

    def with_items(self, names: Sequence[str]) -> BundleRows:
        """Adds items at the end. Bundles that contain them must be given to `after`."""
        if not names:
            return self
        dataset, vocabulary = self.dataset, self.dataset.items.with_more(names)
        wider = replace(
            dataset,
            user_item=with_columns(dataset.user_item, len(vocabulary)),
            bundle_item=with_columns(dataset.bundle_item, len(vocabulary)),
            items=vocabulary,
        )
        return replace(self, dataset=wider, interactions=replace(self.interactions, items=len(vocabulary)))

    def after(self, bundles: Sequence[Bundle], moved: Set[str] = frozenset()) -> BundleRows:
        """Adds or changes bundles. Returns the same object if no contents and no expected sales changed.

        `moved` are items whose vectors have changed: the bundles that contain them get new stamps.
        """
        dataset = self.dataset
        expected: dict[str, float | str | None] = {}
        items, places = dataset.items.known_positions, dataset.bundles.known_positions
        new: list[str] = []
        rows: dict[int, list[int]] = {}
        newer: dict[int, tuple[str, ...]] = {}
        for bundle in bundles:
            sales = bundle.sells_like if bundle.expected_sales is None else bundle.expected_sales
            if sales != self.expected.get(bundle.id):
                expected[bundle.id] = sales
            place = places.get(bundle.id)
            inside = sorted({items[name] for name in bundle.items if name in items})
            number = len(places) + len(new) if place is None else place
            later = tuple(dict.fromkeys(name for name in bundle.items if name not in items))
            if later != self.newer.get(number, ()):
                newer[number] = later
            if place is None:
                rows[number] = inside
                new.append(bundle.id)
            elif inside != row_of(dataset.bundle_item, place).tolist() or (
                moved and not moved.isdisjoint(bundle.items)
            ):
                rows[place] = inside
        if not rows and not expected and not newer:
            return self
        contents = self.interactions.bundle_item
        assert isinstance(contents, Contents)
        assert contents.stamps is not None
        stamps, counts = contents.stamps, contents.expected_sales
        if rows:
            size = len(places) + len(new)
            counts = torch.cat([counts, counts.new_full((len(new),), torch.nan)])
            stamps = torch.cat([stamps, stamps.new_zeros(len(new))])
            stamps[list(rows)] = next(_STAMPS)
            dataset = replace(
                dataset,
                user_bundle=binary_matrix([], [], (0, size)),
                bundle_item=with_rows(dataset.bundle_item, rows, size),
                bundles=dataset.bundles.with_more(new),
            )
        all_expected, alike = self.expected, self.alike
        if expected:
            all_expected = changed(self.expected, expected)
            alike = {name: like for name, like in self.alike.items() if name not in expected}
            alike |= {
                name: like
                for name, like in expected.items()
                if isinstance(like, str) and self._is_later(like, dataset.bundles)
            }
            counts = self._counted({*expected, *alike}, all_expected, dataset.bundles, counts.clone())
        interactions = _interactions(dataset, counts, stamps)
        all_newer = {number: names for number, names in {**self.newer, **newer}.items() if names}
        return BundleRows(dataset, self.device, self.sales, interactions, all_expected, alike, all_newer)

    def _counted(
        self,
        names: Iterable[str],
        expected: Mapping[str, float | str | None],
        ids: Vocabulary,
        counts: Tensor,
    ) -> Tensor:
        """Writes the expected sales of these bundles into `counts`, except for training bundles."""
        later = [name for name in names if self._is_later(name, ids)]
        if self.sales is not None and later:
            sales = [_sales_of(name, expected, ids, self.sales) for name in later]
            counts[[ids.known_positions[name] for name in later]] = counts.new_tensor(sales)
        return counts

    def _is_later(self, name: str, ids: Vocabulary) -> bool:
        """Whether a bundle was added after training, in a model whose scores depend on sales."""
        return self.sales is not None and ids.known_positions.get(name, len(ids)) >= len(self.sales)

    def place(self, bundle: str) -> int | None:
        """The position of a bundle that contains at least one item known to the model."""
        place = self.dataset.bundles.known_positions.get(bundle)
        return None if place is None or not len(row_of(self.dataset.bundle_item, place)) else place


def _sales_of(name: str, expected: Mapping[str, float | str | None], ids: Vocabulary, sales: Tensor) -> float:
    """Follows `sells_like` from bundle to bundle until it finds a number. Without one it returns nan."""
    passed: set[str] = set()
    while name not in passed:
        place = ids.known_positions.get(name, len(sales))
        if place < len(sales):
            return float(sales[place])
        passed.add(name)
        count = expected.get(name)
        if not isinstance(count, str):
            return math.nan if count is None else count
        name = count
    return math.nan  # the bundles refer to each other in a circle


def _interactions(dataset: BundleDataset, expected_sales: Tensor, stamps: Tensor) -> Interactions:
    plain = Interactions.of(dataset, stamps.device)
    bundles = plain.bundle_item
    return replace(plain, bundle_item=Contents(bundles.values, bundles.offsets, expected_sales, stamps))


@dataclass(frozen=True)
class Question:
    """A request for the best bundles of a user, or for items that complete the bundle `partial`."""

    user: str | Owned
    """The id of a user in the store, or a history."""
    k: int
    where: Filter | None = None
    owned: OwnedRule | None = None
    stock: StockRule | None = None
    diversity: float | None = None
    match_popularity: float | None = None
    """The rules of `ShopSettings` for this question. None: those of the shop. The last two are for bundles
    only."""
    partial: tuple[str, ...] | None = None

    @property
    def rules(self) -> BundleRules:
        """The rules of this question."""
        both: BundleRules = {"owned": self.owned, "stock": self.stock}
        if self.partial is None:
            both |= {"diversity": self.diversity, "match_popularity": self.match_popularity}
        return both


class LiveShop(Shop):
    """A shop that ignores items and bundles in a history if the model does not know them."""

    def __init__(
        self,
        rows: BundleRows,
        trade: Trade,
        stock: Stock,
        in_stock: npt.NDArray[np.bool_],
        sold_out: npt.NDArray[np.bool_],
        change: CatalogueChange,
        before: LiveShop | None,
        by_content: Set[int],
        recency: Recency | None = None,
    ) -> None:
        """`before` is the shop before the change, whose columns are used again. `by_content` are the items
        that the model knows only by their content."""
        self.rows, self.stock, self.recency = rows, stock, recency
        dataset, shelves = rows.dataset, before.shelves if before else (None, None)
        changed_bundles = stock.repriced(change, before.stock if before else EMPTY)
        self.shelves: tuple[RecordShelf, RecordShelf] = (
            RecordShelf(dataset.items, stock, None, None, shelves[0], change.items),
            RecordShelf(dataset.bundles, stock, in_stock, sold_out, shelves[1], changed_bundles),
        )
        super().__init__(dataset, rows.device, trade, self.shelves, rows.interactions, by_content=by_content)
        if before is not None and before.rows is rows and "_whole" in vars(before):
            vars(self)["_whole"] = before._whole  # the contents are the same

    # What users own follows from the store's records. Items in bundles that are newer than the model have the
    # positions after the model's items.

    @cached_property
    def _later(self) -> dict[str, int]:
        names = dict.fromkeys(chain.from_iterable(self.rows.newer.values()))
        return {name: len(self.dataset.items) + number for number, name in enumerate(names)}

    @cached_property
    def _whole(self) -> Goods:
        known, later = self.interactions.bundle_item, self._later
        if not later:
            return Goods(known, len(self.dataset.items))
        lengths = np.zeros(len(known), np.int64)
        added: list[int] = []
        for number in sorted(self.rows.newer):
            names = self.rows.newer[number]
            lengths[number] = len(names)
            added.extend(later[name] for name in names)
        ends = known.offsets.cpu().numpy()
        values = np.insert(known.values.cpu().numpy(), np.repeat(ends[1:], lengths), added)
        offsets = ends + np.concatenate([[0], np.cumsum(lengths)])
        contents = Ragged(torch.from_numpy(values), torch.from_numpy(offsets)).to(self.device)
        return Goods(contents, len(self.dataset.items) + len(later))

    def goods(self, contents: Ragged) -> Goods:
        """Returns all items of each bundle, also those newer than the model."""
        return self._whole

    def owned(self, users: Sequence[User], histories: Histories, contents: Ragged) -> Ragged:
        """Returns the items that each user owns, alone or in a bundle, also those newer than the model."""
        goods, later = self._whole, self._later
        known = goods.owned(histories, goods.contents)
        if not later:
            return known
        rows, values = known.row_of_entry().tolist(), known.values.tolist()
        places, newer = self.dataset.bundles.known_positions, self.rows.newer
        for row, user in enumerate(users):
            assert isinstance(user, History)
            items, bundles = self._bought(user)
            names = [name for name in map(str, items) if name in later]
            for bundle in map(str, bundles):
                names += newer.get(places.get(bundle, -1), ())
            values += [later[name] for name in names]
            rows += [row] * len(names)
        pairs = np.array(rows, np.int64), np.array(values, np.int64)
        return rows_of_pairs(*pairs, len(histories), goods.items, self.device)

    def item_name(self, position: int) -> str:
        """Returns the id of an item in `goods`."""
        if position < len(self.dataset.items):
            return self.dataset.items[position]
        return self._later_names[position - len(self.dataset.items)]

    @cached_property
    def _later_names(self) -> list[str]:
        return list(self._later)

    def item_facts(self, positions: Positions) -> tuple[Floats, Mask]:
        """Returns the prices of items, nan if unknown, and whether they are sold out."""
        items = [self.stock.items.get(self.item_name(place)) for place in positions.tolist()]
        prices = [np.nan if item is None or item.price is None else item.price for item in items]
        return np.array(prices, np.float64), np.array(list(map(_sold_out, items)), bool)

    def bundle_facts(self, positions: Positions) -> tuple[Floats, Floats]:
        """Returns the prices and the discounts of bundles, nan if unknown."""
        ids = self.dataset.bundles
        bundles = [self.stock.bundles.get(ids[place]) for place in positions.tolist()]
        prices, discounts = (
            np.array([np.nan if value is None else value for value in values], np.float64)
            for values in (
                [bundle and bundle.price for bundle in bundles],
                [bundle and bundle.discount for bundle in bundles],
            )
        )
        return prices, discounts

    def encode(
        self,
        users: Sequence[User],
        new: NewBundles | None = None,
        expected: Mapping[str, float] | None = None,
    ) -> tuple[Histories, Ragged]:
        """Returns the histories as positions, and the items of the shop's bundles. Users must be histories.
        `new` is not supported: new bundles belong in the catalogue."""
        histories = [user for user in users if isinstance(user, History)]
        if new or len(histories) < len(users):
            raise UnsupportedError("a live shop takes only histories, and bundles of its catalogue")
        items, bundles, starts = self.dataset.items, self.dataset.bundles, self.dataset.bundle_item.indptr
        of_items, item_ends = _places([history.items for history in histories], items.known_positions)
        of_bundles, bundle_ends = _places([history.bundles for history in histories], bundles.known_positions)
        # A bundle counts if it contains at least one item known to the model.
        filled = (of_bundles >= 0) & (starts[of_bundles + 1] > starts[of_bundles])
        item_weights = _weights([(history.items, history.item_weights) for history in histories])
        bundle_weights = _weights([(history.bundles, history.bundle_weights) for history in histories])
        fading = (None, None) if self.recency is None else self.recency.of(histories)
        encoded = Histories(
            _kept(of_items, item_ends, of_items >= 0, item_weights, fading[0]).to(self.device),
            _kept(of_bundles, bundle_ends, filled, bundle_weights, fading[1]).to(self.device),
            None,
            self._rejected([each.rejected_items for each in histories], items.known_positions, self._later),
            self._rejected([each.rejected_bundles for each in histories], bundles.known_positions, {}),
        )
        return encoded, self.interactions.bundle_item

    def _rejected(
        self, rows: Sequence[Sequence[Id]], known: Mapping[str, int], later: Mapping[str, int]
    ) -> Ragged | None:
        """The positions of what users rejected; `later` has those of items that are newer than the model.
        None if nobody rejected anything."""
        if not any(rows):
            return None
        places = ((known.get(str(name), later.get(str(name))) for name in row) for row in rows)
        return Ragged.from_lists(
            [sorted({at for at in row if at is not None}) for row in places], self.device
        )

    def _bought(self, history: History) -> tuple[Sequence[Id], Sequence[Any]]:
        """The items and the bundles of a history that the user bought."""
        return bought(history.items, history.item_weights), bought(history.bundles, history.bundle_weights)

    def item_positions(self, items: Sequence[Id]) -> list[int]:
        """Positions of the items that the model knows, in ascending order, each once."""
        known = self.dataset.items.known_positions
        return sorted({known[name] for name in map(str, items) if name in known})

    def items_of(self, user: User) -> frozenset[str]:
        """The ids of the items that a user has, alone or in a bundle, also of items newer than the model."""
        history = user if isinstance(user, History) else History()
        items, owned = self._bought(history)
        bundles = (self.stock.bundles.get(str(name)) for name in owned)
        inside = (bundle.items for bundle in bundles if bundle is not None)
        return frozenset(chain(map(str, items), *inside))

    def items_in(self, bundle: int) -> frozenset[str]:
        """The ids of the items of the bundle at a position, also of items newer than the model."""
        record = self.stock.bundles.get(self.dataset.bundles[bundle])
        return frozenset(record.items if record else ())

    def facts_of_item(self, item: str) -> Facts:
        """What the catalogue says about an item."""
        record = self.stock.items.get(item)
        return Facts(record.title, record.price, tuple(record.tags)) if record else Facts()

    def bundle_position(self, bundle: Id) -> int:
        """The position of a bundle. Raises UnknownIdError if the model knows none of its items."""
        place = self.rows.place(str(bundle))
        if place is None:
            raise UnknownIdError("bundle", [str(bundle)], self.dataset.bundles)
        return place


# Loops in Python would hold up other threads while a forecast encodes all users.


def _places(rows: Sequence[Sequence[Any]], known: Mapping[str, int]) -> tuple[Positions, Positions]:
    """The position of each name in the rows, -1 for a name that is not known, and the ends of the rows."""
    places = np.fromiter(map(known.get, chain.from_iterable(rows), repeat(-1)), np.int64)
    return places, np.cumsum([0, *map(len, rows)])


def _weights(rows: Sequence[tuple[Sequence[Any], Sequence[float] | None]]) -> Weights | None:
    """The weights of all things in the rows; None if all are 1."""
    if all(weights is None for _, weights in rows):
        return None
    each = (repeat(1.0, len(things)) if weights is None else weights for things, weights in rows)
    found = np.fromiter(chain.from_iterable(each), np.float32)
    return None if bool((found == 1).all()) else found


def _kept(
    places: Positions, ends: Positions, kept: Mask, weights: Weights | None, fading: Weights | None
) -> Ragged:
    """Rows of positions with weights, of which only those marked True are kept. `fading` are factors of the
    weights that do not make a purchase weak."""
    counted = np.concatenate([[0], np.cumsum(kept)])
    rows = Ragged(torch.from_numpy(places[kept]), torch.from_numpy(counted[ends]))
    if weights is None and fading is None:
        return rows
    own = np.ones(len(rows.values), np.float32) if weights is None else weights[kept]
    weak = torch.from_numpy(own < 1) if bool((own < 1).any()) else None
    if fading is not None:
        own = (own * fading[kept]).clip(min=np.finfo(np.float32).tiny)
    return Ragged(rows.values, rows.offsets, weights=torch.from_numpy(own), weak=weak)


@dataclass(frozen=True)
class Recency:
    """How much older things of a history count: half after each `half_life` days, as in training."""

    half_life: float
    oldest: tuple[int | None, int | None]
    """The oldest times of items and of bundles in the training data, which stand for unknown times. None: the
    data has no times, and nothing fades."""

    @classmethod
    def of_model(cls, recommender: Recommender) -> Recency | None:
        """Returns the recency of a model; None if it has no half-life."""
        half_life, data = recommender.model.half_life, recommender.dataset
        if half_life is None:
            return None
        times = (data.item_events.at, data.bundle_events.at)
        items, bundles = (None if at is None else int(at[at != UNDATED].min()) for at in times)
        return cls(half_life, (items, bundles))

    def of(self, histories: Sequence[History]) -> tuple[Weights | None, Weights | None]:
        """Returns factors for the items and the bundles of all histories. In each history the newest thing
        has the factor 1: only the ratios have an effect. A history without times does not fade."""
        items, bundles = (self._of_kind(histories, kind) for kind in (0, 1))
        return items, bundles

    def _of_kind(self, histories: Sequence[History], kind: int) -> Weights | None:
        oldest = self.oldest[kind]
        if oldest is None:
            return None
        things = [(each.items, each.bundles)[kind] for each in histories]
        times = (
            each.times[kind] if isinstance(each, Owned) and each.times else repeat(oldest, len(own))
            for each, own in zip(histories, things, strict=True)
        )
        at = np.fromiter(chain.from_iterable(times), np.int64).clip(min=oldest)
        row = np.repeat(np.arange(len(things)), [len(own) for own in things])
        newest = np.full(len(things), oldest)
        np.maximum.at(newest, row, at)
        fading: Weights = np.exp2((at - newest[row]) / DAY / self.half_life).astype(np.float32)
        return fading


class Live(Asker):
    """A model and a catalogue, ready to answer questions."""

    def __init__(
        self,
        recommender: Recommender,
        stock: Stock,
        sales: Sales = NO_SALES,
        record: ModelRecord = UNPUBLISHED,
    ) -> None:
        """`record` is the store's record of a published model."""
        super().__init__()
        model = recommender.model
        if not model.knows_new_users:
            raise UnsupportedError(
                f"{model.title} knows only the users it was trained on, so it cannot serve a shop with new "
                "users: 'bundlemage models' lists the models that can, under 'new users'"
            )
        self.recommender, self.record = recommender, record
        self._larger_model: Model = model  # it also knows later items, by their content
        self.recency = Recency.of_model(recommender)
        """None: the times of histories have no effect, and need not be read."""
        self.calibration = recommender.calibration
        self.new_bundle_calibration = recommender.new_bundle_calibration
        self.shop_settings = recommender.shop_settings
        self.stock, self.sales = stock, sales
        known = model.known_sales().cpu() if can(model, SalesScorer) else None
        self._rows = BundleRows.of(recommender.dataset, recommender.shop.device, known)
        trade = Trade.of(self._rows.dataset)
        # Nothing is on sale until `_apply` reads the catalogue.
        self._trade = replace(trade, items_gone=~trade.items_gone, bundles_gone=~trade.bundles_gone)
        self._in_stock, self._sold_out = (np.zeros_like(trade.bundles_gone) for _ in range(2))
        in_order = sorted(stock.bundles.values(), key=lambda bundle: bundle.id)
        self._apply(CatalogueChange(stock.version, list(stock.items.values()), in_order), sales, EMPTY, None)

    def after(self, change: CatalogueChange, sales: Sales | None = None) -> Live:
        """Returns the same model with the catalogue after a change. Only changed parts are computed again."""
        if self._forgets_an_item(change):
            sales = self.sales if sales is None else sales
            return Live(self.recommender, self.stock.after(change), sales, self.record)
        live = copy(self)
        live.stock = self.stock.after(change)
        live.sales = self.sales if sales is None else sales
        live._apply(change, sales, self.stock, self._live_shop)
        return live

    def _apply(
        self, change: CatalogueChange, sales: Sales | None, stock_before: Stock, shop_before: LiveShop | None
    ) -> None:
        """Apply a change to the rows and arrays of this snapshot. `stock` already includes the change.

        `sales` is None if the sales have not changed. Arrays are copied first: other snapshots share them.
        """
        before, stock = self._rows.dataset, self.stock
        moved = self._take_up_items(change.items, stock_before)
        held = (stock.bundles[name] for item in sorted(moved) for name in stock.holders.get(item, ()))
        bundles_changed = {bundle.id: bundle for bundle in chain(change.bundles, held)}
        self._rows = self._rows.after([*bundles_changed.values()], moved)
        dataset = self._rows.dataset
        added = len(dataset.bundles) - len(before.bundles)
        trade = self._trade.with_more(len(dataset.items) - len(before.items), added)
        self._in_stock = np.concatenate([self._in_stock, np.zeros(added, bool)])
        self._sold_out = np.concatenate([self._sold_out, np.zeros(added, bool)])
        items, bundles = dataset.items.known_positions, dataset.bundles.known_positions
        if sales is not None:
            trade = replace(
                trade,
                item_sales=np.array([sales.items.get(name, 0) for name in dataset.items], np.int64),
                bundle_sales=np.array([sales.bundles.get(name, 0) for name in dataset.bundles], np.int64),
            )
        for item in change.items:
            if item.id in items:
                trade.items_gone[items[item.id]] = item.withdrawn
        for name in stock.affected(change, stock_before):
            bundle, place = stock.bundles[name], bundles[name]
            trade.bundles_gone[place] = not stock.sellable(bundle)
            self._in_stock[place] = stock.in_stock(bundle)
            self._sold_out[place] = stock.sold_out(bundle)
        self._trade = trade
        model = self._larger_model
        by_content = known_by_content(model)
        self._live_shop = LiveShop(
            self._rows,
            trade,
            stock,
            self._in_stock,
            self._sold_out,
            change,
            shop_before,
            by_content,
            self.recency,
        )
        self._fitted = (model, self._live_shop)

    @property
    def event_weights(self) -> Mapping[str, float]:
        """The weights of the types of events that the model was trained with."""
        return self.recommender.dataset.event_weights or {}

    def _take_up_items(self, items: Sequence[Item], stock_before: Stock) -> set[str]:
        """Let the model know those of the changed items that are newer than itself, by their content. Returns
        the ids of the items that have a new vector."""
        model = self._larger_model
        if not can(model, ContentLearner):
            return set()
        trained, places = len(self.recommender.dataset.items), self._rows.dataset.items.known_positions
        changed_items = sorted(
            (
                item
                for item in items
                if places.get(item.id, trained) >= trained
                and _content(item) != _content(stock_before.items.get(item.id))
            ),
            key=lambda item: item.id,
        )
        if not changed_items:
            return set()
        table = items_table(changed_items)
        enough = model.knows_by_content(table).tolist()
        taken = [place for place, is_enough in enumerate(enough) if is_enough]
        if not taken:
            return set()
        names = [changed_items[place].id for place in taken]
        new = [name for name in names if name not in places]
        self._rows = self._rows.with_items(new)
        places = self._rows.dataset.items.known_positions
        self._larger_model = model.with_items(table.take(taken), [places[name] for name in names])
        return set(names)

    def _forgets_an_item(self, change: CatalogueChange) -> bool:
        """Whether the record of an item that is known by its content no longer says enough. This is rare, so
        everything is then computed anew."""
        model, places = self._larger_model, self._rows.dataset.items.known_positions
        trained = len(self.recommender.dataset.items)
        if not can(model, ContentLearner) or len(places) == trained:
            return False
        later = [item for item in change.items if places.get(item.id, 0) >= trained]
        return bool(later) and not model.knows_by_content(items_table(later)).all()

    def in_model(self, item: str) -> bool | Literal["by content"]:
        """Whether the model knows an item: from its training, by its content, or not at all."""
        place = self.dataset.items.known_positions.get(item)
        if place is None:
            return False
        return "by content" if place in self._live_shop.by_content else True

    def recommendable(self, bundle: Bundle) -> bool:
        """Whether a bundle can be recommended now: it is on sale, and the model knows one of its items."""
        return self.stock.sellable(bundle) and any(map(self.in_model, bundle.items))

    def known_of(self, history: History) -> Known:
        """Counts the items and bundles of a history that the model uses, and those that it does not know."""
        known_items = self.dataset.items.known_positions
        items = sum(name in known_items for name in history.items)
        bundles = sum(self._rows.place(str(name)) is not None for name in history.bundles)
        newer = len(history.items) + len(history.bundles) - items - bundles
        return Known(items=items, bundles=bundles, not_in_model=newer)

    def answer(self, questions: Sequence[Question]) -> list[list[Recommendation] | Exception]:
        """Returns an answer or an exception for each question. Every question's `user` must be a history.

        Questions of the same kind with the same filter are answered together by the model.
        """
        groups: dict[Any, list[int]] = defaultdict(list)
        for number, question in enumerate(questions):
            kind = (question.partial is None, question.where, *question.rules.values())
            groups[kind].append(number)
        outcomes: dict[int, list[Recommendation] | Exception] = {}
        for numbers in groups.values():
            try:
                answers = self._answer_alike([questions[number] for number in numbers])
                outcomes.update(zip(numbers, answers, strict=True))
            except Exception as error:
                outcomes.update(dict.fromkeys(numbers, error))
        return [outcomes[number] for number in range(len(questions))]

    def _answer_alike(self, questions: Sequence[Question]) -> list[list[Recommendation]]:
        first, largest_k = questions[0], max(question.k for question in questions)
        options: dict[str, Any] = {"where": first.where, **first.rules}
        answers: list[list[Recommendation]]
        if first.partial is None:
            users = [question.user for question in questions]
            answers = [[*best] for best in self.recommend_many(users, largest_k, **options)]
        else:
            cases = [(question.user, question.partial or ()) for question in questions]
            answers = [[*best] for best in self.complete_many(cases, largest_k, **options)]
        return [best[: question.k] for question, best in zip(questions, answers, strict=True)]

    def merge_changes(self) -> None:
        """Let the model tidy up after many changes. Questions can be answered meanwhile."""
        with torch.inference_mode():
            self.model.merge_changes()

    def warm(self) -> Live:
        """Fill all caches now, so that the first question need not wait. Returns the same object."""
        if can(self.model, Matcher):
            self.recommend(Owned(), 1)
        if can(self.model, Completer):
            self.complete(Owned(), (), 1)
        self.shop.full_prices(self.shop_settings.decimals)  # for filters
        with suppress(MissingExtraError):
            cp()  # other threads would have to wait while a design imports it
        return self


def record_of(path: Path) -> ModelRecord:
    """Makes the store's record of a saved model."""
    version, config, metrics = describe_artifact(path)
    return ModelRecord(version, str(path.resolve()), config["model"], metrics)


def load_published(
    record: ModelRecord,
    device: str = "auto",
    shared_weights: Path | None = None,
    shop: Mapping[str, Any] | None = None,
) -> Recommender:
    """Load a published model. `shop` are settings of the shop that replace the saved ones.

    Raises ArtifactError if its folder now holds another model."""
    path = Path(record.path)
    version = artifact_version(path)
    if version != record.version:
        raise ArtifactError(
            f"{path} no longer holds the model {record.version}: it was replaced by {version}"
        )
    return Recommender.load(path, device=device, shop=shop, shared_weights=shared_weights)
