"""Finds the best of many candidates, for many rows at a time. The result is exact, and little memory is used.

Rankings of any number of users can be written as Arrow batches and as a Parquet file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape
from math import isqrt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bundlemage.data.folders import whole_file
from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Ranking:
    """The best candidates of each row, best first. Ties are in the order of the data."""

    positions: Tensor  # [rows, k]
    chances: Tensor  # [rows, k]
    """A probability over all candidates, or for `popular` rows a share of all sales."""
    counts: Tensor  # [rows]
    """The number of answers in each row. The positions after them have no meaning."""
    popular: Tensor  # [rows] bool
    """True for users without a history. They get the candidates that sell most."""

    def __len__(self) -> int:
        return len(self.positions)


class Ranker:
    """Ranks candidates by scores, batch after batch.

    It reuses its memory from batch to batch, because allocating tens of megabytes takes as long as the
    work itself. So only one thread may use a ranker.
    """

    def __init__(self, shares: Tensor, hidden: Tensor) -> None:
        self.shares = shares  # [candidates], the share of each in all sales
        self.hidden = hidden  # [candidates], 0, or -∞ for a candidate that must not be shown
        self._kept: dict[str, Tensor] = {}

    def rank(self, scores: Tensor, popular: Tensor, hide: Iterable[Ragged], k: int) -> Ranking:
        """Returns the k best candidates of each row of scores, except those in the same row of `hide`.

        Rows that are True in `popular` are ranked by sales. Scores are only read: they may be a view of the
        model's own memory.
        """
        if not scores.is_contiguous():  # the passes below are slow on scattered scores
            scores = self._like("rows", scores).copy_(scores)
        chances = torch.softmax(scores, 1, out=self._like("chances", scores))
        # Rank by the scores, because very small probabilities are all rounded to 0.
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


def top(order: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k highest values of each row and their positions; of equal values, those that come first.

    `topk` alone is slow in wide rows, and breaks ties at random. So this computes the highest value of
    each group of columns (a cheap pass), selects the best groups, and runs `topk` on their columns. It looks
    for one value more than k, to see whether the last of the k is in a tie.
    """
    values, positions = _highest(order, min(k + 1, order.shape[1]))
    # Hidden candidates (-∞) are equal to each other, which does not matter.
    equal = (values[:, 1:] == values[:, :-1]) & torch.isfinite(values[:, 1:])
    tied = equal.any(1).nonzero()[:, 0]
    values, positions = values[:, :k], positions[:, :k]
    if len(tied):
        values, positions = values.clone(), positions.clone()
        values[tied], positions[tied] = _first_of_equals(order[tied], values[tied, -1:], k)
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


def _first_of_equals(order: Tensor, lowest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the same as `top` for rows with ties. `lowest` is the k-th highest value of each row."""
    above, level = order > lowest, order == lowest
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))  # k in each row
    positions = chosen.nonzero()[:, 1].view(len(order), k)
    values, by_value = order.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return values, positions.gather(1, by_value)


# ── Rankings as Arrow batches and a Parquet file ─────────────────────────────────────────────────

ROWS_IN_A_GROUP = 2**20
"""Rows in a row group of the Parquet file. A group is held in memory until it is written."""

SCHEMA = pa.schema(
    [
        ("user_id", pa.dictionary(pa.int32(), pa.string())),
        ("rank", pa.int32()),
        ("bundle_id", pa.dictionary(pa.int32(), pa.string())),
        ("score", pa.float32()),
        ("source", pa.dictionary(pa.int8(), pa.string())),
    ]
)
_SOURCES = pa.array(["model", "popular"])
_DICTIONARIES = [name for name in SCHEMA.names if name != "score"]  # scores rarely repeat


def record_batches(
    rankings: Iterable[Ranking], users: pa.Array, bundles: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Yields rankings as Arrow batches. `users` are the ids of all rows, `bundles` the candidates' ids."""
    start = 0
    for ranking in rankings:
        names = users.slice(start, len(ranking))
        start += len(ranking)
        counts = ranking.counts.cpu().numpy()
        filled = np.arange(ranking.positions.shape[1]) < counts[:, None]  # [rows, k]
        row, place = (index.astype(np.int32) for index in np.nonzero(filled))
        columns = [
            pa.DictionaryArray.from_arrays(row, names),
            place + 1,
            pa.DictionaryArray.from_arrays(ranking.positions.cpu().numpy()[filled].astype(np.int32), bundles),
            ranking.chances.float().cpu().numpy()[filled],
            pa.DictionaryArray.from_arrays(ranking.popular.cpu().numpy().astype(np.int8)[row], _SOURCES),
        ]
        yield pa.record_batch(columns, schema=SCHEMA)


def write_parquet(batches: Iterable[pa.RecordBatch], file: Path) -> int:
    """Write batches one by one. The file has a temporary name until the end. Returns the number of rows."""
    _remove_left_behind(file)
    rows = 0
    with (
        whole_file(file) as temporary,
        pq.ParquetWriter(temporary, SCHEMA, use_dictionary=_DICTIONARIES, compression="zstd") as writer,
    ):
        for table in _groups(batches):
            writer.write_table(table, row_group_size=len(table))
            rows += len(table)
    return rows


def _remove_left_behind(file: Path) -> None:
    """Remove temporary files of killed runs."""
    for old in file.parent.glob(f".{escape(file.name)}.*.tmp"):
        process = old.name.split(".")[-2]
        if os.name == "posix" and process.isdecimal():
            try:
                os.kill(int(process), 0)  # signal 0 only checks whether the process exists
            except ProcessLookupError:
                old.unlink(missing_ok=True)
            except OSError:  # a process of another user
                continue


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields row groups that join several batches. The dictionary of a group contains only its users."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if len(batch):
            pending.append(batch)
            rows += len(batch)
        if rows >= ROWS_IN_A_GROUP:
            yield joined(pending)
            pending, rows = [], 0
    if pending:
        yield joined(pending)


def joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """Returns batches as one table, with one dictionary for each column."""
    columns = []
    for number, field in enumerate(SCHEMA):
        parts = [batch.column(number) for batch in batches]
        if pa.types.is_dictionary(field.type) and len({_memory(part.dictionary) for part in parts}) == 1:
            # All parts share one dictionary. Comparing its values would take longer than writing the rows.
            indices = pa.concat_arrays([part.indices for part in parts])
            parts = [pa.DictionaryArray.from_arrays(indices, parts[0].dictionary)]
        columns.append(pa.chunked_array(parts, field.type))
    return pa.table(columns, schema=SCHEMA).unify_dictionaries()


def _memory(array: pa.Array) -> tuple[int, ...]:
    """Returns the memory addresses of an array. Arrays of one type with the same addresses are equal."""
    addresses = (buffer.address for buffer in array.buffers() if buffer is not None)
    return (array.offset, len(array), *addresses)
