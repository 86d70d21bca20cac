"""A fitted model as a folder: weights, settings, ids, catalogue, histories, metrics, a card, checksums.

It is written under a temporary name, flushed and renamed. So a folder with the final name is always complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
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
    Vocabulary,
    binary_matrix,
    empty_catalogue,
)
from bundlemage.data.folders import beside
from bundlemage.errors import ArtifactError
from bundlemage.progress import Progress, in_silence
from bundlemage.training.assumed_sales import AssumedSales
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, kept

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
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError:
        why = f"it has no {MANIFEST}" if path.exists() else "there is no such folder"
        raise ArtifactError(f"{path} is not a saved model: {why}") from None


def describe_artifact(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The version, the content of config.json, and the metrics. Nothing else is read."""
    version = artifact_version(path)
    try:
        config, metrics = (json.loads((path / f"{name}.json").read_bytes()) for name in ("config", "metrics"))
        _ = config["model"], config["dataset"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{path} is damaged: its config.json or metrics.json cannot be read") from error
    return version, config, metrics


def check_replaceable(path: Path) -> None:
    """Raise if the path exists and is not a saved model. A damaged model may be replaced."""
    if not path.exists():
        return
    try:
        is_model = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
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


def _seal(file: Path) -> dict[str, Any]:
    """The size and the checksum of a file."""
    with file.open("rb") as handle:
        checksum = hashlib.file_digest(handle, "sha256").hexdigest()
        return {"bytes": handle.tell(), "sha256": checksum}


def load_artifact(path: Path) -> Artifact:
    """Read a folder, and check the checksum of each file."""
    files = {name: _checked(path / name, *saved) for name, saved in _listed(path).items()}
    return _artifact(files)


def load_without_users(path: Path) -> Artifact:
    """Read a folder without its users, who may not fit into memory. The dataset has no users and no sales.

    Many processes call this, so it checks no checksums. `verify_artifact` checks them once.
    """
    of_users = {"users.parquet", *(f"{name}.parquet" for name in MATRICES if name.startswith("user"))}
    try:
        files = {name: (path / name).read_bytes() for name in FILES if name not in of_users}
    except OSError as error:
        raise ArtifactError(f"{error.filename} cannot be read ({error.strerror})") from None
    return _artifact(files)


def _artifact(files: dict[str, bytes]) -> Artifact:
    config = json.loads(files["config.json"])
    described = config["dataset"]
    items, bundles = _table(files["items.parquet"]), _table(files["bundles.parquet"])
    users = _table(files["users.parquet"])["user_id"].to_pylist() if "users.parquet" in files else []
    ids = {
        "user": Vocabulary("user", users),
        "item": Vocabulary("item", items["item_id"].to_pylist()),
        "bundle": Vocabulary("bundle", bundles["bundle_id"].to_pylist()),
    }
    matrices = {}
    for name in MATRICES:
        rows, columns = name.split("_")
        file = files.get(f"{name}.parquet")
        pairs = [[], []] if file is None else [_table(file)[axis].to_numpy() for axis in ("row", "column")]
        matrices[name] = binary_matrix(pairs[0], pairs[1], (len(ids[rows]), len(ids[columns])))
    dataset = BundleDataset(
        **matrices,
        users=ids["user"],
        items=ids["item"],
        bundles=ids["bundle"],
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


def verify_artifact(path: Path, progress: Progress = in_silence) -> str:
    """Check the checksum of every file, without reading a whole file into memory. Returns the version."""
    listed, done = _listed(path), 0
    total = sum(size for size, _ in listed.values())
    for name, saved in listed.items():
        progress("bytes checked", done, total)
        _checked(path / name, *saved, keep=False)
        done += saved[0]
    progress("bytes checked", total, total)
    return artifact_version(path)


def _listed(path: Path) -> dict[str, tuple[int, str]]:
    """The size and the checksum of each file, as the manifest lists them."""
    if not path.is_dir():
        raise ArtifactError(f"no saved model at {path}: there is no such folder")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        format_, version, files = manifest["format"], manifest["version"], manifest["files"]
        listed = {name: (files[name]["bytes"], files[name]["sha256"]) for name in FILES}
    except FileNotFoundError:
        raise ArtifactError(f"{path} is not a saved model: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{path / MANIFEST} is damaged; save the model again") from None
    if format_ != FORMAT:
        raise ArtifactError(f"{path} is not a saved model: its {MANIFEST} was written by another program")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}; this program reads version {FORMAT_VERSION}. "
            "Train the model again, or use the version that saved it."
        )
    return listed


def _checked(file: Path, size: int, checksum: str, *, keep: bool = True) -> bytes:
    """Check the size and the checksum of a file. Returns its content, or b"" without `keep`."""
    try:
        with file.open("rb") as handle:
            content = handle.read() if keep else b""
            digest = hashlib.sha256(content) if keep else hashlib.file_digest(handle, "sha256")
            length = handle.tell()
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read ({error.strerror}); copy the folder again") from None
    if length != size:
        raise ArtifactError(f"{file} has {length:,} bytes where {size:,} were saved; copy the folder again")
    if digest.hexdigest() != checksum:
        raise ArtifactError(f"{file} was altered after it was saved; copy the folder again")
    return content


def _table(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


# ── The model card ───────────────────────────────────────────────────────────────────────────────


def model_card(
    title: str,
    config: dict[str, Any],
    dataset: BundleDataset,
    metrics: dict[str, Any],
    history: Sequence[EpochRecord],
    assumed: AssumedSales | None = None,
) -> str:
    """Returns the card as Markdown: the model, its training data, its test metrics, its settings, its use."""
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in sorted(config["settings"].items()))
    notes = "".join(f"\n> {note}\n" for note in dataset.notes)
    return f"""# {title} trained on {dataset.name}

Recommends this shop's bundles to a user and completes partial bundles. The shop has
{len(dataset.users):,} users, {len(dataset.bundles):,} bundles and {len(dataset.items):,} items
({dataset.user_bundle.nnz:,} user-bundle, {dataset.user_item.nnz:,} user-item and
{dataset.bundle_item.nnz:,} bundle-item pairs). The protocol `{config["protocol"]}`
with seed {config["split"]["seed"]} divided the pairs into training and held-out pairs.
{notes}
## How good it is
{_metrics(metrics)}
{_training(history)}{"" if assumed is None else f"{chr(10)}{assumed}{chr(10)}"}
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


def _metrics(metrics: dict[str, Any]) -> str:
    tables = []
    for task in ("matching", "generation"):
        rows = [(row["model"], row[task]) for row in metrics.get("test", []) if row.get(task)]
        if rows:
            names = list(rows[0][1])
            lines = [f"| {task} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
            lines += [
                f"| {model} | {' | '.join(f'{values[name]:.4f}' for name in names)} |"
                for model, values in rows
            ]
            tables.append("\n".join(lines))
    return "\n\n".join(tables) or "It was not evaluated: no test cases were held out."


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
