"""The users of a shop straight from files, some at a time: however many there are, memory does not grow."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bundlemage.artifact.files import artifact_version
from bundlemage.data.shards import Layout, Part, read_part, rows_of
from bundlemage.errors import ArtifactError
from bundlemage.models.base import Histories, Interactions
from bundlemage.models.ragged import Ragged
from bundlemage.recommender import Sales


class People(Protocol):
    """Users in a fixed order, to be read by ranges."""

    def __len__(self) -> int: ...

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
        """The ids of these users and what they have."""


class ModelPeople:
    """Those a saved model was trained on. Its pairs are sorted by user, so a range of users is a range of
    rows, and the statistics of a Parquet file tell where it lies."""

    def __init__(self, model: Path) -> None:
        self._users = _open(model / "users.parquet")
        self._items, self._bundles = (_Pairs(model / f"user_{kind}.parquet") for kind in ("item", "bundle"))

    def __len__(self) -> int:
        return int(self._users.metadata.num_rows)

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
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
        """How often each item and bundle was sold, counted in passing."""
        return self._items.counts(items), self._bundles.counts(bundles)


class LayoutPeople:
    """Those of a sharded layout. `known`: they are the model's own, by their positions."""

    def __init__(self, layout: Layout, *, known: bool) -> None:
        self._layout, self._known = layout, known
        self._parts = layout.parts("users")
        self._edges = np.cumsum([0, *(part.rows for part in self._parts)])
        self._last: tuple[Part, pa.Table] | None = None

    def __len__(self) -> int:
        return self._layout.sizes["users"]

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
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
        """One file is kept: parts of answers may be smaller than it, and follow each other."""
        if self._last is None or self._last[0] != part:
            self._last = part, read_part(self._layout.folder, part)
        return self._last[1]


def _ragged(column: pa.ChunkedArray) -> Ragged:
    counts, positions = rows_of(column)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Ragged(torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(offsets))


def spread(people: People, count: int, places: int = 16) -> Histories:
    """Some users from all over, as a sample."""
    each = max(1, count // places)
    starts = sorted({max(0, len(people) - each) * place // (places - 1) for place in range(places)})
    found = [people.read(start, min(start + each, len(people)))[1] for start in starts]
    items, bundles = found[0].items, found[0].bundles
    for histories in found[1:]:
        items, bundles = items.append(histories.items), bundles.append(histories.bundles)
    numbers = [histories.users for histories in found if histories.users is not None]
    return Histories(items, bundles, torch.cat(numbers) if numbers else None)


@dataclass(frozen=True)
class Sample(Interactions):
    """Some users in place of all. They keep their numbers, as some models look people up by these."""

    numbers: Tensor | None = field(default=None, kw_only=True)

    def histories(self, users: Tensor) -> Histories:
        numbers = None if self.numbers is None else self.numbers[users]
        return Histories(self.user_item.rows(users), self.user_bundle.rows(users), numbers)


class _Pairs:
    """A table of `row` and `column`, sorted."""

    def __init__(self, file: Path) -> None:
        self._file = _open(file)

    @cached_property
    def _edges(self) -> np.ndarray:  # [groups, 2]: the first and the last row of each group
        groups = (self._file.metadata.row_group(n) for n in range(self._file.num_row_groups))
        found = [group.column(0).statistics for group in groups]
        return np.array([(each.min, each.max) for each in found], np.int64).reshape(-1, 2)

    def rows(self, start: int, end: int) -> Ragged:
        inside = np.flatnonzero((self._edges[:, 1] >= start) & (self._edges[:, 0] < end))
        table = self._file.read_row_groups(inside.tolist())
        row, column = table["row"].to_numpy(), table["column"].to_numpy()
        first, last = np.searchsorted(row, [start, end])
        lengths = np.bincount(row[first:last] - start, minlength=end - start)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(torch.from_numpy(column[first:last].astype(np.int64)), torch.from_numpy(offsets))

    def counts(self, columns: int) -> np.ndarray:
        found = np.zeros(columns, np.int64)
        for batch in self._file.iter_batches(2**20, columns=["column"]):
            found += np.bincount(batch["column"].to_numpy(), minlength=columns)
        return found


def trained_on(model: Path) -> dict[str, Any]:
    """What a saved model tells of its data, such as name and fingerprint."""
    artifact_version(model)  # or there is no model
    try:
        told: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))["dataset"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{model} is damaged: its config.json cannot be read") from error
    return told


def rows_in(file: Path) -> int:
    return int(_open(file).metadata.num_rows)


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{file} cannot be read ({error}); copy the folder again") from None
