"""The columns of shards that hold pairs as lists: positions, and what is known about the pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import EVENTS_OF, PartDigest, Positions, frozen
from bundlemage.data.events import NOTHING_KNOWN, UNDATED, Events, Whole
from bundlemage.errors import DataError

MATRICES = {
    "user_item": ("users", "items"),
    "user_bundle": ("users", "bundles"),
    "bundle_item": ("bundles", "items"),
}
"""For each matrix: the kind of files that hold its rows, and the column of these files with the positions."""
POSITIONS = pa.list_(pa.int32())
FACTS = {"at": pa.list_(pa.int64()), "weight": pa.list_(pa.float32()), "rejected": POSITIONS}
"""What can be known about the pairs of a matrix, as `Events` names it. Times and weights are in the order of
the positions; rejected pairs have positions of their own."""
FACT_COLUMNS = {name: {fact: f"{MATRICES[name][1][:-1]}_{fact}" for fact in FACTS} for name in EVENTS_OF}
"""For each matrix with events: the columns that hold what is known about its pairs, such as `item_at`."""

Counts = npt.NDArray[np.integer]


def matrices_of(kind: str) -> dict[str, str]:
    """Returns the matrices that files of a kind hold, and the column of each."""
    return {name: column for name, (owners, column) in MATRICES.items() if owners == kind}


def lists(counts: Counts, values: npt.NDArray[Any], kind: type[np.generic] = np.int32) -> pa.Array:
    """Returns an Arrow array of lists. `values` holds all lists, one after another; `counts` holds their
    lengths."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] >= 2**31:  # the limit of an Arrow list array
        message = f"the lists of {len(counts):,} rows hold {offsets[-1]:,} positions, too many for one file"
        raise DataError.of("shard-too-large", "the layout", message, "Set a smaller --shard-rows")
    return pa.ListArray.from_arrays(offsets.astype(np.int32), values.astype(kind, copy=False))


def lists_of(name: str, matrix: sparse.csr_matrix, events: Events, start: int, stop: int) -> dict[str, Any]:
    """Returns the columns of some rows of a matrix: its positions, and what is known about the pairs."""
    bounds = matrix.indptr[start : stop + 1]
    counts, inside = np.diff(bounds), slice(bounds[0], bounds[-1])
    columns = {MATRICES[name][1]: lists(counts, matrix.indices[inside])}
    if events.at is not None:
        columns[FACT_COLUMNS[name]["at"]] = lists(counts, events.at[inside], np.int64)
    if events.weight is not None:
        columns[FACT_COLUMNS[name]["weight"]] = lists(counts, events.weight[inside], np.float32)
    if (rejected := events.rejected) is not None:
        bounds = rejected.indptr[start : stop + 1]
        columns[FACT_COLUMNS[name]["rejected"]] = lists(
            np.diff(bounds), rejected.indices[bounds[0] : bounds[-1]]
        )
    return columns


def rows_of(column: pa.ChunkedArray) -> tuple[Counts, npt.NDArray[Any]]:
    """Returns the lengths of the lists in a column, and the values of all lists in order."""
    lists_ = column.combine_chunks()
    if isinstance(lists_, pa.ChunkedArray):  # a column without rows
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return np.diff(lists_.offsets.to_numpy()), lists_.flatten().to_numpy()


class MatrixDigests:
    """Computes the digests of a matrix, and of what is known about its pairs, from one file after another."""

    def __init__(self, name: str, columns: Iterable[str]) -> None:
        """`columns` are the columns that the files have."""
        self._name, self._pairs = name, PartDigest()
        present = {*columns}
        self._facts: dict[str, Any] = {
            fact: PartDigest() if fact == "rejected" else hashlib.sha256()
            for fact, column in FACT_COLUMNS.get(name, {}).items()
            if column in present
        }
        self.pairs = 0
        """The number of pairs."""
        self._ends: dict[str, list[npt.NDArray[Any]]] = {"at": [], "weight": []}

    def add(self, table: pa.Table) -> None:
        counts, positions = rows_of(table[MATRICES[self._name][1]])
        self._pairs.add_rows(counts, positions)
        self.pairs += len(positions)
        for fact, digest in self._facts.items():
            counts, values = rows_of(table[FACT_COLUMNS[self._name][fact]])
            if fact == "rejected":
                digest.add_rows(counts, values)
            else:
                digest.update(values.astype({"at": "<i8", "weight": "<f4"}[fact], copy=False).tobytes())
                known = values[values != UNDATED] if fact == "at" else values
                ends = [known.min(), known.max()] if len(known) else []
                self._ends[fact].append(np.array(ends, known.dtype))

    @property
    def whole(self) -> Whole | None:
        """What all pairs tell about some of them; None: they have no times and no weights."""
        return Whole.of(self._ends["weight"], self._ends["at"]) if any(self._ends.values()) else None

    def digests(self) -> dict[str, str]:
        """Returns the digests by their names in `BundleDataset.digests`."""
        facts = {f"{self._name}_{fact}": digest.hexdigest() for fact, digest in self._facts.items()}
        return {self._name: self._pairs.hexdigest(), **facts}


class MatrixRows:
    """Collects a matrix, and what is known about its pairs, from one file after another."""

    def __init__(self, name: str, columns: Iterable[str]) -> None:
        """`columns` are the columns that the files have."""
        present = {*columns}
        self._positions = MATRICES[name][1]
        self._facts = {
            fact: column for fact, column in FACT_COLUMNS.get(name, {}).items() if column in present
        }
        self._rows: dict[str, list[tuple[Counts, Positions]]] = {"": [], "rejected": []}
        self._values: dict[str, list[npt.NDArray[Any]]] = {"at": [], "weight": []}

    @property
    def columns(self) -> list[str]:
        """The columns that `add` needs."""
        return [self._positions, *self._facts.values()]

    def add(self, table: pa.Table, rows: range | None = None, columns: range | None = None) -> None:
        """Add the rows of a file. `rows` and `columns` say which positions to keep; None: all."""
        counts, positions = rows_of(table[self._positions])
        kept = _kept(counts, positions, rows, columns)
        self._rows[""].append(_chosen(counts, positions, kept))
        for fact, column in self._facts.items():
            counts, values = rows_of(table[column])
            if fact == "rejected":
                self._rows[fact].append(_chosen(counts, values, _kept(counts, values, rows, columns)))
            else:
                self._values[fact].append(values if kept is None else values[kept])

    def add_empty(self, rows: int) -> None:
        """Add rows without pairs."""
        for each in self._rows.values():
            each.append((np.zeros(rows, np.int32), np.empty(0, np.int32)))

    def take(self, shape: tuple[int, int], whole: Whole | None = None) -> tuple[sparse.csr_matrix, Events]:
        """Returns the matrix and what is known about its pairs. Nothing is kept. `whole` is for a matrix with
        only some of the pairs (see `Events`)."""
        matrix = _matrix(self._rows.pop(""), shape)
        if not self._facts:
            return matrix, NOTHING_KNOWN
        known: dict[str, Any] = {"whole": whole}
        for fact in self._facts:
            if fact == "rejected":
                known[fact] = _matrix(self._rows.pop(fact), shape)
            else:
                kind = FACTS[fact].value_type.to_pandas_dtype()
                known[fact] = np.concatenate([np.empty(0, kind), *self._values.pop(fact)])
        return matrix, Events(**known)


def _kept(
    counts: Counts, positions: Positions, rows: range | None, columns: range | None
) -> npt.NDArray[np.bool_] | None:
    """Marks the pairs in these rows and columns; None: all are kept."""
    if rows is None:
        return None
    owners = np.repeat(np.arange(len(counts)), counts)
    kept: npt.NDArray[np.bool_] = (owners >= rows.start) & (owners < rows.stop)
    if columns is not None:
        kept &= (positions >= columns.start) & (positions < columns.stop)
    return kept


def _chosen(
    counts: Counts, positions: Positions, kept: npt.NDArray[np.bool_] | None
) -> tuple[Counts, Positions]:
    """Returns only the pairs that are kept, and the lengths of the rows."""
    if kept is None:
        return counts, positions
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(owners[kept], minlength=len(counts)), positions[kept]


def _matrix(rows: list[tuple[Counts, Positions]], shape: tuple[int, int]) -> sparse.csr_matrix:
    """Returns a matrix from pieces of its rows, in order. Empties the list `rows`."""
    indices = np.concatenate([np.empty(0, np.int32), *(positions for _, positions in rows)])
    counts = np.concatenate([np.zeros(1, np.int32), *(counts for counts, _ in rows)])
    rows.clear()  # frees memory: the pieces are as large as the matrix
    indptr = np.cumsum(counts, dtype=np.int32 if len(indices) < 2**31 else np.int64)
    return frozen(sparse.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape))


def fact_columns(events: Mapping[str, Events]) -> set[str]:
    """Returns the columns for what is known about the pairs of each matrix."""
    return {
        FACT_COLUMNS[name][fact]
        for name, known in events.items()
        for fact in FACTS
        if getattr(known, fact) is not None
    }
