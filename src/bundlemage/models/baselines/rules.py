"""Simple baselines without training: popularity, the share of items owned, and a random order."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Matcher, SalesScorer, Sizes
from bundlemage.models.baselines.closed_form import SparseRows, blocks, exact
from bundlemage.models.config import ModelConfig, RecencyConfig
from bundlemage.models.ragged import KeptForLast, Ragged

# Three odd 64-bit constants with no pattern in their bits, as signed numbers.
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_BITS = 24
"""The number of random bits in a score: a float32 holds 24 bits exactly."""
_FINER = 64
"""Blocks are this many times smaller than usual, because hashing is faster within a CPU cache."""


class Popularity(SalesScorer, Completer):
    """Ranks bundles and items by their number of users, who count by the weights of events. The order is the
    same for every user."""

    name = "popularity"
    title = "Popularity"
    config_class = RecencyConfig
    reads_weights = True

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.bundle_counts = self.new_buffer("bundle_counts", torch.zeros(sizes.bundles))
        self.item_counts = self.new_buffer("item_counts", torch.zeros(sizes.items))
        # The number of sales that is assumed for a new bundle.
        self.new_bundle_credit = self.new_buffer("new_bundle_credit", torch.zeros(()))

    def observe(self, data: Interactions) -> None:
        self.bundle_counts.copy_(data.user_bundle.column_sums(self.sizes.bundles))
        self.item_counts.copy_(data.user_item.column_sums(self.sizes.items))
        if len(self.bundle_counts):  # the median, until a number is fitted
            self.assume_sales(float(self.bundle_counts.median()))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        sales = self.sales_of(contents, self.new_bundle_credit)
        return self.popularity_bias(sales).expand(len(histories), -1)

    @property
    def ranks_by_sales(self) -> bool:
        return True

    def assume_sales(self, sales: float) -> None:
        self.new_bundle_credit = self.bundle_counts.new_tensor(sales)

    def known_sales(self) -> Tensor:
        return self.bundle_counts

    def popularity_bias(self, sales: Tensor) -> Tensor:
        return sales.log1p()  # with a logarithm, the softmax is the share of sales (each plus one)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return self.item_counts.log1p().expand(len(histories), -1)


class ItemPopularity(Matcher):
    """Ranks bundles by the mean popularity of their items. The BundleMage paper calls this baseline POP."""

    name = "item-popularity"
    title = "Mean item popularity"
    config_class = RecencyConfig
    reads_weights = True

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.item_counts = self.new_buffer("item_counts", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        self.item_counts.copy_(data.user_item.column_sums(self.sizes.items))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        # With a logarithm, the softmax of the scores is the share of the counts (each plus one).
        scores = contents.mean_of(self.item_counts[:, None])[:, 0].log1p()  # [bundles]
        # An empty bundle ranks below a bundle of items without users.
        return scores.masked_fill(contents.lengths == 0, -1.0).expand(len(histories), -1)


class OwnedShare(Matcher):
    """Ranks bundles by the share of their items that the user has. Popularity breaks ties."""

    name = "owned-share"
    title = "Share of items owned"
    reads_weights = True

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self._held: KeptForLast[SparseRows] = KeptForLast()
        self.popularity = self.new_buffer("popularity", torch.zeros(sizes.bundles))

    def observe(self, data: Interactions) -> None:
        self.popularity.copy_(data.user_bundle.column_sums(self.sizes.bundles).log1p())

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        # Shares of large bundles differ by less than float32 can represent.
        precise = exact(contents.device)
        sizes = contents.lengths.clamp(min=1).to(precise)  # [bundles]
        # Sorting all contents takes longer than the rest.
        held = self._held.of(
            contents, lambda: SparseRows.of(contents, self.sizes.items, dtype=precise).transposed()
        )
        bought = histories.items.strong
        alone = Ragged(bought.values, bought.offsets)  # a share counts items, and no weights
        owned = SparseRows.of(alone, self.sizes.items, dtype=precise).times(held)
        return (owned / sizes).add_(self._tie_break(contents, sizes))

    def _tie_break(self, contents: Ragged, sizes: Tensor) -> Tensor:
        """A popularity term below the smallest difference of two shares, 1 / largest size²."""  # [bundles]
        later = self.popularity.new_zeros(len(contents) - self.sizes.bundles)
        popularity = torch.cat([self.popularity, later]).to(sizes.dtype)
        highest = popularity.amax() if len(popularity) else popularity.new_zeros(())
        largest = sizes.amax() if len(sizes) else sizes.new_ones(())
        return popularity / (2 * (1 + highest) * largest**2)


class Random(Matcher, Completer):
    """Scores by a hash of the seed, the user's history, and the bundle or item. Users with different
    histories get different orders. Every call gives the same order."""

    name = "random"
    title = "Random"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.seed = self.new_buffer("seed", torch.tensor([config.seed], dtype=torch.int64))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return _scores(self._user(histories), len(contents))

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return _scores(_mix(self._user(histories) + _set_hash(partial, 3)), self.sizes.items)

    def _user(self, histories: Histories) -> Tensor:
        """A hash of each user's history."""  # [rows]
        owned = _set_hash(histories.items, 1) + _set_hash(histories.bundles, 2)
        return _mix(owned + _mix(self.seed))


def _mix(numbers: Tensor) -> Tensor:
    """Returns a 64-bit hash of each number. Every bit depends on every input bit. Overflow is intended."""
    numbers = numbers + _STEP
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Shifts signed numbers to the right and fills with zeros, as for unsigned numbers."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def _set_hash(rows: Ragged, kind: int) -> Tensor:
    """Returns a hash of each row. It does not depend on the order of the row's members."""  # [rows]
    hashed = _mix(rows.values * 4 + kind)
    return hashed.new_zeros(len(rows)).index_add_(0, rows.row_of_entry(), hashed)


def _scores(user: Tensor, columns: int) -> Tensor:
    """Returns scores between 0 and 1, evenly distributed, from each user's hash."""  # [rows, columns]
    candidate = _mix(torch.arange(columns, device=user.device))
    scores = torch.empty(len(user), columns, device=user.device)
    for which in blocks(len(user), columns * _FINER):
        mixed = _mix(user[which, None] + candidate)
        scores[which] = _shifted(mixed, 64 - _BITS).float() / 2**_BITS
    return scores
