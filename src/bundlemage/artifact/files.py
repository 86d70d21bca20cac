"""A fitted model as a folder: weights, settings, ids, catalogue, histories, metrics, a card, checksums.

It is written under a temporary name, flushed and renamed. So a folder with the final name is always complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, NonNegativeInt
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file as map_tensors
from safetensors.torch import save as save_tensors
from scipy import sparse
from torch import Tensor

from bundlemage.artifact.pages import values_in_pages
from bundlemage.data.checked_json import parse, typed
from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    EVENTS_OF,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    Vocabulary,
    binary_matrix,
    empty_catalogue,
    pairs_of,
)
from bundlemage.data.events import EARLIEST, LATEST, NOTHING_KNOWN, UNDATED, Events
from bundlemage.data.folders import beside, write_whole
from bundlemage.errors import ArtifactError
from bundlemage.evaluation import ListMeasures
from bundlemage.measures.markdown import measures_of
from bundlemage.measures.meaning import SHOWN
from bundlemage.measures.slices import SlicedFigures
from bundlemage.progress import Progress, in_silence
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, kept
from bundlemage.wire.money import price_text
from bundlemage.wire.shop import ShopSettings

FORMAT = "bundlemage"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MATRICES = ("user_item", "user_bundle", "bundle_item")
FILES = (
    "model.safetensors",
    "config.json",
    "metrics.json",
    "history.jsonl",
    "README.md",
    *(f"{table}.parquet" for table in ("users", "items", "bundles", *MATRICES)),
)
ROWS_IN_A_GROUP = 2**17
"""Rows in a row group of the Parquet files. Small groups allow reading a few users without the others."""
REJECTED = {f"{name}_rejected": name for name in EVENTS_OF}
"""For each file of rejected pairs, which exists only if there are any: the matrix."""
_PAIRS = pa.schema([("row", pa.int32()), ("column", pa.int32())])
_EVENTS = pa.schema([*_PAIRS, ("at", pa.int64()), ("weight", pa.float32())])
LATER = frozenset({"cost", "image_url", "description", "vector", "at", "weight"})
"""Columns that earlier versions did not save."""
WITH_VALUES = frozenset({"description", "vector", "at", "weight"})
"""Columns that are saved only if they have a value."""
SCHEMAS = {
    "users": pa.schema([("user_id", pa.string())]),
    "items": ITEM_SCHEMA,
    "bundles": BUNDLE_SCHEMA,
    **dict.fromkeys(MATRICES, _PAIRS),
    **dict.fromkeys(EVENTS_OF, _EVENTS),
    **dict.fromkeys(REJECTED, _PAIRS),
}
BYTES_OF = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes of a value in memory. Texts are read as dictionaries, so each is a number at first."""
LARGEST = {
    MANIFEST: 2**20,
    "config.json": 2**20,
    "metrics.json": 2**20,
    "history.jsonl": 2**26,
    "README.md": 2**26,
}
"""The largest size of each file that is read as a whole. Real ones have some thousand bytes."""
MOST_UNPACKED = 128
"""How many times its file's size a Parquet table may take in memory. Tables of real shops take 1 to 5 times
as much. If each of 20,000 users has all 256 items, they take 68 times as much, and 30 times as much if all
items have the same title of 100 letters. A table that is more repetitive is saved without compression."""
LONGEST_REASON = 1000
ALIGNMENT = 64
"""PyTorch allocates memory at multiples of this number of bytes."""


@dataclass(frozen=True)
class Artifact:
    """The contents of a saved model's folder."""

    config: dict[str, Any]
    """`model`, `settings`, `split`, the name of the data and so on."""
    weights: dict[str, Tensor]
    dataset: BundleDataset
    metrics: dict[str, Any]
    history: str
    """JSON lines, one for each epoch."""
    card: str = ""


def save_artifact(artifact: Artifact, path: Path, *, overwrite: bool = False) -> None:
    """Write a model to a new folder. With `overwrite`, it may replace a saved model, but no other folder."""
    if path.exists() and not overwrite:
        raise ArtifactError(f"{path} exists already; choose another folder, or pass overwrite=True")
    check_replaceable(path)
    with beside(path) as building:
        _write(artifact, building)


def artifact_version(path: Path) -> str:
    """The version of a saved model: a short checksum of its manifest, which lists the files' checksums."""
    return _version(_manifest(path))


def describe_artifact(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The version, the content of config.json, and the metrics. Nothing else is read."""
    manifest = _manifest(path)
    saved = _listed(path, manifest)
    return _version(manifest), _config(path, saved), _metrics_of(path, saved)


def check_replaceable(path: Path) -> None:
    """Raise if the path exists and is not a saved model. A damaged model may be replaced."""
    if not path.exists():
        return
    try:
        is_model = parse(_manifest(path))["format"] == FORMAT
    except (ArtifactError, ValueError, KeyError, TypeError):
        is_model = False
    if not is_model:
        raise ArtifactError(f"{path} is not a saved model, so it is not overwritten; choose another folder")


def _write(artifact: Artifact, folder: Path) -> None:
    dataset = artifact.dataset
    weights = {name: value.detach().to("cpu").contiguous() for name, value in artifact.weights.items()}
    catalogue = dataset.catalogue or Catalogue(
        empty_catalogue(ITEM_SCHEMA, dataset.items), empty_catalogue(BUNDLE_SCHEMA, dataset.bundles)
    )
    config = {
        **artifact.config,
        "dataset": {
            "name": dataset.name,
            "notes": dataset.notes,
            "fingerprint": dataset.fingerprint(),
            "catalogue": dataset.catalogue is not None,
            **({} if dataset.event_weights is None else {"events": dict(dataset.event_weights)}),
        },
    }
    _write_weights(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(artifact.metrics, indent=2), encoding="utf-8")
    (folder / "history.jsonl").write_text(artifact.history, encoding="utf-8")
    (folder / "README.md").write_text(artifact.card, encoding="utf-8")
    _write_table(pa.table({"user_id": dataset.users.to_arrow()}), folder / "users.parquet")
    empty = [name for name in WITH_VALUES & {*ITEM_SCHEMA.names} if _is_empty(catalogue.items[name])]
    _write_table(catalogue.items.drop_columns(empty), folder / "items.parquet")
    _write_table(catalogue.bundles, folder / "bundles.parquet")
    for name in MATRICES:
        events = getattr(dataset, EVENTS_OF[name]) if name in EVENTS_OF else NOTHING_KNOWN
        known = {fact: getattr(events, fact) for fact in ("at", "weight")}
        pairs = _pairs(getattr(dataset, name)) | {
            f: values for f, values in known.items() if values is not None
        }
        _write_table(pa.table(pairs), folder / f"{name}.parquet")
    rejected = {file: getattr(dataset, EVENTS_OF[name]).rejected for file, name in REJECTED.items()}
    more = {f"{file}.parquet": matrix for file, matrix in rejected.items() if matrix is not None}
    for name, matrix in more.items():
        _write_table(pa.table(_pairs(matrix)), folder / name)
    files = {name: _seal(folder / name) for name in (*FILES, *more)}
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _pairs(matrix: sparse.csr_matrix) -> dict[str, Any]:
    rows, columns = pairs_of(matrix)
    return {"row": rows, "column": columns.astype(np.int32, copy=False)}


def _write_weights(weights: dict[str, Tensor], file: Path) -> None:
    """Write tensors so that most of their bytes lie in aligned tensors, which workers can share."""
    content = memoryview(save_tensors(weights))
    end = 8 + int.from_bytes(content[:8], "little")
    header = bytes(content[8:end])
    aligned = Counter[int]()
    for tensor in json.loads(header).values():
        start, stop = tensor["data_offsets"]
        aligned[-(end + start) % ALIGNMENT] += stop - start
    padding = max(aligned, key=lambda spaces: aligned[spaces], default=0)
    with file.open("wb") as handle:
        handle.write((len(header) + padding).to_bytes(8, "little"))
        handle.write(header + b" " * padding)  # the format allows spaces at the end of the header
        handle.write(content[end:])


def _write_table(table: pa.Table, file: Path) -> None:
    if not len(table):  # Arrow would write a group of rows without pages, and loading would refuse it
        pq.ParquetWriter(file, table.schema).close()
        return
    pq.write_table(table, file, row_group_size=ROWS_IN_A_GROUP)
    if table.nbytes > _most_unpacked(file.stat().st_size) // 2:  # loading would refuse it, or nearly so
        pq.write_table(table, file, row_group_size=ROWS_IN_A_GROUP, compression="none", use_dictionary=False)


def _seal(file: Path) -> dict[str, Any]:
    """The size and the checksum of a file."""
    with file.open("rb") as handle:
        checksum = hashlib.file_digest(handle, "sha256").hexdigest()
        return {"bytes": handle.tell(), "sha256": checksum}


# ── Reading. Nothing in the folder is trusted, even if the checksums are right ───────────────────


Saved: TypeAlias = Mapping[str, tuple[int, str]]
"""The name of a file → its size and checksum in the manifest. Files that are not in it are not checked."""


class _Described(BaseModel):
    name: str
    notes: list[str]
    fingerprint: str
    catalogue: bool
    events: dict[str, float] | None = None


class _Config(BaseModel):
    model: str
    settings: dict[str, Any]
    protocol: str
    split: dict[str, Any]
    dataset: _Described
    ensemble: int = 1  # earlier versions had no ensembles


class _Row(BaseModel):
    model: str
    matching: dict[str, float | None] | None = None
    generation: dict[str, float | None] | None = None
    lists: ListMeasures | None = None


class _Final(BaseModel):
    held_out_before: NonNegativeInt = 0


class _Metrics(BaseModel):
    test: list[_Row] = []
    findings: list[str] = []
    slices: dict[str, list[SlicedFigures]] = {}
    meaning: dict[str, str] = {}
    final: _Final | None = None


class _Listed(BaseModel):
    bytes: NonNegativeInt
    sha256: str


class _Manifest(BaseModel):
    format: Any
    version: Any
    files: dict[str, _Listed]


def load_artifact(path: Path, shared: Path | None = None) -> Artifact:
    """Read a folder, and check the checksum of each file.

    All processes that give the same folder as `shared` have the weights in memory only once.
    """
    return _artifact(path, _listed(path, _manifest(path)), shared=shared)


def load_without_users(path: Path) -> Artifact:
    """Read a folder without its users, who may not fit into memory. The dataset has no users and no sales.

    Many processes call this, so it checks no checksums. `verify_artifact` checks them once.
    """
    return _artifact(path, {}, users=False)


def _artifact(path: Path, saved: Saved, *, users: bool = True, shared: Path | None = None) -> Artifact:
    config = _config(path, saved)
    described = config["dataset"]
    items, bundles = _table(path, saved, "items"), _table(path, saved, "bundles")
    tables = {"user": _table(path, saved, "users") if users else None, "item": items, "bundle": bundles}
    ids = {kind: Vocabulary(kind, _ids(path, kind, table)) for kind, table in tables.items()}
    parts: dict[str, Any] = {}
    for name in MATRICES:
        rows, columns = name.split("_")
        shape = len(ids[rows]), len(ids[columns])
        pairs = _table(path, saved, name) if users or rows != "user" else None
        parts[name] = _matrix(path, name, pairs, shape)
        if name in EVENTS_OF and pairs is not None:
            file = f"{name}_rejected"
            rejected = None
            if f"{file}.parquet" in saved:
                rejected = _matrix(path, file, _table(path, saved, file), shape)
            parts[EVENTS_OF[name]] = _events(path, name, pairs, parts[name], rejected)
    dataset = BundleDataset(
        **parts,
        users=ids["user"],
        items=ids["item"],
        bundles=ids["bundle"],
        catalogue=Catalogue(items, bundles) if described["catalogue"] else None,
        name=described["name"],
        notes=tuple(described["notes"]),
        event_weights=described.get("events"),
    )
    return Artifact(
        config=config,
        weights=_weights(path, saved, shared),
        dataset=dataset,
        metrics=_metrics_of(path, saved),
        history=_text(path, saved, "history.jsonl"),
        card=_text(path, saved, "README.md"),
    )


def verify_artifact(path: Path, progress: Progress = in_silence) -> str:
    """Check the checksum of every file, without reading a whole file into memory. Returns the version."""
    manifest = _manifest(path)
    saved, done = _listed(path, manifest), 0
    total = sum(size for size, _ in saved.values())
    for name, (size, _) in saved.items():
        progress("bytes checked", done, total)
        with _opened(path / name, saved) as handle:
            if name.endswith(".parquet"):
                _parquet(handle, SCHEMAS[name.removesuffix(".parquet")])
        done += size
    progress("bytes checked", total, total)
    return _version(manifest)


def _manifest(path: Path) -> bytes:
    """The content of the manifest."""
    try:
        if not path.is_dir():
            raise ArtifactError(f"no saved model at {path}: there is no such folder")
        if not (path / MANIFEST).exists():
            raise ArtifactError(f"{path} is not a saved model: it has no {MANIFEST}")
    except OSError as error:  # such as a folder that this user may not open
        raise ArtifactError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    with _opened(path / MANIFEST, {}) as handle:
        return _content(handle)


def _version(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:12]


def _listed(path: Path, content: bytes) -> Saved:
    """The size and the checksum of each file, as the manifest lists them."""
    try:
        manifest = typed(_Manifest, parse(content))
        more = [name for file in REJECTED if (name := f"{file}.parquet") in manifest.files]
        listed = {name: (manifest.files[name].bytes, manifest.files[name].sha256) for name in (*FILES, *more)}
    except (ValueError, KeyError) as error:
        reason = f"{error} is not listed" if isinstance(error, KeyError) else error
        raise ArtifactError(f"{path / MANIFEST} is damaged ({reason}); save the model again") from None
    if manifest.format != FORMAT:
        raise ArtifactError(f"{path} is not a saved model: its {MANIFEST} was written by another program")
    if manifest.version != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {str(manifest.version)[:20]}; this program reads version "
            f"{FORMAT_VERSION}. Train the model again, or use the version that saved it."
        )
    return listed


@contextmanager
def _opened(file: Path, saved: Saved) -> Iterator[BinaryIO]:
    """Open a file, after comparing its size and its checksum with the saved ones.

    Every error in the `with` block becomes an ArtifactError that names the file.
    """
    try:
        # A named pipe would hold up an ordinary open until somebody writes.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(file, flags)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read ({error.strerror}); copy the folder again") from None
    try:
        _check(descriptor, file, saved)
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            yield handle
    except ArtifactError:
        raise
    except Exception as error:
        raise ArtifactError(f"{file} is damaged ({one_line(error)}); copy the folder again") from error
    finally:
        os.close(descriptor)


def _check(descriptor: int, file: Path, saved: Saved) -> None:
    """Check that this is an ordinary file, then its size, then its checksum."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactError(f"{file} is not an ordinary file; copy the folder again")
    found, most = status.st_size, LARGEST.get(file.name)
    if most is not None and found > most:
        raise ArtifactError(f"{file} has {found:,} bytes; at most {most:,} are read. Copy the folder again")
    if file.name in saved:
        size, checksum = saved[file.name]
        if found != size:
            raise ArtifactError(
                f"{file} has {found:,} bytes where {size:,} were saved; copy the folder again"
            )
        if _checksum(descriptor, size) != checksum:
            raise ArtifactError(f"{file} was altered after it was saved; copy the folder again")
        os.lseek(descriptor, 0, os.SEEK_SET)


def _checksum(descriptor: int, size: int) -> str:
    """The checksum of the first bytes of a file."""
    checksum = hashlib.sha256()
    while size and (part := os.read(descriptor, min(size, 2**20))):
        checksum.update(part)
        size -= len(part)
    return checksum.hexdigest()


def _content(handle: BinaryIO) -> bytes:
    """The bytes of a file, but not more than its size: some links into /proc have the size 0 and no end."""
    return handle.read(os.fstat(handle.fileno()).st_size)


def one_line(error: Exception) -> str:
    """The message of an error as one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


def _text(path: Path, saved: Saved, name: str) -> str:
    with _opened(path / name, saved) as handle:
        return _content(handle).decode()


def _config(path: Path, saved: Saved) -> dict[str, Any]:
    return _object(path, saved, "config.json", _Config)


def _metrics_of(path: Path, saved: Saved) -> dict[str, Any]:
    return _object(path, saved, "metrics.json", _Metrics)


def _object(path: Path, saved: Saved, name: str, kind: type[BaseModel]) -> dict[str, Any]:
    """The content of a JSON file, after checking that it has the fields of `kind`."""
    with _opened(path / name, saved) as handle:
        content: dict[str, Any] = parse(_content(handle))
        typed(kind, content)
        return content


def _weights(path: Path, saved: Saved, shared: Path | None) -> dict[str, Tensor]:
    """The tensors. With `shared`, a copy of the file is kept there and mapped by all processes.

    The file itself is not mapped: if somebody wrote into it, the processes would read the new bytes, or die.
    A mapped tensor may be changed: the system then copies the page. A tensor that is not aligned is copied,
    because the last digits of a product may depend on the alignment.
    """
    with _opened(path / "model.safetensors", saved) as handle:
        content = _content(handle)
        weights: dict[str, Tensor] = load_tensors(content)
    if shared is None:
        return weights
    copy = shared / f"{hashlib.sha256(content).hexdigest()}.safetensors"
    if not copy.exists():
        for outdated in shared.glob("*.safetensors*"):  # whoever has mapped it keeps it
            outdated.unlink(missing_ok=True)
        try:
            write_whole(copy, content)
        except OSError:  # there is no space for it, so each process has its own
            return weights
    return {
        name: tensor if tensor.data_ptr() % ALIGNMENT == 0 else weights[name]
        for name, tensor in map_tensors(copy).items()
    }


def _table(path: Path, saved: Saved, name: str) -> pa.Table:
    expected = SCHEMAS[name]
    with _opened(path / f"{name}.parquet", saved) as handle:
        most = _most_unpacked(os.fstat(handle.fileno()).st_size)
        # Each distinct text is held once until the size of all of them is known.
        table = _parquet(handle, expected).read()
        table.validate(full=True)
        if sum(map(_text_bytes, table.columns)) > most:
            raise ValueError(f"its texts would take more than {most:,} bytes")
        needed = table.column_names if "row" in table.column_names else table.column_names[:1]
        for column in needed:
            if table[column].null_count:
                raise ValueError(f"the column {column!r} has a missing value")
        if "vector" in table.column_names:
            _check_vectors(table["vector"])
        for field in expected:
            if field.name not in table.column_names:  # it has no value, or an earlier version saved it
                table = table.append_column(field, pa.nulls(len(table), field.type))
        return table.select(expected.names).cast(expected)


def _parquet(handle: BinaryIO, expected: pa.Schema) -> pq.ParquetFile:
    """Open a Parquet file whose texts are read as dictionaries. Checks what can be known before unpacking."""
    file = pq.ParquetFile(handle)
    present = set(file.schema_arrow.names)
    known = pa.schema([field for field in expected if field.name in present or field.name not in LATER])
    if not file.schema_arrow.equals(known):
        found, wanted = (
            ", ".join(f"{each.name} {each.type}" for each in schema)
            for schema in (file.schema_arrow, expected)
        )
        raise ValueError(f"its columns are {found}; expected {wanted}")
    about = file.metadata
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(about.num_columns)]
    codecs = {chunk.compression for chunk in chunks} - {"SNAPPY", "UNCOMPRESSED"}
    if codecs:
        raise ValueError(f"it is compressed with {codecs.pop()}; expected SNAPPY")
    unpacked = sum(chunk.num_values * BYTES_OF[chunk.physical_type] for chunk in chunks)
    most = _most_unpacked(os.fstat(handle.fileno()).st_size)
    if unpacked > most:
        raise ValueError(
            f"its {about.num_rows:,} rows would take {unpacked:,} bytes of memory; {most:,} are allowed"
        )
    for chunk in chunks:
        if _values(handle, chunk) != chunk.num_values:
            raise ValueError(f"the pages of {chunk.path_in_schema} do not have {chunk.num_values:,} values")
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return pq.ParquetFile(handle, read_dictionary=texts)


def _values(handle: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """The number of values that the pages of a column have. The footer may say something else."""
    starts = [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
    return values_in_pages(handle, min(starts), chunk.total_compressed_size)


def _most_unpacked(size: int) -> int:
    """The most bytes that the values of a Parquet file of this size may take."""
    return MOST_UNPACKED * size + 2**24


def _text_bytes(column: pa.ChunkedArray) -> int:
    """The bytes of all texts in a column whose texts are dictionaries; 0 for numbers."""
    total = 0
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        if pa.types.is_dictionary(values.type):
            lengths = pc.take(pc.binary_length(values.dictionary), values.indices)
            total += pc.sum(lengths).as_py() or 0
    return total


def _ids(path: Path, kind: str, table: pa.Table | None) -> list[str]:
    ids: list[str] = [] if table is None else table.column(0).to_pylist()
    if len(set(ids)) != len(ids):
        raise ArtifactError(
            f"{path / f'{kind}s.parquet'} has the same {kind} id twice; copy the folder again"
        )
    return ids


def _matrix(path: Path, name: str, pairs: pa.Table | None, shape: tuple[int, int]) -> sparse.csr_matrix:
    rows, columns = ([], []) if pairs is None else (pairs[axis].to_numpy() for axis in ("row", "column"))
    try:
        return binary_matrix(rows, columns, shape)
    except ValueError as error:
        raise ArtifactError(
            f"{path / f'{name}.parquet'} is damaged ({error}); copy the folder again"
        ) from None


def _is_empty(column: pa.ChunkedArray) -> bool:
    return bool(column.null_count == len(column))


def _check_vectors(column: pa.ChunkedArray) -> None:
    """Raise `ValueError` unless all vectors have the same length and finite numbers."""
    lengths = pc.unique(pc.list_value_length(column)).drop_null()
    if len(lengths) > 1:
        raise ValueError("its vectors have different lengths")
    numbers = pc.list_flatten(column)
    if numbers.null_count or not np.isfinite(numbers.to_numpy()).all():
        raise ValueError("a vector has something that is no number")


def _events(
    path: Path,
    name: str,
    pairs: pa.Table,
    matrix: sparse.csr_matrix,
    rejected: sparse.csr_matrix | None,
) -> Events:
    """What the columns of a file say about its pairs."""
    known = {fact: pairs[fact].to_numpy() for fact in ("at", "weight") if not _is_empty(pairs[fact])}
    at, weight = known.get("at"), known.get("weight")
    reason = None
    rows, columns = pairs_of(matrix)
    if known and not (np.array_equal(rows, pairs["row"]) and np.array_equal(columns, pairs["column"])):
        reason = "its pairs are not in order, or a pair is there twice"
    if at is not None and not ((at == UNDATED) | ((at >= EARLIEST) & (at < LATEST))).all():
        reason = "a time is not between the years 1 and 9999"
    if weight is not None and not (np.isfinite(weight) & (weight > 0)).all():
        reason = "a weight is not a number above 0"
    if rejected is not None and matrix.multiply(rejected).nnz:
        reason = "a pair is rejected as well"
    if reason is not None:
        raise ArtifactError(f"{path / f'{name}.parquet'} is damaged ({reason}); copy the folder again")
    return Events(at, weight, rejected)


# ── The model card ───────────────────────────────────────────────────────────────────────────────


def model_card(
    title: str,
    config: dict[str, Any],
    dataset: BundleDataset,
    metrics: dict[str, Any],
    history: Sequence[EpochRecord],
    *,
    choice: Sequence[str] = (),
    about_new: Sequence[str] = (),
) -> str:
    """Returns the card as Markdown: the model, its training data, its test metrics, its settings, its use.

    `choice` says what the model `auto` consists of. `about_new` has paragraphs about how the model treats new
    bundles.
    """
    shown = {key: value for key, value in config["settings"].items() if key != "parts"}
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in sorted(shown.items()))
    notes = "".join(f"\n> {note}\n" for note in dataset.notes)
    return f"""# {title} trained on {dataset.name}

Recommends this shop's bundles to a user and completes partial bundles. The shop has
{len(dataset.users):,} users, {len(dataset.bundles):,} bundles and {len(dataset.items):,} items
({dataset.user_bundle.nnz:,} user-bundle, {dataset.user_item.nnz:,} user-item and
{dataset.bundle_item.nnz:,} bundle-item pairs). The protocol `{config["protocol"]}`
with seed {config["split"]["seed"]} divided the pairs into training and held-out pairs.{_prices(config)}
{notes}{_inside(choice)}
## How good it is
{_final(metrics)}{_metrics(metrics)}
{"".join(f"{chr(10)}- {finding}" for finding in metrics.get("findings", ()))}{measures_of(metrics)}
{_training(history)}{"".join(f"{chr(10)}{paragraph}{chr(10)}" for paragraph in about_new)}
## Settings
| setting | value |
|---|---|
{settings}

## Use
```python
from bundlemage import Recommender

model = Recommender.load("this-folder")
model.recommend({next(iter(dataset.users), "")!r}, k=5)
```

This folder also contains the purchase histories of the training users: protect it like other personal data.
"""


def _prices(config: dict[str, Any]) -> str:
    """How the shop writes its prices, if it has said so."""
    settings = ShopSettings(**config["shop"])
    if settings.currency is None:
        return ""
    example = price_text(1234.5, settings)
    return f"\nPrices are in {settings.currency} and are written as {example} (locale `{settings.locale}`)."


def _inside(choice: Sequence[str]) -> str:
    lines = "".join(f"\n- {line}" for line in choice)
    return f"\n## What is inside\n{lines}\n" if lines else ""


def _final(metrics: dict[str, Any]) -> str:
    """For a model trained on all data: where its figures come from."""
    if "final" not in metrics:
        return ""
    held_out = metrics["final"].get("held_out_before", 0)
    return (
        "The model was trained on all pairs. These figures are those of the same kind of model, trained "
        f"without\n{held_out:,} user-bundle pairs that were held out to test it.\n\n"
    )


def _metrics(metrics: dict[str, Any]) -> str:
    tables = []
    for task in ("matching", "generation"):
        rows = [(row["model"], row[task]) for row in metrics.get("test", []) if row.get(task)]
        if rows:
            names = [name for name in SHOWN if name in rows[0][1]]
            lines = [f"| {task} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
            lines += [
                f"| {model} | {' | '.join(_figure(values.get(name)) for name in names)} |"
                for model, values in rows
            ]
            tables.append("\n".join(lines))
    return "\n\n".join(tables) or "It was not evaluated: no test cases were held out."


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _training(history: Sequence[EpochRecord]) -> str:
    records = kept(history)
    if not records:
        return ""
    if len(records) == 1:
        chosen = f"the weights are those of epoch {_epoch(records[0])}"
    else:
        each = "; ".join(f"member {record.member}, epoch {_epoch(record)}" for record in records)
        chosen = f"it is the mean of {len(records)} members, with the weights of {each}"
    return f"\nTrained for {len(history)} epochs; {chosen}.\n"


def _epoch(record: EpochRecord) -> str:
    value = record.validation.get(SELECTION_METRIC)
    return f"{record.epoch}" + ("" if value is None else f" (validation {SELECTION_METRIC} {value:.4f})")
