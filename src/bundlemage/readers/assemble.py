"""The one place where tables become a dataset, so that equal content gives an equal dataset by any reader."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    Positions,
    binary_matrix,
    empty_catalogue,
)
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import DataError, Problem
from bundlemage.readers.catalogue import align, duplicates, read_details
from bundlemage.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.readers.ids import Coded, IdColumn, LineOf, encode, read_ids, shown
from bundlemage.readers.source import Source

CATALOGUE_SCHEMAS = {"items": ITEM_SCHEMA, "bundles": BUNDLE_SCHEMA}


def _row_number(row: int) -> int:
    return row + 1


@dataclass(frozen=True)
class Given:
    """One table as a reader found it, its columns under their canonical names."""

    where: str
    """The file, table or frame, as the user named it."""
    ids: Mapping[str, Coded]
    details: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    line_of: LineOf = _row_number
    files: Sequence[tuple[int, str]] = ()
    """Of a table in parts: the first row of each file, and the file. Lines then count over all of them."""

    @classmethod
    def from_arrow(cls, name: str, where: str, table: pa.Table, line_of: LineOf = _row_number) -> Given:
        """Raises `DataError` if the columns of the table `name` are not to be found."""
        found = resolve(name, table.column_names, where)
        layout = TABLES[name]
        ids = {column: encode(table.column(found[column])) for column in layout.ids}
        details = {column: table.column(found[column]) for column in layout.details if column in found}
        return cls(where, ids, details, line_of)

    @property
    def rows(self) -> int:
        return len(next(iter(self.ids.values())).codes)

    def placed(self, problems: Iterable[Problem]) -> list[Problem]:
        """With the file where each was found, and the line in that file."""
        return [placed(problem, self.files) for problem in problems]


def placed(problem: Problem, files: Sequence[tuple[int, str]]) -> Problem:
    if not files or problem.line is None:
        return problem
    first, where = files[bisect_right(files, problem.line - 1, key=lambda file: file[0]) - 1]
    return replace(problem, where=where, line=problem.line - first)


def joined(parts: Sequence[Coded]) -> Coded:
    """Parts of a column one after another. A value may then be there more than once."""
    starts = np.cumsum([0, *(len(part.values) for part in parts)])
    codes = [
        np.where(part.codes < 0, -1, part.codes + start)
        for part, start in zip(parts, starts[:-1], strict=True)
    ]
    values = [value for part in parts for value in part.values]
    return Coded(values, np.concatenate([np.empty(0, np.int32), *codes]).astype(np.int32))


@dataclass(frozen=True)
class _Checked:
    """A table without errors."""

    given: Given
    ids: Mapping[str, IdColumn]
    details: pa.Table | None


def assemble(tables: Mapping[str, Given], name: str, problems: Iterable[Problem] = ()) -> Source:
    """Tables to a dataset; raises one `DataError` with every problem if any of them is an error.

    `problems` are those the reader has met already.
    """
    source, found = examine(tables, name, problems)
    if source is None:
        raise DataError(found)
    return source


def examine(
    tables: Mapping[str, Given], name: str, problems: Iterable[Problem] = ()
) -> tuple[Source | None, list[Problem]]:
    """Tables to a dataset, or None if anything is an error; and everything that is wrong."""
    found = list(problems)
    checked: dict[str, _Checked] = {}
    for table, given in tables.items():
        good, faults = _check(table, given)
        found += faults
        if good is not None:
            checked[table] = good
    for crossing in CROSSINGS:
        found += _strangers(crossing, checked)
    if any(problem.severity == "error" for problem in found):
        return None, found
    return Source(_dataset(checked, name), warnings=tuple(found)), found


def _check(table: str, given: Given) -> tuple[_Checked | None, list[Problem]]:
    if given.rows == 0:
        return None, [no_rows(table, given.where)]
    problems: list[Problem] = []
    ids: dict[str, IdColumn] = {}
    for column, coded in given.ids.items():
        good, faults = read_ids(coded, column, given.where, given.line_of)
        problems += sorted(faults, key=lambda problem: problem.line or 0)
        if good is not None:
            ids[column] = good
    details = None
    if table in CATALOGUE_SCHEMAS:
        details, faults = read_details(
            dict(given.details), CATALOGUE_SCHEMAS[table], given.rows, given.where, given.line_of
        )
        problems += faults
        for column, good in ids.items():
            problems += duplicates(good, column, given.where, given.line_of)
    problems = given.placed(problems)
    if any(problem.severity == "error" for problem in problems):
        return None, problems
    return _Checked(given, ids, details), problems


def no_rows(table: str, where: str) -> Problem:
    required = table in REQUIRED
    return Problem(
        kind="no-rows",
        where=where,
        message="there are column names but no rows",
        fix="Export the data again; a model learns from rows of all three tables"
        if required
        else "Fill it or remove it; it is read as if it were not there",
        severity="error" if required else "warning",
    )


@dataclass(frozen=True)
class Crossing:
    """Ids of one table that another should know as well."""

    table: str
    column: str
    known_in: str
    kind: str
    message: str
    fix: str

    def problem(self, where: str, known_where: str, line: int, value: str, more: int) -> Problem:
        """`line` is that of the first row with such an id; `more` counts ids, not rows."""
        message = self.message.format(shown(value), known_where)
        return Problem(self.kind, where, message, self.fix, line, value, more, severity="warning")


_IN_NO_BUNDLE = {
    "column": "bundle_id",
    "known_in": "bundle_item",
    "kind": "empty-bundle",
    "message": "bundle {} has no items in {}",
    "fix": "Add its items there, or remove the bundle",
}
CROSSINGS = (
    Crossing("user_bundle", **_IN_NO_BUNDLE),
    Crossing("bundles", **_IN_NO_BUNDLE),
    Crossing(
        "bundle_item",
        "item_id",
        "items",
        kind="item-not-in-catalogue",
        message="item {} is in a bundle but not in {}",
        fix="Add it to the catalogue, or correct the id",
    ),
)


def _strangers(crossing: Crossing, checked: Mapping[str, _Checked]) -> list[Problem]:
    if crossing.table not in checked or crossing.known_in not in checked:
        return []
    table, known = checked[crossing.table], checked[crossing.known_in]
    ids, familiar = table.ids[crossing.column], set(known.ids[crossing.column].texts)
    unknown = np.array([text not in familiar for text in ids.texts], dtype=bool)
    if not unknown.any():
        return []
    row = ids.first_row(unknown)
    value, line, more = ids.texts[ids.codes[row]], table.given.line_of(row), int(unknown.sum()) - 1
    return table.given.placed([crossing.problem(table.given.where, known.given.where, line, value, more)])


def _dataset(checked: Mapping[str, _Checked], name: str) -> BundleDataset:
    vocabularies = {
        column: _vocabulary(column, [table.ids[column] for table in checked.values() if column in table.ids])
        for column in ("user_id", "item_id", "bundle_id")
    }
    matrices: dict[str, Any] = {table: _matrix(checked[table], vocabularies) for table in REQUIRED}
    return BundleDataset(
        **matrices,
        users=vocabularies["user_id"],
        items=vocabularies["item_id"],
        bundles=vocabularies["bundle_id"],
        catalogue=_catalogue(checked, vocabularies),
        name=name,
    )


def _vocabulary(column: str, mentions: Iterable[IdColumn]) -> Vocabulary:
    return Vocabulary.canonical(column.removesuffix("_id"), set().union(*(ids.texts for ids in mentions)))


def _matrix(table: _Checked, vocabularies: Mapping[str, Vocabulary]) -> sparse.csr_matrix:
    rows, columns = (_positions(ids, vocabularies[column]) for column, ids in table.ids.items())
    row_ids, column_ids = table.ids
    return binary_matrix(rows, columns, (len(vocabularies[row_ids]), len(vocabularies[column_ids])))


def _positions(ids: IdColumn, vocabulary: Vocabulary) -> Positions:
    return vocabulary.positions(ids.texts)[ids.codes]


def _catalogue(checked: Mapping[str, _Checked], vocabularies: Mapping[str, Vocabulary]) -> Catalogue | None:
    if not any(table in checked for table in CATALOGUE_SCHEMAS):
        return None
    described = {}
    for table, schema in CATALOGUE_SCHEMAS.items():
        column = schema.names[0]
        if table in checked:
            described[table] = align(
                checked[table].details, checked[table].ids[column], vocabularies[column], schema
            )
        else:
            described[table] = empty_catalogue(schema, vocabularies[column])
    return Catalogue(**described)
