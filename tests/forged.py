"""Saved models that somebody altered, with a manifest that fits the altered files."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

from bundlemage.artifact.files import FILES, MANIFEST, REJECTED

Forgery = Callable[[Path], None]
"""Alters a saved model."""


def forge(folder: Path, forgery: Forgery) -> Path:
    """Alter a saved model, and write the sizes and checksums of the altered files into its manifest."""
    file = folder / MANIFEST
    before = file.read_bytes()
    forgery(folder)
    if file.is_file() and not file.is_symlink() and file.read_bytes() == before:
        rejected = [f"{name}.parquet" for name in REJECTED if (folder / f"{name}.parquet").exists()]
        files = {name: listed(folder / name) for name in (*FILES, *rejected)}
        file.write_text(json.dumps(json.loads(before) | {"files": files}))
    return folder


def listed(file: Path) -> dict[str, Any]:
    content = file.read_bytes() if file.is_file() else b""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def written(name: str, content: str | bytes) -> Forgery:
    """Another content of a file."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


class Raw(str):
    """JSON that `json.dumps` would not write."""


def changed(name: str, *keys: str | int, to: Any) -> Forgery:
    """Another value at one place of a JSON file. `...` removes it. Raw text is written as it is."""

    def change(folder: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text().splitlines()[0] if name.endswith("l") else file.read_text())
        place = content
        for key in keys[:-1]:
            place = place[key]
        if to is ...:
            del place[keys[-1]]
        elif keys:
            place[keys[-1]] = "@raw@" if isinstance(to, Raw) else to
        else:
            content = to
        file.write_text(json.dumps(content).replace('"@raw@"', str(to)))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Forgery:
    """Other tensors."""

    def write(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        change(tensors)
        save_file(tensors, file)

    return write


def table(name: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> Forgery:
    """Another Parquet table. `options` are those of `write_table`."""

    def write(folder: Path) -> None:
        file = folder / f"{name}.parquet"
        altered = change(pq.read_table(file))
        buffer = io.BytesIO()
        pq.write_table(altered, buffer, **options)
        file.write_bytes(buffer.getvalue())

    return write


def column(name: str, which: str, values: Any, **options: Any) -> Forgery:
    """Another column of a table. `values` are the values, or a function of the old column."""

    def change(old: pa.Table) -> pa.Table:
        new = values(old[which]) if callable(values) else values
        return old.set_column(old.column_names.index(which), which, new)

    return table(name, change, **options)


def instead(name: str, make: Callable[[Path], object]) -> Forgery:
    """Something else in the place of a file."""

    def replace(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return replace


def first(value: Any) -> Callable[[pa.ChunkedArray], pa.Array]:
    """Replaces the first value of a column."""

    def replaced(old: pa.ChunkedArray) -> pa.Array:
        return pa.array([value, *old.to_pylist()[1:]], old.type)

    return replaced


def not_utf8(old: pa.ChunkedArray) -> pa.Array:
    return pa.array([b"\xff\xfe", *(str(text).encode() for text in old.to_pylist()[1:])]).view(pa.string())


def many_rows(_: pa.Table) -> pa.Table:
    """Twenty million pairs in some kilobytes."""
    same = pa.array(np.zeros(20_000_000, np.int32))
    return pa.table({"row": same, "column": same})


def long_titles(old: pa.Table) -> pa.Table:
    """One title of a megabyte for all items, which would take 90 megabytes."""
    return old.set_column(1, "title", pa.array(["x" * 2**20] * len(old)))


def many_tags(old: pa.Table) -> pa.Table:
    """Ten million tags for one item."""
    tags = pa.ListArray.from_arrays(
        [0, *[10_000_000] * len(old)], pa.array(np.zeros(10_000_000, np.int8)).cast(pa.string())
    )
    return old.set_column(3, "tags", tags)


def varint(number: int, length: int) -> bytes:
    """A number as Parquet writes it, with a length of its own."""
    return bytes([number << 1 >> 7 * place & 127 | 128 * (place < length - 1) for place in range(length)])


def fewer_in_the_footer(name: str, change: Callable[[pa.Table], pa.Table]) -> Forgery:
    """A table whose footer says that its largest column has one value."""

    def write(folder: Path) -> None:
        table(name, change)(folder)
        file = folder / f"{name}.parquet"
        group = pq.read_metadata(file).row_group(0)
        most = max(group.column(number).num_values for number in range(group.num_columns))
        content = file.read_bytes()
        at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        length = (2 * most).bit_length() // 7 + 1
        file.write_bytes(content[:at] + content[at:].replace(varint(most, length), varint(1, length)))
        places = [number for number in range(group.num_columns) if group.column(number).num_values == most]
        forged = pq.read_metadata(file).row_group(0)
        assert {forged.column(number).num_values for number in places} == {1}

    return write


def grown(file: Path) -> None:
    """A large file of zeros, which takes no space on the disk."""
    file.touch()
    os.truncate(file, 2**27)


def linked(folder: Path) -> None:
    """A link to an ordinary file."""
    (folder / "items.parquet").rename(folder / "elsewhere")
    (folder / "items.parquet").symlink_to("elsewhere")


ENDLESS = "/proc/self/pagemap"
"""An ordinary file, says the system, of size 0. Reading it does not end."""


def endless(name: str) -> Forgery:
    """A link to an endless file, which the manifest lists with its size."""

    def link(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["files"][name] = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
        (folder / MANIFEST).write_text(json.dumps(manifest))
        (folder / name).unlink()
        (folder / name).symlink_to(ENDLESS)

    return link


def bundle_gone(folder: Path) -> None:
    """A bundle fewer than the matrices have."""
    table("bundles", lambda old: old.slice(1))(folder)


def deep(levels: int) -> Raw:
    return Raw("[" * levels + "]" * levels)


CONFIG, METRICS, HISTORY, WEIGHTS = "config.json", "metrics.json", "history.jsonl", "model.safetensors"

REFUSED: Mapping[str, Forgery] = {
    # config.json
    "config-empty": written(CONFIG, ""),
    "config-cut": written(CONFIG, '{"model": "bundlemage"'),
    "config-not-text": written(CONFIG, b'{"model": "\xff"}'),
    "config-too-large": written(CONFIG, "[" + " " * 2**20 + "]"),
    "config-deep": written(CONFIG, deep(100_000)),
    "config-surrogate": changed(CONFIG, "dataset", "name", to=Raw('"\\ud800"')),
    "config-infinite": changed(CONFIG, "settings", "learning_rate", to=Raw("1e999")),
    "config-huge-number": changed(CONFIG, "split", "seed", to=10**30),
    "config-very-huge-number": changed(CONFIG, "split", "seed", to=Raw("9" * 5000)),
    "config-nan": changed(CONFIG, "settings", "learning_rate", to=Raw("NaN")),
    "model-unknown": changed(CONFIG, "model", to="no-such-model"),
    "model-another": changed(CONFIG, "model", to="popularity"),
    "ensemble-huge": changed(CONFIG, "ensemble", to=10**9),
    "ensemble-two": changed(CONFIG, "ensemble", to=2),
    "ensemble-none": changed(CONFIG, "ensemble", to=0),
    "ensemble-true": changed(CONFIG, "ensemble", to=True),
    "setting-unknown": changed(CONFIG, "settings", "popularity_bias", to=1),
    "setting-model": changed(CONFIG, "settings", "model", to="bundlemage"),
    "setting-self": changed(CONFIG, "settings", "self", to=1),
    "setting-type": changed(CONFIG, "settings", "embedding_dim", to=[16]),
    "setting-other-size": changed(CONFIG, "settings", "embedding_dim", to=32),
    "setting-large-size": changed(CONFIG, "settings", "embedding_dim", to=20_000),
    "setting-huge-size": changed(CONFIG, "settings", "embedding_dim", to=2**62),
    "setting-deep": changed(CONFIG, "settings", "scores", to=deep(25)),
    "layers-huge": changed(CONFIG, to={"model": "ncf", "settings": {"layers": 10**9}, "protocol": "paper",
        "split": {}, "dataset": {"name": "x", "notes": [], "fingerprint": "", "catalogue": True}}),
    "split-unknown": changed(CONFIG, "split", "protocol", to="no-such-protocol"),
    "split-unknown-key": changed(CONFIG, "split", "more", to=1),
    "split-type": changed(CONFIG, "split", "seed", to="1"),
    "split-negative": changed(CONFIG, "split", "negatives", to=-1),
    "audience-lacks-a-key": changed(CONFIG, "audience", "fit", to=...),
    "audience-text": changed(CONFIG, "audience", "fit", to="0.5"),
    "audience-nan": changed(CONFIG, "audience", "fit", to=Raw("NaN")),
    "buyers-text": changed(CONFIG, "new_bundle_audience", "held_out", to="many"),
    "buyers-without-a-reason": changed(CONFIG, "new_bundle_audience", "reason", to=None),
    "credit-text": changed(CONFIG, "new_bundle_credit", "sales", to="many"),
    "dataset-name": changed(CONFIG, "dataset", "name", to=5),
    "dataset-notes": changed(CONFIG, "dataset", "notes", to="a note"),
    "dataset-note": changed(CONFIG, "dataset", "notes", to=[5]),
    "dataset-catalogue": changed(CONFIG, "dataset", "catalogue", to="yes"),
    # metrics.json and history.jsonl
    "metrics-list": changed(METRICS, to=[1]),
    "metrics-deep": written(METRICS, f'{{"test": [], "more": {deep(990)}}}'),
    "metrics-very-deep": written(METRICS, f'{{"more": {deep(200_000)}}}'),
    "metrics-test-number": changed(METRICS, "test", to=5),
    "metrics-row": changed(METRICS, "test", to=["row"]),
    "metrics-value": changed(METRICS, "test", to=[{"model": "x", "matching": {"ndcg@5": "high"}}]),
    "metrics-many-rows": changed(METRICS, "test", to=[1] * 2000),
    "metrics-huge-number": changed(METRICS, "more", to=2**70),
    "history-no-json": written(HISTORY, "epoch 1\n"),
    "history-list": written(HISTORY, "[]\n"),
    "history-deep": written(HISTORY, deep(100_000)),
    "history-lacks-a-key": changed(HISTORY, "epoch", to=...),
    "history-unknown-key": changed(HISTORY, "more", to=1),
    "history-type": changed(HISTORY, "losses", to=[0.5]),
    "history-loss": changed(HISTORY, "losses", to={"matching": "low"}),
    "history-long-line": changed(HISTORY, "losses", to={"x" * 2**17: 0.5}),
    "history-not-text": written(HISTORY, b"\xff\n"),
    "history-too-large": instead(HISTORY, grown),
    "card-not-text": written("README.md", b"\xff"),
    # manifest.json
    "manifest-deep": written(MANIFEST, deep(100_000)),
    "manifest-too-large": instead(MANIFEST, lambda file: file.write_bytes(b" " * 2**21)),
    "manifest-huge-size": changed(MANIFEST, "files", WEIGHTS, "bytes", to=10**18),
    "manifest-negative-size": changed(MANIFEST, "files", WEIGHTS, "bytes", to=-1),
    "manifest-text-size": changed(MANIFEST, "files", WEIGHTS, "bytes", to="12"),
    "manifest-checksum": changed(MANIFEST, "files", WEIGHTS, "sha256", to=5),
    "manifest-entry": changed(MANIFEST, "files", WEIGHTS, to=[1, "2"]),
    "manifest-format": changed(MANIFEST, "format", to={}),
    "manifest-version": changed(MANIFEST, "version", to=["1" * 5000]),
    # model.safetensors
    "weights-empty": written(WEIGHTS, b""),
    "weights-no-header": written(WEIGHTS, b"\xff" * 100),
    "weights-header-huge": written(WEIGHTS, (2**60).to_bytes(8, "little") + b"{}"),
    "weights-header-deep": written(WEIGHTS, (200_000).to_bytes(8, "little") + deep(100_000).encode()),
    "weights-header-list": written(WEIGHTS, (2).to_bytes(8, "little") + b"[]"),
    "tensor-missing": weights(lambda all_: all_.pop("item_shared")),
    "tensor-more": weights(lambda all_: all_.update(more=torch.zeros(3))),
    "tensor-shape": weights(lambda all_: all_.update(item_shared=torch.zeros(3, 3))),
    "tensor-scalar": weights(lambda all_: all_.update(item_shared=torch.zeros(()))),
    "tensor-half": weights(lambda all_: all_.update(item_shared=all_["item_shared"].half())),
    "tensor-whole-numbers": weights(lambda all_: all_.update(item_shared=all_["item_shared"].long())),
    "tensor-nan": weights(lambda all_: all_["item_shared"][0].fill_(torch.nan)),
    "buffer-infinite": weights(lambda all_: all_["sales"].fill_(-torch.inf)),
    "buffer-shape": weights(lambda all_: all_.update(sales=torch.zeros(3))),
    "buffer-dimensions": weights(lambda all_: all_.update(sales=torch.zeros(3, 3))),
    "buffer-type": weights(lambda all_: all_.update(sales=all_["sales"].long())),
    # The tables
    "table-no-parquet": written("items.parquet", b"PAR1 but no more"),
    "table-empty": written("users.parquet", b""),
    "table-without-a-column": table("items", lambda old: old.drop_columns(["title"])),
    "table-with-a-column": table("items", lambda old: old.append_column("more", old["title"])),
    "table-other-order": table("items", lambda old: old.select(old.column_names[::-1])),
    "table-other-name": table("users", lambda old: old.rename_columns(["id"])),
    "table-price-text": column("items", "price", lambda old: old.cast(pa.string())),
    "table-tags-text": column("items", "tags", lambda old: pa.nulls(len(old), pa.string())),
    "table-id-numbers": column("users", "user_id", lambda old: pa.array(range(len(old)))),
    "table-zstd": table("items", lambda old: old, compression="zstd"),
    "table-gzip": table("user_item", lambda old: old, compression="gzip"),
    "id-missing": column("users", "user_id", first(None)),
    "id-twice": column("users", "user_id", first("u0002")),
    "id-not-text": column("items", "item_id", not_utf8),
    "title-not-text": column("items", "title", not_utf8),
    "id-delta": table("users", lambda old: old, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
    "position-negative": column("user_item", "column", first(-1)),
    "position-large": column("user_item", "column", first(2**31 - 1)),
    "position-outside": column("bundle_item", "row", first(40)),
    "position-missing": column("user_bundle", "row", first(None)),
    "position-wide": column("user_bundle", "row", lambda old: old.cast(pa.int64())),
    "position-fraction": column("user_bundle", "row", lambda old: old.cast(pa.float64())),
    "bundle-gone": bundle_gone,
    "many-rows": table("user_item", many_rows),
    "many-tags": table("items", many_tags),
    "long-titles": table("items", long_titles),
    "many-tags-denied": fewer_in_the_footer("items", many_tags),
    # What is no file
    "pipe": instead("items.parquet", os.mkfifo),
    "pipe-manifest": instead(MANIFEST, os.mkfifo),
    "pipe-config": instead(CONFIG, os.mkfifo),
    "pipe-weights": instead(WEIGHTS, os.mkfifo),
    "folder": instead("users.parquet", Path.mkdir),
    "folder-manifest": instead(MANIFEST, Path.mkdir),
    "device": instead("items.parquet", lambda file: file.symlink_to("/dev/zero")),
    "device-manifest": instead(MANIFEST, lambda file: file.symlink_to("/dev/zero")),
    "device-history": instead(HISTORY, lambda file: file.symlink_to("/dev/tty")),
    "link-to-nothing": instead(METRICS, lambda file: file.symlink_to("nothing")),
    "link-to-itself": instead(METRICS, lambda file: file.symlink_to(file.name)),
    "endless-manifest": instead(MANIFEST, lambda file: file.symlink_to(ENDLESS)),
    "endless-config": endless(CONFIG),
    "endless-table": endless("users.parquet"),
    "endless-weights": endless(WEIGHTS),
}  # fmt: skip
"""Models that must not load."""

HARMLESS: Mapping[str, Forgery] = {
    "config-more": changed(CONFIG, "more", to=[1]),
    "no-ensemble": changed(CONFIG, "ensemble", to=...),
    "no-audience": changed(CONFIG, "audience", to=None),
    "metrics-empty": changed(METRICS, to={}),
    "metrics-nan": changed(METRICS, "test", 0, "matching", "ndcg@5", to=Raw("NaN")),
    "history-empty": written(HISTORY, ""),
    "control-characters": column("users", "user_id", first("u0001\n\t\x00")),
    "title-missing": column("items", "title", first(None)),
    "tags-missing": column("items", "tags", lambda old: pa.nulls(len(old), old.type)),
    "not-compressed": table("items", lambda old: old, compression="none", use_dictionary=False),
    "pair-twice": table("user_item", lambda old: pa.concat_tables([old, old])),
    "link": linked,
    "endless-card": endless("README.md"),
}
"""Models that load, and answer."""
