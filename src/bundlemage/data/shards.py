"""The sharded layout: a data set as a folder of many files. A process may read only some of them.

`layout.json` lists the files and is written last, so a folder with this file is complete. The same rows give
the same bytes with every engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    PartDigest,
    Positions,
    Vocabulary,
    frozen,
)
from bundlemage.data.folders import beside, write_whole
from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.progress import Progress, in_silence

LAYOUT = "layout.json"
FORMAT, VERSION = "bundlemage-layout", 2
SHARD_ROWS = 100_000
KINDS = ("users", "items", "bundles")
MATRICES = {
    "user_item": ("users", "items"),
    "user_bundle": ("users", "bundles"),
    "bundle_item": ("bundles", "items"),
}
"""For each matrix: the kind of files that hold its rows, and the column of these files with the positions."""
_POSITIONS = pa.list_(pa.int32())
SCHEMAS = {
    "users": pa.schema([("user_id", pa.string()), ("items", _POSITIONS), ("bundles", _POSITIONS)]),
    "items": ITEM_SCHEMA,
    "bundles": BUNDLE_SCHEMA.append(pa.field("items", _POSITIONS)),
}
_COPY_AGAIN = "Copy the folder again, or run 'bundlemage data ingest' again"

Counts = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Part:
    """One file of a layout, as layout.json lists it."""

    name: str
    rows: int
    bytes: int
    sha256: str


def lists(counts: Counts, positions: npt.NDArray[np.integer]) -> pa.Array:
    """Returns an Arrow array of lists. `positions` holds all lists, one after another; `counts`
    holds their lengths."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] >= 2**31:  # the limit of an Arrow list array
        message = f"the lists of {len(counts):,} rows hold {offsets[-1]:,} positions, too many for one file"
        raise DataError.of("shard-too-large", "the layout", message, "Set a smaller --shard-rows")
    return pa.ListArray.from_arrays(offsets.astype(np.int32), positions.astype(np.int32, copy=False))


def read_part(folder: Path, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the columns of a file, by default all. Raises `DataError` if its checksum is wrong."""
    path = folder / part.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"the file cannot be read: {error.strerror}") from None
    if len(content) != part.bytes:
        raise _damaged(path, f"the file has {len(content):,} bytes where {part.bytes:,} were written")
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise _damaged(path, "the file was altered after it was written")
    return pq.ParquetFile(pa.BufferReader(content)).read(columns=columns, use_threads=False)


def _damaged(path: Path, message: str, fix: str = _COPY_AGAIN) -> DataError:
    return DataError.of("damaged-layout", str(path), message, fix)


def rows_of(column: pa.ChunkedArray) -> tuple[Counts, npt.NDArray[np.int32]]:
    """Returns the lengths of the lists in a column, and the positions of all lists in order."""
    lists_ = column.combine_chunks()
    if isinstance(lists_, pa.ChunkedArray):  # a column without rows
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return np.diff(lists_.offsets.to_numpy()), lists_.flatten().to_numpy()


@dataclass(frozen=True)
class Layout:
    """A folder of shards. Rows are numbered across all files of a kind: row n of `users` is the user
    at position n."""

    folder: Path
    name: str
    notes: tuple[str, ...]
    shard_rows: int
    sizes: Mapping[str, int]
    """The numbers of users, items and bundles."""
    pairs: Mapping[str, int]
    """The number of pairs of each matrix."""
    catalogue: bool
    """Whether the layout has a catalogue of items and bundles."""
    digests: Mapping[str, str]
    files: tuple[Part, ...]
    about_tables: tuple[Problem, ...] = ()
    """What was noticed in the tables and cannot be seen in the layout. Earlier versions wrote nothing."""

    @classmethod
    def open(cls, folder: Path) -> Layout:
        """Open a folder. Raises `DataError` if it is not a complete layout. Parts are checked when read."""
        path = folder / LAYOUT
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            checksum = content.pop("sha256")
            format_, version = content.pop("format"), content.pop("version")
        except FileNotFoundError:
            raise _damaged(folder, f"this is not a layout: it has no {LAYOUT}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path, "the file is damaged") from None
        if format_ != FORMAT:
            fix = "Give a folder that 'bundlemage data ingest' has written"
            raise _damaged(path, "this file was written by another program", fix)
        if version != VERSION:
            fix = "Run 'bundlemage data ingest' again, or use the version that wrote it"
            raise _damaged(path, f"the format is {version}; this program reads format {VERSION}", fix)
        if checksum != _checksum(content):
            raise _damaged(path, "the file was altered after it was written")
        content["files"] = tuple(Part(name, **part) for name, part in content["files"].items())
        about = [Problem(**each, severity="note") for each in content.pop("about_tables", ())]
        return cls(folder, **{**content, "notes": tuple(content["notes"])}, about_tables=tuple(about))

    def parts(self, kind: str) -> list[Part]:
        """Returns the files of `users`, `items` or `bundles`, in order."""
        return [part for part in self.files if part.name.startswith(f"{kind}/")]

    def dataset(
        self, users: range | None = None, ids: bool = True, items: range | None = None
    ) -> BundleDataset:
        """Returns the data set. Users may have only a part of their items; everything else is complete.

        If `users` is given, all other users have no items. If `items` is given, users have only these items.
        Without `ids`, the ids are numbers and the data set has no catalogue. The fingerprint is always that
        of the complete data.
        """
        selected = range(self.sizes["users"]) if users is None else users
        ordered = 0 <= selected.start <= selected.stop <= self.sizes["users"]
        if selected.step != 1 or (len(selected) and not ordered):
            raise ValueError(f"{selected} is not a range of the {self.sizes['users']:,} users")
        tables: dict[str, pa.Table] = {}
        rows: dict[str, list[tuple[Counts, Positions]]] = {matrix: [] for matrix in MATRICES}
        for kind, schema in SCHEMAS.items():
            texts = [name for name in schema.names if name not in matrices_of(kind).values()]
            texts = texts[: None if self.catalogue else 1] if ids else []
            described = [pa.schema([schema.field(name) for name in texts]).empty_table()]
            first = 0
            for part in self.parts(kind) if texts or matrices_of(kind) else []:
                lists = matrices_of(kind)
                in_part = range(max(selected.start - first, 0), min(selected.stop - first, part.rows))
                if kind == "users" and not in_part:
                    del lists["user_item"]
                    rows["user_item"].append((np.zeros(part.rows, np.int32), np.empty(0, np.int32)))
                table = read_part(self.folder, part, [*texts, *lists.values()])
                # Parquet changes the field names inside lists, so the schema is restored.
                described.append(table.select(texts).cast(described[0].schema))
                for matrix, column in lists.items():
                    counts, positions = rows_of(table[column])
                    if matrix == "user_item" and (users is not None or items is not None):
                        counts, positions = _kept(counts, positions, in_part, items)
                    rows[matrix].append((counts, positions))
                first += part.rows
            tables[kind] = pa.concat_tables(described).combine_chunks()
        vocabularies = {
            kind: Vocabulary(kind[:-1], tables[kind].column(0).to_pylist() if ids else range(size))
            for kind, size in self.sizes.items()
        }
        matrices = {
            matrix: _matrix(rows.pop(matrix), (self.sizes[owners], self.sizes[column]))
            for matrix, (owners, column) in MATRICES.items()
        }
        partial = [] if users is items is None else [(matrices["user_item"], self.digests["user_item"])]
        unnamed = [] if ids else [(vocabularies[kind], self.digests[kind]) for kind in KINDS]
        return BundleDataset(
            **matrices,
            users=vocabularies["users"],
            items=vocabularies["items"],
            bundles=vocabularies["bundles"],
            catalogue=Catalogue(tables["items"], tables["bundles"]) if ids and self.catalogue else None,
            name=self.name,
            notes=self.notes,
            known_digests=(*partial, *unnamed),
        )


def _kept(
    counts: Counts, positions: Positions, rows: range, columns: range | None
) -> tuple[Counts, Positions]:
    """Keeps only the positions inside `columns`, and empties all rows outside the range `rows`."""
    owners = np.repeat(np.arange(len(counts)), counts)
    kept = (owners >= rows.start) & (owners < rows.stop)
    if columns is not None:
        kept &= (positions >= columns.start) & (positions < columns.stop)
    return np.bincount(owners[kept], minlength=len(counts)), positions[kept]


def _matrix(rows: list[tuple[Counts, Positions]], shape: tuple[int, int]) -> sparse.csr_matrix:
    """Returns a matrix from pieces of its rows, in order. Empties the list `rows`."""
    indices = np.concatenate([np.empty(0, np.int32), *(positions for _, positions in rows)])
    counts = np.concatenate([np.zeros(1, np.int32), *(counts for counts, _ in rows)])
    rows.clear()  # frees memory: the pieces are as large as the matrix
    indptr = np.cumsum(counts, dtype=np.int32 if len(indices) < 2**31 else np.int64)
    return frozen(sparse.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape))


def _checksum(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def check_output(folder: Path, shard_rows: int, *, overwrite: bool) -> None:
    """Raises `ConfigError` if `folder` exists, unless it is a layout and `overwrite` is set."""
    if shard_rows < 1:
        raise ConfigError(f"shard_rows is {shard_rows}; a file has at least one row")
    if not folder.exists():
        return
    if not overwrite:
        raise ConfigError(f"{folder} exists already: add --overwrite to replace it, or choose another folder")
    if not (folder / LAYOUT).is_file():
        raise ConfigError(
            f"{folder} is not a layout that 'data ingest' has written, so --overwrite does not replace it: "
            "choose another folder"
        )


def write_layout(
    dataset: BundleDataset,
    folder: Path,
    shard_rows: int = SHARD_ROWS,
    *,
    overwrite: bool = False,
    progress: Progress = in_silence,
    about_tables: Sequence[Problem] = (),
) -> Layout:
    """Write a data set as a layout. Returns the layout. The folder is created or replaced when complete.
    `about_tables` are notes that the layout keeps."""
    check_output(folder, shard_rows, overwrite=overwrite)

    def columns(kind: str, start: int, stop: int) -> dict[str, Any]:
        if kind == "users" or dataset.catalogue is None:
            values: dict[str, Any] = {f"{kind[:-1]}_id": getattr(dataset, kind).to_arrow(start, stop)}
        else:
            rows = getattr(dataset.catalogue, kind).slice(start, stop - start)
            values = {name: rows[name] for name in rows.column_names}
        for name, column in matrices_of(kind).items():
            bounds = getattr(dataset, name).indptr[start : stop + 1]
            values[column] = lists(np.diff(bounds), getattr(dataset, name).indices[bounds[0] : bounds[-1]])
        return values

    with beside(folder) as building:
        catalogue = dataset.catalogue is not None
        write_shards(
            building,
            shard_rows,
            dataset.sizes,
            columns,
            progress,
            catalogue,
            dataset.name,
            dataset.notes,
            about_tables,
        )
    return Layout.open(folder)


def matrices_of(kind: str) -> dict[str, str]:
    """Returns the matrices that files of a kind hold, and the column of each."""
    return {name: column for name, (owners, column) in MATRICES.items() if owners == kind}


def write_shards(
    building: Path,
    shard_rows: int,
    sizes: Mapping[str, int],
    columns: Callable[[str, int, int], dict[str, Any]],
    progress: Progress,
    catalogue: bool,
    name: str,
    notes: Sequence[str] = (),
    about_tables: Sequence[Problem] = (),
) -> None:
    """Write all files of a layout into the folder `building`, and layout.json last.

    `sizes` are the numbers of users, items and bundles. `columns(kind, start, stop)` returns the columns of
    the rows from `start` to `stop`, without `stop`. It is called once for each file, in order. Columns that
    it does not return become null.
    """
    total = sum(-(-sizes[kind] // shard_rows) for kind in KINDS)
    files: dict[str, dict[str, Any]] = {}
    digests = {kind: PartDigest(kind[:-1]) for kind in KINDS} | {name: PartDigest() for name in MATRICES}
    pairs = dict.fromkeys(MATRICES, 0)
    for kind in KINDS:
        (building / kind).mkdir(exist_ok=True)
        for number, start in enumerate(range(0, sizes[kind], shard_rows)):
            progress("writing", len(files), total)
            stop = min(start + shard_rows, sizes[kind])
            nulls = {column.name: pa.nulls(stop - start, column.type) for column in SCHEMAS[kind]}
            table = pa.table(nulls | columns(kind, start, stop), schema=SCHEMAS[kind]).combine_chunks()
            part = f"{kind}/part-{number:05}.parquet"
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd", row_group_size=max(table.num_rows, 1))
            content = sink.getvalue()
            with (building / part).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            checksum = hashlib.sha256(content).hexdigest()
            files[part] = {"rows": table.num_rows, "bytes": content.size, "sha256": checksum}
            for chunk in table.column(0).chunks:
                digests[kind].add_ids(chunk)
            for matrix, column in matrices_of(kind).items():
                counts, positions = rows_of(table[column])
                digests[matrix].add_rows(counts, positions)
                pairs[matrix] += len(positions)
    described = {
        "name": name,
        "notes": list(notes),
        "shard_rows": shard_rows,
        "sizes": sizes,
        "pairs": pairs,
        "catalogue": catalogue,
        "digests": {part: digest.hexdigest() for part, digest in digests.items()},
        "files": files,
        "about_tables": [
            {name: getattr(note, name) for name in ("kind", "where", "message", "fix")}
            for note in about_tables
        ],
    }
    listed = {"format": FORMAT, "version": VERSION, **described, "sha256": _checksum(described)}
    write_whole(building / LAYOUT, json.dumps(listed, indent=2, ensure_ascii=False).encode())
