"""A fitted model as a folder: weights, settings, ids, catalogue, histories, metrics, a card, checksums.

It is written beside its place, flushed and renamed, so a folder of that name is always a whole one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    building.chmod(0o755)
    try:
        _write(artifact, building)
        swap_in(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


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
    pq.write_table(pa.table({"user_id": dataset.users.to_arrow()}), folder / "users.parquet")
    pq.write_table(catalogue.items, folder / "items.parquet")
    pq.write_table(catalogue.bundles, folder / "bundles.parquet")
    for name in MATRICES:
        matrix = getattr(dataset, name).tocoo()
        pairs = {"row": matrix.row.astype(np.int32), "column": matrix.col.astype(np.int32)}
        pq.write_table(pa.table(pairs), folder / f"{name}.parquet")
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


def swap_in(building: Path, path: Path) -> None:
    """Give the new folder its name. What had the name before is left under the other one."""
    if not path.exists():
        building.rename(path)
        return
    if _exchange(building, path):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / path.name)
    try:
        building.rename(path)
    except BaseException:
        (old / path.name).rename(path)
        raise
    finally:
        shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is missing for a moment; False where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old one
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def load_artifact(path: Path) -> Artifact:
    files = _verified_files(path)
    config = json.loads(files["config.json"])
    described = config["dataset"]
    items, bundles = _table(files["items.parquet"]), _table(files["bundles.parquet"])
    users = Vocabulary("user", _table(files["users.parquet"])["user_id"].to_pylist())
    item_ids = Vocabulary("item", items["item_id"].to_pylist())
    bundle_ids = Vocabulary("bundle", bundles["bundle_id"].to_pylist())
    shapes = zip(
        MATRICES,
        [(len(users), len(item_ids)), (len(users), len(bundle_ids)), (len(bundle_ids), len(item_ids))],
        strict=True,
    )
    matrices = {name: _matrix(_table(files[f"{name}.parquet"]), shape) for name, shape in shapes}
    dataset = BundleDataset(
        **matrices,
        users=users,
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


def _verified_files(path: Path) -> dict[str, bytes]:
    """Every file of the manifest, each checked: a cut or altered one never gives a wrong answer."""
    if not path.is_dir():
        raise ArtifactError(f"no saved model at {path}: there is no such folder")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        form, version = manifest["format"], manifest["version"]
        listed = {
            name: (manifest["files"][name]["bytes"], manifest["files"][name]["sha256"]) for name in FILES
        }
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
    files = {}
    for name, (size, checksum) in listed.items():
        try:
            content = (path / name).read_bytes()
        except OSError as error:
            raise ArtifactError(
                f"{path / name} cannot be read ({error.strerror}); copy the folder anew"
            ) from None
        if len(content) != size:
            raise ArtifactError(
                f"{path / name} has {len(content):,} bytes where {size:,} were saved; copy the folder anew"
            )
        if hashlib.sha256(content).hexdigest() != checksum:
            raise ArtifactError(f"{path / name} was altered after it was saved; copy the folder anew")
        files[name] = content
    return files


def _table(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


def _matrix(pairs: pa.Table, shape: tuple[int, int]) -> Any:
    return binary_matrix(pairs["row"].to_numpy(), pairs["column"].to_numpy(), shape)
