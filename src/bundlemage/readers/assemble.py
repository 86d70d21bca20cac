"""Builds a data set from tables. All readers use this module: equal tables give equal data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bundlemage.data.dataset import (
    BundleDataset,
    Catalogue,
    Vocabulary,
    binary_matrix,
    canonical_order,
    empty_catalogue,
)
from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.columns import CATALOGUE_SCHEMAS, REQUIRED, TABLES, Columns, resolve
from bundlemage.readers.values import Coded, Locate, align, duplicates, encode, read_column, shown


@dataclass(frozen=True)
class TableData:
    """One table as it was read."""

    where: str
    """The name of the file, table or frame in messages."""
    columns: Mapping[str, Coded]
    """The columns by their canonical names, such as `user_id` and `title`; the ids come first."""
    locate: Locate
    problems: tuple[Problem, ...] = ()
    """Warnings and notes about the names of the columns."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """For each column that has another name in the files: that name."""

    def checked(self, table: str) -> tuple[TableData | None, list[Problem]]:
        """Returns the table with its values checked, or None if there is an error; and the problems."""
        key, *_ = TABLES[table]
        if not len(self.columns[key].codes):
            severity: Literal["error", "warning"] = "warning"
            fix = "Fill the table or remove it; an empty table is ignored"
            if table == "user_item":
                fix = "Export the data again if users also buy single items; "
                fix += "a model can learn from bundles alone"
            elif table in REQUIRED:
                severity, fix = "error", "Export the data again; a model learns from these rows"
            message = "there are column names but no rows"
            problem = Problem("no-rows", self.where, message, fix, severity=severity)
            return self if table == "user_item" else None, [*self.problems, problem]
        problems = list(self.problems)
        columns: dict[str, Coded] = {}
        for name, column in self.columns.items():
            values, faults = read_column(column, name, self.locate, self._in_words(name))
            problems += faults
            if values is not None:
                columns[name] = values
        if table in CATALOGUE_SCHEMAS and key in columns:
            problems += duplicates(columns[key], self._in_words(key), self.locate)
        failed = any(problem.severity == "error" for problem in problems)
        return None if failed else replace(self, columns=columns), problems

    def _in_words(self, column: str) -> str:
        """Returns the name of a column for messages."""
        return f"{self.aliases[column]!r} (read as {column!r})" if column in self.aliases else repr(column)


def assemble(
    tables: Iterable[str], read: Callable[[str], TableData], name: str, problems: Iterable[Problem] = ()
) -> Source:
    """Build a data set from tables. `read` reads one table; `problems` are those that the caller already has.

    Returns the data set and the warnings. Raises one `DataError` with all problems if one is an error.
    """
    problems = list(problems)
    checked: dict[str, TableData] = {}
    for table in tables:
        with collected(problems):
            valid, faults = read(table).checked(table)
            problems += faults
            if valid is not None:
                checked[table] = valid
    if {"user_item", "user_bundle"} <= checked.keys():
        items, bundles = checked["user_item"], checked["user_bundle"]
        users, buyers = items.columns["user_id"], bundles.columns["user_id"]
        if len(users.codes) and not set(users.values) & set(buyers.values):
            problems.append(no_common_user(buyers.values[buyers.codes[0]], bundles.locate(0), items.where))
    for table, column, other in CROSSINGS:
        if table in checked and other in checked:
            ids, known = checked[table].columns[column], set(checked[other].columns[column].values)
            unknown = np.array([text not in known for text in ids.values], dtype=bool)
            if unknown.any():
                row = int(np.argmax(unknown[ids.codes]))
                value, more = ids.values[ids.codes[row]], int(unknown.sum()) - 1
                place = checked[table].locate(row)
                problems.append(unknown_id(column, value, more, place, checked[other].where))
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    dataset, again = _dataset(checked, name)
    return Source(dataset, warnings=(*problems, *again))


CROSSINGS = (
    ("user_bundle", "bundle_id", "bundle_item"),
    ("bundles", "bundle_id", "bundle_item"),
    ("bundle_item", "item_id", "items"),
)
"""Checks between two tables: each id in the column of the first table should also be in the second."""


def unknown_id(column: str, value: str, more: int, place: tuple[str, int], known_where: str) -> Problem:
    """Returns the warning for ids that fail a check of `CROSSINGS`.

    `place` is the file and line of the first such id, and `more` is the number of further ones. `known_where`
    is the name of the table that lacks them.
    """
    where, line = place
    if column == "bundle_id":
        kind, fault = "empty-bundle", f"bundle {shown(value)} has no items in"
        fix = "Add its items there, or remove the bundle"
    else:
        kind, fault = "item-not-in-catalogue", f"item {shown(value)} is in a bundle but not in"
        fix = "Add it to the catalogue, or correct the id"
    return Problem(kind, where, f"{fault} {known_where}", fix, line, value, more, severity="warning")


def no_common_user(first: str, place: tuple[str, int], user_item: str) -> Problem:
    """Returns the warning that nobody in `user_bundle` has an item. `first` is its first user, at `place`."""
    where, line = place
    message = f"no user of this table is in {user_item}; the first is {shown(first)}"
    fix = "If the users are the same, write their ids alike in both; a spreadsheet drops the zeros of 007"
    return Problem("no-common-user", where, message, fix, line, first, severity="warning")


BOUGHT_AGAIN = "bought-again"
"""The kind of the note that customers of a shop buy the same things again."""
LEAST_AGAIN, LEAST_REPEATS = 0.05, 20
"""A table has this note if at least this share of its rows, and so many rows, repeat an earlier pair."""


def bought_again(table: str, where: str, rows: int, pairs: int, repeated: int, alike: bool) -> list[Problem]:
    """Returns a note if many rows of a table of purchases repeat an earlier pair, as in a shop whose
    customers buy the same things again.

    `pairs` is the number of different pairs, and `repeated` the number of those that occur more than once.
    `alike`: all pairs occur equally often. Then the table is only a copy of itself.
    """
    repeats = rows - pairs
    if alike or repeats < max(LEAST_REPEATS, LEAST_AGAIN * rows):
        return []
    what = "an item" if table == "user_item" else "a bundle"
    message = (
        f"{repeats:,} of {rows:,} rows repeat an earlier pair of a user and {what} "
        f"({repeated:,} pairs; each counts once), so customers seem to buy the same things again"
    )
    fix = "If they do, train with --shop owned=show: then nothing is left out because a user owns it"
    return [Problem(BOUGHT_AGAIN, where, message, fix, severity="note")]


def repeated_purchases(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the notes of `bought_again` among these."""
    return [problem for problem in problems if problem.kind == BOUGHT_AGAIN]


def _dataset(tables: Mapping[str, TableData], name: str) -> tuple[BundleDataset, list[Problem]]:
    """Returns the data set, and notes about it."""
    vocabularies = {}
    for kind in ("user", "item", "bundle"):
        mentioned = (
            table.columns[f"{kind}_id"].values for table in tables.values() if f"{kind}_id" in table.columns
        )
        vocabularies[f"{kind}_id"] = Vocabulary(kind, canonical_order(set().union(*mentioned)))
    matrices: dict[str, Any] = {}
    again: list[Problem] = []
    for table in REQUIRED:
        (row_key, rows), (column_key, columns) = tables[table].columns.items()
        shape = len(vocabularies[row_key]), len(vocabularies[column_key])
        row_positions = vocabularies[row_key].positions(rows.values)[rows.codes]
        column_positions = vocabularies[column_key].positions(columns.values)[columns.codes]
        matrices[table] = binary_matrix(row_positions, column_positions, shape)
        if row_key == "user_id":
            keys = row_positions.astype(np.int64) * shape[1] + column_positions
            times = np.unique(keys, return_counts=True)[1]
            repeated, alike = int((times > 1).sum()), len(np.unique(times)) < 2
            again += bought_again(table, tables[table].where, len(keys), len(times), repeated, alike)
    catalogue_tables: dict[str, pa.Table] = {}
    for table, schema in CATALOGUE_SCHEMAS.items():
        vocabulary = vocabularies[schema.names[0]]
        catalogue_tables[table] = (
            align(tables[table].columns, vocabulary, schema)
            if table in tables
            else empty_catalogue(schema, vocabulary)
        )
    dataset = BundleDataset(
        **matrices,
        users=vocabularies["user_id"],
        items=vocabularies["item_id"],
        bundles=vocabularies["bundle_id"],
        catalogue=Catalogue(**catalogue_tables) if tables.keys() & CATALOGUE_SCHEMAS.keys() else None,
        name=name,
    )
    return dataset, again


# Data frames


def read_frames(
    user_item: Any,
    user_bundle: Any,
    bundle_item: Any,
    items: Any = None,
    bundles: Any = None,
    name: str = "frames",
) -> Source:
    """Read pandas or Polars frames, DuckDB relations or Arrow tables. The kinds may be mixed.

    Three frames are required. `items` and `bundles` are the optional catalogue. `name` names the data set.
    Returns the data; raises `DataError` with every problem.
    """
    frames = {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}
    frames |= {table: frame for table, frame in (("items", items), ("bundles", bundles)) if frame is not None}
    return assemble(frames, lambda table: _read_frame(table, frames[table]), name)


def _read_frame(name: str, frame: Any) -> TableData:
    if not hasattr(frame, "__arrow_c_stream__"):
        fix = (
            "Give a pandas or Polars DataFrame, a DuckDB relation or a PyArrow table "
            "(anything with __arrow_c_stream__; collect a lazy frame first)"
        )
        raise DataError.of("not-a-frame", name, f"a {type(frame).__name__} is not a frame", fix)
    selected, columns = _selected(name, frame)
    try:
        table = pa.table(selected)
    except (pa.ArrowException, TypeError, ValueError) as error:
        message = f"a column holds values of more than one type ({' '.join(map(str, error.args))})"
        fix = "Make each column one type, for example by frame['user_id'].astype(str)"
        raise DataError.of("bad-id-type", name, message, fix) from error
    columns = columns or resolve(name, table.column_names, name)
    coded = {column: encode(table.column(position)) for column, position in columns.positions.items()}
    return TableData(name, coded, lambda row: (name, row + 1), columns.problems, columns.aliases)


def _selected(table: str, frame: Any) -> tuple[Any, Columns | None]:
    """Returns a pandas or Polars frame with only the needed columns, as Arrow may fail to convert others.

    Other frames are returned whole, without `Columns`.
    """
    names = [str(column) for column in getattr(frame, "columns", ())]
    if not hasattr(frame, "to_numpy") or len(set(names)) < len(names):
        return frame, None
    index = getattr(frame, "index", None)
    if index is not None and any(index.names):  # the index may hold an id: Arrow makes it a column
        return frame, None
    columns = resolve(table, names, table)
    return frame[[frame.columns[position] for position in columns.positions.values()]], columns.selected()
