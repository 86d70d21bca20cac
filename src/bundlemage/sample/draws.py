"""How the sample shop draws: whole-number weights, inverse CDF, and no loop over pairs.

All chance comes from `Generator.random`, the stream that NumPy changes least, and all arithmetic is in whole
numbers, `+ - * /` and square roots, which give the same bits on every platform; logarithms and powers do
not. So weights are integers, and popularity falls with the root of the rank.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Random = np.random.Generator
Integers = npt.NDArray[np.int64]

_ROUNDS = 60


class Wheel:
    """A roulette wheel of weighted slots that can be spun within any run of neighbouring slots."""

    def __init__(self, weights: npt.ArrayLike) -> None:
        self._edges = np.concatenate([[0], np.cumsum(np.ravel(weights), dtype=np.int64)])

    def spin(self, random: Random, first: Integers, last: Integers) -> Integers:
        """A slot of each run [first, last), as likely as its weight. A run must have some weight."""
        low = self._edges[first]
        target = low + (random.random(len(low)) * (self._edges[last] - low)).astype(np.int64)
        slots: Integers = np.searchsorted(self._edges, target, side="right") - 1
        return slots

    def spin_row(self, random: Random, rows: Integers, width: int) -> Integers:
        """The same where slots form a table and a run is one of its rows: a column for each row given."""
        return self.spin(random, rows * width, (rows + 1) * width) - rows * width


class Shelf:
    """Things in groups, each with a weight: draws from any run of neighbouring groups."""

    def __init__(self, group: Integers, weights: Integers) -> None:
        self._order = np.argsort(group, kind="stable")
        self._bounds = np.searchsorted(group[self._order], np.arange(group.max() + 2))
        self._wheel = Wheel(weights[self._order])

    def draw(self, random: Random, first: Integers, last: Integers) -> Integers:
        """A thing of each run of groups [first, last), as likely as its weight."""
        drawn: Integers = self._order[self._wheel.spin(random, self._bounds[first], self._bounds[last])]
        return drawn


def pick(random: Random, choices: int, size: int) -> Integers:
    """`size` whole numbers below `choices`."""
    drawn: Integers = (random.random(size) * choices).astype(np.int64)
    return drawn


def shuffled(random: Random, values: Integers) -> Integers:
    order: Integers = values[np.argsort(random.random(len(values)), kind="stable")]
    return order


def popularity(random: Random, count: int) -> Integers:
    """A weight for each of `count` things: one over the root of its rank, the ranks shuffled."""
    weights: Integers = (1e6 / np.sqrt(1 + shuffled(random, np.arange(count)))).astype(np.int64)
    return weights


def spread(random: Random, total: int, lowest: Integers, highest: Integers) -> Integers:
    """Whole numbers between two bounds that sum to `total`: many small ones and a long tail."""
    # A Pareto tail of exponent 2, moved down so that the smallest share is a fifth of the mean.
    tail = 1 / np.sqrt(1 - random.random(len(lowest))) - 0.75
    weights = (1024 * tail).astype(np.int64)
    share = (total - int(lowest.sum())) * weights // int(weights.sum())
    counts: Integers = np.minimum(lowest + share, highest)
    # What rounding and the upper bound left over goes out one by one.
    while (left := total - int(counts.sum())) > 0:
        takers = shuffled(random, np.flatnonzero(counts < highest))[:left]
        counts[takers] += 1
    return counts


def distinct_pairs(
    random: Random, counts: Integers, width: int, propose: Callable[[Integers], Integers]
) -> tuple[Integers, Integers]:
    """`counts[row]` different columns for each row, as (rows, columns).

    `propose` draws one column for each row it is given. Columns a row has already are dropped and
    drawn again, as many as are missing and never more, so nothing has to be thrown away.
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
    # A row that wants nearly all there is would wait long for the rarest columns: give it any.
    for row in np.flatnonzero(missing):
        begin, end = np.searchsorted(keys, [row * width, (row + 1) * width])
        free = np.setdiff1d(np.arange(width), keys[begin:end] - row * width, assume_unique=True)
        extra = row * width + shuffled(random, free)[: missing[row]]
        keys = np.sort(np.concatenate([keys, extra]), kind="stable")
    return keys // width, keys % width
