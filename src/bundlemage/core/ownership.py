"""What users own, what is missing, and what they pay: one rule for every answer.

A user owns an item if it was bought alone or inside a bundle. So a bundle may be owned in part or wholly
before it is bought. `ShopSettings` say what happens to such a bundle, and to a bundle with a sold-out item.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged, offsets_of
from bundlemage.wire.shop import OwnedRule, Pays

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
MOST_COUNTED = 2**23
"""The maximum number of pairs of a user and a bundle for which owned items are counted in a dense table."""


def owned_items(histories: Histories, contents: Ragged, items: int) -> Ragged:
    """Returns the items that each user owns, alone or in a bundle, in ascending order. `items` is the number
    of all items."""
    bundles = histories.bundles
    inside = contents.rows(bundles.values)  # a row for each bundle of each user
    rows = torch.cat([histories.items.row_of_entry(), bundles.row_of_entry()[inside.row_of_entry()]])
    values = torch.cat([histories.items.values, inside.values])
    return rows_of_pairs(rows, values, len(histories), items)


def rows_of_pairs(rows: Tensor, values: Tensor, count: int, width: int) -> Ragged:
    """Returns `count` rows, each with its values in ascending order and without repeats. All values are below
    `width`."""
    keys = torch.unique(rows * width + values)
    lengths = torch.bincount(keys.div(width, rounding_mode="floor"), minlength=count)
    return Ragged(keys % width, offsets_of(lengths))


class Demoted(NamedTuple):
    """Pairs of a row and a bundle that a rule demotes or hides. A pair may occur more than once."""

    rows: Tensor
    bundles: Tensor
    shares: Tensor
    """The share of the bundle's items that is missing. 0: the bundle is not shown."""


class Goods:
    """The items of each bundle, prepared for counting how many of them a user owns."""

    def __init__(self, contents: Ragged, items: int) -> None:
        self.contents, self.items = contents, items

    @cached_property
    def sizes(self) -> Tensor:
        """The number of items of each bundle."""  # [bundles]
        return self.contents.lengths

    @cached_property
    def holders(self) -> Ragged:
        """For each item, the bundles that contain it."""
        ones = np.ones(len(self.contents.values), np.int8)
        values, offsets = (part.cpu().numpy() for part in (self.contents.values, self.contents.offsets))
        shape = (len(self.contents), self.items)
        by_item = sparse.csr_matrix((ones, values, offsets), shape).tocsc()  # faster than a sort
        return Ragged.from_csr(by_item, self.contents.device)

    def owned(self, histories: Histories, contents: Ragged) -> Ragged:
        """Returns the items that each user owns. `contents` has the items of the bundles in the histories."""
        return owned_items(histories, contents, self.items)

    def counted(self, owned: Ragged) -> tuple[Tensor, Tensor, Tensor]:
        """Returns pairs of a row and a bundle, and how many of its items the user owns. Every bundle with
        such an item is there, some of them more than once."""
        held = self.holders.rows(owned.values)
        rows, bundles = owned.row_of_entry()[held.row_of_entry()], held.values
        width = len(self.contents)
        keys = rows * width + bundles
        if len(owned) * width > MOST_COUNTED:
            keys, counts = torch.unique(keys, return_counts=True)
            return keys.div(width, rounding_mode="floor"), keys % width, counts
        table = torch.zeros(len(owned) * width, dtype=torch.int32, device=keys.device)
        table.scatter_add_(0, keys, torch.ones_like(keys, dtype=torch.int32))
        return rows, bundles, table[keys]

    def demoted(self, owned: Ragged, rule: OwnedRule, mostly_owned: float) -> Demoted | None:
        """Returns the bundles that the rule demotes or hides for each user; None if it is `show`."""
        if rule == "show":
            return None
        rows, bundles, counts = self.counted(owned)
        sizes = self.sizes[bundles]
        found = counts >= (sizes * mostly_owned - 1e-6)  # 2 of 3 items are a share of 2/3
        rows, bundles, counts, sizes = (each[found] for each in (rows, bundles, counts, sizes))
        shares = (sizes - counts) / sizes
        return Demoted(rows, bundles, torch.zeros_like(shares) if rule == "hide" else shares)

    def whole(self, owned: Ragged) -> Tensor:
        """True for each user and bundle if the user owns all items of the bundle."""  # [rows, bundles]
        rows, bundles, counts = self.counted(owned)
        every = counts == self.sizes[bundles]
        has = (self.sizes == 0).repeat(len(owned), 1)
        has[rows[every], bundles[every]] = True
        return has


# ── Facts of an answer ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BundleLines:
    """The items of some answered bundles, all in one list, with prices. An unknown price is nan."""

    answers: Whole  # [lines], the answer that each line belongs to
    items: Whole  # [lines], positions
    owned: npt.NDArray[np.bool_]  # [lines]
    item_prices: Floats  # [lines]
    sold_out: npt.NDArray[np.bool_]  # [lines]
    prices: Floats  # [answers], the bundles' own prices
    discounts: Floats  # [answers], nan if a bundle has none

    def facts(self, pays: Pays) -> BundleFacts:
        """Returns the facts of each answer."""

        def sums(values: Any) -> Floats:
            return np.bincount(self.answers, values, minlength=len(self.prices)).astype(np.float64)

        owned, missing = sums(self.owned), sums(~self.owned)
        whole, rest = sums(self.item_prices), sums(np.where(self.owned, 0.0, self.item_prices))
        prices = full_price(self.prices, whole, self.discounts)
        return BundleFacts(
            owned.astype(np.int32),
            missing.astype(np.int32),
            prices,
            to_pay(pays, prices, whole, rest, self.discounts, owned, missing),
            sums(self.sold_out) > 0,
        )


@dataclass(frozen=True)
class BundleFacts:
    """Facts of some answers, an entry for each. Unknown prices are nan."""

    owned: npt.NDArray[np.int32]
    """The number of items of the bundle that the user owns."""
    missing: npt.NDArray[np.int32]
    prices: Floats
    to_pay: Floats
    sold_out: npt.NDArray[np.bool_]
    """Whether an item of the bundle is sold out."""


def full_price(own: Floats, items: Floats, discount: Floats) -> Floats:
    """Returns the prices of bundles: their own, or else the sum of their items' prices minus the discount."""
    reduced = items * (1 - np.nan_to_num(discount, nan=0.0))
    return np.where(np.isnan(own), reduced, own)


def to_pay(
    pays: Pays, price: Floats, whole: Floats, rest: Floats, discount: Floats, owned: Floats, missing: Floats
) -> Floats:
    """Returns what users pay for bundles of which they may own a part; nan if a needed price is unknown.

    `whole` and `rest` are the sums of the item prices, of all items and of the missing ones. `owned` and
    `missing` are the numbers of these items.
    """
    if pays == "whole":
        return price
    with np.errstate(invalid="ignore", divide="ignore"):
        if pays == "missing":
            pay = np.where(price == 0, 0.0, price * rest / whole)
            pay = np.where(owned == 0, price, pay)
        else:
            off = np.where(whole == 0, 0.0, np.maximum(0.0, 1 - price / whole))
            pay = rest * (1 - np.where(np.isnan(discount), off, discount))
    pay = np.where(np.isfinite(pay), pay, np.nan)
    return np.where(missing == 0, 0.0, pay)


def known(number: float) -> float | None:
    """Returns a number, or None for nan."""
    return None if math.isnan(number) else float(number)


def lines_of(
    goods: Goods,
    owned: Ragged,
    rows: Whole,
    bundles: Whole,
    item_facts: Callable[[Whole], tuple[Floats, npt.NDArray[np.bool_]]],
    bundle_facts: Callable[[Whole], tuple[Floats, Floats]],
) -> BundleLines:
    """Returns the items of the answers. Answer n shows the bundle `bundles[n]` to the user in the row
    `rows[n]` of `owned`. `item_facts` has the prices of items and whether they are sold out, `bundle_facts`
    the prices and discounts of bundles."""
    inside = goods.contents.rows(torch.from_numpy(bundles).to(goods.contents.device))
    answers, places = inside.row_of_entry().cpu().numpy(), inside.values.cpu().numpy()
    has = (owned.row_of_entry() * goods.items + owned.values).cpu().numpy()  # ascending
    asked = rows[answers] * goods.items + places
    is_owned = np.zeros(len(asked), bool)
    if len(has):
        is_owned = has[np.minimum(np.searchsorted(has, asked), len(has) - 1)] == asked
    return BundleLines(answers, places, is_owned, *item_facts(places), *bundle_facts(bundles))
