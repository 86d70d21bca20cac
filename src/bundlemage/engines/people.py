"""Reads users from files in ranges, so memory does not grow with the number of users."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bundlemage.data.shards import Layout, Part, read_part, rows_of
from bundlemage.errors import ArtifactError
from bundlemage.models.base import Histories, Interactions
from bundlemage.models.ragged import Ragged
from bundlemage.recommender import Sales


class ModelPeople:
    """The users that a saved model was trained on, in their order. The pairs in its files are sorted
    by user, so a range of users is a range of rows. The statistics in the Parquet file locate it."""

    def __init__(self, model: Path) -> None:
        self._users = _open(model / "users.parquet")
        self._items, self._bundles = (
            _PairsFile(model / f"user_{kind}.parquet") for kind in ("item", "bundle")
        )

    def __len__(self) -> int:
        return int(self._users.metadata.num_rows)

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
        """The ids and the histories of a range of users."""
        users = torch.arange(start, end)
        return self._ids(start, end), Histories(
            self._items.rows(start, end), self._bundles.rows(start, end), users
        )

    def _ids(self, start: int, end: int) -> pa.Array:
        groups = [self._users.metadata.row_group(n).num_rows for n in range(self._users.num_row_groups)]
        edges = np.cumsum([0, *groups])
        first, last = np.searchsorted(edges, start, side="right") - 1, np.searchsorted(edges, end)
        table = self._users.read_row_groups(list(range(first, last)))
        ids = table["user_id"].slice(start - edges[first], end - start).combine_chunks()
        return pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids

    def sales(self, items: int, bundles: int) -> Sales:
        """Returns the number of sales of each item and of each bundle."""
        return self._items.counts(items), self._bundles.counts(bundles)


class LayoutPeople:
    """The users of a sharded layout. `known`: the model was trained on them, at the same positions."""

    def __init__(self, layout: Layout, *, known: bool) -> None:
        self._layout, self._known = layout, known
        self._parts = layout.parts("users")
        self._edges = np.cumsum([0, *(part.rows for part in self._parts)])
        self._last: tuple[Part, pa.Table] | None = None

    def __len__(self) -> int:
        return self._layout.sizes["users"]

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
        """The ids and the histories of a range of users."""
        tables = []
        for part, first, last in zip(self._parts, self._edges, self._edges[1:], strict=False):
            here = range(max(start, first), min(end, last))
            if len(here):
                tables.append(self._table(part).slice(here.start - first, len(here)))
        table = pa.concat_tables(tables).combine_chunks()
        users = torch.arange(start, end) if self._known else None
        ids = table["user_id"].chunk(0)
        return ids, Histories(_ragged(table["items"]), _ragged(table["bundles"]), users)

    def _table(self, part: Part) -> pa.Table:
        """Returns a file of the layout. The last file is cached: several reads may need it."""
        if self._last is None or self._last[0] != part:
            self._last = part, read_part(self._layout.folder, part)
        return self._last[1]


People: TypeAlias = ModelPeople | LayoutPeople


def _ragged(column: pa.ChunkedArray) -> Ragged:
    counts, positions = rows_of(column)
    return _of_lengths(positions, counts)


def _of_lengths(positions: np.ndarray, lengths: np.ndarray) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(offsets))


def spread(people: People, count: int, places: int = 16) -> Histories:
    """Returns a sample of about `count` users, in `places` ranges that are evenly spaced."""
    each = max(1, count // places)
    starts = sorted({max(0, len(people) - each) * place // (places - 1) for place in range(places)})
    parts = [people.read(start, min(start + each, len(people)))[1] for start in starts]
    items, bundles = parts[0].items, parts[0].bundles
    for histories in parts[1:]:
        items, bundles = items.append(histories.items), bundles.append(histories.bundles)
    numbers = [histories.users for histories in parts if histories.users is not None]
    return Histories(items, bundles, torch.cat(numbers) if numbers else None)


@dataclass(frozen=True)
class Sample(Interactions):
    """A sample of users. They keep their numbers, because some models look users up by number."""

    numbers: Tensor | None = field(default=None, kw_only=True)

    def histories(self, users: Tensor) -> Histories:
        numbers = None if self.numbers is None else self.numbers[users]
        return Histories(self.user_item.rows(users), self.user_bundle.rows(users), numbers)


class _PairsFile:
    """A Parquet file of pairs with the columns `row` and `column`, sorted by both."""

    def __init__(self, file: Path) -> None:
        self._path, self._file = file, _open(file)

    def rows(self, start: int, end: int) -> Ragged:
        """Returns the columns of a range of rows. Only the row groups that contain them are read."""
        table = pq.read_table(self._path, filters=[("row", ">=", start), ("row", "<", end)])
        lengths = np.bincount(table["row"].to_numpy() - start, minlength=end - start)
        return _of_lengths(table["column"].to_numpy(), lengths)

    def counts(self, columns: int) -> np.ndarray:
        counts = np.zeros(columns, np.int64)
        for batch in self._file.iter_batches(2**20, columns=["column"]):
            counts += np.bincount(batch["column"].to_numpy(), minlength=columns)
        return counts


def rows_in(file: Path) -> int:
    """Returns the number of rows of a Parquet file."""
    return int(_open(file).metadata.num_rows)


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{file} cannot be read ({error}); copy the folder again") from None
