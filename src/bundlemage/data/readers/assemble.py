"""The one place where tables become a dataset, so that equal content gives an equal dataset by any reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
from bundlemage.data.readers.catalogue import align, duplicates, read_details
from bundlemage.data.readers.columns import REQUIRED, TABLES, resolve
from bundlemage.data.readers.ids import Coded, IdColumn, LineOf, encode, read_ids, shown
from bundlemage.data.readers.source import Source
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import DataError, Problem

_SCHEMAS = {"items": ITEM_SCHEMA, "bundles": BUNDLE_SCHEMA}


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
    found += _empty_bundles(checked)
    found += _items_not_in_catalogue(checked)
    if any(problem.severity == "error" for problem in found):
        return None, found
    return Source(_dataset(checked, name), warnings=tuple(found)), found


def _check(table: str, given: Given) -> tuple[_Checked | None, list[Problem]]:
    if given.rows == 0:
        return None, [_no_rows(table, given)]
    problems: list[Problem] = []
    ids: dict[str, IdColumn] = {}
    for column, coded in given.ids.items():
        good, faults = read_ids(coded, column, given.where, given.line_of)
        problems += faults
        if good is not None:
            ids[column] = good
    details = None
    if table in _SCHEMAS:
        details, faults = read_details(
            dict(given.details), _SCHEMAS[table], given.rows, given.where, given.line_of
        )
        problems += faults
        for column, good in ids.items():
            problems += duplicates(good, column, given.where, given.line_of)
    if any(problem.severity == "error" for problem in problems):
        return None, problems
    return _Checked(given, ids, details), problems


def _no_rows(table: str, given: Given) -> Problem:
    required = table in REQUIRED
    return Problem(
        kind="no-rows",
        where=given.where,
        message="there are column names but no rows",
        fix="Export the data again; a model learns from rows of all three tables"
        if required
        else "Fill it or remove it; it is read as if it were not there",
        severity="error" if required else "warning",
    )


def _empty_bundles(checked: Mapping[str, _Checked]) -> list[Problem]:
    """One warning for each table that speaks of bundles in which there is nothing."""
    if "bundle_item" not in checked:
        return []
    contents = checked["bundle_item"]
    problems = []
    for table in ("user_bundle", "bundles"):
        if table in checked:
            problems += _strangers(
                checked[table],
                "bundle_id",
                contents.ids["bundle_id"].texts,
                kind="empty-bundle",
                message=f"bundle {{}} has no items in {contents.given.where}",
                fix="Add its items there, or remove the bundle",
            )
    return problems


def _items_not_in_catalogue(checked: Mapping[str, _Checked]) -> list[Problem]:
    if "items" not in checked or "bundle_item" not in checked:
        return []
    catalogue = checked["items"]
    return _strangers(
        checked["bundle_item"],
        "item_id",
        catalogue.ids["item_id"].texts,
        kind="item-not-in-catalogue",
        message=f"item {{}} is in a bundle but not in {catalogue.given.where}",
        fix="Add it to the catalogue, or correct the id",
    )


def _strangers(
    table: _Checked, column: str, known: Iterable[str], *, kind: str, message: str, fix: str
) -> list[Problem]:
    """A warning about the ids of a column that are not known elsewhere; `more` counts ids, not rows."""
    ids, familiar = table.ids[column], set(known)
    unknown = np.array([text not in familiar for text in ids.texts], dtype=bool)
    if not unknown.any():
        return []
    row = ids.first_row(unknown)
    value = ids.texts[ids.codes[row]]
    return [
        Problem(
            kind=kind,
            where=table.given.where,
            message=message.format(shown(value)),
            fix=fix,
            line=table.given.line_of(row),
            value=value,
            more=int(unknown.sum()) - 1,
            severity="warning",
        )
    ]


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
    if not any(table in checked for table in _SCHEMAS):
        return None
    described = {}
    for table, schema in _SCHEMAS.items():
        column = schema.names[0]
        if table in checked:
            described[table] = align(
                checked[table].details, checked[table].ids[column], vocabularies[column], schema
            )
        else:
            described[table] = empty_catalogue(schema, vocabularies[column])
    return Catalogue(**described)
