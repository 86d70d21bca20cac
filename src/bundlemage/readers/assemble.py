"""Builds a data set from tables. All readers use this module: equal tables give equal data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import (
    EVENTS_OF,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    Positions,
    Vocabulary,
    binary_matrix,
    canonical_order,
    empty_catalogue,
)
from bundlemage.data.events import Events
from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.columns import (
    CATALOGUE_SCHEMAS,
    REQUIRED,
    TABLES,
    VECTORS,
    Columns,
    has_events,
    resolve,
)
from bundlemage.readers.facts import FACTS, read_fact
from bundlemage.readers.pairs import Rows, Types, check_events, no_event_column, pairs_of_rows
from bundlemage.readers.values import Coded, Locate, align, duplicates, encode, read_column, shown


@dataclass(frozen=True)
class TableData:
    """One table as it was read."""

    where: str
    """The name of the file, table or frame in messages."""
    columns: Mapping[str, Coded]
    """The columns by their canonical names, such as `user_id` and `title`; the ids come first."""
    locate: Locate
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The columns of `FACTS`, which are not in `columns`: pieces as they were read, or checked values."""
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
            values, faults = read_column(column, name, self.locate, self.in_words(name))
            problems += faults
            if values is not None:
                columns[name] = values
        facts: dict[str, Any] = {}
        for name, chunks in self.facts.items():
            facts[name], faults = read_fact(name, chunks, self.locate, self.in_words(name))
            problems += faults
        if table in (*CATALOGUE_SCHEMAS, VECTORS) and key in columns:
            problems += duplicates(columns[key], self.in_words(key), self.locate)
        failed = any(problem.severity == "error" for problem in problems)
        return None if failed else replace(self, columns=columns, facts=facts), problems

    def in_words(self, column: str) -> str:
        """Returns the name of a column for messages."""
        return in_words_of(column, self.aliases)


def in_words_of(column: str, aliases: Mapping[str, str]) -> str:
    """Returns the name of a column for messages. `aliases` are the names in the files, if they differ."""
    return f"{aliases[column]!r} (read as {column!r})" if column in aliases else repr(column)


def assemble(
    tables: Iterable[str],
    read: Callable[[str], TableData],
    name: str,
    problems: Iterable[Problem] = (),
    events: Mapping[str, float] | None = None,
) -> Source:
    """Build a data set from tables. `read` reads one table; `problems` are those that the caller already has.

    `events` are the weights of the types of events. Returns the data set and the warnings. Raises one
    `DataError` with all problems if one is an error.
    """
    events = check_events(events)
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
    if {"items", VECTORS} <= checked.keys() and "vector" in checked["items"].facts:
        problems.append(vectors_twice(checked["items"].where, checked[VECTORS].where))
    types: dict[str, Types] = {}
    for table, data in checked.items():
        if "event" in data.columns:
            types[table], _ = Types.of(data.columns["event"])
            problems += types[table].problems(events, data.where, data.in_words("event"))
    if events and not types and {"user_item", "user_bundle"} <= checked.keys():
        where = [checked[table].where for table in ("user_item", "user_bundle")]
        problems.append(no_event_column(events, where))
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    dataset, again = _dataset(checked, name, events)
    counts = {table: found.by_name for table, found in types.items()}
    return Source(dataset, warnings=(*problems, *again), event_types=counts)


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


def bought_again(
    table: str, where: str, rows: int, pairs: int, repeated: int, alike: bool, add_up: bool = False
) -> list[Problem]:
    """Returns a note if many rows of a table of purchases repeat an earlier pair, as in a shop whose
    customers buy the same things again.

    `pairs` is the number of different pairs, and `repeated` the number of those that occur more than once.
    `alike`: all pairs occur equally often. Then the table is only a copy of itself. `add_up`: the rows of a
    pair add up their weights.
    """
    repeats = rows - pairs
    if alike or repeats < max(LEAST_REPEATS, LEAST_AGAIN * rows):
        return []
    what = "an item" if table == "user_item" else "a bundle"
    each = "their weights add up" if add_up else "each counts once"
    message = (
        f"{repeats:,} of {rows:,} rows repeat an earlier pair of a user and {what} "
        f"({repeated:,} pairs; {each}), so customers seem to buy the same things again"
    )
    fix = "If they do, train with --shop owned=show: then nothing is left out because a user owns it"
    return [Problem(BOUGHT_AGAIN, where, message, fix, severity="note")]


def repeated_purchases(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the notes of `bought_again` among these."""
    return [problem for problem in problems if problem.kind == BOUGHT_AGAIN]


def _dataset(
    tables: Mapping[str, TableData], name: str, events: Mapping[str, float] | None
) -> tuple[BundleDataset, list[Problem]]:
    """Returns the data set, and notes about it."""
    vocabularies = {}
    for kind in ("user", "item", "bundle"):
        mentioned = (
            table.columns[f"{kind}_id"].values for table in tables.values() if f"{kind}_id" in table.columns
        )
        vocabularies[f"{kind}_id"] = Vocabulary(kind, canonical_order(set().union(*mentioned)))
    parts: dict[str, Any] = {}
    again: list[Problem] = []
    for table in REQUIRED:
        data = tables[table]
        row_key, column_key = TABLES[table]
        shape = len(vocabularies[row_key]), len(vocabularies[column_key])
        rows, columns = (
            vocabularies[key].positions(data.columns[key].values)[data.columns[key].codes]
            for key in (row_key, column_key)
        )
        if data.facts or "event" in data.columns:
            parts[table], parts[EVENTS_OF[table]], notes = _events(table, data, rows, columns, shape, events)
            again += notes
            continue
        parts[table] = binary_matrix(rows, columns, shape)
        if has_events(table):
            keys = rows.astype(np.int64) * shape[1] + columns
            again += bought_again(table, data.where, *repeats(np.unique(keys, return_counts=True)[1]))
    dataset = BundleDataset(
        **parts,
        users=vocabularies["user_id"],
        items=vocabularies["item_id"],
        bundles=vocabularies["bundle_id"],
        catalogue=catalogue_of(tables, vocabularies["item_id"], vocabularies["bundle_id"]),
        name=name,
        event_weights=events,
    )
    return dataset, again


def _events(
    table: str,
    data: TableData,
    rows: Positions,
    columns: Positions,
    shape: tuple[int, int],
    events: Mapping[str, float] | None,
) -> tuple[sparse.csr_matrix, Events, list[Problem]]:
    """Returns the pairs of a table of events, what is known about them, and notes."""
    types, worth = None, None
    if "event" in data.columns:
        found, types = Types.of(data.columns["event"])
        worth = found.worth(events)
    keys = rows.astype(np.int64) * max(shape[1], 1) + columns
    counting = Rows(keys, types, worth, data.facts.get("weight"), data.facts.get("at")).counting().in_order()
    pairs = pairs_of_rows(counting)
    notes = bought_again(table, data.where, *repeats(counting.purchases()), counting.weight is not None)
    matrix, rejected = (
        binary_matrix(*np.divmod(keys, max(shape[1], 1)), shape) for keys in (pairs.keys, pairs.rejected)
    )
    return matrix, Events(pairs.at, pairs.weight, rejected), notes


def repeats(times: npt.NDArray[np.integer]) -> tuple[int, int, int, bool]:
    """Returns what `bought_again` needs. `times` says how many rows each pair has."""
    return int(times.sum()), len(times), int((times > 1).sum()), len(np.unique(times)) < 2


def catalogue_of(tables: Mapping[str, TableData], items: Vocabulary, bundles: Vocabulary) -> Catalogue | None:
    """Returns what the tables say about items and bundles; None if there is no such table."""
    if not tables.keys() & {*CATALOGUE_SCHEMAS, VECTORS}:
        return None
    described = {}
    for table, vocabulary in (("items", items), ("bundles", bundles)):
        schema = CATALOGUE_SCHEMAS[table]
        described[table] = empty_catalogue(schema, vocabulary)
        if table in tables:
            described[table] = align(tables[table].columns, tables[table].facts, vocabulary, schema)
    if VECTORS in tables:
        vectors = tables[VECTORS]
        schema = pa.schema([ITEM_SCHEMA.field(name) for name in TABLES[VECTORS]])
        place = ITEM_SCHEMA.get_field_index("vector")
        column = align(vectors.columns, vectors.facts, items, schema)["vector"]
        described["items"] = described["items"].set_column(place, ITEM_SCHEMA.field(place), column)
    return Catalogue(**described)


def vectors_twice(items: str, vectors: str) -> Problem:
    """Returns the problem that both tables have vectors."""
    message = f"the items have a column 'vector', and there are vectors in {vectors}"
    return Problem("vectors-twice", items, message, "Keep the vectors in one of them")


# Data frames


def read_frames(
    user_item: Any,
    user_bundle: Any,
    bundle_item: Any,
    items: Any = None,
    bundles: Any = None,
    name: str = "frames",
    item_vectors: Any = None,
    events: Mapping[str, float] | None = None,
) -> Source:
    """Read pandas or Polars frames, DuckDB relations or Arrow tables. The kinds may be mixed.

    Three frames are required. `items` and `bundles` are the optional catalogue, and `item_vectors` has a
    vector for each item. `name` names the data set. `events` are the weights of types of events, such as
    `{"view": 0.2, "buy": 1}`. Returns the data; raises `DataError` with every problem.
    """
    frames = {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}
    optional = {"items": items, "bundles": bundles, VECTORS: item_vectors}
    frames |= {table: frame for table, frame in optional.items() if frame is not None}
    return assemble(frames, lambda table: _read_frame(table, frames[table]), name, events=events)


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
    found = {column: table.column(position) for column, position in columns.positions.items()}
    coded = {column: encode(values) for column, values in found.items() if column not in FACTS}
    facts = {column: values.chunks for column, values in found.items() if column in FACTS}
    return TableData(name, coded, lambda row: (name, row + 1), facts, columns.problems, columns.aliases)


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
