"""A piece of a table as a worker reads it, and blocks of rows as Ray keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bundlemage.engines.ray import ingest_ids as ids
from bundlemage.engines.ray.ingest_ids import Ids
from bundlemage.errors import DataError, Problem
from bundlemage.readers import parquet
from bundlemage.readers.assemble import CATALOGUE_SCHEMAS
from bundlemage.readers.parquet import Footer
from bundlemage.readers.places import TableFile
from bundlemage.readers.values import read_details


@dataclass(frozen=True)
class Segment:
    """Row groups of one file that follow one another."""

    file: TableFile
    footer: Footer
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """As much of a table as one task reads."""

    table: str
    where: str
    first: int
    """The row of the whole table with which it begins."""
    segments: tuple[Segment, ...]
    types: Mapping[str, pa.DataType]
    """Of the columns of a catalogue, the same in all pieces."""


def packed(table: pa.Table) -> pa.Buffer:
    """As Ray keeps it: only the rows that are in it, compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpacked(buffer: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(buffer).read_all()


def column_of(table: pa.Table, name: str) -> pa.Array:
    found = table.column(name).combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def concatenated(buffers: Sequence[pa.Buffer]) -> pa.Table:
    return pa.concat_tables([unpacked(buffer) for buffer in buffers])


def tables_of(piece: Piece) -> list[pa.Table]:
    """Raises `DataError` with the faults of every file that cannot be read."""
    tables: list[pa.Table] = []
    problems: list[Problem] = []
    for part in piece.segments:
        try:
            tables.append(parquet.read_columns(part.file, part.footer, part.groups))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return tables


def ids_of(piece: Piece, column: str, tables: Sequence[pa.Table]) -> tuple[Ids | None, list[Problem]]:
    problems: list[Problem] = []
    parts = []
    first = piece.first
    for table in tables:
        good, faults = ids.read(table.column(column), column, piece.where, first)
        problems += faults
        parts.append(good)
        first += table.num_rows
    good_parts = [part for part in parts if part is not None]
    whole = ids.joined(good_parts) if len(good_parts) == len(parts) else None
    return whole, parquet.merged(problems)


def details_of(piece: Piece, tables: Sequence[pa.Table]) -> tuple[pa.Table, dict[str, list[Problem]]]:
    """The columns of a catalogue as they are kept, and what is wrong with each."""
    schema, rows = CATALOGUE_SCHEMAS[piece.table], sum(table.num_rows for table in tables)
    kept: dict[str, Any] = {}
    problems: dict[str, list[Problem]] = {}
    for column in schema.names[1:]:
        given = {}
        if kind := piece.types.get(column):
            chunks = [chunk for table in tables for chunk in parquet.detail(table, column, kind).chunks]
            given[column] = pa.chunked_array(chunks, kind)
        alone = pa.schema([schema.field(0), schema.field(column)])
        read, problems[column] = read_details(
            given, alone, rows, piece.where, lambda row: piece.first + row + 1
        )
        kept[column] = read[column]
    return pa.table(kept), problems
