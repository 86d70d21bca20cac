"""Read data from any location: finds the reader that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.data.splits import Source
from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.readers import authors, bgcn, pathak, sql, tables
from bundlemage.readers.columns import TABLES
from bundlemage.readers.places import is_remote, local_path, place
from bundlemage.sample.generate import sample_shop

SAMPLE = "sample"
"""The location of the built-in shop. A folder of that name is `./sample`."""


def is_layout(path: Path) -> bool:
    """Whether this is a folder that `bundlemage data ingest` has written."""
    return (path / LAYOUT).is_file()


def _read_layout(path: Path) -> Source:
    return Source(Layout.open(path).dataset())


_FOLDERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Source]], ...] = (
    (is_layout, _read_layout),
    (tables.matches, tables.read),
    (bgcn.matches, bgcn.read),
    (authors.matches, authors.read),
    (pathak.matches, pathak.read),
)
"""For each kind of folder: how it is recognised, and how it is read."""


def read(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> Source:
    """Read a folder in any known layout, a prefix of an object store by its URI (Parquet only), a database by
    its URL, or the built-in sample shop.

    `tables_or_queries` is for databases: the table or query for `user_item`, `user_bundle`, …
    Returns the data; raises `DataError` with every problem.
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
    _check_mistakes(path)
    for matches, read_folder in _FOLDERS:
        if matches(path):
            return read_folder(path)
    if inner := _data_inside(path):
        message = "this folder holds no data itself"
        raise DataError.of("not-a-dataset", str(path), message, f"Did you mean {' or '.join(inner[:4])}?")
    return tables.read(path)  # raises: says what a folder of tables needs


def is_tables(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> bool:
    """Whether `read` takes this for a folder of tables, on this machine or on an object store."""
    if tables_or_queries or sql.matches(str(location)) or location == SAMPLE:
        return False
    path = local_path(location)
    if is_remote(location) or not path.is_dir():
        return is_remote(location)
    return tables.matches(path) and not is_layout(path) and not (path / "manifest.json").is_file()


def check(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> list[Problem]:
    """Returns every error and warning, errors first; an empty list for good data. Raises no `DataError`."""
    try:
        problems = read(location, tables_or_queries).warnings
    except DataError as error:
        problems = error.problems
    return sorted(problems, key=lambda problem: problem.severity == "warning")


def _check_mistakes(path: Path) -> None:
    """Raises `DataError` for things that users name by mistake."""
    if (path / "manifest.json").is_file() and (path / "model.safetensors").exists():
        message = "this is a saved model, not data"
        raise DataError.of("not-a-dataset", str(path), message, "Name the data's folder")
    if path.is_file() and path.open("rb").read(15) == b"SQLite format 3":
        fix = f"Name it by a URL: sqlite:///{path}"
        raise DataError.of("not-a-dataset", str(path), "this is an SQLite database", fix)


def _data_inside(path: Path) -> list[str]:
    """Folders with data, one or two levels below."""
    if not path.is_dir():
        return []
    inside = [folder for folder in sorted(path.glob("*/")) + sorted(path.glob("*/*/")) if folder.is_dir()]
    folders = [folder for folder in inside if any(matches(folder) for matches, _ in _FOLDERS)]
    parents = {folder.parent for folder in folders}
    return [str(folder) for folder in folders if folder not in parents]
