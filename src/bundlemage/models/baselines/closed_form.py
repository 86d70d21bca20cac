"""Sparse matrices with products in bounded memory, and EASE: a linear model that predicts each bundle, or
item, from all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Matcher, Model, Sizes
from bundlemage.models.config import Between, ModelConfig, OneOf, RecencyConfig
from bundlemage.models.ragged import Ragged

TIE_BREAK = 1e-6
"""The weight of log-popularity in a score. It only orders candidates whose scores are otherwise equal."""
WALKS = 2**22
"""The maximum number of pairs of entries that a product of two sparse matrices holds at a time."""
CELLS = 2**24
"""The maximum number of cells in a block of a dense matrix. A longer row is a block by itself."""


def exact(device: torch.device) -> torch.dtype:
    """Returns the most precise float type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Yields slices that split a dense matrix [rows, width] into blocks of at most `CELLS` cells."""
    step = max(1, CELLS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix. `rows` lists, for each row, the column numbers of its entries. Several entries in the
    same cell are summed."""

    rows: Ragged
    weights: Tensor  # [entries]
    columns: int

    @classmethod
    def of(
        cls, rows: Ragged, columns: int, weight: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> SparseRows:
        """Makes a matrix whose entries have the weights of the rows, times `weight`."""
        weights = torch.full((len(rows.values),), weight, dtype=dtype, device=rows.device)
        if rows.weights is not None:
            weights = weights * rows.weights.to(dtype)
        return cls(rows, weights, columns)

    def __len__(self) -> int:
        return len(self.rows)

    def block(self, which: slice) -> SparseRows:
        """Returns consecutive rows."""
        offsets = self.rows.offsets[which.start : which.stop + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        return SparseRows(
            Ragged(self.rows.values[entries], offsets - offsets[0]), self.weights[entries], self.columns
        )

    def above(self, other: SparseRows) -> SparseRows:
        """Returns these rows followed by the rows of `other`."""
        weights = torch.cat([self.weights, other.weights])
        return SparseRows(self.rows.append(other.rows), weights, self.columns)

    def beside(self, other: SparseRows) -> SparseRows:
        """Returns these columns followed by the columns of `other`."""
        moved = Ragged(other.rows.values + self.columns, other.rows.offsets)
        total = self.columns + other.columns
        return SparseRows(self.rows, self.weights, total).plus(SparseRows(moved, other.weights, total))

    def plus(self, other: SparseRows) -> SparseRows:
        """The sum of two matrices of the same shape."""
        row = torch.cat([self.rows.row_of_entry(), other.rows.row_of_entry()])
        order = torch.argsort(row, stable=True)
        values = torch.cat([self.rows.values, other.rows.values])[order]
        weights = torch.cat([self.weights, other.weights])[order]
        return SparseRows(Ragged(values, self.rows.offsets + other.rows.offsets), weights, self.columns)

    def transposed(self) -> SparseRows:
        order = torch.argsort(self.rows.values, stable=True)
        weights, rows = self.weights[order], self.rows.transposed(self.columns)
        if self.rows.weights is not None:
            rows = Ragged(rows.values, rows.offsets, weights=self.rows.weights[order])
        return SparseRows(rows, weights, len(self))

    def norms(self) -> Tensor:
        """The length of each row's vector."""  # [rows]
        if self.rows.weights is None:
            return self.rows.lengths.float().sqrt()
        squares = self.weights.new_zeros(len(self)).index_add_(0, self.rows.row_of_entry(), self.weights**2)
        return squares.sqrt()

    def times(self, other: SparseRows) -> Tensor:
        """The dense product with another sparse matrix. Each entry (r, c) visits all entries in row c of
        `other`; each visit is called a walk."""
        product = self.weights.new_zeros(len(self) * other.columns)
        row, walks = self.rows.row_of_entry(), other.rows.lengths[self.rows.values]  # [entries]
        # For each entry: index of the first entry it visits in `other`, minus the number of earlier walks.
        before = torch.cat([walks.new_zeros(1), walks.cumsum(0)])
        begin = other.rows.offsets[self.rows.values] - before[:-1]
        for first, last in _parts(before):
            total = int(before[last] - before[first])
            entry = torch.repeat_interleave(
                torch.arange(first, last, device=row.device), walks[first:last], output_size=total
            )
            there = begin[entry] + torch.arange(total, device=row.device) + before[first]
            cell = row[entry] * other.columns + other.rows.values[there]
            product.index_add_(0, cell, self.weights[entry] * other.weights[there])
        return product.view(len(self), other.columns)

    def times_dense(self, table: Tensor) -> Tensor:
        """The product with a dense matrix, which has `columns` rows."""  # [rows, d]
        return self.rows.weighted_sum_of(table, self.weights)


def _parts(before: Tensor) -> Iterator[tuple[int, int]]:
    """Yields ranges of entries with at most `WALKS` walks. `before`: the walks before each entry."""
    start, entries = 0, len(before) - 1
    while start < entries:
        reach = int(torch.searchsorted(before, before[start] + WALKS, right=True)) - 1
        end = max(start + 1, reach)  # an entry with more walks is a range by itself
        yield start, end
        start = end


class EaseModel(Model):
    """Minimises ‖X − XB‖² + λ‖B‖² under diag(B) = 0. The score is xB. Only the first `predicted` columns of B
    are needed.

    The solution is B = I − P diag(P)⁻¹ with P = (XᵀX + λI)⁻¹. If X has more columns than rows, P is not
    computed. Then P = (I − XᵀKX) / λ with K = (XXᵀ + λI)⁻¹, so xB = (xXᵀKX − d ∘ x) / (1 − d) with
    d = diag(XᵀKX).
    """

    publication = "Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"

    def __init__(self, config: ModelConfig, sizes: Sizes, predicted: int) -> None:
        super().__init__(config, sizes)
        self.predicted = predicted
        # B, or K, or K times the predicted columns of X if that is smaller than K.
        self.solution = self.new_buffer("solution", torch.zeros(0, 0))
        # d, and the columns of X. They are empty if the solution is B.
        self.own_share = self.new_buffer("own_share", torch.zeros(0))
        self.column_rows = self.new_buffer("column_rows", torch.zeros(0, dtype=torch.int64))
        self.column_offsets = self.new_buffer("column_offsets", torch.zeros(0, dtype=torch.int64))
        self.column_weights = self.new_buffer("column_weights", torch.zeros(0))
        # log(1 + count) of each predicted column.
        self.popularity = self.new_buffer("popularity", torch.zeros(predicted))

    @torch.no_grad()
    def solve(self, rows: SparseRows, regularisation: float) -> None:
        """Computes the buffers of `predict`. `rows` is X; its dtype is used for solving."""
        columns = rows.transposed()
        if rows.columns <= len(rows):
            inverse = _inverse(columns.times(rows), regularisation)  # P [columns, columns]
            weights = -inverse[:, : self.predicted] / inverse.diagonal()[: self.predicted]
            self.solution = weights.fill_diagonal_(0).float().contiguous()
            return
        kernel = _inverse(rows.times(columns), regularisation)  # K [rows, rows]
        first = columns.block(slice(0, self.predicted))
        folded = self.predicted <= len(rows)
        own, parts = [], []
        for which in blocks(self.predicted, len(rows)):
            block = first.block(which)
            through = block.times_dense(kernel)  # (KX)ᵀ [block, rows]
            entry = block.rows.row_of_entry()
            products = through[entry, block.rows.values] * block.weights
            own.append(products.new_zeros(len(block)).index_add_(0, entry, products))
            if folded:
                parts.append(through.float())
        self.solution = (torch.cat(parts).T if folded else kernel.float()).contiguous()
        self.own_share = torch.cat(own).float()
        self.column_rows, self.column_offsets = columns.rows.values, columns.rows.offsets
        self.column_weights = columns.weights.float()

    def predict(self, inputs: SparseRows) -> Tensor:
        """Returns xB for each row x. Popularity decides ties."""  # [rows, predicted]
        if not len(self.own_share):
            scores = inputs.times_dense(self.solution)
        else:
            rows = Ragged(self.column_rows, self.column_offsets)
            columns = SparseRows(rows, self.column_weights, len(self.solution))
            some = blocks(len(inputs), max(len(self.solution), self.predicted))
            parts = [self._predict_block(inputs.block(which), columns) for which in some]
            scores = torch.cat(parts) if parts else self.own_share.new_zeros(0, self.predicted)
        return scores + TIE_BREAK * self.popularity

    def _predict_block(self, inputs: SparseRows, columns: SparseRows) -> Tensor:
        through = inputs.times(columns) @ self.solution  # xXᵀK, or xXᵀKX
        if self.predicted > len(self.solution):  # the solution is K
            first = columns.block(slice(0, self.predicted))
            through = first.times_dense(through.T.contiguous()).T
        row, own = inputs.rows.row_of_entry(), inputs.rows.values < self.predicted
        here = inputs.rows.values.clamp(max=self.predicted - 1)
        copied = torch.where(own, self.own_share[here] * inputs.weights, 0.0)
        cells = torch.zeros_like(through, memory_format=torch.contiguous_format)
        cells.view(-1).index_add_(0, row * self.predicted + here, copied)  # d ∘ x
        return (through - cells) / (1 - self.own_share)


def _inverse(gram: Tensor, regularisation: float) -> Tensor:
    gram.diagonal().add_(regularisation)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    # On a CPU this is faster than `cholesky_inverse`.
    return torch.cholesky_solve(identity, torch.linalg.cholesky(gram))


def training_rows(rows: Ragged, columns: int, weight: float = 1.0) -> SparseRows:
    """Returns a matrix with the dtype that is used for solving."""
    return SparseRows.of(rows, columns, weight, exact(rows.device))


class EaseConfig(RecencyConfig):
    """The inputs of EASE and their weights."""

    space = ModelConfig.space | {
        "beside": OneOf("items", "contents", "nothing"),
        "regularisation": Between(10.0, 10000.0, log=True),
        "side_weight": Between(0.05, 2.0, log=True),
    }

    beside: Literal["items", "contents", "nothing"] = "contents"
    """Data added to the user-bundle matrix. `items`: columns with the users' items, which then also predict
    bundles. `contents`: a row for each item, with the bundles that contain it."""
    regularisation: float = Field(1000.0, ge=0.1)
    """λ, the regularisation. With a very small value, rounding errors would dominate."""
    side_weight: float = Field(0.5, gt=0)
    """The weight of an entry in the added columns or rows. A user-bundle entry has weight 1."""


class Ease(EaseModel, Matcher):
    """Predicts bundles from a user's bundles, and from the user's items if `beside` is `items`."""

    name = "ease"
    title = "EASE"
    config_class = EaseConfig
    config: EaseConfig
    reads_weights = True

    def __init__(self, config: EaseConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.bundles)

    def observe(self, data: Interactions) -> None:
        self.popularity.copy_(data.user_bundle.column_sums(self.sizes.bundles).log1p())
        rows = training_rows(data.user_bundle, self.sizes.bundles)
        weight = self.config.side_weight
        if self.config.beside == "items":
            rows = rows.beside(training_rows(data.user_item, self.sizes.items, weight))
        elif self.config.beside == "contents":
            holders = data.bundle_item.transposed(self.sizes.items)
            rows = rows.above(training_rows(holders, self.sizes.bundles, weight))
        self.solve(rows, self.config.regularisation)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        inputs = SparseRows.of(self.named_bundles(histories), self.sizes.bundles)
        if self.config.beside == "items":
            inputs = inputs.beside(SparseRows.of(histories.items, self.sizes.items, self.config.side_weight))
        return self.with_later(self.predict(inputs), contents)


class EaseItemsConfig(RecencyConfig):
    """The inputs of EASE and their weights."""

    regularisation: float = Field(300.0, ge=0.1)
    """λ, the regularisation. With a very small value, rounding errors would dominate."""
    user_weight: float = Field(0.0, ge=0)
    """The weight of an item in the user's history. An item in the bundle has weight 1. If this is not 0, the
    items of each user are also rows of the training matrix."""


class EaseItems(EaseModel, Completer):
    """Predicts items from the items in a bundle."""

    name = "ease-items"
    title = "EASE on bundle-item"
    config_class = EaseItemsConfig
    config: EaseItemsConfig
    reads_weights = True

    def __init__(self, config: EaseItemsConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, predicted=sizes.items)

    def observe(self, data: Interactions) -> None:
        contents = data.learned_contents()
        counts = contents.counts(self.sizes.items) + data.user_item.column_sums(self.sizes.items)
        self.popularity.copy_(counts.log1p())
        rows = training_rows(contents, self.sizes.items)
        if self.config.user_weight:
            rows = rows.above(training_rows(data.user_item, self.sizes.items, self.config.user_weight))
        self.solve(rows, self.config.regularisation)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        inputs = SparseRows.of(partial, self.sizes.items)
        if self.config.user_weight:
            inputs = inputs.plus(SparseRows.of(histories.items, self.sizes.items, self.config.user_weight))
        return self.predict(inputs)
