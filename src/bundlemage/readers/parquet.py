"""Tables in Parquet: one file, or a folder of parts that may have been written separately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.assemble import TableData
from bundlemage.readers.columns import TABLES, resolve
from bundlemage.readers.places import TableFile, unreadable
from bundlemage.readers.values import Coded, encode, joined


@dataclass(frozen=True)
class TableFiles:
    """The files of one table: a single file, or a folder of parts."""

    where: str
    """The name of the table in messages."""
    files: tuple[TableFile, ...]
    in_parts: bool = False

    @property
    def is_parquet(self) -> bool:
        return self.files[0].where.endswith(".parquet")

    def starts(self, rows: Iterable[int]) -> list[tuple[int, str]]:
        """Returns the first row of each part and its file; `rows` are the numbers of rows of the parts."""
        if not self.in_parts:
            return []
        firsts = np.cumsum([0, *rows])[:-1].tolist()
        return list(zip(firsts, (file.where for file in self.files), strict=True))


@dataclass(frozen=True)
class Footer:
    """The description at the end of a Parquet file."""

    names: Mapping[str, str]
    """The name in this file of each column of the table, if the file has it."""
    types: Mapping[str, pa.DataType]
    rows: tuple[int, ...]
    """The number of rows of each row group."""


def read(table: str, source: TableFiles) -> TableData:
    """Read a table; raises `DataError` with the problems of all its files."""
    problems: list[Problem] = []
    footers: list[Footer] = []
    for file in source.files:
        with collected(problems):
            footers.append(look(table, file))
    if problems:
        raise DataError(same_fault_once(problems))
    types, problems = detail_types(table, source.files, footers)
    if problems:
        raise DataError(problems)
    parts: list[pa.Table] = []
    for file, footer in zip(source.files, footers, strict=True):
        with collected(problems):
            parts.append(read_columns(file, footer))
    if problems:
        raise DataError(problems)
    ids = {column: _joined_ids([part.column(column) for part in parts]) for column in TABLES[table].ids}
    details = {
        column: pa.chunked_array(
            [chunk for part in parts for chunk in detail(part, column, kind).chunks], kind
        )
        for column, kind in types.items()
    }
    return TableData(source.where, ids, details, files=source.starts(part.num_rows for part in parts))


def _joined_ids(columns: Sequence[pa.ChunkedArray]) -> Coded:
    if len({column.type for column in columns}) == 1:
        chunks = [chunk for column in columns for chunk in column.chunks]
        return encode(pa.chunked_array(chunks, columns[0].type))
    return joined([encode(column) for column in columns])


@contextmanager
def _opened(file: TableFile, dictionaries: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a file; raises `DataError` if it cannot be read or is damaged. Some columns are dictionaries."""
    try:
        file.check()
        with file.open() as stream:  # an OSError here means no access, not damage
            try:
                yield pq.ParquetFile(stream, read_dictionary=list(dictionaries))
            except (pa.ArrowException, OSError) as error:
                raise DataError(_damaged(stream, file, error)) from error
    except OSError as error:
        raise DataError(unreadable(file.where, error)) from error


def look(table: str, file: TableFile) -> Footer:
    """Read the footer of a file; raises `DataError` if the file is unusable or lacks a column."""
    with _opened(file) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        positions = resolve(table, schema.names, file.where)
        rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    types = {column: schema.types[position] for column, position in positions.items()}
    return Footer({column: schema.names[position] for column, position in positions.items()}, types, rows)


def read_columns(file: TableFile, footer: Footer, groups: Sequence[int] | None = None) -> pa.Table:
    """Returns the columns of the table under their canonical names; of some row groups, or of all."""
    names = list(footer.names.values())
    texts = [footer.names[column] for column, kind in footer.types.items() if _is_text(kind)]
    with _opened(file, texts) as opened:
        if groups is None:
            table = opened.read(columns=names)
        else:
            table = opened.read_row_groups(list(groups), columns=names, use_threads=False)
    return pa.table({column: table.column(name) for column, name in footer.names.items()})


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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


def detail_types(
    table: str, files: Sequence[TableFile], footers: Sequence[Footer]
) -> tuple[dict[str, pa.DataType], list[Problem]]:
    """Returns the common type of each catalogue column in all parts, and the parts that do not fit."""
    types: dict[str, pa.DataType] = {}
    problems: list[Problem] = []
    for column in TABLES[table].details:
        first = ""
        for file, footer in zip(files, footers, strict=True):
            if column not in footer.types:
                continue
            kind = footer.types[column]
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            first = first or file.where
            try:
                both = [pa.schema([(column, each)]) for each in (types.get(column, kind), kind)]
                types[column] = pa.unify_schemas(both, promote_options="permissive").field(column).type
            except pa.ArrowException:
                message = f"{column!r} is of type {kind} here and of type {types[column]} in {first}"
                fix = "Write it in one type in all files"
                problems.append(Problem("mixed-types", file.where, message, fix))
                break
    return types, problems


def detail(table: pa.Table, column: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns a catalogue column of one part in the type that all parts share; null if it is missing."""
    if column not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, kind)])
    values = table.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values if values.type == kind else values.cast(kind, safe=False)


def same_fault_once(problems: Iterable[Problem]) -> list[Problem]:
    """Merge files with the very same fault: the first of them, with the others counted."""
    first: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        key = (problem.kind, problem.message)
        first[key] = replace(first[key], more=first[key].more + 1) if key in first else problem
    return list(first.values())
