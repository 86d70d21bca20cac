"""EASE in closed form: a linear autoencoder whose weights may not copy a column to itself."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.models.sparse_rows import SparseRows, blocks, exact


class EaseModel(Model):
    """Minimises ‖X − XB‖² + λ‖B‖² under diag(B) = 0, for the first columns of B, and scores by xB.

    With P = (XᵀX + λI)⁻¹ the answer is B = I − P diag(P)⁻¹. Where X has more columns than rows, P is never
    made: P = (I − XᵀKX) / λ with K = (XXᵀ + λI)⁻¹, and so, with d = diag(XᵀKX),
    xB = (xXᵀKX − d ∘ x) / (1 − d).
    """

    def __init__(self, config: ModelConfig, sizes: Sizes, predicted: int) -> None:
        super().__init__(config, sizes)
        self.predicted = predicted
        self.solution: Tensor
        self.own_share: Tensor
        self.column_rows: Tensor
        self.column_offsets: Tensor
        self.column_weights: Tensor
        # B; or K; or K times the predicted columns, where that is smaller than K.
        self.register_buffer("solution", torch.zeros(0, 0))
        # d, and the columns of X. Empty where B is kept.
        self.register_buffer("own_share", torch.zeros(0))
        self.register_buffer("column_rows", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("column_offsets", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("column_weights", torch.zeros(0))

    @torch.no_grad()
    def solve(self, rows: SparseRows, regularisation: float) -> None:
        """Keep what `predict` needs. `rows` is X, its weights in the type to solve in."""
        columns = rows.transposed()
        if rows.columns <= len(rows):
            self.solution = self._primal(rows, columns, regularisation).contiguous()
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

    def _primal(self, rows: SparseRows, columns: SparseRows, regularisation: float) -> Tensor:
        inverse = _inverse(columns.times(rows), regularisation)  # P [columns, columns]
        weights = -inverse[:, : self.predicted] / inverse.diagonal()[: self.predicted]
        weights.fill_diagonal_(0)
        return weights.float()

    def predict(self, asked: SparseRows) -> Tensor:
        """xB for each row x, in any weights."""  # [rows, predicted]
        if not len(self.own_share):
            return asked.times_dense(self.solution)
        columns = SparseRows(
            Ragged(self.column_rows, self.column_offsets), self.column_weights, len(self.solution)
        )
        parts = [self._predict_block(asked.block(which), columns) for which in self._blocks(asked)]
        return torch.cat(parts) if parts else self.own_share.new_zeros(0, self.predicted)

    def _blocks(self, asked: SparseRows) -> list[slice]:
        return list(blocks(len(asked), max(len(self.solution), self.predicted)))

    def _predict_block(self, asked: SparseRows, columns: SparseRows) -> Tensor:
        through = asked.times(columns) @ self.solution  # xXᵀK, or xXᵀKX
        if self.predicted > len(self.solution):  # only K is kept
            first = columns.block(slice(0, self.predicted))
            through = first.times_dense(through.T.contiguous()).T
        row, own = asked.rows.row_of_entry(), asked.rows.values < self.predicted
        here = asked.rows.values.clamp(max=self.predicted - 1)
        copied = torch.where(own, self.own_share[here] * asked.weights, 0.0)
        cells = torch.zeros_like(through, memory_format=torch.contiguous_format)
        cells.view(-1).index_add_(0, row * self.predicted + here, copied)  # d ∘ x
        return (through - cells) / (1 - self.own_share)


def _inverse(gram: Tensor, regularisation: float) -> Tensor:
    gram.diagonal().add_(regularisation)
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


def training_rows(rows: Ragged, columns: int, weight: float = 1.0) -> SparseRows:
    """Rows in the type to solve in."""
    return SparseRows.of(rows, columns, weight, exact(rows.device))
