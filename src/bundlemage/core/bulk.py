"""Answers for a whole shop, in columns: bounded memory in, Arrow batches and a Parquet file out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from glob import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.core.ranking import Ranking
from bundlemage.data.folders import whole_file
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged

ROWS_IN_A_GROUP = 2**20
"""Of a Parquet file: what is held in memory before it is written, and what a reader skips or reads as one."""

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
_DICTIONARIES = [name for name in SCHEMA.names if name != "score"]  # hardly two scores are the same


def slices(histories: Histories, rows: int) -> Iterator[Histories]:
    """The same histories, so many at a time; nothing is copied but the offsets."""
    for start in range(0, len(histories), rows):
        end = min(start + rows, len(histories))
        users = None if histories.users is None else histories.users[start:end]
        yield Histories(_rows(histories.items, start, end), _rows(histories.bundles, start, end), users)


def _rows(ragged: Ragged, start: int, end: int) -> Ragged:
    first, last = int(ragged.offsets[start]), int(ragged.offsets[end])
    return Ragged(ragged.values[first:last], ragged.offsets[start : end + 1] - first)


def record_batches(
    rankings: Iterable[Ranking], users: pa.Array, bundles: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Rankings with names: `users` are the ids of all rows in turn, `bundles` those of the candidates."""
    start = 0
    for ranking in rankings:
        names = users.slice(start, len(ranking))
        start += len(ranking)
        counts = ranking.counts.cpu().numpy()
        there = np.arange(ranking.positions.shape[1]) < counts[:, None]  # [rows, k]
        row, place = (index.astype(np.int32) for index in np.nonzero(there))
        columns = [
            pa.DictionaryArray.from_arrays(row, names),
            place + 1,
            pa.DictionaryArray.from_arrays(ranking.positions.cpu().numpy()[there].astype(np.int32), bundles),
            ranking.chances.float().cpu().numpy()[there],
            pa.DictionaryArray.from_arrays(ranking.popular.cpu().numpy().astype(np.int8)[row], _SOURCES),
        ]
        yield pa.record_batch(columns, schema=SCHEMA)


def write_parquet(batches: Iterable[pa.RecordBatch], file: Path) -> int:
    """Write batches as they come; the file has its name only when it is whole. Returns the number of rows."""
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
    """What runs that were killed had written so far: nobody will ever finish it."""
    for old in file.parent.glob(f".{escape(file.name)}.*.tmp"):
        process = old.name.split(".")[-2]
        if os.name == "posix" and process.isdecimal() and not _runs(int(process)):
            old.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks, and does nothing to it
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined to what one row group holds; each has a dictionary of its own users only."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if len(batch):
            held.append(batch)
            rows += len(batch)
        if rows >= ROWS_IN_A_GROUP:
            yield _joined(held)
            held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    columns = []
    for number, field in enumerate(SCHEMA):
        parts = [batch.column(number) for batch in batches]
        if pa.types.is_dictionary(field.type) and len({_memory(part.dictionary) for part in parts}) == 1:
            # All bundles, the same each time: to compare them would take longer than to write the answers.
            indices = pa.concat_arrays([part.indices for part in parts])
            parts = [pa.DictionaryArray.from_arrays(indices, parts[0].dictionary)]
        columns.append(pa.chunked_array(parts, field.type))
    return pa.table(columns, schema=SCHEMA).unify_dictionaries()


def _memory(array: pa.Array) -> tuple[int, ...]:
    """Where an array lies: two of one kind that lie at the same place are the same."""
    addresses = (buffer.address for buffer in array.buffers() if buffer is not None)
    return (array.offset, len(array), *addresses)
