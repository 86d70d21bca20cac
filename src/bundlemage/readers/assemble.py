"""Builds a data set from tables. All readers use this module: equal tables give equal data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
from bundlemage.errors import DataError, Problem, collected
from bundlemage.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.readers.values import Coded, Locate, align, duplicates, encode, read_details, read_ids, shown

CATALOGUE_SCHEMAS = {"items": ITEM_SCHEMA, "bundles": BUNDLE_SCHEMA}


@dataclass(frozen=True)
class TableData:
    """One table as it was read. Its columns have their canonical names, such as `user_id`."""

    where: str
    """The name of the file, table or frame in messages."""
    ids: Mapping[str, Coded]
    details: pa.Table
    """The other columns, such as titles and prices."""
    locate: Locate

    @classmethod
    def from_arrow(cls, name: str, where: str, table: pa.Table, locate: Locate | None = None) -> TableData:
        """Returns the columns that the table `name` has; raises `DataError` if one cannot be identified."""
        positions = resolve(name, table.column_names, where)
        columns = {column: table.column(position) for column, position in positions.items()}
        ids = {column: encode(columns.pop(column)) for column in TABLES[name].ids}
        return cls(where, ids, pa.table(columns), locate or (lambda row: (where, row + 1)))

    def checked(self, table: str) -> tuple[TableData | None, list[Problem]]:
        """Returns the table with its values checked, or None if there is an error; and the problems."""
        rows = len(next(iter(self.ids.values())).codes)
        if rows == 0:
            fix = "Fill the table or remove it; an empty table is ignored"
            if table in REQUIRED:
                fix = "Export the data again; a model learns from rows of all three tables"
            severity: Literal["error", "warning"] = "error" if table in REQUIRED else "warning"
            message = "there are column names but no rows"
            return None, [Problem("no-rows", self.where, message, fix, severity=severity)]
        problems: list[Problem] = []
        ids: dict[str, Coded] = {}
        for column, coded in self.ids.items():
            texts, faults = read_ids(coded, column, self.locate)
            problems += faults
            if texts is not None:
                ids[column] = texts
        details = self.details
        if table in CATALOGUE_SCHEMAS:
            details, faults = read_details(details, CATALOGUE_SCHEMAS[table], rows, self.locate)
            problems += faults
            for column, texts in ids.items():
                problems += duplicates(texts, column, self.locate)
        failed = any(problem.severity == "error" for problem in problems)
        return None if failed else replace(self, ids=ids, details=details), problems


def assemble(
    tables: Iterable[str], read: Callable[[str], TableData], name: str, problems: Iterable[Problem] = ()
) -> Source:
    """Build a data set from tables. `read` reads one table; `problems` were found before.

    Returns the data set and the warnings. Raises one `DataError` with all problems if one is an error.
    """
    problems = list(problems)
    data: dict[str, TableData] = {}
    for table in tables:
        with collected(problems):
            data[table] = read(table)
    checked: dict[str, TableData] = {}
    for table, values in data.items():
        good, faults = values.checked(table)
        problems += faults
        if good is not None:
            checked[table] = good
    for crossing in CROSSINGS:
        problems += crossing.check(checked)
    if any(problem.severity == "error" for problem in problems):
        raise DataError(problems)
    return Source(_dataset(checked, name), warnings=tuple(problems))


@dataclass(frozen=True)
class Crossing:
    """A check of two tables: each id in `column` of `table` should also be in the table `known_in`."""

    table: str
    column: str
    known_in: str
    kind: str
    message: str
    fix: str

    def problem(self, place: tuple[str, int], known_where: str, value: str, more: int) -> Problem:
        """Returns the warning. `place` is the file and line of the first unknown id; `more` counts others."""
        message, (where, line) = self.message.format(shown(value), known_where), place
        return Problem(self.kind, where, message, self.fix, line, value, more, severity="warning")

    def check(self, checked: Mapping[str, TableData]) -> list[Problem]:
        """Returns a list with one warning if ids are unknown, else an empty list."""
        if self.table not in checked or self.known_in not in checked:
            return []
        table, other = checked[self.table], checked[self.known_in]
        ids, known = table.ids[self.column], set(other.ids[self.column].values)
        unknown = np.array([text not in known for text in ids.values], dtype=bool)
        if not unknown.any():
            return []
        row = int(np.argmax(unknown[ids.codes]))
        value, more = ids.values[ids.codes[row]], int(unknown.sum()) - 1
        return [self.problem(table.locate(row), other.where, value, more)]


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
            described[table] = align(tables[table].details, tables[table].ids[key], vocabularies[key], schema)
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
