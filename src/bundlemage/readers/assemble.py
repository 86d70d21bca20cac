"""Tables become a data set here and nowhere else, so that equal content gives equal data by any reader."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    binary_matrix,
    empty_catalogue,
)
from bundlemage.data.splits import Source
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import DataError, Problem
from bundlemage.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.readers.values import Coded, LineOf, align, duplicates, encode, read_details, read_ids, shown

CATALOGUE_SCHEMAS = {"items": ITEM_SCHEMA, "bundles": BUNDLE_SCHEMA}


def _row_number(row: int) -> int:
    return row + 1


@dataclass(frozen=True)
class TableData:
    """One table as read, with its columns under their canonical names."""

    where: str
    """The name of the file, table or frame in messages."""
    ids: Mapping[str, Coded]
    details: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    line_of: LineOf = _row_number
    files: Sequence[tuple[int, str]] = ()
    """For a table in parts: the first row of each file, and the file. Lines then count over all of them."""

    @classmethod
    def from_arrow(cls, name: str, where: str, table: pa.Table, line_of: LineOf = _row_number) -> TableData:
        """Takes the columns of the table `name`; raises `DataError` if they cannot be identified."""
        positions = resolve(name, table.column_names, where)
        layout = TABLES[name]
        ids = {column: encode(table.column(positions[column])) for column in layout.ids}
        details = {
            column: table.column(positions[column]) for column in layout.details if column in positions
        }
        return cls(where, ids, details, line_of)

    @property
    def rows(self) -> int:
        return len(next(iter(self.ids.values())).codes)

    def checked(self, table: str) -> tuple[TableData | None, list[Problem]]:
        """Returns the table with its values checked, or None if there is an error; and the problems."""
        if self.rows == 0:
            return None, [no_rows(table, self.where)]
        problems: list[Problem] = []
        ids: dict[str, Coded] = {}
        for column, coded in self.ids.items():
            texts, faults = read_ids(coded, column, self.where, self.line_of)
            problems += sorted(faults, key=lambda problem: problem.line or 0)
            if texts is not None:
                ids[column] = texts
        details: Mapping[str, pa.ChunkedArray] = {}
        if table in CATALOGUE_SCHEMAS:
            schema = CATALOGUE_SCHEMAS[table]
            parsed, faults = read_details(self.details, schema, self.rows, self.where, self.line_of)
            details = {name: parsed[name] for name in parsed.column_names}
            problems += faults
            for column, texts in ids.items():
                problems += duplicates(texts, column, self.where, self.line_of)
        problems = [placed(problem, self.files) for problem in problems]
        failed = any(problem.severity == "error" for problem in problems)
        return None if failed else replace(self, ids=ids, details=details), problems


def placed(problem: Problem, files: Sequence[tuple[int, str]]) -> Problem:
    """Returns the problem with the file of a table in parts, and the line in that file."""
    if not files or problem.line is None:
        return problem
    first, where = files[bisect_right(files, problem.line - 1, key=lambda file: file[0]) - 1]
    return replace(problem, where=where, line=problem.line - first)


def assemble(tables: Mapping[str, TableData], name: str, problems: Iterable[Problem] = ()) -> Source:
    """Build a data set from tables. `problems` are those that the reader has found already.

    Returns it with the warnings; raises one `DataError` with every problem if any of them is an error.
    """
    problems = list(problems)
    checked: dict[str, TableData] = {}
    for table, data in tables.items():
        good, faults = data.checked(table)
        problems += faults
        if good is not None:
            checked[table] = good
    for crossing in CROSSINGS:
        problems += crossing.check(checked)
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    return Source(_dataset(checked, name), warnings=tuple(problems))


def no_rows(table: str, where: str) -> Problem:
    """The problem of a table without rows: an error for the three tables that are required."""
    fix = "Fill it or remove it; it is read as if it were not there"
    if table in REQUIRED:
        fix = "Export the data again; a model learns from rows of all three tables"
    severity: Literal["error", "warning"] = "error" if table in REQUIRED else "warning"
    return Problem("no-rows", where, "there are column names but no rows", fix, severity=severity)


@dataclass(frozen=True)
class Crossing:
    """Ids of one table that another table should have too."""

    table: str
    column: str
    known_in: str
    kind: str
    message: str
    fix: str

    def problem(self, where: str, known_where: str, line: int, value: str, more: int) -> Problem:
        """`line` is that of the first row with such an id; `more` counts the other ids, not rows."""
        message = self.message.format(shown(value), known_where)
        return Problem(self.kind, where, message, self.fix, line, value, more, severity="warning")

    def check(self, checked: Mapping[str, TableData]) -> list[Problem]:
        """Returns a warning if there are such ids."""
        if self.table not in checked or self.known_in not in checked:
            return []
        table, other = checked[self.table], checked[self.known_in]
        ids, known = table.ids[self.column], set(other.ids[self.column].values)
        unknown = np.array([text not in known for text in ids.values], dtype=bool)
        if not unknown.any():
            return []
        row = int(np.argmax(unknown[ids.codes]))
        value, more = ids.values[ids.codes[row]], int(unknown.sum()) - 1
        return [placed(self.problem(table.where, other.where, table.line_of(row), value, more), table.files)]


_EMPTY_BUNDLE = {
    "column": "bundle_id",
    "known_in": "bundle_item",
    "kind": "empty-bundle",
    "message": "bundle {} has no items in {}",
    "fix": "Add its items there, or remove the bundle",
}
CROSSINGS = (
    Crossing("user_bundle", **_EMPTY_BUNDLE),
    Crossing("bundles", **_EMPTY_BUNDLE),
    Crossing(
        "bundle_item",
        "item_id",
        "items",
        kind="item-not-in-catalogue",
        message="item {} is in a bundle but not in {}",
        fix="Add it to the catalogue, or correct the id",
    ),
)


def _dataset(tables: Mapping[str, TableData], name: str) -> BundleDataset:
    vocabularies = {}
    for kind in ("user", "item", "bundle"):
        mentioned = (table.ids[f"{kind}_id"].values for table in tables.values() if f"{kind}_id" in table.ids)
        vocabularies[f"{kind}_id"] = Vocabulary.canonical(kind, set().union(*mentioned))
    matrices: dict[str, Any] = {}
    for table in REQUIRED:
        (row_key, rows), (column_key, columns) = tables[table].ids.items()
        shape = len(vocabularies[row_key]), len(vocabularies[column_key])
        row_positions = vocabularies[row_key].positions(rows.values)[rows.codes]
        column_positions = vocabularies[column_key].positions(columns.values)[columns.codes]
        matrices[table] = binary_matrix(row_positions, column_positions, shape)
    described: dict[str, pa.Table] = {}
    for table, schema in CATALOGUE_SCHEMAS.items():
        key = schema.names[0]
        if table in tables:
            details = pa.table(dict(tables[table].details))
            described[table] = align(details, tables[table].ids[key], vocabularies[key], schema)
        else:
            described[table] = empty_catalogue(schema, vocabularies[key])
    return BundleDataset(
        **matrices,
        users=vocabularies["user_id"],
        items=vocabularies["item_id"],
        bundles=vocabularies["bundle_id"],
        catalogue=Catalogue(**described) if tables.keys() & CATALOGUE_SCHEMAS.keys() else None,
        name=name,
    )
