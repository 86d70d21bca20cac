"""Turns what the catalogue says about items into numbers: words, tags, price, the user's own vectors.

What depends on a catalogue (which words count and how much, the bounds of price ranges, the mean of the
vectors) is fitted once, to the catalogue of the training data. So an item that comes later gets the same
numbers alone as among others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

Mask = npt.NDArray[np.bool_]

SLOTS = 2**18
"""Words, parts of words and tags are hashed to this many numbers, separately for each kind."""
KINDS = ("words", "parts of words", "tags")
MOST_USED = 8192
"""The most hashed features that a model uses: those that most items have."""
FEWEST_ITEMS = 2
"""A word of a single item says nothing about other items, so it is not used."""
PRICE_RANGES = 8
WEIGHTS = {"words": 0.5, "parts of words": 0.5, "tags": 2.0, "price": 0.1, "vector": 2.0}
"""The squared length of each kind of feature of an item. Chosen on generated shops and on other draws of cold
items than those in docs/results.md (which says how). Prices and titles say little about bundles."""


@dataclass(frozen=True)
class FeaturePlan:
    """How the features of items are computed. Fitted to the catalogue of the training data."""

    columns: npt.NDArray[np.int64]  # [hashed]
    """The hashed features in use, in ascending order."""
    idf: npt.NDArray[np.float32]  # [hashed]
    """The weight of each of them: the fewer items have it, the more it says."""
    bounds: npt.NDArray[np.float32]  # [price ranges - 1]
    """The logarithms of the prices between ranges; empty if no price is known."""
    vector_mean: npt.NDArray[np.float32]  # [length of the user's vectors], or empty

    @classmethod
    def fit(cls, items: pa.Table) -> FeaturePlan:
        """Fits the plan to a catalogue: `ITEM_SCHEMA`, or some of its columns."""
        hashed = _hashed(items)
        counts = np.bincount(hashed.indices, minlength=hashed.shape[1])
        used = np.flatnonzero(counts >= FEWEST_ITEMS)
        used = np.sort(used[np.argsort(-counts[used], kind="stable")[:MOST_USED]])
        idf = np.log((1 + len(items)) / (1 + counts[used])) + 1  # as in scikit-learn
        prices = _prices(items)
        prices = prices[~np.isnan(prices)]
        shares = np.linspace(0, 1, PRICE_RANGES + 1)[1:-1]
        bounds = np.unique(np.quantile(prices, shares)) if len(prices) else prices
        vectors, given = _vectors(items)
        mean = vectors[given].mean(0) if given.any() else np.zeros(0)
        return cls(used, *(array.astype(np.float32) for array in (idf, bounds, mean)))

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.columns) + self._price_ranges + len(self.vector_mean)

    @property
    def _price_ranges(self) -> int:
        return len(self.bounds) + 1 if len(self.bounds) else 0

    def of(self, items: pa.Table) -> sparse.csr_matrix:
        """Returns the features of each item, [items, size]. An item without any has an empty row."""
        hashed = _hashed(items)
        parts = []
        for number, kind in enumerate(KINDS):
            here = (self.columns >= number * SLOTS) & (self.columns < (number + 1) * SLOTS)
            part = hashed[:, self.columns[here]] @ sparse.diags(self.idf[here].astype(np.float64))
            parts.append(_of_length_one(part, WEIGHTS[kind]))
        prices = _prices(items)
        known = np.flatnonzero(~np.isnan(prices)) if self._price_ranges else np.empty(0, np.int64)
        ranges = np.searchsorted(self.bounds, prices[known].astype(np.float32))
        shape = (len(items), self._price_ranges)
        parts.append(
            _of_length_one(sparse.csr_matrix((np.ones(len(known)), (known, ranges)), shape), WEIGHTS["price"])
        )
        parts.append(self._of_vectors(items))
        features = sparse.hstack(parts, format="csr", dtype=np.float32)
        features.sort_indices()
        return features

    def _of_vectors(self, items: pa.Table) -> sparse.csr_matrix:
        size = len(self.vector_mean)
        vectors, given = _vectors(items)
        if not size or vectors.shape[1] != size:  # the model knows no vectors, or those of another source
            return sparse.csr_matrix((len(items), size))
        centred = np.where(given[:, None], vectors - self.vector_mean, 0.0)
        return _of_length_one(sparse.csr_matrix(centred), WEIGHTS["vector"])

    def says_something(self, features: sparse.csr_matrix) -> Mask:
        """For each row of `of`: whether the item has a known word, a known tag or a vector. A price and parts
        of words alone say too little."""
        place = KINDS.index("parts of words")
        counted = np.ones(self.size, bool)
        counted[: len(self.columns)] = self.columns // SLOTS != place
        counted[len(self.columns) : len(self.columns) + self._price_ranges] = False
        return np.asarray(features[:, counted].getnnz(axis=1) > 0)


def _of_length_one(matrix: sparse.spmatrix, squared_length: float) -> sparse.csr_matrix:
    """Scales each row to the same length, except empty rows."""
    matrix = sparse.csr_matrix(matrix)
    squares = np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()
    scale = np.sqrt(squared_length / np.where(squares > 0, squares, 1.0))
    return sparse.csr_matrix(sparse.diags(scale) @ matrix)


def _hashed(items: pa.Table) -> sparse.csr_matrix:
    """The words, parts of words and tags of each item, as ones, [items, 3 · SLOTS]."""
    titles, descriptions = (_texts(items, name) for name in ("title", "description"))
    texts = [f"{title}\n{more}" for title, more in zip(titles, descriptions, strict=True)]
    tags = _column(items, "tags")
    return sparse.hstack(
        [
            _hash(texts, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b"),
            _hash(titles, ngram_range=(3, 4), analyzer="char_wb"),
            _hash([[tag.casefold() for tag in each or ()] for each in tags], analyzer=_as_they_are),
        ],
        format="csr",
    )


def _as_they_are(tags: Sequence[str]) -> Sequence[str]:
    return tags


def _hash(
    values: Sequence[Any], *, analyzer: str | Callable[..., Any] = "word", **options: Any
) -> sparse.csr_matrix:
    from sklearn.feature_extraction.text import HashingVectorizer  # takes a second, and few commands need it

    # scikit-learn would refuse a list in which nothing is left
    vectorizer = HashingVectorizer(
        n_features=SLOTS, norm=None, alternate_sign=False, binary=True, analyzer=analyzer, **options
    )
    return vectorizer.transform(values) if len(values) else sparse.csr_matrix((0, SLOTS))


def _column(items: pa.Table, name: str) -> list[Any]:
    return items[name].to_pylist() if name in items.column_names else [None] * len(items)


def _texts(items: pa.Table, name: str) -> list[str]:
    return [text or "" for text in _column(items, name)]


def _prices(items: pa.Table) -> npt.NDArray[np.float64]:
    """The logarithm of 1 + price; nan if unknown."""
    prices = np.array([np.nan if price is None else price for price in _column(items, "price")], np.float64)
    return np.log1p(np.maximum(prices, 0))


def _vectors(items: pa.Table) -> tuple[npt.NDArray[np.float64], Mask]:
    """The users' own vectors, zeros where an item has none, and which items have one. A vector of another
    length than the longest one is none."""
    if "vector" not in items.column_names or items["vector"].null_count == len(items):
        return np.zeros((len(items), 0)), np.zeros(len(items), bool)
    column = items["vector"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    size = int(lengths.max())
    given: Mask = (lengths == size) & (size > 0)
    vectors = np.zeros((len(items), size))
    starts = (np.cumsum(lengths) - lengths)[given]
    vectors[given] = column.flatten().to_numpy()[starts[:, None] + np.arange(size)]
    return vectors, given
