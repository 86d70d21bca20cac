"""The sharded layout: a data set as a folder of many files. A process may read only some of them.

`layout.json` lists the files and is written last, so a folder with this file is complete. The same rows give
the same bytes with every engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    EVENTS_OF,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    PartDigest,
    Vocabulary,
    catalogue_table,
)
from bundlemage.data.events import NOTHING_KNOWN, Divided, Whole
from bundlemage.data.folders import beside, write_whole
from bundlemage.data.shard_columns import (
    FACT_COLUMNS,
    FACTS,
    MATRICES,
    POSITIONS,
    MatrixDigests,
    MatrixRows,
    fact_columns,
    lists_of,
    matrices_of,
)
from bundlemage.errors import ConfigError, DataError, Problem
from bundlemage.progress import Progress, in_silence

LAYOUT = "layout.json"
FORMAT, VERSION, WITH_MORE = "bundlemage-layout", 2, 3
"""The version is `WITH_MORE` if the files have columns of `OPTIONAL`, which earlier programs do not read."""
SHARD_ROWS = 100_000
KINDS = ("users", "items", "bundles")
SCHEMAS = {
    "users": pa.schema(
        [("user_id", pa.string()), ("items", POSITIONS), ("bundles", POSITIONS)]
        + [(column, FACTS[fact]) for columns in FACT_COLUMNS.values() for fact, column in columns.items()]
    ),
    "items": ITEM_SCHEMA,
    "bundles": BUNDLE_SCHEMA.append(pa.field("items", POSITIONS)),
}
OPTIONAL = {
    "users": tuple(column for columns in FACT_COLUMNS.values() for column in columns.values()),
    "items": ("description", "vector"),
    "bundles": (),
}
"""The columns that the files of a kind have only if one of their rows has a value there."""
_COPY_AGAIN = "Copy the folder again, or run 'bundlemage data ingest' again"


@dataclass(frozen=True)
class Part:
    """One file of a layout, as layout.json lists it."""

    name: str
    rows: int
    bytes: int
    sha256: str


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
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of `OPTIONAL` that the files of each kind have."""
    event_types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each table with types of events: how many rows each type had."""
    events: Mapping[str, float] | None = None
    """The weights of the types of events with which the layout was written."""
    whole: Mapping[str, Whole] = field(default_factory=dict)
    """For each matrix with times or weights: what all of its pairs tell about some of them."""

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
        if version not in (VERSION, WITH_MORE):
            fix = "Run 'bundlemage data ingest' again, or use the version that wrote it"
            known = f"this program reads the formats {VERSION} and {WITH_MORE}"
            raise _damaged(path, f"the format is {version}; {known}", fix)
        if checksum != _checksum(content):
            raise _damaged(path, "the file was altered after it was written")
        content["files"] = tuple(Part(name, **part) for name, part in content["files"].items())
        about = [Problem(**each, severity="note") for each in content.pop("about_tables", ())]
        whole = {name: Whole(**each) for name, each in content.pop("whole", {}).items()}
        content["notes"] = tuple(content["notes"])
        return cls(folder, **content, about_tables=tuple(about), whole=whole)

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
        partly = users is not None or items is not None
        tables: dict[str, pa.Table] = {}
        found = {name: MatrixRows(name, self.columns.get("users", ())) for name in MATRICES}
        for kind in KINDS:
            texts = self._texts(kind)[: None if self.catalogue else 1] if ids else []
            described = [pa.schema([SCHEMAS[kind].field(name) for name in texts]).empty_table()]
            first = 0
            for part in self.parts(kind) if texts or matrices_of(kind) else []:
                wanted = {name: found[name] for name in matrices_of(kind)}
                in_part = range(max(selected.start - first, 0), min(selected.stop - first, part.rows))
                if kind == "users" and not in_part:
                    wanted.pop("user_item").add_empty(part.rows)
                columns = [column for each in wanted.values() for column in each.columns]
                table = read_part(self.folder, part, [*texts, *columns])
                # Parquet changes the field names inside lists, so the schema is restored.
                described.append(table.select(texts).cast(described[0].schema))
                for name, each in wanted.items():
                    each.add(table, in_part if partly and name == "user_item" else None, items)
                first += part.rows
            tables[kind] = pa.concat_tables(described).combine_chunks()
        vocabularies = {
            kind: Vocabulary(kind[:-1], tables[kind].column(0).to_pylist() if ids else range(size))
            for kind, size in self.sizes.items()
        }
        parts: dict[str, Any] = {}
        for name, (owners, column) in MATRICES.items():
            shape, whole = (self.sizes[owners], self.sizes[column]), None
            if partly and name == "user_item" and name in self.whole:
                whole = Divided(**asdict(self.whole[name]))
            parts[name], events = found.pop(name).take(shape, whole)
            if name in EVENTS_OF:
                parts[EVENTS_OF[name]] = events
        known: list[tuple[object, Mapping[str, str]]] = []
        if not ids:
            known += [(vocabularies[kind], {kind: self.digests[kind]}) for kind in KINDS]
        if partly:
            facts = {name: value for name, value in self.digests.items() if name.startswith("user_item_")}
            known.append((parts["user_item"], {"user_item": self.digests["user_item"]}))
            known.append((parts["item_events"], facts))
        return BundleDataset(
            **parts,
            users=vocabularies["users"],
            items=vocabularies["items"],
            bundles=vocabularies["bundles"],
            catalogue=_catalogue(tables) if ids and self.catalogue else None,
            name=self.name,
            notes=self.notes,
            event_weights=self.events,
            known_digests=tuple(known),
        )

    def _texts(self, kind: str) -> list[str]:
        """Returns the columns of the files of a kind that hold no pairs. The ids come first."""
        absent = {*OPTIONAL[kind]} - {*self.columns.get(kind, ())}
        of_pairs = {*matrices_of(kind).values(), *OPTIONAL["users"]}
        return [name for name in SCHEMAS[kind].names if name not in absent | of_pairs]


def _catalogue(tables: Mapping[str, pa.Table]) -> Catalogue:
    """Returns the catalogue. Columns that the files do not have are null."""
    return Catalogue(
        *(
            catalogue_table(schema, {name: tables[kind][name] for name in tables[kind].column_names})
            for kind, schema in (("items", ITEM_SCHEMA), ("bundles", BUNDLE_SCHEMA))
        )
    )


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
    about_events: Mapping[str, Any] | None = None,
) -> Layout:
    """Write a data set as a layout. Returns the layout. The folder is created or replaced when complete.
    `about_tables` are notes that the layout keeps; so are `event_types` and `events` in `about_events`."""
    check_output(folder, shard_rows, overwrite=overwrite)
    known = {name: getattr(dataset, field_name) for name, field_name in EVENTS_OF.items()}

    def columns(kind: str, start: int, stop: int) -> dict[str, Any]:
        if kind == "users" or dataset.catalogue is None:
            values: dict[str, Any] = {f"{kind[:-1]}_id": getattr(dataset, kind).to_arrow(start, stop)}
        else:
            rows = getattr(dataset.catalogue, kind).slice(start, stop - start)
            values = {name: rows[name] for name in rows.column_names}
        for name in matrices_of(kind):
            values |= lists_of(name, getattr(dataset, name), known.get(name, NOTHING_KNOWN), start, stop)
        return values

    with beside(folder) as building:
        write_shards(
            building,
            shard_rows,
            dataset.sizes,
            columns,
            progress,
            dataset.catalogue is not None,
            dataset.name,
            dataset.notes,
            about_tables,
            optional_columns(dataset.catalogue, fact_columns(known)),
            about_events,
        )
    return Layout.open(folder)


def optional_columns(catalogue: Catalogue | None, facts: Set[str]) -> dict[str, list[str]]:
    """Returns the columns of `OPTIONAL` that have a value, for each kind of file. `facts` are those columns
    that say something about pairs."""
    present = {*facts}
    if catalogue is not None:
        items = catalogue.items
        present |= {name for name in OPTIONAL["items"] if items[name].null_count < len(items)}
    columns = {kind: [name for name in names if name in present] for kind, names in OPTIONAL.items()}
    return {kind: names for kind, names in columns.items() if names}


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
    optional: Mapping[str, Sequence[str]] | None = None,
    about_events: Mapping[str, Any] | None = None,
) -> None:
    """Write all files of a layout into the folder `building`, and layout.json last.

    `sizes` are the numbers of users, items and bundles. `columns(kind, start, stop)` returns the columns of
    the rows from `start` to `stop`, without `stop`. It is called once for each file, in order. Columns that
    it does not return become null. `optional` are the columns of `OPTIONAL` that the files have.
    """
    optional = optional or {}
    schemas = {
        kind: pa.schema([field for field in schema if field.name not in _left_out(kind, optional)])
        for kind, schema in SCHEMAS.items()
    }
    total = sum(-(-sizes[kind] // shard_rows) for kind in KINDS)
    files: dict[str, dict[str, Any]] = {}
    ids = {kind: PartDigest(kind[:-1]) for kind in KINDS}
    matrices = {name: MatrixDigests(name, optional.get("users", ())) for name in MATRICES}
    for kind in KINDS:
        (building / kind).mkdir(exist_ok=True)
        for number, start in enumerate(range(0, sizes[kind], shard_rows)):
            progress("writing", len(files), total)
            stop = min(start + shard_rows, sizes[kind])
            nulls = {column.name: pa.nulls(stop - start, column.type) for column in schemas[kind]}
            given = {name: values for name, values in columns(kind, start, stop).items() if name in nulls}
            table = pa.table(nulls | given, schema=schemas[kind]).combine_chunks()
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
                ids[kind].add_ids(chunk)
            for matrix in matrices_of(kind):
                matrices[matrix].add(table)
    whole = {name: asdict(each.whole) for name, each in matrices.items() if each.whole is not None}
    described = {
        "name": name,
        "notes": list(notes),
        "shard_rows": shard_rows,
        "sizes": sizes,
        "pairs": {name: each.pairs for name, each in matrices.items()},
        "catalogue": catalogue,
        "digests": {kind: digest.hexdigest() for kind, digest in ids.items()}
        | {part: digest for each in matrices.values() for part, digest in each.digests().items()},
        "files": files,
        "about_tables": [
            {name: getattr(note, name) for name in ("kind", "where", "message", "fix")}
            for note in about_tables
        ],
        **({"columns": optional} if optional else {}),
        **({"whole": whole} if whole else {}),
        **{name: value for name, value in (about_events or {}).items() if value},
    }
    version = WITH_MORE if optional else VERSION
    listed = {"format": FORMAT, "version": version, **described, "sha256": _checksum(described)}
    write_whole(building / LAYOUT, json.dumps(listed, indent=2, ensure_ascii=False).encode())


def _left_out(kind: str, optional: Mapping[str, Sequence[str]]) -> set[str]:
    """Returns the columns that files of a kind do not have."""
    return {*OPTIONAL[kind]} - {*optional.get(kind, ())}
