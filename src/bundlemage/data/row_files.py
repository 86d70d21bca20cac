"""Files of rows: Parquet, CSV or lines of JSON. The ending of a file's name says which.

Rows are written as they arrive, so memory does not grow with their number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from glob import escape
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, TypeAlias, cast, get_args

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from bundlemage.data.folders import whole_file
from bundlemage.errors import ConfigError

Format: TypeAlias = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS = ", ".join(f".{form}" for form in FORMATS[:-1]) + f" or .{FORMATS[-1]}"
"""The endings of such files, in words."""
ROWS_IN_A_GROUP = 2**20
"""Rows that are written at a time: a row group of a Parquet file. They are in memory until then."""
_LINES = 8192
"""Rows that are Python objects at a time, on their way to lines of JSON."""

Write: TypeAlias = Callable[[pa.Table], None]


def has_format(file: Path) -> bool:
    """Whether a file's name has one of the endings."""
    return file.suffix.lower().removeprefix(".") in FORMATS


def format_of(file: Path) -> Format:
    """Returns the format that a file's name asks for. Raises `ConfigError` for another ending."""
    if not has_format(file):
        found = f"ends in {file.suffix!r}" if file.suffix else "has no ending"
        raise ConfigError(f"{file} {found}: the name of the file must end in {ENDINGS}")
    return cast(Format, file.suffix.lower().removeprefix("."))


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: Path) -> int:
    """Write batches one by one. The file has a temporary name until the end. Returns the number of rows.

    Missing folders are made when the first batch is there.
    """
    batches = iter(batches)
    first = list(islice(batches, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(file)
    rows = 0
    with whole_file(file) as temporary, _WRITERS[format_of(file)](temporary, schema) as write:
        for table in _groups(chain(first, batches)):
            write(table)
            rows += len(table)
    return rows


def read_rows(file: Path, schema: pa.Schema) -> pa.Table:
    """Returns the rows of a file that `write_rows` has written."""
    form = format_of(file)
    if form == "parquet":
        return pq.read_table(file, schema=schema)
    if form == "csv":
        kinds = pa_csv.ConvertOptions(column_types=schema, include_columns=schema.names)
        return pa_csv.read_csv(
            file, parse_options=pa_csv.ParseOptions(newlines_in_values=True), convert_options=kinds
        )
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    return pa.Table.from_pylist(rows, schema)


def check_replaceable(file: Path, schema: pa.Schema, *, overwrite: bool) -> None:
    """Raises `ConfigError` if the file cannot be written or must not be replaced. Makes no folders."""
    form = format_of(file)
    parent = next(folder for folder in file.parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise ConfigError(f"{file} cannot be written: {parent} is not a folder")
    try:
        with TemporaryFile(dir=parent):
            pass
    except OSError as error:
        why = f"no file can be made in {parent.resolve()}"
        if isinstance(error, PermissionError):
            why = f"no permission to write in {parent.resolve()}"
        raise ConfigError(f"{file} cannot be written: {why}") from None
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it, e.g. {file / f'answers.{form}'}")
    if not file.exists():
        return
    if not overwrite:
        raise ConfigError(f"{file} exists already: add --overwrite to replace it, or choose another file")
    expected = {
        "parquet": b"PAR1",
        "csv": ",".join(f'"{name}"' for name in schema.names).encode() + b"\n",
        "jsonl": f'{{"{schema.names[0]}": '.encode(),
    }[form]
    with file.open("rb") as opened:
        if opened.read(len(expected)) not in (expected, b""):
            raise ConfigError(
                f"{file} holds something else than such answers, so --overwrite does not replace it: choose "
                "another file"
            )


# ── The formats ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _parquet(file: Path, schema: pa.Schema) -> Iterator[Write]:
    repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(file, schema, use_dictionary=repeating, compression="zstd") as writer:
        yield lambda table: writer.write_table(table, row_group_size=len(table))


@contextmanager
def _csv(file: Path, schema: pa.Schema) -> Iterator[Write]:
    plain = pa.schema([(field.name, _plain(field.type)) for field in schema])
    with pa_csv.CSVWriter(file, plain, write_options=pa_csv.WriteOptions(quoting_style="needed")) as writer:
        yield lambda table: writer.write_table(table.cast(plain))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@contextmanager
def _json_lines(file: Path, _: pa.Schema) -> Iterator[Write]:
    with file.open("w", encoding="utf-8", newline="\n") as opened:

        def write(table: pa.Table) -> None:
            for batch in table.to_batches(max_chunksize=_LINES):
                opened.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())

        yield write


_WRITERS: dict[Format, Callable[[Path, pa.Schema], AbstractContextManager[Write]]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _json_lines,
}


# ── Batches and row groups ───────────────────────────────────────────────────────────────────────


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
    """Yields row groups that join several batches. The dictionary of a group contains only its values."""
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
    columns, schema = [], batches[0].schema
    for number, field in enumerate(schema):
        parts = [batch.column(number) for batch in batches]
        if pa.types.is_dictionary(field.type) and len({_memory(part.dictionary) for part in parts}) == 1:
            # All parts share one dictionary. Comparing its values would take longer than writing the rows.
            indices = pa.concat_arrays([part.indices for part in parts])
            parts = [pa.DictionaryArray.from_arrays(indices, parts[0].dictionary)]
        columns.append(pa.chunked_array(parts, field.type))
    return pa.table(columns, schema=schema).unify_dictionaries()


def _memory(array: pa.Array) -> tuple[int, ...]:
    """Returns the memory addresses of an array. Arrays of one type with the same addresses are equal."""
    addresses = (buffer.address for buffer in array.buffers() if buffer is not None)
    return (array.offset, len(array), *addresses)
