"""What users own, what is missing, and what they pay: one rule for every answer.

A user owns an item if it was bought alone or inside a bundle. What was only viewed, say, is not owned (see
`Ragged.weak`). So a bundle may be owned in part or wholly before it is bought. `ShopSettings` say what
happens to such a bundle, and to a bundle with a sold-out item.
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
from bundlemage.models.ragged import Ragged
from bundlemage.wire.shop import OwnedRule, Pays, ShopSettings

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def owned_items(histories: Histories, contents: Ragged, items: int) -> Ragged:
    """Returns the items that each user owns, alone or in a bundle, in ascending order. `items` is the number
    of all items."""
    alone, bundles = histories.items.strong, histories.bundles.strong
    bundle, inside = _inside(contents, bundles.values)
    rows = np.concatenate([_row_of_entry(alone), _row_of_entry(bundles)[bundle]])
    values = np.concatenate([_array(alone.values), inside])
    return rows_of_pairs(rows, values, len(histories), items, contents.device)


def rows_of_pairs(rows: Whole, values: Whole, count: int, width: int, device: torch.device) -> Ragged:
    """Returns `count` rows, each with its values in ascending order and without repeats. All values are below
    `width`."""
    keys = np.sort(rows * width + values)
    keys = keys[np.diff(keys, prepend=-1) > 0]
    offsets = np.searchsorted(keys, np.arange(count + 1) * width)
    return Ragged(torch.from_numpy(keys % width), torch.from_numpy(offsets)).to(device)


def _inside(contents: Ragged, bundles: Tensor) -> tuple[Whole, Whole]:
    """Returns, for each item of these bundles, the place of its bundle among them, and the item."""
    if contents.device.type != "cpu":  # few rows are copied, and not the contents of all bundles
        rows = contents.rows(bundles)
        return _row_of_entry(rows), _array(rows.values)
    chosen, offsets = _array(bundles), _array(contents.offsets)  # NumPy is faster here than PyTorch
    starts = offsets[chosen]
    lengths = offsets[chosen + 1] - starts
    before = np.cumsum(lengths) - lengths
    places = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return np.repeat(np.arange(len(chosen)), lengths), _array(contents.values)[places]


def _array(tensor: Tensor) -> Whole:
    array: Whole = tensor.cpu().numpy()
    return array


def _row_of_entry(ragged: Ragged) -> Whole:
    """The row of each entry."""
    return np.repeat(np.arange(len(ragged)), np.diff(_array(ragged.offsets)))


class Demoted(NamedTuple):
    """Pairs of a row and a bundle that a rule demotes or hides."""

    rows: Tensor
    bundles: Tensor
    shares: Tensor
    """The share of the bundle's items that is missing. 0: the bundle is not shown."""

    def chosen(self, rows: Tensor, count: int) -> Demoted:
        """Returns the pairs of the chosen rows, of which there were `count`."""
        place = torch.full((count,), -1, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        own = place[self.rows]
        kept = own >= 0
        return Demoted(own[kept], self.bundles[kept], self.shares[kept])


class Goods:
    """The items of each bundle, prepared for counting how many of them a user owns."""

    def __init__(self, contents: Ragged, items: int) -> None:
        self.contents, self.items = contents, items

    @cached_property
    def _sizes(self) -> Whole:
        """The number of items of each bundle."""  # [bundles]
        return np.diff(_array(self.contents.offsets))

    @cached_property
    def _holders(self) -> sparse.csr_matrix:
        """For each item, the bundles that contain it."""  # [items, bundles]
        by_item = _matrix(self.contents, self.items).tocsc()  # faster than a sort
        return sparse.csr_matrix((by_item.data, by_item.indices, by_item.indptr), by_item.shape[::-1])

    def owned(self, histories: Histories, contents: Ragged) -> Ragged:
        """Returns the items that each user owns. `contents` has the items of the bundles in the histories."""
        return owned_items(histories, contents, self.items)

    def _counted(self, owned: Ragged) -> sparse.csr_matrix:
        """The number of items of each bundle that each user owns. Only the bundles of these items are read.
        SciPy does this many times faster than PyTorch does."""  # [rows, bundles]
        return _matrix(owned, self.items) @ self._holders

    def partly_owned(self, owned: Ragged) -> tuple[Whole, Whole]:
        """Returns the rows and the bundles of all pairs in which the user owns an item of the bundle."""
        counts = self._counted(owned)
        rows = np.repeat(np.arange(len(owned)), np.diff(counts.indptr))
        return rows, counts.indices.astype(np.int64)

    def demoted(self, owned: Ragged, rule: OwnedRule, mostly_owned: float) -> Demoted | None:
        """Returns the bundles that the rule demotes or hides for each user; None if it is `show`."""
        if rule == "show":
            return None
        counts = self._counted(owned)
        needed = np.ceil(self._sizes * mostly_owned - 1e-6)  # 2 of 3 items are a share of 2/3
        found = np.flatnonzero(counts.data >= needed[counts.indices])
        rows = np.searchsorted(counts.indptr, found, side="right") - 1
        bundles = counts.indices[found].astype(np.int64)
        shares = (1 - counts.data[found] / self._sizes[bundles]).astype(np.float32)
        if rule == "hide":
            shares[:] = 0
        device = self.contents.device
        return Demoted(*(torch.from_numpy(each).to(device) for each in (rows, bundles, shares)))

    def barred(self, histories: Histories) -> Ragged | None:
        """Returns the bundles that each user rejected, or that hold an item that the user rejected. They are
        in no answer to this user. None: nobody rejected anything."""
        pairs = []
        if histories.rejected_bundles is not None:
            gone = histories.rejected_bundles
            pairs.append((_row_of_entry(gone), _array(gone.values)))
        if histories.rejected_items is not None:
            pairs.append(self.partly_owned(histories.rejected_items))
        if not pairs:
            return None
        rows, bundles = (np.concatenate(each) for each in zip(*pairs, strict=True))
        return rows_of_pairs(rows, bundles, len(histories), len(self.contents), self.contents.device)

    def whole(self, owned: Ragged) -> Tensor:
        """True for each user and bundle if the user owns all items of the bundle."""  # [rows, bundles]
        has = torch.from_numpy(np.tile(self._sizes == 0, (len(owned), 1))).to(self.contents.device)
        found = self.demoted(owned, "hide", 1.0)
        assert found is not None
        has[found.rows, found.bundles] = True
        return has


def _matrix(rows: Ragged, columns: int) -> sparse.csr_matrix:
    values, offsets = _array(rows.values), _array(rows.offsets)
    shape = (len(rows), columns)
    return sparse.csr_matrix((np.ones(len(values), np.int32), values, offsets), shape)


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

    def facts(self, settings: ShopSettings) -> BundleFacts:
        """Returns the facts of each answer."""
        pays, decimals = settings.pays, settings.decimals

        def sums(values: Any) -> Floats:
            return np.bincount(self.answers, values, minlength=len(self.prices)).astype(np.float64)

        owned, missing = sums(self.owned), sums(~self.owned)
        whole, rest = sums(self.item_prices), sums(np.where(self.owned, 0.0, self.item_prices))
        prices = full_price(self.prices, whole, self.discounts, decimals)
        pay = to_pay(pays, prices, whole, rest, self.discounts, owned, missing, decimals)
        return BundleFacts(
            owned.astype(np.int32),
            missing.astype(np.int32),
            prices,
            pay,
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


def full_price(own: Floats, items: Floats, discount: Floats, decimals: int) -> Floats:
    """Returns the prices of bundles: their own, or else the sum of their items' prices minus the discount,
    rounded to `decimals`."""
    reduced = items * (1 - np.nan_to_num(discount, nan=0.0))
    return np.where(np.isnan(own), _rounded(reduced, decimals), own)


def to_pay(
    pays: Pays,
    price: Floats,
    whole: Floats,
    rest: Floats,
    discount: Floats,
    owned: Floats,
    missing: Floats,
    decimals: int,
) -> Floats:
    """Returns what users pay for bundles of which they may own a part; nan if a needed price is unknown.

    `whole` and `rest` are the sums of the item prices, of all items and of the missing ones. `owned` and
    `missing` are the numbers of these items. What is computed is rounded to `decimals`. Who owns nothing of
    a bundle pays its price.
    """
    if pays == "whole":
        return price
    with np.errstate(invalid="ignore", divide="ignore"):
        if pays == "missing":
            pay = np.where(price == 0, 0.0, price * rest / whole)
        else:
            off = np.where(whole == 0, 0.0, np.maximum(0.0, 1 - price / whole))
            pay = rest * (1 - np.where(np.isnan(discount), off, discount))
    pay = np.where(np.isfinite(pay), _rounded(pay, decimals), np.nan)
    return np.where(missing == 0, 0.0, np.where(owned == 0, price, pay))


def _rounded(amounts: Floats, decimals: int) -> Floats:
    """Rounds half up. The small number makes up for 2.675 being slightly less than that as a float."""
    unit = 10.0**decimals
    return np.floor(amounts * unit + 0.5 + 1e-6) / unit


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
    answers, places = _inside(goods.contents, torch.from_numpy(bundles).to(goods.contents.device))
    has = _row_of_entry(owned) * goods.items + _array(owned.values)  # ascending
    asked = rows[answers] * goods.items + places
    is_owned = np.zeros(len(asked), bool)
    if len(has):
        is_owned = has[np.minimum(np.searchsorted(has, asked), len(has) - 1)] == asked
    return BundleLines(answers, places, is_owned, *item_facts(places), *bundle_facts(bundles))
