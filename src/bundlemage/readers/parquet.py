"""Reads a table in Parquet: one file, or a folder of files that may have been written separately."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.assemble import TABLES, TableData, resolve
from bundlemage.readers.places import TableFile, TableFiles, unreadable
from bundlemage.readers.values import Coded, encode, joined

_TEXTS = (pa.string(), pa.large_string())


def read(table: str, source: TableFiles) -> TableData:
    """Read a table; raises `DataError` with the problems of all its files."""
    problems: list[Problem] = []
    parts: list[pa.Table] = []
    for file in source.files:
        with collected(problems):
            parts += batches(table, file)
    if problems:
        raise DataError(_same_fault_once(problems))
    columns: dict[str, Coded] = {}
    for name in dict.fromkeys(name for part in parts for name in part.column_names):
        with collected(problems):
            if name not in TABLES[table]:
                _check_types(name, source.files, parts)
            columns[name] = _joined_column(name, parts)
    if problems:
        raise DataError(problems)
    return TableData(source.where, columns, source.locator(part.num_rows for part in parts))


def batches(table: str, file: TableFile, rows: float = math.inf) -> Iterator[pa.Table]:
    """Yields the columns of a table under their canonical names.

    By default there is one piece. `rows` limits the rows of a piece, but a piece has at least one row group.
    Raises `DataError` if the file cannot be read or lacks a column.
    """
    with _opened(file) as opened:
        positions = resolve(table, opened.schema_arrow.names, file.where)
        names = [opened.schema_arrow.names[position] for position in positions.values()]

        def piece(groups: list[int]) -> pa.Table:
            columns = opened.read_row_groups(groups, columns=names, use_threads=rows == math.inf)
            return columns.select(names).rename_columns(list(positions))

        groups: list[int] = []
        size = 0
        for group in range(opened.num_row_groups):
            here = opened.metadata.row_group(group).num_rows
            if groups and size + here > rows:
                yield piece(groups)
                groups, size = [], 0
            groups.append(group)
            size += here
        yield piece(groups)


def _joined_column(name: str, parts: Sequence[pa.Table]) -> Coded:
    """Returns a column of all parts; it has no values in parts without it."""
    columns = [
        part[name] if name in part.column_names else pa.chunked_array([pa.nulls(part.num_rows)])
        for part in parts
    ]
    if len({column.type for column in columns}) == 1:
        chunks = [chunk for column in columns for chunk in column.chunks]
        return encode(pa.chunked_array(chunks, columns[0].type))
    return joined([encode(column) for column in columns])


def _check_types(name: str, files: Sequence[TableFile], parts: Sequence[pa.Table]) -> None:
    """Raises `DataError` if no common type exists for a column of the catalogue."""
    kind, first = None, ""
    for file, part in zip(files, parts, strict=True):
        if name not in part.column_names:
            continue
        here = part.schema.field(name).type
        here = here.value_type if pa.types.is_dictionary(here) else here
        kind, first = kind or here, first or file.where
        try:
            both = [pa.schema([(name, each)]) for each in (kind, here)]
            kind = pa.unify_schemas(both, promote_options="permissive").field(name).type
        except pa.ArrowException:
            message = f"{name!r} is of type {here} here and of type {kind} in {first}"
            fix = "Write it in one type in all files"
            raise DataError.of("mixed-types", file.where, message, fix) from None


@contextmanager
def _opened(file: TableFile) -> Iterator[pq.ParquetFile]:
    """Open a file and read its texts as dictionaries; raises `DataError` if it is unreadable or damaged."""
    try:
        file.check()
        with file.open() as stream:  # an OSError of open() means that the file is not accessible, not damaged
            try:
                footer = pq.ParquetFile(stream)
                texts = [column.name for column in footer.schema_arrow if column.type in _TEXTS]
                yield pq.ParquetFile(stream, metadata=footer.metadata, read_dictionary=texts)
            except (pa.ArrowException, OSError) as error:
                raise DataError(_damaged(stream, file, error)) from error
    except OSError as error:
        raise DataError(unreadable(file.where, error)) from error


def _damaged(stream: BinaryIO, file: TableFile, error: Exception) -> Problem:
    stream.seek(0)
    starts_well = stream.read(4) == b"PAR1"
    stream.seek(max(file.size - 4, 0))
    ends_well = stream.read(4) == b"PAR1"
    message = f"the Parquet file is damaged ({str(error).splitlines()[0]})"
    if not starts_well:
        message = "this is not a Parquet file"
    elif not ends_well:
        message = "the Parquet file is cut short: its end is missing"
    return Problem("bad-parquet", file.where, message, "Copy or export it again")


def _same_fault_once(problems: Iterable[Problem]) -> list[Problem]:
    """Returns one problem, with a count, for all files with the same fault. Damaged files are not merged."""
    first: dict[tuple[str, ...], Problem] = {}
    for problem in problems:
        key = (problem.kind, problem.message, *([problem.where] if problem.kind == "bad-parquet" else []))
        first[key] = replace(first[key], more=first[key].more + 1) if key in first else problem
    return list(first.values())
