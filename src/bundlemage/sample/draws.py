"""Random draws for the sample shop, by integer weights and inverse CDFs, without loops over pairs.

The draws are the same on every platform. All random numbers come from `Generator.random`, the method that
NumPy changes least. All arithmetic uses integers, `+ - * /` and square roots: these give the same bits
everywhere, but logarithms and powers do not. So popularity falls with the square root of the rank.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import binary_matrix

Random = np.random.Generator
Integers = npt.NDArray[np.int64]

_ROUNDS = 60


class Wheel:
    """Draws slots in proportion to their weights, from all slots or from a range of slots."""

    def __init__(self, weights: npt.ArrayLike) -> None:
        self._edges = np.concatenate([[0], np.cumsum(np.ravel(weights), dtype=np.int64)])
        self.slots = len(self._edges) - 1

    def spin_all(self, random: Random, size: int) -> Integers:
        """Draw `size` slots from all slots."""
        return self.spin(random, np.zeros(size, np.int64), np.full(size, self.slots))

    def spin(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw one slot from each range [first, last). Every range must have a positive total weight."""
        low = self._edges[first]
        target = low + (random.random(len(low)) * (self._edges[last] - low)).astype(np.int64)
        slots: Integers = np.searchsorted(self._edges, target, side="right") - 1
        return slots

    def spin_row(self, random: Random, rows: Integers, width: int) -> Integers:
        """Draw a column for each of `rows`. The slots are the cells of a table with `width` columns."""
        return self.spin(random, rows * width, (rows + 1) * width) - rows * width


class GroupedWheel:
    """Draws things in proportion to their weights. `group` is the group of each thing."""

    def __init__(self, group: Integers, weights: Integers) -> None:
        self._order = np.argsort(group, kind="stable")
        self._bounds = np.searchsorted(group[self._order], np.arange(group.max() + 2))
        self._wheel = Wheel(weights[self._order])

    def draw(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw one thing from each range of groups [first, last)."""
        drawn: Integers = self._order[self._wheel.spin(random, self._bounds[first], self._bounds[last])]
        return drawn


def pick(random: Random, choices: int, size: int) -> Integers:
    """Draw `size` integers from 0 to `choices` - 1."""
    drawn: Integers = (random.random(size) * choices).astype(np.int64)
    return drawn


def shuffled(random: Random, values: Integers) -> Integers:
    """Returns the values in random order."""
    order: Integers = values[np.argsort(random.random(len(values)), kind="stable")]
    return order


def popularity(random: Random, count: int) -> Integers:
    """Draw a weight for each of `count` things: 1 / sqrt(rank), with shuffled ranks."""
    weights: Integers = (1e6 / np.sqrt(1 + shuffled(random, np.arange(count)))).astype(np.int64)
    return weights


def spread(random: Random, total: int, lowest: Integers, highest: Integers) -> Integers:
    """Draw integers that sum to `total`, each between its bounds. Most are small, and a few are large."""
    # A Pareto distribution with exponent 2, shifted: the smallest share is a fifth of the mean.
    tail = 1 / np.sqrt(1 - random.random(len(lowest))) - 0.75
    weights = (1024 * tail).astype(np.int64)
    share = (total - int(lowest.sum())) * weights // int(weights.sum())
    counts: Integers = np.minimum(lowest + share, highest)
    # Rounding and the upper bound leave a remainder: add it one by one.
    while (left := total - int(counts.sum())) > 0:
        takers = shuffled(random, np.flatnonzero(counts < highest))[:left]
        counts[takers] += 1
    return counts


def distinct_pairs(
    random: Random, counts: Integers, width: int, propose: Callable[[Integers], Integers]
) -> sparse.csr_matrix:
    """Draw `counts[row]` different columns below `width` for each row. Returns the binary matrix.

    `propose` draws one column for each row in its argument. If a row already has the column, it is drawn
    again.
    """
    keys = np.empty(0, np.int64)
    missing = counts
    for _ in range(_ROUNDS):
        rows = np.repeat(np.arange(len(counts)), missing)
        if not len(rows):
            break
        drawn = np.unique(rows * width + propose(rows))
        new = drawn[~np.isin(drawn, keys, assume_unique=True)]
        keys = np.sort(np.concatenate([keys, new]), kind="stable")
        missing = counts - np.bincount(keys // width, minlength=len(counts))
    # A row that needs nearly all columns would wait long for the rarest ones. Give it any missing columns.
    for row in np.flatnonzero(missing):
        begin, end = np.searchsorted(keys, [row * width, (row + 1) * width])
        free = np.setdiff1d(np.arange(width), keys[begin:end] - row * width, assume_unique=True)
        extra = row * width + shuffled(random, free)[: missing[row]]
        keys = np.sort(np.concatenate([keys, extra]), kind="stable")
    return binary_matrix(keys // width, keys % width, (len(counts), width))
