"""The best of many candidates, for many rows at a time: exact, and with little memory touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Ranking:
    """The best candidates of each row, best first; candidates that are equally good, in their own order."""

    positions: Tensor  # [rows, k]
    chances: Tensor  # [rows, k]
    """A probability over all candidates, or for `popular` rows a share of all sales."""
    counts: Tensor  # [rows]
    """How many of the k there are: the others are hidden, and say nothing."""
    popular: Tensor  # [rows] bool
    """Rows with nothing for a model to go by, which got what sells most."""

    def __len__(self) -> int:
        return len(self.positions)


class Ranker:
    """Ranks candidates by scores, batch after batch.

    What it works in is kept from batch to batch: asking the system for tens of megabytes and touching them
    for the first time takes as long as the work itself. So an object serves one thread.
    """

    def __init__(self, shares: Tensor, hidden: Tensor) -> None:
        self.shares = shares  # [candidates], the share of each in all sales
        self.hidden = hidden  # [candidates], 0 for what may be shown and -∞ for what nobody is to see
        self._kept: dict[str, Tensor] = {}

    def rank(self, scores: Tensor, popular: Tensor, hide: Iterable[Ragged], k: int) -> Ranking:
        """The k best of each row of scores, without what `hide` holds for that row.

        Scores are only read: they may be a view of the model's own memory.
        """
        if not scores.is_contiguous():  # one row's scores far apart: the passes below would all pay for it
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
        # What is hidden ranks last.
        return Ranking(positions, chances.gather(1, positions), torch.isfinite(values).sum(1), popular)

    def _like(self, name: str, scores: Tensor) -> Tensor:
        """Memory for as many rows and columns."""
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
    """Put the entries of each row last. Entries beyond the candidates are no candidates."""
    rows, columns = ragged.row_of_entry(), ragged.values
    if len(columns) and int(columns.max()) >= order.shape[1]:
        inside = columns < order.shape[1]
        rows, columns = rows[inside], columns[inside]
    order[rows, columns] = -torch.inf


def top(order: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest values of each row and where they are; of equal ones, those that come first.

    `topk` alone is a good part of the work in wide rows and breaks ties as it happens. So: the highest of
    each of some groups of columns (a cheap pass), the best groups, and `topk` in what these groups hold.
    One more than k is looked for, as two that are equal at the edge can be told only so.
    """
    wanted = min(k + 1, order.shape[1])
    values, positions = _highest(order, wanted)
    # Hidden ones (-∞) are equal to each other, which does not matter.
    equal = (values[:, 1:] == values[:, :-1]) & torch.isfinite(values[:, 1:])
    tied = equal.any(1).nonzero()[:, 0]
    values, positions = values[:, :k], positions[:, :k]
    if len(tied):
        values, positions = values.clone(), positions.clone()
        values[tied], positions[tied] = _first_of_equals(order[tied], values[tied, -1:], k)
    return values, positions


def _highest(order: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """The highest values of each row; which of several equal ones, is left to chance."""
    rows, columns = order.shape
    size = isqrt(columns // max(1, wanted))  # as much to look through among groups as inside the best ones
    if size < 3:
        found = order.topk(wanted, dim=1)
        return found.values, found.indices
    groups = columns // size
    # Column c is in group c mod groups: so the pass runs along memory.
    highest = order[:, : groups * size].view(rows, size, groups).amax(1)  # [rows, groups]
    best = highest.contiguous().topk(wanted, dim=1, sorted=False).indices  # [rows, wanted]
    steps = torch.arange(0, groups * size, groups, device=order.device)  # [size]
    inside = (best[:, :, None] + steps).flatten(1)  # [rows, wanted × size]
    # Fewer columns than a group has are left over; they are looked at in any case.
    rest = torch.arange(groups * size, columns, device=order.device).expand(rows, -1)
    candidates = torch.cat([inside, rest], dim=1)
    found = order.gather(1, candidates).topk(wanted, dim=1)
    return found.values, candidates.gather(1, found.indices)


def _first_of_equals(order: Tensor, lowest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `top`, where the k-th highest value of each row is known, and others may be equal to it."""
    above, level = order > lowest, order == lowest
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))  # k in each row
    positions = chosen.nonzero()[:, 1].view(len(order), k)
    values, by_value = order.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, by_value)
