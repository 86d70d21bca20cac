"""A small shop as folders of Parquet files, in as many parts as a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Columns = Mapping[str, Any]

SHOP: dict[str, Columns] = {
    "user_item": {"user_id": ["ann", "ann", "bob", "bob", "cy"], "item_id": ["i1", "i2", "i1", "i3", "i2"]},
    "user_bundle": {"user_id": ["ann", "bob", "dan"], "bundle_id": ["b1", "b2", "b1"]},
    "bundle_item": {"bundle_id": ["b1", "b1", "b2", "b2"], "item_id": ["i1", "i2", "i2", "i3"]},
    "items": {
        "item_id": ["i3", "i1", "i2", "i4"],
        "title": ["Dusk", "Frost", None, "Ember"],
        "price": [None, 9.99, 5.0, 0.5],
        "tags": [["calm", "blue"], None, [], ["red"]],
    },
}


def in_parts(folder: Path, columns: Columns, parts: int, *, first: int = 0, group: int = 2) -> None:
    """A table as `parts` files with about as many rows each, in row groups of `group` rows."""
    table = pa.table(
        {name: pa.array(values) if isinstance(values, list) else values for name, values in columns.items()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    rows = max(-(-table.num_rows // parts), 1)
    for number in range(parts):
        part = table.slice(number * rows, rows)
        pq.write_table(part, folder / f"part-{first + number}.parquet", row_group_size=group)


def write_parts(folder: Path, tables: Mapping[str, Columns], parts: int, suffix: str = "") -> None:
    for table, columns in tables.items():
        in_parts(folder / f"{table}{suffix}", columns, parts)
