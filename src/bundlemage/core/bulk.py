"""Recommendations for all users of a shop as Arrow batches and a Parquet file, in bounded memory."""

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
_DICTIONARIES = [name for name in SCHEMA.names if name != "score"]  # scores hardly repeat


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
        if os.name == "posix" and process.isdecimal() and not _runs(int(process)):
            old.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields row groups that join several batches. The dictionary of a group has only its own users."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if len(batch):
            held.append(batch)
            rows += len(batch)
        if rows >= ROWS_IN_A_GROUP:
            yield joined(held)
            held, rows = [], 0
    if held:
        yield joined(held)


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
