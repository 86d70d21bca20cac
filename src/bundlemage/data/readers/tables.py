"""A folder of tables: `user_item`, `user_bundle`, `bundle_item`, and `items` and `bundles` if it has them."""

from __future__ import annotations

import csv
import gzip
import stat
import zlib
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.readers import diagnosis
from bundlemage.data.readers.assemble import Given, examine
from bundlemage.data.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.data.readers.delimited import NulByteError, OpenQuoteError, TextFile
from bundlemage.data.readers.source import Source
from bundlemage.errors import DataError, Problem

EXTENSIONS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_EXPECTED = f"{', '.join(REQUIRED)} (each as {', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]})"


def matches(path: Path) -> bool:
    """Whether this is a folder with at least one of the three tables in it."""
    try:
        names = _names(path)
    except OSError:
        return False
    return any(_candidates(table, names) for table in REQUIRED)


def read(path: Path) -> Source:
    source, problems = survey(path)
    if source is None:
        raise DataError(problems)
    return source


def survey(path: Path) -> tuple[Source | None, list[Problem]]:
    """The data, or None if there is an error; and every problem of every table."""
    try:
        files, problems = _files(path)
    except DataError as error:
        return None, list(error.problems)
    tables: dict[str, Given] = {}
    for table, file in files.items():
        try:
            tables[table] = _read_table(table, file)
        except DataError as error:
            problems += error.problems
    return examine(tables, path.resolve().name, problems)


def _names(path: Path) -> list[str]:
    # Listing, rather than asking for each file, also sees links that lead nowhere.
    return sorted(entry.name for entry in path.iterdir())


def _candidates(table: str, names: list[str]) -> list[str]:
    return [name for name in names if name in {table + extension for extension in EXTENSIONS}]


def _files(path: Path) -> tuple[dict[str, Path], list[Problem]]:
    """The file of each table, and a problem for each that is missing or there twice."""
    names = _folder(path)
    files: dict[str, Path] = {}
    problems: list[Problem] = []
    for table in TABLES:
        found = _candidates(table, names)
        if len(found) > 1:
            problems.append(_twice(table, found))
        elif found:
            files[table] = path / found[0]
        elif table in REQUIRED:
            problems.append(_missing(table, names))
    return files, problems


def _folder(path: Path) -> list[str]:
    where = str(path)
    try:
        names = _names(path)
    except FileNotFoundError:
        raise DataError(
            Problem("no-such-path", where, "there is no such file or folder", "Check the path")
        ) from None
    except NotADirectoryError:
        raise DataError(
            Problem("not-a-dataset", where, "this is a file, not a folder of tables", _give_folder())
        ) from None
    except OSError as error:
        raise DataError(diagnosis.unreadable(where, error)) from error
    if not any(_candidates(table, names) for table in REQUIRED):
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
        message = f"none of the tables is in this folder; it holds {listed or 'nothing'}"
        raise DataError(Problem("not-a-dataset", where, message, _give_folder()))
    return names


def _give_folder() -> str:
    return f"Give a folder with the tables {_EXPECTED}"


def _missing(table: str, names: list[str]) -> Problem:
    known = {name for other in TABLES for name in _candidates(other, names)}
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


def _read_table(table: str, path: Path) -> Given:
    """Raises `DataError` with what is wrong with the file, whatever went wrong below."""
    where = path.name
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise DataError(diagnosis.not_a_file(where, "a folder" if stat.S_ISDIR(mode) else "a device"))
        if path.stat().st_size == 0:
            raise DataError(diagnosis.empty_file(where))
        return _read_parquet(table, path) if path.suffix == ".parquet" else _read_text(table, path)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(diagnosis.bad_gzip(where, error)) from error
    except OSError as error:
        raise DataError(diagnosis.unreadable(where, error)) from error


def _read_parquet(table: str, path: Path) -> Given:
    with path.open("rb") as stream:  # a file that may not be read is not a damaged one
        try:
            schema = pq.read_schema(stream)
            positions = resolve(table, schema.names, path.name)
            names = [schema.names[position] for position in positions.values()]
            texts = [name for name in names if pa.types.is_large_string(schema.field(name).type)]
            texts += [name for name in names if pa.types.is_string(schema.field(name).type)]
            columns = pq.ParquetFile(stream, read_dictionary=texts).read(columns=names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(diagnosis.bad_parquet(path, path.name, error)) from error
    return Given.from_arrow(table, path.name, columns)


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
