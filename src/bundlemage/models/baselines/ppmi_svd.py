"""Item vectors from how much more often than by chance two items stand in a bundle together."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged

TIE_BREAK = 1e-6
"""Times the logarithm of an item's count: an order where nothing is known."""

TOLERANCE = 1e-4
"""How far off a singular value may be, relative to it; scores differ by less than what is shown of them."""

SMALL = 512
"""Up to so many items all singular vectors are worked out, which never fails to converge."""


class PpmiSvdConfig(ModelConfig):
    """How pairs are counted and how much of them is kept."""

    embedding_dim: int = Field(200, ge=1)
    """How many singular vectors are kept."""
    similarity: Literal["dot", "cosine"] = "dot"
    """How an item is compared with the mean of the bundle's items; `dot` lets common items have more say."""
    longest: int = Field(200, ge=2)
    """A bundle with more items than this counts as several, each of so many: it bounds the pairs."""
    user_weight: float = Field(0.0, ge=0)
    """What a pair of items that a user has counts, where one in a bundle counts 1; 0: nothing."""


class PpmiSvd(Completer):
    """Truncated SVD of the items' positive pointwise mutual information; vectors are u √s."""

    name: ClassVar[str] = "ppmi-svd"
    title: ClassVar[str] = "PPMI-SVD"
    publication: ClassVar[str] = (
        "Levy and Goldberg, Neural Word Embedding as Implicit Matrix Factorization, NeurIPS 2014"
    )
    config_class: ClassVar[type[ModelConfig]] = PpmiSvdConfig

    def __init__(self, config: PpmiSvdConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        self.vectors: Tensor
        self.popularity: Tensor
        self.register_buffer("vectors", torch.zeros(sizes.items, min(config.embedding_dim, sizes.items)))
        self.register_buffer("popularity", torch.zeros(sizes.items))

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
    """In how many rows two columns stand together; none with itself."""  # sparse [columns, columns]
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
    """max(0, log(n_ij n / (n_i n_j))) where i and j stand together at all."""
    pairs = counts.tocoo()
    totals = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    data = pairs.data.astype(np.float64)
    information = np.log(data * totals.sum() / (totals[pairs.row] * totals[pairs.col]))
    found = sparse.csr_matrix((np.maximum(information, 0), (pairs.row, pairs.col)), counts.shape)
    found.eliminate_zeros()
    return found


def singular_vectors(matrix: Any, most: int, seed: int) -> Any:
    """u √s of the largest singular values."""  # [items, at most `most`], float32
    if matrix.shape[0] <= max(SMALL, most):
        left, values, _ = np.linalg.svd(matrix.toarray())
        left, values = left[:, :most], values[:most]
    elif not matrix.nnz:
        return np.zeros((matrix.shape[0], 0), np.float32)
    else:
        start = np.random.default_rng(seed).standard_normal(matrix.shape[0])
        left, values, _ = svds(matrix, k=most, v0=start, tol=TOLERANCE)
    # An item without a partner is zero but for rounding, which a cosine would blow up.
    partners = (np.diff(matrix.indptr) > 0)[:, None]
    return np.where(partners, left * np.sqrt(values), 0).astype(np.float32)
