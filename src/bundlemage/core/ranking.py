"""The best of many candidates, for many rows at a time, exactly and with little memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Ranking:
    """The best candidates of each row, best first; of equal ones, the one that comes first in the data."""

    positions: Tensor  # [rows, k]
    chances: Tensor  # [rows, k]
    """A probability over all candidates, or for `popular` rows a share of all sales."""
    counts: Tensor  # [rows]
    """How many of the k are answers; the positions after them mean nothing."""
    popular: Tensor  # [rows] bool
    """True for users with no history at all: they are shown what sells most."""

    def __len__(self) -> int:
        return len(self.positions)


class Ranker:
    """Ranks candidates by scores, batch after batch.

    It reuses its memory from batch to batch, because allocating tens of megabytes takes as long as the
    work itself. So only one thread may use an object.
    """

    def __init__(self, shares: Tensor, hidden: Tensor) -> None:
        self.shares = shares  # [candidates], the share of each in all sales
        self.hidden = hidden  # [candidates], 0, or -∞ for a candidate that must not be shown
        self._kept: dict[str, Tensor] = {}

    def rank(self, scores: Tensor, popular: Tensor, hide: Iterable[Ragged], k: int) -> Ranking:
        """The k best of each row of scores, without the positions that `hide` has in that row.

        Rows that are True in `popular` are ranked by sales. Scores are only read: they may be a view of the
        model's own memory.
        """
        if not scores.is_contiguous():  # the passes below are slow on scattered scores
            scores = self._like("rows", scores).copy_(scores)
        chances = torch.softmax(scores, 1, out=self._like("chances", scores))
        # Ranked by the scores themselves: far down, probabilities are too small to tell apart.
        order = torch.add(scores, self.hidden.to(scores.dtype), out=self._like("order", scores))
        rows = popular.nonzero()[:, 0]
        if len(rows):
            chances[rows] = self.shares.to(scores.dtype)
            order[rows] = (self.shares + self.hidden).to(scores.dtype)
        for ragged in hide:
            _hide(order, ragged)
        values, positions = top(order, min(k, order.shape[1]))
        # Hidden candidates rank last.
        return Ranking(positions, chances.gather(1, positions), torch.isfinite(values).sum(1), popular)

    def _like(self, name: str, scores: Tensor) -> Tensor:
        """Memory for the same number of rows and columns."""
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
    """Rank the entries of each row last. Positions beyond the candidates are ignored."""
    rows, columns = ragged.row_of_entry(), ragged.values
    if len(columns) and int(columns.max()) >= order.shape[1]:
        inside = columns < order.shape[1]
        rows, columns = rows[inside], columns[inside]
    order[rows, columns] = -torch.inf


def top(order: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest values of each row and their positions; of equal values, those that come first.

    `topk` alone is slow in wide rows, and breaks ties at random. So this takes the highest value of each
    group of columns (a cheap pass), the best groups, and `topk` in the columns of these groups. It looks for
    one value more than k, to see whether there is a tie at the end.
    """
    wanted = min(k + 1, order.shape[1])
    values, positions = _highest(order, wanted)
    # Hidden candidates (-∞) are equal to each other, which does not matter.
    equal = (values[:, 1:] == values[:, :-1]) & torch.isfinite(values[:, 1:])
    tied = equal.any(1).nonzero()[:, 0]
    values, positions = values[:, :k], positions[:, :k]
    if len(tied):
        values, positions = values.clone(), positions.clone()
        values[tied], positions[tied] = _first_of_equals(order[tied], values[tied, -1:], k)
    return values, positions


def _highest(order: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """The highest values of each row and their positions; ties are broken at random."""
    rows, columns = order.shape
    size = isqrt(
        columns // max(1, wanted)
    )  # then the groups are about as many as the columns in the best groups
    if size < 3:
        highest = order.topk(wanted, dim=1)
        return highest.values, highest.indices
    groups = columns // size
    # Column c is in group c mod groups: so the pass runs along memory.
    of_groups = order[:, : groups * size].view(rows, size, groups).amax(1)  # [rows, groups]
    best = of_groups.contiguous().topk(wanted, dim=1, sorted=False).indices  # [rows, wanted]
    steps = torch.arange(0, groups * size, groups, device=order.device)  # [size]
    inside = (best[:, :, None] + steps).flatten(1)  # [rows, wanted × size]
    # The last columns, fewer than a group has, are always included.
    rest = torch.arange(groups * size, columns, device=order.device).expand(rows, -1)
    candidates = torch.cat([inside, rest], dim=1)
    highest = order.gather(1, candidates).topk(wanted, dim=1)
    return highest.values, candidates.gather(1, highest.indices)


def _first_of_equals(order: Tensor, lowest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `top`, where `lowest` is the k-th highest value of each row, and other values may be equal to it."""
    above, level = order > lowest, order == lowest
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))  # k in each row
    positions = chosen.nonzero()[:, 1].view(len(order), k)
    values, by_value = order.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, by_value)
