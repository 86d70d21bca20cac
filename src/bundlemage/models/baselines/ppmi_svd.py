"""PPMI-SVD: item vectors learned from the pairs of items that occur together in bundles."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.closed_form import TIE_BREAK
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged

TOLERANCE = 1e-4
"""The relative error allowed in a singular value. The effect on scores is smaller than the digits shown."""

SMALL = 512
"""For at most this many items, the full SVD is computed: it always converges."""


class PpmiSvdConfig(ModelConfig):
    """How pairs of items are counted, and how many singular vectors are kept."""

    embedding_dim: int = Field(200, ge=1)
    """The number of singular vectors that are kept."""
    similarity: Literal["dot", "cosine"] = "dot"
    """How an item is compared with the mean of the bundle's items. `dot` gives common items more weight."""
    longest: int = Field(200, ge=2)
    """A larger bundle is split into bundles of at most this many items. This bounds the number of pairs."""
    user_weight: float = Field(0.0, ge=0)
    """The weight of a pair of items that a user has. A pair in a bundle has weight 1."""


class PpmiSvd(Completer):
    """Truncated SVD of the positive pointwise mutual information of item pairs. An item's vector is u √s."""

    name = "ppmi-svd"
    title = "PPMI-SVD"
    publication = "Levy and Goldberg, Neural Word Embedding as Implicit Matrix Factorization, NeurIPS 2014"
    config_class = PpmiSvdConfig
    config: PpmiSvdConfig

    def __init__(self, config: PpmiSvdConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = min(config.embedding_dim, sizes.items)
        self.vectors = self.new_buffer("vectors", torch.zeros(sizes.items, width))
        self.popularity = self.new_buffer("popularity", torch.zeros(sizes.items))

    def observe(self, data: Interactions) -> None:
        both = torch.cat([data.bundle_item.values, data.user_item.values])
        self.popularity.copy_(torch.bincount(both, minlength=self.sizes.items).log1p())
        counts = pair_counts(data.bundle_item, self.sizes.items, self.config.longest)
        if self.config.user_weight:
            in_users = pair_counts(data.user_item, self.sizes.items, self.config.longest)
            counts = (counts + self.config.user_weight * in_users).tocsr()
        vectors = singular_vectors(positive_information(counts), self.config.embedding_dim, self.config.seed)
        self.vectors.zero_()[:, : vectors.shape[1]] = torch.from_numpy(vectors)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        empty = (partial.lengths == 0)[:, None]
        vectors = F.normalize(self.vectors) if self.config.similarity == "cosine" else self.vectors
        context = torch.where(empty, histories.items.mean_of(vectors), partial.mean_of(vectors))
        return context @ vectors.T + TIE_BREAK * self.popularity


def pair_counts(rows: Ragged, columns: int, longest: int) -> Any:
    """For each pair of columns, the number of rows that hold both, 0 on the
    diagonal."""  # sparse [columns, columns]
    values, row = rows.values.cpu().numpy(), rows.row_of_entry().cpu().numpy()
    within = np.arange(len(values)) - rows.offsets.cpu().numpy()[row]
    _, piece = np.unique(np.column_stack([row, within // longest]), axis=0, return_inverse=True)
    shape = (int(piece.max()) + 1 if len(piece) else 0, columns)
    member = sparse.csr_matrix((np.ones(len(values), np.float32), (piece, values)), shape)
    counts = (member.T @ member).tocsr()
    counts.setdiag(0)
    counts.eliminate_zeros()
    return counts


def positive_information(counts: Any) -> Any:
    """The PPMI matrix: max(0, log(n_ij n / (n_i n_j))) for items i and j that occur together, else 0."""
    pairs = counts.tocoo()
    totals = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    data = pairs.data.astype(np.float64)
    information = np.log(data * totals.sum() / (totals[pairs.row] * totals[pairs.col]))
    positive = sparse.csr_matrix((np.maximum(information, 0), (pairs.row, pairs.col)), counts.shape)
    positive.eliminate_zeros()
    return positive


def singular_vectors(matrix: Any, most: int, seed: int) -> Any:
    """Returns u √s for the `most` largest singular values s."""  # [items, at most `most`], float32
    if matrix.shape[0] <= max(SMALL, most):
        left, values, _ = np.linalg.svd(matrix.toarray())
        left, values = left[:, :most], values[:most]
    elif not matrix.nnz:
        return np.zeros((matrix.shape[0], 0), np.float32)
    else:
        start = np.random.default_rng(seed).standard_normal(matrix.shape[0])
        left, values, _ = svds(matrix, k=most, v0=start, tol=TOLERANCE)
    # An item without a partner has a vector of rounding errors. A cosine would enlarge them, so set it to 0.
    partners = (np.diff(matrix.indptr) > 0)[:, None]
    return np.where(partners, left * np.sqrt(values), 0).astype(np.float32)
