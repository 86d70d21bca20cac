"""Finds the files of data in a folder on this machine, or below a prefix of an object store."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from bundlemage.errors import DataError, Problem
from bundlemage.readers.columns import OWN_PREFIX, REQUIRED, TABLES, listed

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_NOT_DATA = ("_", ".")
"""Files whose names begin with one of these are ignored. Other programs write them, such as `_SUCCESS`."""
LARGEST = 10_000_000
"""Maximum number of users, bundles or items of published data. A file with more is damaged, and could
fill the memory: the largest published data set of bundles has a few hundred thousand of each."""
_LAYOUT_FOLDERS = {"authors", "bgcn", "gen", "mat", "pathak"}
EXTENSIONS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_EACH_AS = f"(each as {', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]})"
_GIVE_FOLDER = f"Give a folder with the tables {', '.join(REQUIRED)} {_EACH_AS}"
_DATA = re.compile(
    r".*\.(csv|tsv|tab|txt|dat|json|jsonl|ndjson|xml|xlsx?|ods|parquet|feather|arrow|avro|orc|pkl|pickle|np[yz])"
    r"(\.(gz|bz2|xz|zst|zip))?",
    re.IGNORECASE,
)
_ABOUT_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog|requirements)\b", re.IGNORECASE
)
"""Files that a person reads. Nobody expects that their content is used."""


@dataclass(frozen=True)
class TableFile:
    """One file of a table. It can be pickled and sent to another process."""

    where: str
    """The name of the file in messages."""
    path: str
    filesystem: Any = None
    """An Arrow file system; None means the file system of this machine."""

    def open(self) -> Any:
        """Returns the open file: a stream of bytes, to be used in a `with` statement."""
        if self.filesystem is None:
            return Path(self.path).open("rb")
        return self.filesystem.open_input_file(self.path)

    @property
    def is_parquet(self) -> bool:
        return self.where.endswith(".parquet")

    @property
    def size(self) -> int:
        if self.filesystem is None:
            return Path(self.path).stat().st_size
        return int(self.filesystem.get_file_info(self.path).size)

    def check(self) -> None:
        """Raises `DataError` if this is not a file or is empty, and `OSError` if it cannot be reached."""
        if self.filesystem is None:
            mode = Path(self.path).stat().st_mode
            if not stat.S_ISREG(mode):
                what = "a folder" if stat.S_ISDIR(mode) else "a device"
                message = f"this is {what}, not a file"
                raise DataError.of("not-a-file", self.where, message, "Put the table there as a single file")
        if self.size == 0:
            raise DataError(empty_file(self.where))


def empty_file(where: str) -> Problem:
    return Problem("empty-file", where, "the file is empty", "Export the data again")


def unreadable(where: str, error: Exception) -> Problem:
    """Returns the problem of a file that cannot be read because of `error`."""
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    fix = "Check that it exists, that you may read it, and that it opens in another program"
    return Problem("unreadable", where, f"the file cannot be read: {reason}", fix)


@dataclass(frozen=True)
class TableFiles:
    """The files of one table: a single file, or a folder of parts."""

    where: str
    """The name of the table in messages."""
    files: tuple[TableFile, ...]


@dataclass(frozen=True)
class Place:
    """A folder that may hold tables."""

    label: str
    """The folder's name in messages, without the password that a URI may contain."""
    name: str
    path: str
    filesystem: Any = None
    _listed: dict[str, list[str]] = field(default_factory=dict, repr=False, compare=False)
    """A cache of the names in each subfolder, because listing an object store is slow."""

    def names(self) -> list[str]:
        """Returns the names in this folder; raises `OSError` if it cannot be listed."""
        if self.filesystem is None:
            # iterdir() also lists broken links.
            return sorted(entry.name for entry in Path(self.path).iterdir())
        return sorted(info.base_name for info in self.filesystem.get_file_info(fs.FileSelector(self.path)))

    def file(self, name: str) -> TableFile:
        return TableFile(name, f"{self.path}/{name}", self.filesystem)

    def parts(self, name: str) -> tuple[list[TableFile], list[str]]:
        """Returns the Parquet files in the folder `name` and below, sorted by path, and the other files."""
        parts, others = [], []
        if name not in self._listed:
            self._listed[name] = self._inside(name)
        for inner in self._listed[name]:
            if any(step.startswith(_NOT_DATA) for step in inner.split("/")):
                continue
            if inner.endswith(".parquet"):
                parts.append(self.file(f"{name}/{inner}"))
            else:
                others.append(f"{name}/{inner}")
        return parts, others

    def _inside(self, name: str) -> list[str]:
        folder = f"{self.path}/{name}"
        if self.filesystem is None:
            entries = Path(folder).rglob("*") if Path(folder).is_dir() else ()
            return sorted(path.relative_to(folder).as_posix() for path in entries if not path.is_dir())
        if self.filesystem.get_file_info(folder).type != fs.FileType.Directory:
            return []
        infos = self.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        return sorted(info.path[len(folder) + 1 :] for info in infos if info.type != fs.FileType.Directory)


def is_remote(location: object) -> bool:
    """Whether this is a URI that does not begin with file://."""
    text = str(location)
    return _URI.match(text) is not None and not text.lower().startswith("file://")


def local_path(location: str | Path) -> Path:
    """Returns the path of a folder on this machine; it may be written as a file:// URI."""
    text = str(location)
    return Path(unquote(urlsplit(text).path)) if text.lower().startswith("file://") else Path(location)


def place(location: str | Path) -> Place:
    """Returns the place with this path or URI; raises `DataError` if Arrow cannot use the URI."""
    if not is_remote(location):
        path = local_path(location)
        return Place(str(path), path.resolve().name, str(path))
    uri = str(location).rstrip("/")
    address = urlsplit(uri)
    label = f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].replace(uri, label)
        message = f"the URI cannot be used: {reason}"
        raise DataError.of("bad-url", label, message, "Write it as s3://bucket/prefix") from None
    return Place(label, path.rpartition("/")[2], path, filesystem)


def has_tables(where: Place) -> bool:
    """Whether this is a folder with at least one of the three required tables."""
    try:
        _candidates(where)
    except DataError:
        return False
    return True


def find(where: Place) -> tuple[dict[str, TableFiles], list[Problem]]:
    """Returns the files of each table. Also returns a problem for each table that is missing or exists twice.

    Raises `DataError` if the folder has none of the required tables.
    """
    candidates, others = _candidates(where)
    tables: dict[str, TableFiles] = {}
    problems: list[Problem] = []
    by_lower = {name.lower(): name for name in others}
    for table, names in candidates.items():
        if len(names) > 1:
            message = f"the table {table!r} exists more than once: {' and '.join(names)}"
            problems.append(Problem("ambiguous-file", names[0], message, "Keep one of them", value=names[1]))
        elif names:
            parts, not_read = where.parts(names[0])
            tables[table] = TableFiles(
                f"{names[0]}/" if parts else names[0], tuple(parts) or (where.file(names[0]),)
            )
            if parts and not_read:
                message = "this file is among the Parquet files of a table and is not read"
                fix, more = "Move it away, or give it a name that begins with _", len(not_read) - 1
                problems.append(
                    Problem("not-parquet", not_read[0], message, fix, more=more, severity="warning")
                )
        elif table in REQUIRED:
            close = get_close_matches(table, by_lower, n=1, cutoff=0.5)
            rename = f"; if it is {by_lower[close[0]]!r}, rename it" if close else ""
            others = [name for name in others if not close or name != by_lower[close[0]]]
            fix = (
                f"Put {table}.csv (or {', '.join(EXTENSIONS[1:])}) in the folder, "
                f"with the columns {' and '.join(TABLES[table])}{rename}"
            )
            if table == "user_item" and not rename:
                fix += "; if users buy no single items, write only these column names into it"
            problems.append(Problem("missing-file", f"{table}.csv", f"the table {table!r} is missing", fix))
    not_read = [name for name in others if name in TABLES or _is_data(name)]
    if not_read:
        absent = [table for table, found in candidates.items() if not found]
        problems.append(_unused_files(where, not_read, absent))
    return tables, problems


def _is_data(name: str) -> bool:
    """Whether a user may expect that a file of this name is read."""
    return not name.startswith(_NOT_DATA) and not _ABOUT_DATA.match(name) and bool(_DATA.fullmatch(name))


def _unused_files(where: Place, names: list[str], absent: list[str]) -> Problem:
    """Returns the warning for files that are not read. `absent` are the tables that do not exist."""
    what = f"the file {names[0]!r} is" if len(names) == 1 else f"the files {listed(map(repr, names))} are"
    message = f"{what} not read; the tables are {listed(TABLES)} {_EACH_AS}"
    one = len(names) == 1
    fix = "Rename it if it is one of these, or leave it"
    if not absent:
        fix = "Leave it" if one else "Leave them"
    elif not one:
        fix = "Rename those that are among these, or leave them"
    likely = [
        f"{name!r} is the table {table!r}, save it as {table}{_ending(name)}"
        for name in names
        for table in OWN_PREFIX
        if table in absent and name.lower().split(".")[0].removesuffix("s") in OWN_PREFIX[table]
    ]
    if likely:
        fix = f"If {', and if '.join(likely)}"
    return Problem(
        "unused-file", where.label, message, fix, value=names[0], severity="warning", names=tuple(names)
    )


def _ending(name: str) -> str:
    """Returns the ending of a file if a table may have it, else `.csv`."""
    ending = f".{name.lower().partition('.')[2]}"
    return ending if ending in EXTENSIONS else ".csv"


def _candidates(where: Place) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the names of each table's files, and of its folder if that has Parquet files.

    Also returns the other names in the folder. Raises `DataError` like `find`.
    """
    try:
        names = where.names()
    except FileNotFoundError:
        message = "there is no such file or folder"
        raise DataError.of("no-such-path", where.label, message, "Check the path") from None
    except NotADirectoryError:
        message = "this is a file, not a folder of tables"
        raise DataError.of("not-a-dataset", where.label, message, _GIVE_FOLDER) from None
    except OSError as error:
        raise DataError(unreadable(where.label, error)) from error
    candidates = {}
    for table in TABLES:
        in_parts = [table] if table in names and where.parts(table)[0] else []
        candidates[table] = in_parts + [name for name in names if name in {table + e for e in EXTENSIONS}]
    if not any(candidates[table] for table in REQUIRED):
        message = f"none of the tables is in this folder; it holds {listed(names) or 'nothing'}"
        raise DataError.of("not-a-dataset", where.label, message, _GIVE_FOLDER)
    known = {name for files in candidates.values() for name in files}
    return candidates, [name for name in names if name not in known]


# Published data


def missing_files(folder: Path, names: Iterable[str], fix: str) -> list[Problem]:
    """Returns a problem for each file that is not in the folder."""
    return [
        Problem("missing-file", str(folder / name), "the file is missing", fix)
        for name in names
        if not (folder / name).exists()
    ]


def too_large(where: Path | str, size: int, kind: str) -> Problem:
    """Returns the problem of a file with `size` ids, more than `LARGEST`. `kind` is `users`, `items`, …"""
    message = f"it has {size:,} {kind}, but no published data has over {LARGEST:,}"
    return Problem(
        "size-out-of-range", str(where), message, "Correct it, or download it again.", value=str(size)
    )


def data_name(folder: Path) -> str:
    """Returns the name of the nearest folder not named after a layout: `youshu` for youshu/authors/mat."""
    resolved = folder.resolve()
    for candidate in (resolved, *resolved.parents):
        if candidate.name and candidate.name not in _LAYOUT_FOLDERS:
            return candidate.name
    return "dataset"
