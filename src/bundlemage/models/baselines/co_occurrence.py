"""Models that count co-occurrences: item co-occurrence, ItemKNN and PPMI-SVD."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from bundlemage.models.base import Completer, Embedder, Histories, Interactions, Matcher, Sizes
from bundlemage.models.baselines.closed_form import TIE_BREAK, SparseRows, blocks
from bundlemage.models.config import Between, ModelConfig, OneOf, RecencyConfig
from bundlemage.models.ragged import KeptForLast, Ragged

MOST_ADDED = {"count": 0.1, "cosine": 1e-4}
"""The maximum of the popularity term in a score. It is smaller than the effect of one more shared bundle."""


DIRECTIONS = 256
"""The length of an item's vector. Cosines of such random projections are off by about 0.06."""


class CoOccurrenceConfig(RecencyConfig):
    """How shared bundles are counted."""

    normalise: Literal["count", "cosine"] = "cosine"
    """`count`: the number n_ij of bundles that hold items i and j. `cosine`: n_ij / √(n_i · n_j)."""
    user_weight: float = Field(0.05, ge=0)
    """The weight of an item in the user's history. An item of the partial bundle has weight 1."""


class CoOccurrence(Completer, Embedder):
    """An item's score is the sum, over the partial bundle's items, of the number of bundles with both items.

    The items × items matrix is never built. Scoring goes from the items of the partial bundle to the bundles
    that contain them, and from those bundles to their other items.

    An item's vector is a random projection of its row of the items × bundles matrix. The cosine of two
    vectors is about that of their sets of bundles.
    """

    name = "co-occurrence"
    title = "Item co-occurrence"
    config_class = CoOccurrenceConfig
    config: CoOccurrenceConfig
    reads_weights = True

    def __init__(self, config: CoOccurrenceConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self._vectors: KeptForLast[Tensor] = KeptForLast()
        self.tie_break = self.new_buffer("tie_break", torch.zeros(sizes.items))
        # The bundles that contain each item.
        self.holders = self.new_buffer("holders", torch.zeros(0, dtype=torch.int64))
        offsets = torch.zeros(sizes.items + 1, dtype=torch.int64)
        self.holder_offsets = self.new_buffer("holder_offsets", offsets)

    def observe(self, data: Interactions) -> None:
        holders = data.learned_contents().transposed(self.sizes.items)
        self.holders, self.holder_offsets = holders.values, holders.offsets
        in_users = data.user_item.column_sums(self.sizes.items).float()
        # The number of bundles decides. The users' term is below 1: it decides only between equal numbers.
        popularity = holders.lengths + in_users / (1 + in_users.amax())
        self.tie_break.copy_(popularity / (1 + popularity.amax()) * MOST_ADDED[self.config.normalise])

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        context = SparseRows.of(partial, self.sizes.items)
        if self.config.user_weight:
            context = context.plus(SparseRows.of(histories.items, self.sizes.items, self.config.user_weight))
        rows = Ragged(self.holders, self.holder_offsets)
        holders = SparseRows.of(rows, self.sizes.bundles)
        if self.config.normalise == "cosine":  # a bundle counts less if the item has more bundles
            weights = rows.lengths.clamp(min=1).float().rsqrt()[rows.row_of_entry()]
            holders = SparseRows(rows, weights, self.sizes.bundles)
        scores = torch.empty(len(partial), self.sizes.items, device=partial.device)
        for which in blocks(len(partial), max(self.sizes.items, self.sizes.bundles)):
            in_common = context.block(which).times(holders)  # [block, bundles]
            scores[which] = holders.times_dense(in_common.T.contiguous()).T + self.tie_break
        return scores

    def vectors_of_items(self) -> Tensor:
        return self._vectors.of(self.holders, self._projected)

    def _projected(self) -> Tensor:
        random = torch.Generator().manual_seed(0)
        directions = torch.randn(self.sizes.bundles, DIRECTIONS, generator=random)
        return Ragged(self.holders, self.holder_offsets).sum_of(directions.to(self.holders.device))

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return contents.mean_of(F.normalize(self.vectors_of_items(), dim=1))


class ItemKnnConfig(RecencyConfig):
    """How neighbours are found and weighted."""

    space = ModelConfig.space | {
        "neighbours": OneOf(50, 100, 200, 500),
        "shrinkage": Between(0.0, 200.0),
        "item_weight": OneOf(0.0, 0.1, 0.5),
    }

    neighbours: int = Field(500, ge=1)
    """The number of neighbours of each bundle and each item."""
    shrinkage: float = Field(30.0, ge=0)
    """Added to the denominator of the cosine. It lowers similarities that rest on few shared users."""
    item_weight: float = Field(0.0, ge=0)
    """The weight of an item in the user's history; a bundle has weight 1. With 0, users without bundles get
    popular bundles, which is better on Youshu. Otherwise their items decide."""


class ItemKnn(Matcher):
    """A bundle's score is the sum of its similarities to the user's bundles and items.

    The similarity of two bundles, or of an item and a bundle, is the cosine between their sets of users, in
    which a user counts by the weight of the event.
    """

    name = "item-knn"
    title = "ItemKNN"
    publication = (
        "Sarwar, Karypis, Konstan and Riedl, Item-Based Collaborative Filtering Recommendation Algorithms, "
        "WWW 2001; Deshpande and Karypis, Item-Based Top-N Recommendation Algorithms, TOIS 2004"
    )
    config_class = ItemKnnConfig
    config: ItemKnnConfig
    reads_weights = True

    def __init__(self, config: ItemKnnConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = min(config.neighbours, sizes.bundles)
        self.popularity = self.new_buffer("popularity", torch.zeros(sizes.bundles))
        items = sizes.items if config.item_weight else 0
        for kind, count in (("bundle", sizes.bundles), ("item", items)):
            self.register_buffer(f"{kind}_neighbours", torch.zeros(count, width, dtype=torch.int64))
            self.register_buffer(f"{kind}_weights", torch.zeros(count, width))

    def observe(self, data: Interactions) -> None:
        taken = SparseRows.of(data.user_bundle, self.sizes.bundles)
        users_of_bundle = taken.transposed()
        self.popularity.copy_(data.user_bundle.column_sums(self.sizes.bundles).log1p())
        norms = users_of_bundle.norms()
        self._find("bundle", users_of_bundle, taken, norms)
        if self.config.item_weight:
            users_of_item = SparseRows.of(data.user_item, self.sizes.items).transposed()
            self._find("item", users_of_item, taken, norms)

    def _find(self, kind: str, users_of: SparseRows, taken: SparseRows, bundle_norms: Tensor) -> None:
        """Stores the nearest bundles of each bundle (or item, by `kind`), and their similarities. `taken` is
        the matrix of users and bundles, and `bundle_norms` are the lengths of its columns."""
        neighbours, weights = self.get_buffer(f"{kind}_neighbours"), self.get_buffer(f"{kind}_weights")
        row_norms = users_of.norms()
        for which in blocks(len(users_of), taken.columns):
            shared = users_of.block(which).times(taken)  # users of both [block, bundles]
            lengths = row_norms[which, None] * bundle_norms + self.config.shrinkage
            similarity = shared / lengths.clamp(min=1)  # 0 / 1 if there are no users
            if kind == "bundle":  # a bundle is not its own neighbour
                similarity.diagonal(which.start).zero_()
            best = similarity.topk(neighbours.shape[1], dim=1)
            weights[which], neighbours[which] = best.values, best.indices

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        bundles = SparseRows.of(self.named_bundles(histories), self.sizes.bundles)
        scores = bundles.times(self._table("bundle"))
        if self.config.item_weight:
            items = SparseRows.of(histories.items, self.sizes.items, self.config.item_weight)
            scores += items.times(self._table("item"))
        return self.with_later(scores + TIE_BREAK * self.popularity, contents)

    def _table(self, kind: str) -> SparseRows:
        neighbours, weights = self.get_buffer(f"{kind}_neighbours"), self.get_buffer(f"{kind}_weights")
        count, width = neighbours.shape
        offsets = torch.arange(count + 1, device=neighbours.device) * width
        return SparseRows(Ragged(neighbours.flatten(), offsets), weights.flatten(), self.sizes.bundles)


TOLERANCE = 1e-4
"""The relative error allowed in a singular value. The effect on scores is too small to be shown."""

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
        contents = data.learned_contents()
        both = torch.cat([contents.values, data.user_item.values])
        self.popularity.copy_(torch.bincount(both, minlength=self.sizes.items).log1p())
        counts = pair_counts(contents, self.sizes.items, self.config.longest)
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
    """For any two different columns, the number of rows with both. Rows longer than `longest` are split."""
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
    # An item without a partner has a vector of rounding errors, which a cosine would enlarge: set it to 0.
    partners = (np.diff(matrix.indptr) > 0)[:, None]
    return np.where(partners, left * np.sqrt(values), 0).astype(np.float32)
