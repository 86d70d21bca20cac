"""Frames in memory, of any library that speaks the Arrow C stream interface."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bundlemage.errors import DataError, Problem
from bundlemage.readers.assemble import Given, assemble
from bundlemage.readers.columns import resolve
from bundlemage.readers.source import Source


def read_frames(
    user_item: Any,
    user_bundle: Any,
    bundle_item: Any,
    items: Any = None,
    bundles: Any = None,
    name: str = "frames",
) -> Source:
    """pandas and Polars frames, DuckDB relations and Arrow tables, in any mixture, to a dataset."""
    frames = {
        "user_item": user_item,
        "user_bundle": user_bundle,
        "bundle_item": bundle_item,
        "items": items,
        "bundles": bundles,
    }
    tables: dict[str, Given] = {}
    problems: list[Problem] = []
    for table, frame in frames.items():
        if frame is None and table in ("items", "bundles"):
            continue
        try:
            tables[table] = Given.from_arrow(table, table, _arrow(table, frame))
        except DataError as error:
            problems += error.problems
    return assemble(tables, name, problems)


def _arrow(table: str, frame: Any) -> pa.Table:
    if not hasattr(frame, "__arrow_c_stream__"):
        raise DataError(
            Problem(
                kind="not-a-frame",
                where=table,
                message=f"a {type(frame).__name__} is not a frame",
                fix="Give a pandas or Polars DataFrame, a DuckDB relation or a PyArrow table "
                "(anything with __arrow_c_stream__; collect a lazy frame first)",
            )
        )
    try:
        return pa.table(_needed(table, frame))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            Problem(
                kind="bad-id-type",
                where=table,
                message=f"a column holds values of more than one type ({' '.join(map(str, error.args))})",
                fix="Make each column one type, for example by frame['user_id'].astype(str)",
            )
        ) from error


def _needed(table: str, frame: Any) -> Any:
    """A pandas or Polars frame with only the columns that matter: others may hold what Arrow cannot."""
    names = [str(column) for column in getattr(frame, "columns", ())]
    if not hasattr(frame, "to_numpy") or len(set(names)) < len(names):
        return frame
    index = getattr(frame, "index", None)
    if index is not None and any(index.names):  # an id may be the index, which then becomes a column
        return frame
    return frame[[frame.columns[position] for position in resolve(table, names, table).values()]]
