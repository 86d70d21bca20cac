"""The files of the sharded layout, one at a time: the same rows give the same bytes, whoever writes them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA
from bundlemage.errors import DataError, Problem

Counts = npt.NDArray[np.integer]

_POSITIONS = pa.list_(pa.int32())
SCHEMAS = {
    "users": pa.schema([("user_id", pa.string()), ("items", _POSITIONS), ("bundles", _POSITIONS)]),
    "items": ITEM_SCHEMA,
    "bundles": BUNDLE_SCHEMA.append(pa.field("items", _POSITIONS)),
}
COPY_ANEW = "Copy the folder anew, or run 'bundlemage data ingest' again"


@dataclass(frozen=True)
class Part:
    """One file of a layout, as its list has it."""

    name: str
    rows: int
    bytes: int
    sha256: str


def part_name(kind: str, number: int) -> str:
    return f"{kind}/part-{number:05}.parquet"


def lists(counts: Counts, positions: npt.NDArray[np.integer]) -> pa.Array:
    """Rows of positions as an Arrow array; `counts` says how many each row has."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] >= 2**31:  # as one file's lists go; a million pairs a user would do it
        message = (
            f"the lists of {len(counts):,} rows hold {offsets[-1]:,} positions, more than one file takes"
        )
        raise DataError(Problem("shard-too-large", "the layout", message, "Set a smaller --shard-rows"))
    return pa.ListArray.from_arrays(offsets.astype(np.int32), positions.astype(np.int32, copy=False))


def write_part(folder: Path, kind: str, number: int, columns: dict[str, Any]) -> Part:
    """Written, flushed and measured. The file's folder is made if need be."""
    table = pa.table(columns, schema=SCHEMAS[kind]).combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=max(table.num_rows, 1))
    content = sink.getvalue()
    name = part_name(kind, number)
    (folder / kind).mkdir(exist_ok=True)
    with (folder / name).open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Part(name, table.num_rows, content.size, hashlib.sha256(content).hexdigest())


def read_part(folder: Path, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
    """Some columns of a file, or all, once the whole file has proved to be what was written."""
    path = folder / part.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"the file cannot be read: {error.strerror}") from None
    if len(content) != part.bytes:
        raise _damaged(path, f"the file has {len(content):,} bytes where {part.bytes:,} were written")
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise _damaged(path, "the file was altered after it was written")
    return pq.ParquetFile(pa.BufferReader(content)).read(columns=columns, use_threads=False)


def _damaged(path: Path, message: str) -> DataError:
    return DataError(Problem("damaged-layout", str(path), message, COPY_ANEW))


def rows_of(column: pa.ChunkedArray) -> tuple[Counts, npt.NDArray[np.int32]]:
    """A column of lists as how many positions each row has, and the positions one after another."""
    lists_ = column.combine_chunks()
    if isinstance(lists_, pa.ChunkedArray):  # one without rows stays as it is
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return np.diff(lists_.offsets.to_numpy()), lists_.flatten().to_numpy()
