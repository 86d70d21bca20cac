"""Translates questions and answers between ids and positions, for one dataset on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from bundlemage.core.entries import Entries
from bundlemage.core.filters import Facts, Filter, Mask, Shelf
from bundlemage.core.history import History, Id, NewBundles, User
from bundlemage.core.ownership import BundleLines, Floats, Goods, Whole, known, lines_of
from bundlemage.core.ranking import Ranker, Ranking
from bundlemage.data.dataset import BundleDataset, Vocabulary, row_of
from bundlemage.errors import ConfigError, list_of
from bundlemage.models.base import Histories, Interactions, Model, SalesScorer, require
from bundlemage.models.ragged import Contents, KeptForLast, Ragged
from bundlemage.wire.shop import ShopSettings, StockRule

Answer = TypeVar("Answer", bound="Recommendation")
FILTERS_KEPT = 64
"""Number of filters to cache. The pages of a shop use the same few filters again and again."""
CONTENTS_KEPT = 4
"""Number of cached bundle contents that include new bundles. A model embeds the same contents only once."""


@dataclass(frozen=True)
class Recommendation:
    """One answer. `score` is a probability over all candidates, for `popular` a share of all sales, and for
    similar bundles a cosine."""

    id: str
    title: str | None
    score: float
    rank: int
    source: Literal["model", "popular"]
    price: float | None
    """The price; None if it is unknown. A bundle without a price of its own costs the sum of its items'
    prices, minus its discount."""
    image_url: str | None
    """The address of an image, if the catalogue has one."""


@dataclass(frozen=True)
class RecommendedBundle(Recommendation):
    """A bundle for a user."""

    owned: tuple[str, ...]
    """The ids of its items that the user owns, bought alone or inside another bundle."""
    missing: tuple[str, ...]
    """The ids of its other items."""
    to_pay: float | None
    """What the user pays for the bundle (see `ShopSettings.pays`); None if a needed price is unknown."""
    sold_out: tuple[str, ...]
    """The ids of its items that are sold out."""
    by_content: tuple[str, ...] = ()
    """The ids of its items that the model knows only by what the catalogue says about them."""


@dataclass(frozen=True)
class RecommendedItem(Recommendation):
    """An item that completes a bundle."""

    owned: bool
    """Whether the user owns it, bought alone or inside a bundle."""
    sold_out: bool
    in_model: Literal[True, "by content"] = True
    """`by content` if the model knows it only by what the catalogue says about it."""


@dataclass(frozen=True)
class Candidates:
    """The items or bundles that an answer may contain."""

    ids: Vocabulary
    shelf: Shelf
    """The catalogue of the items or bundles. New bundles are not in it."""
    shares: Tensor  # [candidates], the share of each in all sales
    hidden: Tensor  # [candidates]: 0, or -∞ for a candidate that must not be shown
    available: Tensor | None = None
    """Like `hidden`, but also -∞ for sold-out candidates, which rank after all others. None if there are
    none, or if they rank like the others."""

    def ranker(self) -> Ranker:
        """Returns a ranker of these candidates."""
        return Ranker(self.shares, self.hidden, self.ids, self.available)

    def described(self, ranking: Ranking) -> list[dict[str, Any]]:
        """Returns what does not depend on the user of each answer of a ranking, row after row."""
        rows, places, positions = ranking.answers()
        chances = ranking.chances.cpu().double().numpy()[rows, places]
        popular = ranking.popular.cpu().numpy()[rows]
        return [
            {
                "id": self.ids[position],
                "title": self.shelf.title(position),
                "image_url": self.shelf.image_url(position),
                "score": chance,
                "rank": place + 1,
                "source": "popular" if by_sales else "model",
            }
            for position, chance, place, by_sales in zip(
                positions.tolist(), chances.tolist(), places.tolist(), popular.tolist(), strict=True
            )
        ]


@dataclass(frozen=True)
class Trade:
    """The number of sales of each item and bundle. True in `..._gone` marks those that are no longer sold."""

    item_sales: npt.NDArray[np.int64]
    bundle_sales: npt.NDArray[np.int64]
    items_gone: npt.NDArray[np.bool_]
    bundles_gone: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, dataset: BundleDataset) -> Trade:
        """Counts the sales in a dataset. All its items and bundles are on sale."""
        items, bundles = len(dataset.items), len(dataset.bundles)
        return cls(
            np.bincount(dataset.bought_items.indices, minlength=items),
            np.bincount(dataset.bought_bundles.indices, minlength=bundles),
            np.zeros(items, bool),
            np.zeros(bundles, bool),
        )

    def with_more(self, items: int = 0, bundles: int = 0) -> Trade:
        """Returns a copy with more items and bundles. Nobody has bought them, and the bundles are not on sale
        yet."""
        return Trade(
            np.concatenate([self.item_sales, np.zeros(items, np.int64)]),
            np.concatenate([self.bundle_sales, np.zeros(bundles, np.int64)]),
            np.concatenate([self.items_gone, np.zeros(items, bool)]),
            np.concatenate([self.bundles_gone, np.ones(bundles, bool)]),
        )


class Shop:
    """A dataset on a device, prepared for answering questions."""

    def __init__(
        self,
        dataset: BundleDataset,
        device: torch.device,
        trade: Trade | None = None,
        shelves: tuple[Shelf, Shelf] | None = None,
        interactions: Interactions | None = None,
        by_content: Set[int] = frozenset(),
        half_life: float | None = None,
    ) -> None:
        """`half_life` is that of the model (see `Interactions.of`). `by_content` are the positions of items
        that the model knows only by their content."""
        self.by_content = by_content
        self.dataset = dataset
        self.device = device
        self.trade = trade or Trade.of(dataset)
        self.item_shelf, self.bundle_shelf = shelves or Shelf.of(dataset)
        self.interactions = interactions or Interactions.of(dataset, device, half_life)
        # A bundle without items cannot be sold, and its score would mean nothing.
        filled = np.diff(dataset.bundle_item.indptr) > 0
        # These functions hold no reference to the shop: a cycle would keep its memory after it is replaced.
        self._hide_items = partial(_hidden, self.item_shelf, ~self.trade.items_gone, device)
        self._hide_bundles = partial(_hidden, self.bundle_shelf, ~self.trade.bundles_gone & filled, device)
        self._hidden_items = lru_cache(FILTERS_KEPT)(self._hide_items)
        self._hidden_bundles = lru_cache(FILTERS_KEPT)(self._hide_bundles)
        self._goods = KeptForLast[Goods]()
        self._contents = lru_cache(CONTENTS_KEPT)(partial(_contents, self.interactions.bundle_item))

    def items(self, where: Filter | None = None, stock: StockRule = "show") -> Candidates:
        """Returns all items. Items that are not sold, or that the filter `where` excludes, are hidden.
        `stock` says what happens to those that are sold out."""
        hidden_items = partial(self._hidden_items, _checked(where), 2)  # an item's price is never computed
        hidden, available = _by_stock(hidden_items, stock, self._any_item_sold_out)
        return replace(self._all_items, hidden=hidden, available=available)

    def bundles(
        self,
        where: Filter | None = None,
        new: NewBundles | None = None,
        stock: StockRule = "show",
        decimals: int = 2,
    ) -> Candidates:
        """Returns the shop's bundles, then the new ones, which have no sales. Bundles that cannot be sold,
        or that the filter `where` excludes, are hidden. `stock` says what happens to those with a sold-out
        item. Prices that are computed are rounded to `decimals` before they are compared."""
        where = _checked(where)
        if not new:
            hide = partial(self._hidden_bundles, where, decimals)
            hidden, available = _by_stock(hide, stock, self._any_bundle_sold_out)
            return replace(self._all_bundles, hidden=hidden, available=available)
        for name in new:
            if name in self.dataset.bundles:
                raise ConfigError(f"new bundle {name!r} has the id of a bundle that the shop already has")
        known = self._all_bundles
        shares = torch.cat([known.shares, known.shares.new_zeros(len(new))])
        items = [self.item_positions(contents) for contents in new.values()]
        hide = partial(self._hide_bundles, where, decimals, new=list(zip(new, items, strict=True)))
        some_sold_out = self._any_bundle_sold_out or any(map(self.bundle_shelf.any_sold_out, items))
        hidden, available = _by_stock(hide, stock, some_sold_out)
        return Candidates(known.ids.with_more(tuple(new)), known.shelf, shares, hidden, available)

    @cached_property
    def _any_item_sold_out(self) -> bool:
        return bool(self.item_shelf.sold_out.any())

    @cached_property
    def _any_bundle_sold_out(self) -> bool:
        return bool(self.bundle_shelf.sold_out.any())

    @cached_property
    def _all_items(self) -> Candidates:
        return self._all(self.item_shelf, self.trade.item_sales)

    @cached_property
    def _all_bundles(self) -> Candidates:
        return self._all(self.bundle_shelf, self.trade.bundle_sales)

    def _all(self, shelf: Shelf, sales: npt.NDArray[np.int64]) -> Candidates:
        shares = torch.from_numpy((sales / max(1, sales.sum())).astype(np.float32)).to(self.device)
        return Candidates(shelf.ids, shelf, shares, torch.zeros_like(shares))

    @cached_property
    def user_ids(self) -> pa.Array:
        """The ids of all users, in the order of their positions."""
        return self.dataset.users.to_arrow()

    @cached_property
    def bundle_ids(self) -> pa.Array:
        """The ids of all bundles, in the order of their positions."""
        return self.dataset.bundles.to_arrow()

    def everyone(self) -> Histories:
        """Returns the histories of all users, in the order of their positions."""
        return self.interactions.everyone()

    def known(self, users: Iterable[Id]) -> Histories:
        """Returns the histories of users of the shop, given their ids."""
        rows = self.dataset.users.positions(map(str, users)).astype(np.int64)
        return self.interactions.histories(torch.from_numpy(rows).to(self.device))

    def checked(self, histories: Histories) -> Histories:
        """Returns the same histories on the shop's device; raises `ConfigError` if they contain a position
        that the shop does not have."""
        items, bundles = histories.items, histories.bundles
        if len(items) != len(bundles):
            raise ConfigError(
                f"histories have {len(items):,} rows of items and {len(bundles):,} rows of bundles: "
                "each user needs one row of each"
            )
        for kind, values, size in (
            ("items", items.values, len(self.dataset.items)),
            ("bundles", bundles.values, len(self.dataset.bundles)),
        ):
            lowest, highest = (int(values.min()), int(values.max())) if len(values) else (0, -1)
            if lowest < 0 or highest >= size:
                raise ConfigError(
                    f"histories have {kind} at the positions {lowest} to {highest}: the shop has {size:,}, "
                    f"at the positions 0 to {size - 1}"
                )
        return histories.to(self.device)

    # ── What users own, what is sold out, and prices ─────────────────────────────────────────────

    def goods(self, contents: Ragged) -> Goods:
        """Returns the items of each bundle, for questions about what users own."""
        return self._goods.of(contents, lambda: Goods(contents, len(self.dataset.items)))

    def owned(self, users: Sequence[User], histories: Histories, contents: Ragged) -> Ragged:
        """Returns the items that each user owns, alone or in a bundle. `users` are the users of the
        histories, or empty if they are unknown."""
        return self.goods(contents).owned(histories, contents)

    def item_name(self, position: int) -> str:
        """Returns the id of an item in `goods`."""
        return self.dataset.items[position]

    def item_facts(self, positions: Whole) -> tuple[Floats, Mask]:
        """Returns the prices of items, nan if unknown, and whether they are sold out."""
        return self._item_prices[positions], self.item_shelf.sold_out[positions]

    def bundle_facts(self, positions: Whole) -> tuple[Floats, Floats]:
        """Returns the prices and the discounts of bundles, nan if unknown."""
        known = positions < len(self.dataset.bundles)  # the others are new, and have neither
        prices, discounts = (np.full(len(positions), np.nan) for _ in range(2))
        prices[known], discounts[known] = (column[positions[known]] for column in self._bundle_numbers)
        return prices, discounts

    def full_prices(self, decimals: int) -> Floats:
        """Returns the price of each bundle that answers show; nan if unknown."""  # [bundles]
        return self.bundle_shelf.full_prices(decimals)

    @cached_property
    def _item_prices(self) -> Floats:
        return self.item_shelf.numbers("price")

    @cached_property
    def _bundle_numbers(self) -> tuple[Floats, Floats]:
        return self.bundle_shelf.numbers("price"), self.bundle_shelf.numbers("discount")

    def lines(self, rows: Whole, bundles: Whole, owned: Ragged, contents: Ragged) -> BundleLines:
        """Returns the items of bundles: answer n shows `bundles[n]` to the user `rows[n]`. `owned` are the
        items that each user owns."""
        goods = self.goods(contents)
        return lines_of(goods, owned, rows, bundles, self.item_facts, self.bundle_facts)

    def recommended_bundles(
        self,
        candidates: Candidates,
        ranking: Ranking,
        owned: Ragged,
        contents: Ragged,
        settings: ShopSettings,
    ) -> list[list[RecommendedBundle]]:
        """Returns the bundles of each row of a ranking, with the facts about what the user owns and pays."""
        rows, _, positions = ranking.answers()
        lines = self.lines(rows, positions, owned, contents)
        facts, described = lines.facts(settings), candidates.described(ranking)
        parts: list[tuple[list[str], ...]] = [([], [], [], []) for _ in described]
        for answer, item, is_owned, is_sold_out in zip(
            *(each.tolist() for each in (lines.answers, lines.items, lines.owned, lines.sold_out)),
            strict=True,
        ):
            name = self.item_name(item)
            parts[answer][0 if is_owned else 1].append(name)
            if is_sold_out:
                parts[answer][2].append(name)
            if item in self.by_content:
                parts[answer][3].append(name)
        prices = zip(facts.prices.tolist(), facts.to_pay.tolist(), strict=True)
        answers = [
            RecommendedBundle(
                **shown,
                price=known(price),
                owned=tuple(has),
                missing=tuple(lacks),
                to_pay=known(pay),
                sold_out=tuple(gone),
                by_content=tuple(new),
            )
            for shown, (has, lacks, gone, new), (price, pay) in zip(described, parts, prices, strict=True)
        ]
        return in_rows(answers, ranking)

    def recommended_items(
        self, candidates: Candidates, ranking: Ranking, owned: Ragged
    ) -> list[list[RecommendedItem]]:
        """Returns the items of each row of a ranking, with prices, and whether the user owns them."""
        rows, _, positions = ranking.answers()
        prices, sold_out = self.item_facts(positions)
        has = [set(owned.values[start:end].tolist()) for start, end in pairwise(owned.offsets.tolist())]
        answers = [
            RecommendedItem(
                **shown,
                price=known(price),
                owned=place in has[row],
                sold_out=gone,
                in_model="by content" if place in self.by_content else True,
            )
            for shown, row, place, price, gone in zip(
                candidates.described(ranking), rows, positions, prices, sold_out.tolist(), strict=True
            )
        ]
        return in_rows(answers, ranking)

    def item_positions(self, items: Sequence[Id]) -> list[int]:
        """Returns the positions of items in ascending order, each once; raises `UnknownIdError`."""
        return sorted(set(self.dataset.items.positions(map(str, list_of("items", items))).tolist()))

    def bundle_position(self, bundle: Id) -> int:
        """Returns the position of a bundle; raises `UnknownIdError`."""
        return self.dataset.bundles.position(str(bundle))

    def items_of(self, user: User) -> frozenset[str]:
        """Returns the ids of the items that a user has, alone or in a bundle."""
        owned = self.owned([user], *self.encode([user]))
        return frozenset(map(self.item_name, owned.values.tolist()))

    def items_in(self, bundle: int) -> frozenset[str]:
        """Returns the ids of the items of the bundle at a position."""
        return frozenset(self.dataset.items[place] for place in row_of(self.dataset.bundle_item, bundle))

    def facts_of_item(self, item: str) -> Facts:
        """Returns what the catalogue says about an item."""
        return self.item_shelf.facts(self.dataset.items.position(item))

    def expectations(
        self,
        model: Model,
        new: NewBundles,
        expected_sales: Mapping[str, float],
        sells_like: Mapping[str, Id],
    ) -> Mapping[str, float]:
        """Returns the expected sales of new bundles by id. For a new bundle in `sells_like`, these are the
        sales of the shop's bundle that is given there."""
        if not expected_sales and not sells_like:
            return {}
        sales = require(model, SalesScorer).known_sales()
        for name in (*expected_sales, *sells_like):
            if name not in new:
                raise ConfigError(
                    f"expected sales are given for {name!r}, which is not among the new bundles"
                )
            if name in expected_sales and name in sells_like:
                raise ConfigError(f"give either the expected sales of {name!r} or a bundle it sells like")
        for name, count in expected_sales.items():
            is_number = isinstance(count, int | float | np.number) and not isinstance(count, bool)
            if not is_number or not (math.isfinite(count) and count >= 0):
                raise ConfigError(
                    f"the expected sales of {name!r} are {count!r}; expected a number of 0 or more"
                )
        like = {name: float(sales[self.bundle_position(other)]) for name, other in sells_like.items()}
        return {**{name: float(count) for name, count in expected_sales.items()}, **like}

    def encode(
        self,
        users: Sequence[User],
        new: NewBundles | None = None,
        expected: Mapping[str, float] | None = None,
    ) -> tuple[Histories, Ragged]:
        """Returns histories as positions, and the contents of all bundles that they may refer to.

        The contents are those of the shop's bundles, then of the new bundles, then of the bundles that
        the histories give without an id. `expected` has the expected sales of some of the new bundles.
        """
        new, expected = new or {}, expected or {}
        if not any(isinstance(user, History) for user in users) and not new:
            return self.known(cast(Sequence[Id], users)), self.interactions.bundle_item
        known = len(self.dataset.bundles)
        places = {name: known + number for number, name in enumerate(new)}
        added = [tuple(self.item_positions(items)) for items in new.values()]

        def position(bundle: Id | Sequence[Id]) -> int:
            if isinstance(bundle, str | int | np.integer):
                place = places.get(str(bundle))
                return self.bundle_position(bundle) if place is None else place
            added.append(tuple(self.item_positions(bundle)))
            return known + len(added) - 1

        data, dataset = self.interactions, self.dataset
        items = Entries(data.user_item, data.rejected_items, dataset.item_events.tells_purchases)
        bundles = Entries(data.user_bundle, data.rejected_bundles, dataset.bundle_events.tells_purchases)
        rows: list[int] = []
        for user in users:
            if isinstance(user, History):
                named = list_of("items", user.items)
                having = dataset.items.positions(map(str, named)).tolist()
                rejected = self.item_positions(user.rejected_items)
                items.add("item_weights", having, user.item_weights, rejected, in_order=True)
                having = list(map(position, list_of("bundles", user.bundles)))
                rejected = list(map(self.bundle_position, list_of("bundles", user.rejected_bundles)))
                bundles.add("bundle_weights", having, user.bundle_weights, rejected)
                rows.append(-1)
            else:
                row = dataset.users.position(str(user))
                items.add_row(row, row_of(dataset.user_item, row).tolist())
                bundles.add_row(row, row_of(dataset.user_bundle, row).tolist())
                rows.append(row)
        histories = Histories(
            items.entries(self.device),
            bundles.entries(self.device),
            torch.tensor(rows, dtype=torch.int64, device=self.device),
            items.rejected(self.device),
            bundles.rejected(self.device),
        )
        sales = tuple(expected.get(name) for name in new) if expected else ()
        return histories, self._contents(tuple(added), sales)


def _hidden(
    shelf: Shelf,
    sold: Mask,
    device: torch.device,
    where: Filter | None,
    decimals: int,
    hide_sold_out: bool,
    new: Sequence[tuple[str, Sequence[int]]] = (),
) -> Tensor:
    """Returns 0 for each candidate that may be shown, and -∞ for the others. `new` are the new bundles."""
    sold = np.concatenate([sold, np.array([len(items) > 0 for _, items in new], bool)])
    allowed = shelf.allowed(where or Filter(), new, decimals) & sold
    if hide_sold_out:
        gone = np.array([shelf.any_sold_out(items) for _, items in new], bool)
        allowed &= ~np.concatenate([shelf.sold_out, gone])
    return torch.from_numpy(np.where(allowed, 0.0, -np.inf).astype(np.float32)).to(device)


def _by_stock(
    hide: Callable[[bool], Tensor], stock: StockRule, some_sold_out: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns `hidden` and `available` of candidates. `hide` computes both: with True, sold-out candidates
    are hidden as well. `some_sold_out`: whether there are any."""
    if stock == "show" or not some_sold_out:
        return hide(False), None
    return (hide(True), None) if stock == "hide" else (hide(False), hide(True))


def in_rows(answers: Sequence[Answer], ranking: Ranking) -> list[list[Answer]]:
    """Returns the answers of a ranking, which are one after the other, as a list for each row."""
    ends = np.cumsum([0, *ranking.counts.tolist()]).tolist()
    return [list(answers[start:end]) for start, end in pairwise(ends)]


def _contents(known: Ragged, more: tuple[tuple[int, ...], ...], expected: tuple[float | None, ...]) -> Ragged:
    """Returns the contents of the shop's bundles (`known`), then those of other bundles (`more`). `more`
    begins with the new bundles, and `expected` has their expected sales."""
    if not more:
        return known
    added = Ragged.from_lists(more, known.values.device)
    if expected:
        sales = [math.nan if count is None else count for count in expected]
        sales += [math.nan] * (len(more) - len(sales))
        added = Contents.of(added, torch.tensor(sales, device=known.values.device))
    return known.append(added)


def _checked(where: Filter | None) -> Filter | None:
    if where is not None and not isinstance(where, Filter):
        raise ConfigError(f"'where' is {where!r}; give a Filter, such as Filter(max_price=20)")
    return where
