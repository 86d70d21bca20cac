"""Random draws of the sample shop: integer weights and inverse CDFs, without a loop over pairs.

All random numbers come from `Generator.random`, the stream that NumPy changes least. All arithmetic uses
integers, `+ - * /` and square roots, which give the same bits on every platform; logarithms and powers do
not. So weights are integers, and popularity falls with the square root of the rank.
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
    """A roulette wheel of weighted slots that can be spun within any run of neighbouring slots."""

    def __init__(self, weights: npt.ArrayLike) -> None:
        self._edges = np.concatenate([[0], np.cumsum(np.ravel(weights), dtype=np.int64)])
        self.slots = len(self._edges) - 1

    def spin_all(self, random: Random, size: int) -> Integers:
        """Draw `size` slots from the whole wheel."""
        return self.spin(random, np.zeros(size, np.int64), np.full(size, self.slots))

    def spin(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw a slot from each run [first, last) in proportion to its weight; no run may weigh nothing."""
        low = self._edges[first]
        target = low + (random.random(len(low)) * (self._edges[last] - low)).astype(np.int64)
        slots: Integers = np.searchsorted(self._edges, target, side="right") - 1
        return slots

    def spin_row(self, random: Random, rows: Integers, width: int) -> Integers:
        """Draw a column for each of `rows` of a table of weights, `width` columns wide."""
        return self.spin(random, rows * width, (rows + 1) * width) - rows * width


class GroupedWheel:
    """Weighted things in groups, drawn from any run of neighbouring groups."""

    def __init__(self, group: Integers, weights: Integers) -> None:
        self._order = np.argsort(group, kind="stable")
        self._bounds = np.searchsorted(group[self._order], np.arange(group.max() + 2))
        self._wheel = Wheel(weights[self._order])

    def draw(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw a thing from each run of groups [first, last), in proportion to its weight."""
        drawn: Integers = self._order[self._wheel.spin(random, self._bounds[first], self._bounds[last])]
        return drawn


def pick(random: Random, choices: int, size: int) -> Integers:
    """Draw `size` integers below `choices`."""
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
    """Draw integers between two bounds that sum to `total`: many small ones and a long tail."""
    # A Pareto tail of exponent 2, shifted so that the smallest share is a fifth of the mean.
    tail = 1 / np.sqrt(1 - random.random(len(lowest))) - 0.75
    weights = (1024 * tail).astype(np.int64)
    share = (total - int(lowest.sum())) * weights // int(weights.sum())
    counts: Integers = np.minimum(lowest + share, highest)
    # Rounding and the upper bound leave a remainder: hand it out one by one.
    while (left := total - int(counts.sum())) > 0:
        takers = shuffled(random, np.flatnonzero(counts < highest))[:left]
        counts[takers] += 1
    return counts


def distinct_pairs(
    random: Random, counts: Integers, width: int, propose: Callable[[Integers], Integers]
) -> sparse.csr_matrix:
    """Draw `counts[row]` different columns below `width` for each row. Returns the binary matrix.

    `propose` draws one column for each row in its argument. Columns that a row has already are dropped
    and drawn again.
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
    # A row that needs nearly all columns would wait long for the rarest ones: give it any.
    for row in np.flatnonzero(missing):
        begin, end = np.searchsorted(keys, [row * width, (row + 1) * width])
        free = np.setdiff1d(np.arange(width), keys[begin:end] - row * width, assume_unique=True)
        extra = row * width + shuffled(random, free)[: missing[row]]
        keys = np.sort(np.concatenate([keys, extra]), kind="stable")
    return binary_matrix(keys // width, keys % width, (len(counts), width))
