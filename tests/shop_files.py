"""A small shop as a folder of tables, whole or with some of its files changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = {
    "user_item.csv": "user_id,item_id\nann,i1\nann,i2\nbob,i1\nbob,i3\n",
    "user_bundle.csv": "user_id,bundle_id\nann,b1\nbob,b2\n",
    "bundle_item.csv": "bundle_id,item_id\nb1,i1\nb1,i2\nb2,i2\nb2,i3\n",
}
ITEMS = "item_id,title,price,stock\ni1,Frost,9.99,3\ni2,Ember,5,0\ni3,Dusk,,\n"
BUNDLES = "bundle_id,title,price,discount\nb1,Winter,12,0.2\nb2,Evening,9,0\n"


def write(folder: Path, **changes: str | bytes | None) -> None:
    """A good folder with some files changed (`user_item_csv="…"`), added, or left out (None)."""
    folder.mkdir(parents=True)
    files: dict[str, str | bytes | None] = dict(GOOD)
    for key, content in changes.items():
        files[_file_name(key)] = content
    for name, content in files.items():
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _file_name(key: str) -> str:
    for extension in ("csv_gz", "tsv_gz", "csv", "tsv", "parquet"):
        if key.endswith("_" + extension):
            return key.removesuffix("_" + extension) + "." + extension.replace("_", ".")
    raise ValueError(key)


def with_files(**changes: str | bytes | None) -> Callable[[Path], None]:
    return lambda folder: write(folder, **changes)


def parquet(columns: dict[str, pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def with_parquet(columns: dict[str, pa.Array]) -> Callable[[Path], None]:
    return with_files(user_item_csv=None, user_item_parquet=parquet(columns))
