"""Data from anywhere: one function that finds the reader which fits."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.readers import authors, bgcn, pathak, shards, sql, tables
from bundlemage.readers.columns import TABLES
from bundlemage.readers.places import is_remote, local_path, place
from bundlemage.readers.source import Source
from bundlemage.sample.generate import sample_shop

SAMPLE = "sample"
"""The location of the built-in shop. A folder of that name is `./sample`."""

_FOLDERS = (shards, tables, bgcn, authors, pathak)


def read(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> Source:
    """Read a folder in any known layout, a prefix of an object store by its URI (Parquet only), a database by
    its URL, or the built-in sample shop.

    `tables_or_queries` is for databases: which table or query gives `user_item`, `user_bundle`, …
    """
    named = dict(tables_or_queries or {})
    if unknown := sorted(named.keys() - set(TABLES)):
        raise ConfigError(f"unknown table {unknown[0]!r}; the tables are: {', '.join(TABLES)}")
    if sql.matches(str(location)):
        return sql.read_sql(str(location), **named)
    if named:
        raise ConfigError("tables and queries can be named for a database only, and this is a path")
    if location == SAMPLE:
        return Source(sample_shop().dataset)
    if is_remote(location):
        return tables.read(place(location))
    path = local_path(location)
    if hint := _something_else(path):
        raise DataError(hint)
    for reader in _FOLDERS:
        if reader.matches(path):
            source: Source = reader.read(path)
            return source
    raise DataError(_not_a_dataset(path))


def check(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> list[Problem]:
    """Every error and warning, errors first. Bad data never raises; good data gives an empty list."""
    if surveyed(location, tables_or_queries):
        problems = tables.survey(place(location))[1]
    else:
        try:
            problems = list(read(location, tables_or_queries).warnings)
        except DataError as error:
            problems = list(error.problems)
    return sorted(problems, key=lambda problem: problem.severity == "warning")


def surveyed(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> bool:
    """Whether this is a folder of tables, of which every problem can be told at once."""
    if tables_or_queries or sql.matches(str(location)) or location == SAMPLE or is_remote(location):
        return False
    path = local_path(location)
    return not shards.matches(path) and tables.matches(path) and not _something_else(path)


def _something_else(path: Path) -> Problem | None:
    """What people give for data by mistake."""
    if (path / "manifest.json").is_file() and (path / "model.safetensors").exists():
        return Problem(
            "not-a-dataset", str(path), "this is a saved model, not data", "Name the data's folder"
        )
    if path.is_file() and path.open("rb").read(15) == b"SQLite format 3":
        fix = f"Name it by a URL: sqlite:///{path}"
        return Problem("not-a-dataset", str(path), "this is an SQLite database", fix)
    return None


def _not_a_dataset(path: Path) -> Problem:
    if not path.is_dir():
        return tables.survey(path)[1][0]
    inside = (folder for folder in sorted(path.glob("*/")) + sorted(path.glob("*/*/")) if folder.is_dir())
    found = [folder for folder in inside if any(reader.matches(folder) for reader in _FOLDERS)]
    parents = {folder.parent for folder in found}
    fitting = [str(folder) for folder in found if folder not in parents]
    if fitting:
        return Problem(
            "not-a-dataset",
            str(path),
            "this folder holds no data itself",
            f"Did you mean {' or '.join(islice(fitting, 4))}?",
        )
    return tables.survey(path)[1][0]
