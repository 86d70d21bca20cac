"""A folder of tables: `user_item`, `user_bundle`, `bundle_item`, and `items` and `bundles` if it has them."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa

from bundlemage.errors import DataError, Problem
from bundlemage.readers import diagnosis, parquet
from bundlemage.readers.assemble import Given, examine, joined
from bundlemage.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.readers.delimited import NulByteError, OpenQuoteError, TextFile
from bundlemage.readers.ids import Coded, encode
from bundlemage.readers.places import Place, TableFile, place
from bundlemage.readers.source import Source

EXTENSIONS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_EXPECTED = f"{', '.join(REQUIRED)} (each as {', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]})"


@dataclass(frozen=True)
class TableFiles:
    """Where one table is: in one file, or in parts."""

    where: str
    """As messages name it."""
    files: tuple[TableFile, ...]
    in_parts: bool = False

    @property
    def is_parquet(self) -> bool:
        return self.files[0].where.endswith(".parquet")

    def starts(self, rows: Iterable[int]) -> list[tuple[int, str]]:
        """The first row of each file, given how many each has, and the file."""
        if not self.in_parts:
            return []
        firsts = np.cumsum([0, *rows])[:-1].tolist()
        return list(zip(firsts, (file.where for file in self.files), strict=True))


def matches(path: Path | Place) -> bool:
    """Whether this is a folder with at least one of the three tables in it."""
    where = path if isinstance(path, Place) else place(path)
    try:
        names = where.names()
    except OSError:
        return False
    return any(_candidates(table, names, where) for table in REQUIRED)


def read(path: Path | Place) -> Source:
    source, problems = survey(path)
    if source is None:
        raise DataError(problems)
    return source


def survey(path: Path | Place) -> tuple[Source | None, list[Problem]]:
    """The data, or None if there is an error; and every problem of every table."""
    where = path if isinstance(path, Place) else place(path)
    try:
        found, problems = find(where)
    except DataError as error:
        return None, list(error.problems)
    tables: dict[str, Given] = {}
    for table, files in found.items():
        try:
            tables[table] = (
                _read_parts(table, files) if files.in_parts else _read_table(table, files.files[0])
            )
        except DataError as error:
            problems += error.problems
    return examine(tables, where.name, problems)


def _candidates(table: str, names: Sequence[str], where: Place) -> list[str]:
    """Files of the table by their names; and a folder of that name, if there are parts in it."""
    files = [name for name in names if name in {table + extension for extension in EXTENSIONS}]
    in_parts = [table] if table in names and where.parts(table)[0] else []
    return in_parts + files


def find(where: Place) -> tuple[dict[str, TableFiles], list[Problem]]:
    """The files of each table, and a problem for each that is missing or there twice."""
    names = _folder(where)
    tables: dict[str, TableFiles] = {}
    problems: list[Problem] = []
    for table in TABLES:
        found = _candidates(table, names, where)
        if len(found) > 1:
            problems.append(_twice(table, found))
        elif found:
            tables[table], others = _table_files(found[0], where)
            problems += others
        elif table in REQUIRED:
            problems.append(_missing(table, names, where))
    return tables, problems


def _table_files(name: str, where: Place) -> tuple[TableFiles, list[Problem]]:
    parts, others = where.parts(name)
    if parts:
        return TableFiles(f"{name}/", tuple(parts), in_parts=True), parquet.strays(others)
    return TableFiles(name, (where.file(name),)), []


def _folder(where: Place) -> list[str]:
    try:
        names = where.names()
    except FileNotFoundError:
        raise DataError(
            Problem("no-such-path", where.label, "there is no such file or folder", "Check the path")
        ) from None
    except NotADirectoryError:
        raise DataError(
            Problem("not-a-dataset", where.label, "this is a file, not a folder of tables", _give_folder())
        ) from None
    except OSError as error:
        raise DataError(diagnosis.unreadable(where.label, error)) from error
    if not any(_candidates(table, names, where) for table in REQUIRED):
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
        message = f"none of the tables is in this folder; it holds {listed or 'nothing'}"
        raise DataError(Problem("not-a-dataset", where.label, message, _give_folder()))
    return names


def _give_folder() -> str:
    return f"Give a folder with the tables {_EXPECTED}"


def _missing(table: str, names: list[str], where: Place) -> Problem:
    known = {name for other in TABLES for name in _candidates(other, names, where)}
    others = {name.lower(): name for name in names if name not in known}
    close = get_close_matches(table, others, n=1, cutoff=0.5)
    rename = f"; if it is {others[close[0]]!r}, rename it" if close else ""
    return Problem(
        "missing-file",
        f"{table}.csv",
        f"the table {table!r} is missing",
        f"Put {table}.csv (or {', '.join(EXTENSIONS[1:])}) in the folder, "
        f"with the columns {' and '.join(TABLES[table].ids)}{rename}",
    )


def _twice(table: str, found: list[str]) -> Problem:
    return Problem(
        "ambiguous-file",
        found[0],
        f"the table {table!r} is there more than once: {' and '.join(found)}",
        "Keep one of them",
        value=found[1],
    )


def _read_table(table: str, file: TableFile) -> Given:
    """Raises `DataError` with what is wrong with the file, whatever went wrong below."""
    if file.where.endswith(".parquet"):
        return Given.from_arrow(table, file.where, parquet.read_columns(file, parquet.look(table, file)))
    if file.filesystem is not None:
        message = "text files are read from folders of this machine only"
        raise DataError(Problem("not-parquet", file.where, message, "Store the table as Parquet"))
    try:
        parquet.check_file(file)
        return _read_text(table, Path(file.path))
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(diagnosis.bad_gzip(file.where, error)) from error
    except OSError as error:
        raise DataError(diagnosis.unreadable(file.where, error)) from error


def _read_parts(table: str, found: TableFiles) -> Given:
    """Raises `DataError` with the faults of every part."""
    footers: list[parquet.Footer] = []
    problems: list[Problem] = []
    for file in found.files:
        try:
            footers.append(parquet.look(table, file))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(parquet.same_fault_once(problems))
    types, problems = parquet.detail_types(table, found.files, footers)
    if problems:
        raise DataError(problems)
    parts = []
    for file, footer in zip(found.files, footers, strict=True):
        try:
            parts.append(parquet.read_columns(file, footer))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    ids = {column: _joined_ids([part.column(column) for part in parts]) for column in TABLES[table].ids}
    details = {
        column: pa.chunked_array(
            [chunk for part in parts for chunk in parquet.detail(part, column, kind).chunks], kind
        )
        for column, kind in types.items()
    }
    files = found.starts(part.num_rows for part in parts)
    return Given(found.where, ids, details, files=files)


def _joined_ids(columns: Sequence[pa.ChunkedArray]) -> Coded:
    if len({column.type for column in columns}) == 1:
        return encode(
            pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
        )
    return joined([encode(column) for column in columns])


def _read_text(table: str, path: Path) -> Given:
    file, where = TextFile(path), path.name
    try:
        records = file.records()
        header = next(records, None)
        if header is None:
            raise DataError(diagnosis.empty_file(where))
        "".join(header.fields).encode()  # names that are not UTF-8 fail here
        wrong = diagnosis.wrong_delimiter(file, header, where)
        if wrong:
            raise DataError(wrong)
        positions = resolve(table, header.fields, where)
        columns = file.read(header, sorted(positions.values()))
    except (UnicodeError, csv.Error, NulByteError, OpenQuoteError, pa.ArrowInvalid) as error:
        raise DataError(diagnosis.text_problems(file, where, error)) from error
    return Given.from_arrow(table, where, columns, file.line_of)
