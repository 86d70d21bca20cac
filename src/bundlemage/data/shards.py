"""The sharded layout: one dataset as many files of limited size, of which a process may read a part.

`layout.json` lists the files and is written last: a folder that has it is a whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    empty_catalogue,
    frozen,
)
from bundlemage.data.digests import IdDigest, RowDigest
from bundlemage.data.folders import beside, write_whole
from bundlemage.data.parts import COPY_ANEW, Counts, Part, lists, read_part, rows_of, write_part
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import ConfigError, DataError, Problem

LAYOUT = "layout.json"
FORMAT, VERSION = "bundlemage-layout", 1
SHARD_ROWS = 100_000
KINDS = ("users", "items", "bundles")

Written = Callable[[int, int], None]
"""Called with how many files are written, and how many there will be."""


@dataclass(frozen=True)
class Layout:
    """A folder of shards. Row n of all parts of a kind, in order, is position n."""

    folder: Path
    name: str
    notes: tuple[str, ...]
    shard_rows: int
    sizes: Mapping[str, int]
    """How many users, items and bundles there are."""
    pairs: Mapping[str, int]
    """How many pairs each matrix has."""
    catalogue: bool
    """Whether anything is known of items and bundles besides who has them."""
    digests: Mapping[str, str]
    files: tuple[Part, ...]

    @classmethod
    def open(cls, folder: Path) -> Layout:
        """Raises `DataError` where the folder is no whole layout. The files are checked as they are read."""
        path = folder / LAYOUT
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            checksum = found.pop("sha256")
            form, version = found.pop("format"), found.pop("version")
        except FileNotFoundError:
            raise _bad(folder, f"this is no layout: it has no {LAYOUT}", COPY_ANEW) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise _bad(path, "the file is damaged", COPY_ANEW) from None
        if form != FORMAT:
            raise _bad(path, "this is the file of another program", "Name a folder of 'data ingest'")
        if version != VERSION:
            fix = "Run 'bundlemage data ingest' again, or use the version that wrote it"
            raise _bad(path, f"the format is {version}; this program reads format {VERSION}", fix)
        if checksum != _checksum(found):
            raise _bad(path, "the file was altered after it was written", COPY_ANEW)
        found["files"] = tuple(Part(name, **part) for name, part in found["files"].items())
        return cls(folder, **{**found, "notes": tuple(found["notes"])})

    def parts(self, kind: str) -> list[Part]:
        """The files of `users`, `items` or `bundles`, in order."""
        return [part for part in self.files if part.name.startswith(f"{kind}/")]

    def tables(self, kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Part by part, each checked against its checksum."""
        for part in self.parts(kind):
            yield read_part(self.folder, part, columns)

    def item_counts(self) -> Counts:
        """How many items each user has."""
        counts = [rows_of(table["items"])[0] for table in self.tables("users", ["items"])]
        return np.concatenate([np.empty(0, np.int32), *counts])

    def dataset(
        self, users: range | None = None, ids: bool = True, items: range | None = None
    ) -> BundleDataset:
        """All of it, or with the items of some users only, the rows of the others being empty; or with some
        items only, of every user. Bundles are whole.

        Without `ids` the vocabularies are numbers and there is no catalogue. The fingerprint is the whole
        one's in any case.
        """
        vocabularies: dict[str, Vocabulary] = {}
        described: dict[str, pa.Table] = {}
        for kind, schema in (("items", ITEM_SCHEMA), ("bundles", BUNDLE_SCHEMA)):
            if ids:
                columns = schema.names if self.catalogue else schema.names[:1]
                described[kind] = _joined(self.tables(kind, columns), schema)
                vocabularies[kind] = Vocabulary(kind[:-1], described[kind][schema.names[0]].to_pylist())
            else:
                vocabularies[kind] = Vocabulary.numbered(kind[:-1], self.sizes[kind])
        bundle_item = _Rows(self.sizes["bundles"], self.sizes["items"])
        for table in self.tables("bundles", ["items"]):
            bundle_item.add(table["items"])
        names, user_item, user_bundle = self._users(users, ids, items)
        vocabularies["users"] = names
        parts = {
            "user_item": user_item.matrix(),
            "user_bundle": user_bundle.matrix(),
            "bundle_item": bundle_item.matrix(),
        }
        partial = [] if users is items is None else [(parts["user_item"], self.digests["user_item"])]
        unnamed = [] if ids else [(vocabularies[kind], self.digests[kind]) for kind in KINDS]
        return BundleDataset(
            **parts,
            **vocabularies,
            catalogue=Catalogue(**described) if ids and self.catalogue else None,
            name=self.name,
            notes=self.notes,
            known_digests=(*partial, *unnamed),
        )

    def _users(self, users: range | None, ids: bool, items: range | None) -> tuple[Vocabulary, _Rows, _Rows]:
        wanted = range(self.sizes["users"]) if users is None else users
        if wanted.step != 1 or (len(wanted) and not 0 <= wanted.start <= wanted.stop <= self.sizes["users"]):
            raise ValueError(f"{wanted} is no range of the {self.sizes['users']:,} users")
        user_item = _Rows(self.sizes["users"], self.sizes["items"])
        user_bundle = _Rows(self.sizes["users"], self.sizes["bundles"])
        names: list[str] = []
        first = 0
        for part in self.parts("users"):
            here = range(max(wanted.start, first), min(wanted.stop, first + part.rows))
            columns = ["bundles", *(["items"] if len(here) else []), *(["user_id"] if ids else [])]
            table = read_part(self.folder, part, columns)
            user_bundle.add(table["bundles"])
            user_item.skip(here.start - first if len(here) else part.rows)
            if len(here):
                user_item.add(table["items"].slice(here.start - first, len(here)), items)
                user_item.skip(first + part.rows - here.stop)
            if ids:
                names += table["user_id"].to_pylist()
            first += part.rows
        vocabulary = Vocabulary("user", names) if ids else Vocabulary.numbered("user", self.sizes["users"])
        return vocabulary, user_item, user_bundle


class _Rows:
    """A matrix from columns of lists, which come from the top down."""

    def __init__(self, rows: int, columns: int) -> None:
        self._shape = (rows, columns)
        self._counts: list[Any] = []
        self._positions: list[Any] = []

    def add(self, column: pa.ChunkedArray, within: range | None = None) -> None:
        """Rows, or of each of them what lies in a range."""
        counts, positions = rows_of(column)
        if within is not None:
            kept = (positions >= within.start) & (positions < within.stop)
            counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
            positions = positions[kept]
        self._counts.append(counts)
        self._positions.append(positions)

    def skip(self, rows: int) -> None:
        self._counts.append(np.zeros(rows, np.int32))

    def matrix(self) -> sparse.csr_matrix:
        indices = np.concatenate([np.empty(0, np.int32), *self._positions])
        self._positions.clear()
        counts = np.concatenate([np.zeros(1, np.int32), *self._counts])
        indptr = np.cumsum(counts, dtype=np.int32 if len(indices) < 2**31 else np.int64)
        return frozen(sparse.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), self._shape))


def _joined(tables: Iterator[pa.Table], schema: pa.Schema) -> pa.Table:
    """In the types of the schema: Parquet has its own names for what is inside a list."""
    parts = [pa.table({name: table[name] for name in table.column_names}) for table in tables]
    columns = parts[0].column_names if parts else schema.names
    wanted = pa.schema([schema.field(name) for name in columns])
    return pa.concat_tables([wanted.empty_table(), *(part.cast(wanted) for part in parts)]).combine_chunks()


def _bad(where: Path, message: str, fix: str) -> DataError:
    return DataError(Problem("damaged-layout", str(where), message, fix))


def _checksum(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def check_output(folder: Path, shard_rows: int, *, overwrite: bool) -> None:
    """Known before the work: nothing but a layout is replaced, and that only if it is said."""
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
    written: Written | None = None,
) -> Layout:
    """The dataset as a layout, which is at its place as a whole or not at all."""
    check_output(folder, shard_rows, overwrite=overwrite)
    described = dataset.catalogue or Catalogue(
        empty_catalogue(ITEM_SCHEMA, dataset.items), empty_catalogue(BUNDLE_SCHEMA, dataset.bundles)
    )
    shards = [
        (kind, number, start, min(start + shard_rows, dataset.sizes[kind]))
        for kind in KINDS
        for number, start in enumerate(range(0, dataset.sizes[kind], shard_rows))
    ]
    files = []
    with beside(folder) as building:
        for done, (kind, number, start, stop) in enumerate(shards):
            if written:
                written(done, len(shards))
            columns: dict[str, Any]
            if kind == "users":
                columns = {
                    "user_id": dataset.users.to_arrow(start, stop),
                    "items": _lists(dataset.user_item, start, stop),
                    "bundles": _lists(dataset.user_bundle, start, stop),
                }
            else:
                rows = getattr(described, kind).slice(start, stop - start)
                columns = {name: rows[name] for name in rows.column_names}
                if kind == "bundles":
                    columns["items"] = _lists(dataset.bundle_item, start, stop)
            files.append(write_part(building, kind, number, columns))
        seal(
            building,
            files,
            name=dataset.name,
            notes=dataset.notes,
            shard_rows=shard_rows,
            sizes=dataset.sizes,
            pairs={name: int(getattr(dataset, name).nnz) for name in MATRICES},
            catalogue=dataset.catalogue is not None,
            digests=dataset.digests(),
        )
    return Layout.open(folder)


MATRICES = {
    "user_item": ("users", "items"),
    "user_bundle": ("users", "bundles"),
    "bundle_item": ("bundles", "items"),
}
"""Where the pairs of each matrix stand: which files, which column."""


def _lists(matrix: sparse.csr_matrix, start: int, stop: int) -> pa.Array:
    bounds = matrix.indptr[start : stop + 1]
    return lists(np.diff(bounds), matrix.indices[bounds[0] : bounds[-1]])


def seal(building: Path, files: Sequence[Part], **described: Any) -> None:
    """The last file, which says that all the others are there."""
    listed = {
        part.name: {key: value for key, value in asdict(part).items() if key != "name"} for part in files
    }
    described = {**described, "notes": list(described["notes"]), "files": listed}
    content = {"format": FORMAT, "version": VERSION, **described, "sha256": _checksum(described)}
    write_whole(building / LAYOUT, json.dumps(content, indent=2, ensure_ascii=False).encode())


def digests_of(folder: Path, files: Sequence[Part], kind: str) -> tuple[dict[str, str], dict[str, int]]:
    """The digests of what stands in the files of one kind, and how many pairs: part by part, in order."""
    ids = IdDigest(kind[:-1])
    matrices = {name: column for name, (where, column) in MATRICES.items() if where == kind}
    rows = {name: RowDigest() for name in matrices}
    pairs = dict.fromkeys(matrices, 0)
    name_column = f"{kind[:-1]}_id"
    for part in files:
        table = read_part(folder, part, [name_column, *matrices.values()])
        for chunk in table[name_column].chunks:
            ids.add(chunk)
        for name, column in matrices.items():
            counts, positions = rows_of(table[column])
            rows[name].add(counts, positions)
            pairs[name] += len(positions)
    return {kind: ids.hexdigest(), **{name: digest.hexdigest() for name, digest in rows.items()}}, pairs
