"""Finds the best of many candidates, for many rows at a time. The result is exact, and little memory is used.

Rankings of any number of users can be turned into Arrow batches, which `data/row_files.py` writes to a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from bundlemage.core.ownership import BundleFacts, Demoted
from bundlemage.data.dataset import Vocabulary
from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Ranking:
    """The best candidates of each row, best first. Of equal ones, the one with more sales comes first, and
    then the one with the lower id."""

    positions: Tensor  # [rows, k]
    chances: Tensor  # [rows, k]
    """A probability over all candidates, or for `popular` rows a share of all sales."""
    counts: Tensor  # [rows]
    """The number of answers in each row. The positions after them have no meaning."""
    popular: Tensor  # [rows] bool
    """True for users who get the candidates that sell most: they have no history, or the model ranks so."""
    order: Tensor  # [rows, k]
    """The numbers by which candidates rank: the model's scores, changed by rules, or shares of all sales."""

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, index: Tensor) -> Ranking:
        """Returns the chosen rows."""
        return Ranking(*(values[index] for values in vars(self).values()))

    def answers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the row, the place in the row (0 is the best) and the position of each answer."""
        filled = np.arange(self.positions.shape[1]) < self.counts.cpu().numpy()[:, None]  # [rows, k]
        rows, places = np.nonzero(filled)
        return rows, places, self.positions.cpu().numpy()[filled]


class Ranker:
    """Ranks candidates by scores, batch after batch.

    It reuses its memory from batch to batch, because allocating tens of megabytes takes as long as the
    work itself. So only one thread may use a ranker.
    """

    def __init__(
        self,
        shares: Tensor,
        hidden: Tensor,
        ids: Vocabulary | None = None,
        available: Tensor | None = None,
    ) -> None:
        self.shares = shares  # [candidates], the share of each in all sales
        self.hidden = hidden  # [candidates], 0, or -∞ for a candidate that must not be shown
        self.available = available
        """Like `hidden`, but also -∞ for candidates that rank after all others. None if there are none."""
        self._last: Tensor | None = None
        """Like `hidden`, but also -∞ for all other candidates than those that rank last."""
        if available is not None and torch.equal(available, hidden):
            self.available = None
        elif available is not None:
            self._last = hidden.masked_fill(available == hidden, -torch.inf)
        self.ids = ids  # None if the candidates are in the order of their ids
        self._kept: dict[str, Tensor] = {}

    def rank(
        self,
        scores: Tensor,
        popular: Tensor,
        hide: Iterable[Ragged],
        k: int,
        demoted: Demoted | None = None,
    ) -> Ranking:
        """Returns the k best candidates of each row of scores, except those in the same row of `hide`.

        Rows that are True in `popular` are ranked by sales. `demoted` are ranked by what the user lacks,
        which does not change their chances. Scores are only read: they may be a view of the model's memory.
        """
        if not scores.is_contiguous():  # the passes below are slow on scattered scores
            scores = self._like("rows", scores).copy_(scores)
        chances = torch.softmax(scores, 1, out=self._like("chances", scores))
        hide = list(hide)
        hidden = self.hidden if self.available is None else self.available
        order = self._ordered(scores, hidden, popular, hide, demoted, self._like("order", scores))
        rows = popular.nonzero()[:, 0]
        if len(rows):
            chances[rows] = self.shares.to(scores.dtype)
        k = min(k, order.shape[1])
        values, positions = top(order, k, self.shares, self.ids)
        counts = torch.isfinite(values).sum(1)  # hidden candidates rank last
        short = (counts < k).nonzero()[:, 0]
        if self._last is not None and len(short):  # only these rows need candidates that come last
            few = [ragged.rows(short) for ragged in hide]
            lower = None if demoted is None else demoted.chosen(short, len(scores))
            order = self._ordered(scores[short], self._last, popular[short], few, lower)
            lowest, last = top(order, k, self.shares, self.ids)
            place = torch.arange(k, device=counts.device) - counts[short, None]  # among the last ones
            is_first, place = place < 0, place.clamp(min=0)
            positions[short] = torch.where(is_first, positions[short], last.gather(1, place))
            values[short] = torch.where(is_first, values[short], lowest.gather(1, place))
            counts[short] = (counts[short] + torch.isfinite(lowest).sum(1)).clamp(max=k)
        return Ranking(positions, chances.gather(1, positions), counts, popular, values)

    def _ordered(
        self,
        scores: Tensor,
        hidden: Tensor,
        popular: Tensor,
        hide: Iterable[Ragged],
        demoted: Demoted | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Returns the numbers by which candidates rank. They are not the chances, because very small
        probabilities are all rounded to 0."""
        order = torch.add(scores, hidden.to(scores.dtype), out=out)
        rows = popular.nonzero()[:, 0]
        if len(rows):
            order[rows] = (self.shares + hidden).to(scores.dtype)
        for ragged in hide:
            _hide(order, ragged)
        if demoted is not None:
            _demote(order, demoted, popular)
        return order

    @cached_property
    def places(self) -> Tensor:
        """The place of each candidate in the order of their ids."""  # [candidates]
        places = torch.arange(len(self.shares), device=self.shares.device)
        by_id = None if self.ids is None else self.ids.by_id
        return (
            places if by_id is None else places.scatter(0, torch.from_numpy(by_id).to(places.device), places)
        )

    def _like(self, name: str, scores: Tensor) -> Tensor:
        """Returns memory for a tensor of the same shape and type. Each `name` has its own memory."""
        kept = self._kept.get(name)
        if (
            kept is None
            or kept.dtype != scores.dtype
            or kept.shape[1:] != scores.shape[1:]
            or len(kept) < len(scores)
        ):
            kept = self._kept[name] = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
        return kept[: len(scores)]


def _hide(order: Tensor, ragged: Ragged) -> None:
    """Set the positions in `ragged` to -∞, so that they rank last. Ignores positions that are too high."""
    rows, columns = ragged.row_of_entry(), ragged.values
    if len(columns) and int(columns.max()) >= order.shape[1]:
        inside = columns < order.shape[1]
        rows, columns = rows[inside], columns[inside]
    order[rows, columns] = -torch.inf


def _demote(order: Tensor, demoted: Demoted, popular: Tensor) -> None:
    """Add the logarithm of the missing share to the order of each demoted candidate, so that one of which
    nothing is missing is hidden. In rows that are ranked by sales, multiply instead."""
    inside = demoted.bundles < order.shape[1]
    rows, columns, shares = (each[inside] for each in demoted)
    if not len(rows):
        return
    shares, now = shares.to(order.dtype), order[rows, columns]
    scaled = torch.where(shares > 0, now * shares, -torch.inf)
    order[rows, columns] = torch.where(popular[rows], scaled, now + shares.log())


def top(
    order: Tensor, k: int, sales: Tensor | None = None, ids: Vocabulary | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the k highest values of each row and their positions.

    Of equal values, those with higher `sales` come first, and then those with the lower id. `sales` has one
    number for each column, or one for each value. Without `ids`, the columns are in the order of their ids.

    `topk` alone is slow in wide rows, and breaks ties at random. So this computes the highest value of
    each group of columns (a cheap pass), selects the best groups, and runs `topk` on their columns. It looks
    for one value more than k, to see whether the last of the k is in a tie. Only rows with ties cost more.
    """
    values, positions = _highest(order, min(k + 1, order.shape[1]))
    # Hidden candidates (-∞) are equal to each other, which does not matter.
    equal = (values[:, 1:] == values[:, :-1]) & torch.isfinite(values[:, 1:])
    tied = equal.any(1).nonzero()[:, 0]
    values, positions = values[:, :k], positions[:, :k]
    if len(tied):
        values, positions = values.clone(), positions.clone()
        lowest = values[tied, -1:]
        rows, sold = order[tied], None if sales is None else sales.expand_as(order)[tied]
        by_id = None if ids is None or ids.by_id is None else torch.from_numpy(ids.by_id).to(order.device)
        if by_id is not None:
            rows, sold = rows[:, by_id], None if sold is None else sold[:, by_id]
        values[tied], found = _first_of_equals(rows, sold, lowest, k)
        positions[tied] = found if by_id is None else by_id[found]
    return values, positions


def _highest(order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the `count` highest values of each row and their positions; ties are broken at random."""
    rows, columns = order.shape
    # With this size, there are about as many groups as there are columns in the best groups.
    size = isqrt(columns // max(1, count))
    if size < 3:
        highest = order.topk(count, dim=1)
        return highest.values, highest.indices
    groups = columns // size
    # Column c is in group c mod `groups`, so the pass reads memory from start to end.
    of_groups = order[:, : groups * size].view(rows, size, groups).amax(1)  # [rows, groups]
    best = of_groups.contiguous().topk(count, dim=1, sorted=False).indices  # [rows, count]
    steps = torch.arange(0, groups * size, groups, device=order.device)  # [size]
    inside = (best[:, :, None] + steps).flatten(1)  # [rows, count × size]
    # The last columns, too few for one more row of groups, are always included.
    rest = torch.arange(groups * size, columns, device=order.device).expand(rows, -1)
    candidates = torch.cat([inside, rest], dim=1)
    highest = order.gather(1, candidates).topk(count, dim=1)
    return highest.values, candidates.gather(1, highest.indices)


def _first_of_equals(order: Tensor, sales: Tensor | None, lowest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the same as `top` for rows with ties, whose columns are in the order of their ids. `lowest` is
    the k-th highest value of each row."""
    chosen, level = order > lowest, order == lowest
    if sales is not None:
        room = k - chosen.sum(1, keepdim=True)
        # Of the lowest value, `room` candidates are chosen. `fewest` are the sales of the last of them.
        fewest = _highest(sales.masked_fill(~level, -torch.inf), k)[0].gather(1, room - 1)
        chosen, level = chosen | (level & (sales > fewest)), level & (sales == fewest)
    room = k - chosen.sum(1, keepdim=True)
    chosen = chosen | (level & (level.cumsum(1, dtype=torch.int32) <= room))  # k in each row
    positions = chosen.nonzero()[:, 1].view(len(order), k)
    if sales is not None:
        by_sales = sales.gather(1, positions).sort(dim=1, descending=True, stable=True).indices
        positions = positions.gather(1, by_sales)
    values, by_value = order.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, by_value)


# ── Rankings as Arrow batches ────────────────────────────────────────────────────────────────────


def _answers(id_column: str, *facts: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema(
        [
            ("user_id", pa.dictionary(pa.int32(), pa.string())),
            ("rank", pa.int32()),
            (id_column, pa.dictionary(pa.int32(), pa.string())),
            ("score", pa.float32()),
            ("source", pa.dictionary(pa.int8(), pa.string())),
            *facts,
        ]
    )


SCHEMA = _answers(
    "bundle_id",
    ("owned_items", pa.int32()),
    ("missing_items", pa.int32()),
    ("to_pay", pa.float64()),
    ("sold_out", pa.bool_()),
)
ITEM_SCHEMA = _answers("item_id", ("owned", pa.bool_()), ("sold_out", pa.bool_()))
"""The columns of recommended bundles and of recommended items."""
_SOURCES = pa.array(["model", "popular"])


def record_batches(
    rankings: Iterable[tuple[Ranking, BundleFacts]], users: pa.Array, bundles: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Yields rankings with their facts as Arrow batches. `users` are the ids of all rows, `bundles` the
    candidates' ids."""
    start = 0
    for ranking, facts in rankings:
        names = users.slice(start, len(ranking))
        start += len(ranking)
        rows, places, positions = ranking.answers()
        row = rows.astype(np.int32)
        columns = [
            pa.DictionaryArray.from_arrays(row, names),
            places.astype(np.int32) + 1,
            pa.DictionaryArray.from_arrays(positions.astype(np.int32), bundles),
            ranking.chances.float().cpu().numpy()[rows, places],
            pa.DictionaryArray.from_arrays(ranking.popular.cpu().numpy().astype(np.int8)[row], _SOURCES),
            facts.owned,
            facts.missing,
            pa.array(facts.to_pay, from_pandas=True),  # nan is null
            facts.sold_out,
        ]
        yield pa.record_batch(columns, schema=SCHEMA)
