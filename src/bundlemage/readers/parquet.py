"""Tables in Parquet, as one file or as a folder of parts, each of which may have been written by itself."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.errors import DataError, Problem
from bundlemage.readers import diagnosis
from bundlemage.readers.columns import TABLES, resolve
from bundlemage.readers.places import TableFile


@dataclass(frozen=True)
class Footer:
    """What the end of a file says of it."""

    names: Mapping[str, str]
    """The name that each column of the table has in this file, if it is there."""
    types: Mapping[str, pa.DataType]
    rows: tuple[int, ...]
    """Of each row group."""


def look(table: str, file: TableFile) -> Footer:
    """Raises `DataError` with what is wrong with the file, whatever went wrong below."""
    try:
        check_file(file)
        with file.open() as stream:  # a file that may not be read is not a damaged one
            try:
                described = pq.ParquetFile(stream)
                schema = described.schema_arrow
                positions = resolve(table, schema.names, file.where)
                groups = described.metadata.num_row_groups
                rows = tuple(described.metadata.row_group(group).num_rows for group in range(groups))
            except (pa.ArrowException, OSError) as error:
                raise DataError(diagnosis.bad_parquet(stream, file.size, file.where, error)) from error
    except OSError as error:
        raise DataError(diagnosis.unreadable(file.where, error)) from error
    types = {column: schema.types[position] for column, position in positions.items()}
    return Footer({column: schema.names[position] for column, position in positions.items()}, types, rows)


def check_file(file: TableFile) -> None:
    """Raises `DataError` where there is no file, or nothing in it."""
    if file.filesystem is None:
        mode = Path(file.path).stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device"
            raise DataError(diagnosis.not_a_file(file.where, what))
    if file.size == 0:
        raise DataError(diagnosis.empty_file(file.where))


def read_columns(file: TableFile, footer: Footer, groups: Sequence[int] | None = None) -> pa.Table:
    """The columns of the table under their own names; of some row groups, or of all."""
    names = list(footer.names.values())
    texts = [footer.names[column] for column, kind in footer.types.items() if _is_text(kind)]
    try:
        with file.open() as stream:
            try:
                opened = pq.ParquetFile(stream, read_dictionary=texts)
                table = (
                    opened.read(columns=names)
                    if groups is None
                    else opened.read_row_groups(list(groups), columns=names, use_threads=False)
                )
            except (pa.ArrowException, OSError) as error:
                raise DataError(diagnosis.bad_parquet(stream, file.size, file.where, error)) from error
    except OSError as error:
        raise DataError(diagnosis.unreadable(file.where, error)) from error
    return pa.table({column: table.column(name) for column, name in footer.names.items()})


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def detail_types(
    table: str, files: Sequence[TableFile], footers: Sequence[Footer]
) -> tuple[dict[str, pa.DataType], list[Problem]]:
    """The one type that a column of the catalogue has in all parts, and where parts do not go together."""
    types: dict[str, pa.DataType] = {}
    problems: list[Problem] = []
    for column in TABLES[table].details:
        having = [
            (file, _plain(footer.types[column]))
            for file, footer in zip(files, footers, strict=True)
            if column in footer.types
        ]
        for file, kind in having:
            try:
                both = [pa.schema([(column, each)]) for each in (types.get(column, kind), kind)]
                types[column] = pa.unify_schemas(both, promote_options="permissive").field(column).type
            except pa.ArrowException:
                message = (
                    f"{column!r} is of type {kind} here and of type {types[column]} in {having[0][0].where}"
                )
                problems.append(
                    Problem("mixed-types", file.where, message, "Write it in one type in all files")
                )
                break
    return types, problems


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def detail(table: pa.Table, column: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of the catalogue in the type that all parts share; unknown in a part that lacks it."""
    if column not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, kind)])
    found = table.column(column)
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    return found if found.type == kind else found.cast(kind, safe=False)


def strays(others: Sequence[str]) -> list[Problem]:
    """What lies among the parts of a table and is not read."""
    if not others:
        return []
    return [
        Problem(
            "not-parquet",
            others[0],
            "this lies among the Parquet files of a table and is not read",
            "Move it away, or give it a name that begins with _",
            more=len(others) - 1,
            severity="warning",
        )
    ]


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """Faults of one kind and column, found part by part: the first of them, with the others counted."""
    first: dict[str, Problem] = {}
    for problem in problems:
        known = first.get(problem.kind)
        if known is None:
            first[problem.kind] = problem
            continue
        earlier, later = sorted((known, problem), key=lambda each: each.line or 0)
        first[problem.kind] = replace(earlier, more=earlier.more + later.more + 1)
    return sorted(first.values(), key=lambda problem: problem.line or 0)


def same_fault_once(problems: Iterable[Problem]) -> list[Problem]:
    """Files with the very same fault: the first of them, with the others counted."""
    first: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        key = (problem.kind, problem.message)
        first[key] = replace(first[key], more=first[key].more + 1) if key in first else problem
    return list(first.values())
