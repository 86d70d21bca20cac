"""Reads data frames of any library that offers the Arrow C stream interface."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bundlemage.data.splits import Source
from bundlemage.errors import DataError
from bundlemage.readers.assemble import TableData, assemble
from bundlemage.readers.columns import resolve


def read_frames(
    user_item: Any,
    user_bundle: Any,
    bundle_item: Any,
    items: Any = None,
    bundles: Any = None,
    name: str = "frames",
) -> Source:
    """Read pandas or Polars frames, DuckDB relations or Arrow tables. The kinds may be mixed.

    Three frames are required. `items` and `bundles` are the optional catalogue. `name` names the data.
    Returns the data; raises `DataError` with every problem.
    """
    frames = {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}
    frames |= {table: frame for table, frame in (("items", items), ("bundles", bundles)) if frame is not None}
    return assemble(
        frames, lambda table: TableData.from_arrow(table, table, _arrow(table, frames[table])), name
    )


def _arrow(table: str, frame: Any) -> pa.Table:
    if not hasattr(frame, "__arrow_c_stream__"):
        fix = (
            "Give a pandas or Polars DataFrame, a DuckDB relation or a PyArrow table "
            "(anything with __arrow_c_stream__; collect a lazy frame first)"
        )
        raise DataError.of("not-a-frame", table, f"a {type(frame).__name__} is not a frame", fix)
    try:
        return pa.table(_needed(table, frame))
    except (pa.ArrowException, TypeError, ValueError) as error:
        message = f"a column holds values of more than one type ({' '.join(map(str, error.args))})"
        fix = "Make each column one type, for example by frame['user_id'].astype(str)"
        raise DataError.of("bad-id-type", table, message, fix) from error


def _needed(table: str, frame: Any) -> Any:
    """Returns a pandas or Polars frame with only the needed columns, as Arrow may fail to convert others."""
    names = [str(column) for column in getattr(frame, "columns", ())]
    if not hasattr(frame, "to_numpy") or len(set(names)) < len(names):
        return frame
    index = getattr(frame, "index", None)
    if index is not None and any(index.names):  # the index may hold an id: Arrow makes it a column
        return frame
    return frame[[frame.columns[position] for position in resolve(table, names, table).values()]]
