"""A fitted model as a folder: weights, settings, ids, catalogue, histories, metrics, a card, checksums.

It is written beside its place, flushed and renamed, so a folder of that name is always a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    binary_matrix,
    empty_catalogue,
)
from bundlemage.data.folders import beside
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import ArtifactError

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
"""Of the Parquet files, so that whoever wants some users reads little more than these."""


@dataclass(frozen=True)
class Artifact:
    """All that a folder holds."""

    config: dict[str, Any]
    """`model`, `settings`, `split`, and what the data was called."""
    weights: dict[str, Tensor]
    dataset: BundleDataset
    metrics: dict[str, Any]
    history: str
    """JSON lines, an epoch each."""
    card: str = ""


def save_artifact(artifact: Artifact, path: Path, *, overwrite: bool = False) -> None:
    if path.exists() and not overwrite:
        raise ArtifactError(f"{path} exists already; choose another folder, or pass overwrite=True")
    check_replaceable(path)
    with beside(path) as building:
        _write(artifact, building)


def artifact_version(path: Path) -> str:
    """A short name of exactly this content: the manifest holds the checksums of all the rest."""
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:
        why = f"it has no {MANIFEST}" if path.exists() else "there is no such folder"
        raise ArtifactError(f"{path} is not a saved model: {why}") from None


def describe_artifact(path: Path) -> tuple[str, str, dict[str, Any]]:
    """The version, the model's name and its metrics, without reading the rest."""
    version = artifact_version(path)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return version, config["model"], json.loads((path / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{path} is damaged: its config.json or metrics.json cannot be read") from error


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a saved model, damaged or not."""
    if not path.exists():
        return
    try:
        ours = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
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
        },
    }
    (folder / "model.safetensors").write_bytes(save_tensors(weights))
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(artifact.metrics, indent=2), encoding="utf-8")
    (folder / "history.jsonl").write_text(artifact.history, encoding="utf-8")
    (folder / "README.md").write_text(artifact.card, encoding="utf-8")
    users = pa.table({"user_id": dataset.users.to_arrow()})
    pq.write_table(users, folder / "users.parquet", row_group_size=ROWS_IN_A_GROUP)
    pq.write_table(catalogue.items, folder / "items.parquet")
    pq.write_table(catalogue.bundles, folder / "bundles.parquet")
    for name in MATRICES:
        matrix = getattr(dataset, name).tocoo()
        pairs = {"row": matrix.row.astype(np.int32), "column": matrix.col.astype(np.int32)}
        pq.write_table(pa.table(pairs), folder / f"{name}.parquet", row_group_size=ROWS_IN_A_GROUP)
    files = {name: _seal(folder / name) for name in FILES}
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    _seal(folder / MANIFEST)


def _seal(file: Path) -> dict[str, Any]:
    """Flush a file to the disk and take its checksum."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())
        content = handle.read()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def load_artifact(path: Path) -> Artifact:
    return _artifact(_verified_files(path), users=True)


def load_without_users(path: Path) -> Artifact:
    """All but the users, of whom there may be too many: its dataset has none, and so no pair of theirs.

    Nothing is checked. That is done once, by `verify_artifact`, and not by each of many processes.
    """
    of_users = {"users.parquet", *(f"{name}.parquet" for name in MATRICES if name.startswith("user"))}
    try:
        files = {name: (path / name).read_bytes() for name in FILES if name not in of_users}
    except OSError as error:
        raise ArtifactError(f"{error.filename} cannot be read ({error.strerror})") from None
    return _artifact(files, users=False)


def _artifact(files: dict[str, bytes], *, users: bool) -> Artifact:
    config = json.loads(files["config.json"])
    described = config["dataset"]
    items, bundles = _table(files["items.parquet"]), _table(files["bundles.parquet"])
    user_ids = Vocabulary("user", _table(files["users.parquet"])["user_id"].to_pylist() if users else [])
    item_ids = Vocabulary("item", items["item_id"].to_pylist())
    bundle_ids = Vocabulary("bundle", bundles["bundle_id"].to_pylist())
    shapes = zip(
        MATRICES,
        [(len(user_ids), len(item_ids)), (len(user_ids), len(bundle_ids)), (len(bundle_ids), len(item_ids))],
        strict=True,
    )
    nothing = pa.table({"row": pa.array([], pa.int32()), "column": pa.array([], pa.int32())})
    matrices = {
        name: _matrix(_table(files[f"{name}.parquet"]) if f"{name}.parquet" in files else nothing, shape)
        for name, shape in shapes
    }
    dataset = BundleDataset(
        **matrices,
        users=user_ids,
        items=item_ids,
        bundles=bundle_ids,
        catalogue=Catalogue(items, bundles) if described["catalogue"] else None,
        name=described["name"],
        notes=tuple(described["notes"]),
    )
    return Artifact(
        config=config,
        weights=load_tensors(files["model.safetensors"]),
        dataset=dataset,
        metrics=json.loads(files["metrics.json"]),
        history=files["history.jsonl"].decode(),
        card=files["README.md"].decode(),
    )


def verify_artifact(path: Path, progress: Callable[[int, int], None]) -> str:
    """Check every file without holding any in memory; the version of what is there.

    `progress` is told how many bytes are checked, and how many there are.
    """
    listed, done = _listed(path), 0
    for name, saved in listed.items():
        progress(done, sum(each.size for each in listed.values()))
        done += saved.size
        with _opened(path / name) as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
            _check(path / name, saved, _Saved(os.fstat(handle.fileno()).st_size, found))
    return artifact_version(path)


def _verified_files(path: Path) -> dict[str, bytes]:
    """Every file of the manifest, each checked: a cut or altered one never gives a wrong answer."""
    files = {}
    for name, saved in _listed(path).items():
        with _opened(path / name) as handle:
            content = files[name] = handle.read()
        _check(path / name, saved, _Saved(len(content), hashlib.sha256(content).hexdigest()))
    return files


class _Saved(NamedTuple):
    size: int
    checksum: str


def _listed(path: Path) -> dict[str, _Saved]:
    """What the manifest says of each file."""
    if not path.is_dir():
        raise ArtifactError(f"no saved model at {path}: there is no such folder")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        form, version, files = manifest["format"], manifest["version"], manifest["files"]
        listed = {name: _Saved(files[name]["bytes"], files[name]["sha256"]) for name in FILES}
    except FileNotFoundError:
        raise ArtifactError(f"{path} is not a saved model: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{path / MANIFEST} is damaged; save the model again") from None
    if form != FORMAT:
        raise ArtifactError(f"{path} is not a saved model: its {MANIFEST} is of another program")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}; this program reads version {FORMAT_VERSION}. "
            "Train the model again, or use the version that saved it."
        )
    return listed


def _opened(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read ({error.strerror}); copy the folder anew") from None


def _check(file: Path, saved: _Saved, found: _Saved) -> None:
    if found.size != saved.size:
        raise ArtifactError(
            f"{file} has {found.size:,} bytes where {saved.size:,} were saved; copy the folder anew"
        )
    if found.checksum != saved.checksum:
        raise ArtifactError(f"{file} was altered after it was saved; copy the folder anew")


def _table(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


def _matrix(pairs: pa.Table, shape: tuple[int, int]) -> Any:
    return binary_matrix(pairs["row"].to_numpy(), pairs["column"].to_numpy(), shape)
