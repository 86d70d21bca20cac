"""Reads a folder of tables: `user_item`, `user_bundle`, `bundle_item`, optionally `items` and `bundles`."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem
from bundlemage.readers import parquet, text
from bundlemage.readers.assemble import TableData, assemble
from bundlemage.readers.columns import REQUIRED, TABLES
from bundlemage.readers.parquet import TableFiles
from bundlemage.readers.places import Place, place, unreadable

EXTENSIONS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_GIVE_FOLDER = (
    f"Give a folder with the tables {', '.join(REQUIRED)} "
    f"(each as {', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]})"
)


def matches(path: Path | Place) -> bool:
    """Whether this is a folder with at least one of the three required tables."""
    where = path if isinstance(path, Place) else place(path)
    try:
        names = where.names()
    except OSError:
        return False
    return _any_table(names, where)


def read(path: Path | Place) -> Source:
    """Returns the data and warnings; raises `DataError` with all problems if one is an error."""
    where = path if isinstance(path, Place) else place(path)
    all_files, problems = find(where)
    return assemble(all_files, lambda table: read_table(table, all_files[table]), where.name, problems)


def read_table(table: str, files: TableFiles) -> TableData:
    """Read one table; raises `DataError` with the problems of all its files."""
    return parquet.read(table, files) if files.is_parquet else text.read(table, files.files[0])


def find(where: Place) -> tuple[dict[str, TableFiles], list[Problem]]:
    """Returns the files of each table. Also returns a problem for each table that is missing or exists twice.

    Raises `DataError` if the folder has none of the required tables.
    """
    names = _names(where)
    tables: dict[str, TableFiles] = {}
    problems: list[Problem] = []
    for table in TABLES:
        candidates = _candidates(table, names, where)
        if len(candidates) > 1:
            message = f"the table {table!r} exists more than once: {' and '.join(candidates)}"
            problem = Problem(
                "ambiguous-file", candidates[0], message, "Keep one of them", value=candidates[1]
            )
            problems.append(problem)
        elif candidates:
            parts, others = where.parts(candidates[0])
            files = tuple(parts) or (where.file(candidates[0]),)
            name = f"{candidates[0]}/" if parts else candidates[0]
            tables[table] = TableFiles(name, files)
            if parts and others:
                message = "this file is among the Parquet files of a table and is not read"
                fix, more = "Move it away, or give it a name that begins with _", len(others) - 1
                problems.append(
                    Problem("not-parquet", others[0], message, fix, more=more, severity="warning")
                )
        elif table in REQUIRED:
            problems.append(_missing(table, names, where))
    return tables, problems


def _candidates(table: str, names: Sequence[str], where: Place) -> list[str]:
    """Returns the names of the table's files, and of its folder if that has Parquet files."""
    files = [name for name in names if name in {table + extension for extension in EXTENSIONS}]
    in_parts = [table] if table in names and where.parts(table)[0] else []
    return in_parts + files


def _any_table(names: Sequence[str], where: Place) -> bool:
    return any(_candidates(table, names, where) for table in REQUIRED)


def _names(where: Place) -> list[str]:
    try:
        names = where.names()
    except FileNotFoundError:
        raise DataError.of(
            "no-such-path", where.label, "there is no such file or folder", "Check the path"
        ) from None
    except NotADirectoryError:
        message = "this is a file, not a folder of tables"
        raise DataError.of("not-a-dataset", where.label, message, _GIVE_FOLDER) from None
    except OSError as error:
        raise DataError(unreadable(where.label, error)) from error
    if not _any_table(names, where):
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
        message = f"none of the tables is in this folder; it holds {listed or 'nothing'}"
        raise DataError.of("not-a-dataset", where.label, message, _GIVE_FOLDER)
    return names


def _missing(table: str, names: list[str], where: Place) -> Problem:
    known = {name for other in TABLES for name in _candidates(other, names, where)}
    others = {name.lower(): name for name in names if name not in known}
    close = get_close_matches(table, others, n=1, cutoff=0.5)
    rename = f"; if it is {others[close[0]]!r}, rename it" if close else ""
    fix = (
        f"Put {table}.csv (or {', '.join(EXTENSIONS[1:])}) in the folder, "
        f"with the columns {' and '.join(TABLES[table].ids)}{rename}"
    )
    return Problem("missing-file", f"{table}.csv", f"the table {table!r} is missing", fix)
