"""Reads data from any location: finds the right reader and calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bundlemage.data.shards import LAYOUT, Layout
from bundlemage.data.splits import Source
from bundlemage.errors import ConfigError, DataError, Problem, worst_first
from bundlemage.readers import authors, bgcn, pathak, sql
from bundlemage.readers.assemble import assemble
from bundlemage.readers.columns import TABLES
from bundlemage.readers.files import read_table
from bundlemage.readers.pairs import check_events, written
from bundlemage.readers.places import Place, find, has_tables, is_remote, local_path, place
from bundlemage.sample.kinds import GAMES, dataset_of_kind

SAMPLE = "sample"
"""The location of the built-in shop. `sample:KIND` is a built-in shop of another kind. Write `./sample` for a
folder of this name."""


def is_sample(location: str | Path) -> bool:
    """Whether this is the location of a built-in shop."""
    return isinstance(location, str) and location.partition(":")[0] == SAMPLE


def is_layout(path: Path) -> bool:
    """Whether `bundlemage data ingest` wrote this folder."""
    return (path / LAYOUT).is_file()


def read_tables(where: Place, events: Mapping[str, float] | None = None) -> Source:
    """Read a folder of tables: `user_item`, `user_bundle`, `bundle_item`, optionally `items`, `bundles` and
    `item_vectors`. `events` are the weights of the types of events.

    Returns the data and warnings; raises `DataError` with all problems if one is an error.
    """
    files, problems = find(where)
    return assemble(files, lambda table: read_table(table, files[table]), where.name, problems, events)


_Events = Mapping[str, float] | None


def _read_layout(path: Path, events: _Events) -> Source:
    layout = Layout.open(path)
    if events not in (None, layout.events):
        made = f"made with --events {written(layout.events)}" if layout.events else "made without --events"
        message = f"--events {written(events or {})} is given, but these shards were {made}"
        raise DataError.of("no-event-column", str(path), message, "Leave --events out, or ingest again")
    return Source(layout.dataset(), warnings=layout.about_tables, event_types=layout.event_types)


def _published(read_folder: Callable[[Path], Source]) -> Callable[[Path, _Events], Source]:
    def read_without(path: Path, events: _Events) -> Source:
        _check_no_events(events, str(path), "published data has no types of events")
        return read_folder(path)

    return read_without


def _check_no_events(events: _Events, where: str, why: str) -> None:
    if events:
        message = f"--events {written(events)} is given, but {why}"
        raise DataError.of("no-event-column", where, message, "Leave --events out")


_FOLDERS: tuple[tuple[Callable[[Path], bool], Callable[[Path, _Events], Source]], ...] = (
    (is_layout, _read_layout),
    (lambda path: has_tables(place(path)), lambda path, events: read_tables(place(path), events)),
    (bgcn.matches, _published(bgcn.read)),
    (authors.matches, _published(authors.read)),
    (pathak.matches, _published(pathak.read)),
)
"""For each kind of folder: the function that recognises it, and the function that reads it."""


def read(
    location: str | Path,
    tables_or_queries: Mapping[str, str] | None = None,
    events: Mapping[str, float] | None = None,
) -> Source:
    """Read a folder in any known layout, Parquet files on an object store, a database, or a sample shop.

    `location` is a path, a URI such as `s3://bucket/prefix`, a database URL, `sample`, or `sample:KIND`.
    `tables_or_queries` is only for databases: the table or query for `user_item`, `user_bundle`, …
    `events` are the weights of the types of events, such as `{"view": 0.2, "buy": 1}`: only for tables,
    databases, and shards that were made with the same weights. Returns the data; raises `DataError` with
    every problem.
    """
    events = check_events(events)
    named = dict(tables_or_queries or {})
    if unknown := sorted(named.keys() - set(TABLES)):
        raise ConfigError(f"unknown table {unknown[0]!r}; the tables are: {', '.join(TABLES)}")
    if sql.matches(str(location)):
        return sql.read_sql(str(location), **named, events=events)
    if named:
        raise ConfigError("tables and queries can be given only for a database, and this location is not one")
    if is_sample(location):
        _check_no_events(events, str(location), "a built-in shop has no types of events")
        return Source(dataset_of_kind(str(location).partition(":")[2] or GAMES))
    if is_remote(location):
        return read_tables(place(location), events)
    path = local_path(location)
    _check_mistakes(path)
    for matches, read_folder in _FOLDERS:
        if matches(path):
            return read_folder(path, events)
    if inner := _data_inside(path):
        message = "this folder holds no data itself"
        raise DataError.of("not-a-dataset", str(path), message, f"Did you mean {' or '.join(inner[:4])}?")
    return read_tables(place(path), events)  # raises a `DataError` that says what a folder of tables needs


def is_tables(location: str | Path, tables_or_queries: Mapping[str, str] | None = None) -> bool:
    """Whether `read` would read this as a folder of tables, on this machine or on an object store."""
    if tables_or_queries or sql.matches(str(location)) or is_sample(location):
        return False
    path = local_path(location)
    if is_remote(location) or not path.is_dir():
        return is_remote(location)
    return has_tables(place(path)) and not is_layout(path) and not (path / "manifest.json").is_file()


def try_to_read(
    location: str | Path,
    tables_or_queries: Mapping[str, str] | None = None,
    events: Mapping[str, float] | None = None,
) -> tuple[Source | None, tuple[Problem, ...]]:
    """Returns the data, or None if it has errors, and all problems instead of raising `DataError`."""
    try:
        source = read(location, tables_or_queries, events)
    except DataError as error:
        return None, tuple(error.problems)
    return source, source.warnings


def check(
    location: str | Path,
    tables_or_queries: Mapping[str, str] | None = None,
    events: Mapping[str, float] | None = None,
) -> list[Problem]:
    """Returns all problems, errors first, instead of raising `DataError`; an empty list for good data."""
    _, problems = try_to_read(location, tables_or_queries, events)
    return worst_first(problems)


def _check_mistakes(path: Path) -> None:
    """Raises `DataError` if this is a saved model or an SQLite file, which users name by mistake."""
    if (path / "manifest.json").is_file() and (path / "model.safetensors").exists():
        message = "this is a saved model, not data"
        raise DataError.of("not-a-dataset", str(path), message, "Give the folder of the data")
    if path.is_file() and path.open("rb").read(15) == b"SQLite format 3":
        fix = f"Give its URL: sqlite:///{path}"
        raise DataError.of("not-a-dataset", str(path), "this is an SQLite database", fix)


def _data_inside(path: Path) -> list[str]:
    """Returns the folders with data that are one or two levels below `path`."""
    if not path.is_dir():
        return []
    inside = [folder for folder in sorted(path.glob("*/")) + sorted(path.glob("*/*/")) if folder.is_dir()]
    folders = [folder for folder in inside if any(matches(folder) for matches, _ in _FOLDERS)]
    parents = {folder.parent for folder in folders}
    return [str(folder) for folder in folders if folder not in parents]
