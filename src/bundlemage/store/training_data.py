"""Imports a dataset into the store, and exports the store as training data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlalchemy import Connection, Select, Table, select

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, Vocabulary, empty_catalogue
from bundlemage.errors import StoreError
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.assemble import read_frames
from bundlemage.store.catalogue import ANY_ITEM, next_version
from bundlemage.store.checks import check_ids
from bundlemage.store.connections import StorePart
from bundlemage.store.dialect import count_rows, insert_many
from bundlemage.store.models import bundle_item, bundles, items, user_bundle, user_item

_READ_AT_ONCE: Final = 100_000


class DatasetStore(StorePart):
    def import_dataset(self, dataset: BundleDataset, progress: Progress = in_silence) -> None:
        """Write a dataset's catalogue and histories to an empty store; after an error, nothing is written."""
        for vocabulary in (dataset.users, dataset.items, dataset.bundles):
            check_ids(vocabulary.kind, vocabulary)
        with self._database.write(patient=True) as connection:
            version = next_version(connection)  # locks out other imports
            if connection.execute(ANY_ITEM).first() is not None:
                raise StoreError(
                    "the store already has a catalogue; a dataset needs an empty store. Give another URL"
                )
            indexes = [*user_item.indexes, *user_bundle.indexes]
            for index in indexes:  # creating them at the end is faster than updating them for each row
                index.drop(connection)
            tables = _tables(dataset, version)
            total, done = sum(size for _, _, size, _ in tables), 0
            for table, columns, _, rows in tables:
                for count in insert_many(connection, table, columns, rows):
                    done += count
                    progress("rows", done, total)
            for index in indexes:
                index.create(connection)
            count_rows(connection, [table for table, *_ in tables])

    def dataset(self) -> BundleDataset:
        """Return the store's data as a dataset for training, including withdrawn items and bundles.

        Raises `DataError` if one of the tables is empty.
        """
        with self._database.snapshot(long=True) as connection:
            return read_frames(
                user_item=_arrow(connection, select(user_item.c.user_id, user_item.c.item_id)),
                user_bundle=_arrow(connection, select(user_bundle.c.user_id, user_bundle.c.bundle_id)),
                bundle_item=_arrow(connection, select(bundle_item.c.bundle_id, bundle_item.c.item_id)),
                items=_described(connection, items, ITEM_SCHEMA),
                bundles=_described(connection, bundles, BUNDLE_SCHEMA),
                name="store",
            ).dataset


_Rows: TypeAlias = tuple[Table, Sequence[str], int, Iterable[tuple[Any, ...]]]
"""A table, the names of its columns, the number of rows, and the rows."""


def _tables(dataset: BundleDataset, version: int) -> list[_Rows]:
    """Returns the rows of all tables. A table comes after the tables that its foreign keys refer to."""
    known, users = dataset.catalogue, dataset.users
    of_items = known.items if known else empty_catalogue(ITEM_SCHEMA, dataset.items)
    of_bundles = known.bundles if known else empty_catalogue(BUNDLE_SCHEMA, dataset.bundles)
    contents = (
        (bundle, place, item)
        for bundle, inside in _lists(dataset.bundle_item, dataset.bundles, dataset.items)
        for place, item in enumerate(inside)
    )
    return [
        _things(items, of_items, version),
        _things(bundles, of_bundles, version),
        (bundle_item, bundle_item.c.keys(), dataset.bundle_item.nnz, contents),
        _pairs(user_item, dataset.user_item, users, dataset.items),
        _pairs(user_bundle, dataset.user_bundle, users, dataset.bundles),
    ]


def _details(schema: pa.Schema) -> list[str]:
    return ["id", *schema.names[1:]]


def _things(table: Table, rows: pa.Table, version: int) -> _Rows:
    columns = [rows[name].to_pylist() for name in rows.column_names]
    tags = rows.column_names.index("tags")
    columns[tags] = [json.dumps(names or []) for names in columns[tags]]
    stamped = ((*row, False, version) for row in zip(*columns, strict=True))
    return table, [*_details(rows.schema), "withdrawn", "version"], len(rows), stamped


def _pairs(table: Table, matrix: Any, users: Vocabulary, things: Vocabulary) -> _Rows:
    """Pairs in the order of the table's key. The database then only appends, which is fast."""
    pairs = ((user, thing) for user, names in _lists(matrix, users, things) for thing in sorted(names))
    return table, table.c.keys()[:2], matrix.nnz, pairs


def _lists(matrix: Any, rows: Vocabulary, columns: Vocabulary) -> Iterator[tuple[str, list[str]]]:
    """Yields the id of each row of a matrix, sorted, and the ids of the row's entries in their order."""
    ids, edges = columns.ids, matrix.indptr.tolist()
    for position in sorted(range(len(rows)), key=rows.ids.__getitem__):
        entries = matrix.indices[edges[position] : edges[position + 1]].tolist()
        yield rows[position], [ids[entry] for entry in entries]


def _arrow(connection: Connection, query: Select[Any]) -> pa.Table:
    """Returns a query's ids as dictionary arrays, one per batch. Memory holds an id once per batch."""
    result = connection.execute(query, execution_options={"stream_results": True})
    names = list(result.keys())

    def table(columns: Iterable[Sequence[str]]) -> pa.Table:
        return pa.table([pa.array(column, pa.string()).dictionary_encode() for column in columns], names)

    batches = result.yield_per(_READ_AT_ONCE).partitions()
    return pa.concat_tables([table([()] * len(names)), *(table(zip(*rows, strict=True)) for rows in batches)])


def _described(connection: Connection, table: Table, schema: pa.Schema) -> pa.Table:
    columns = [table.c[name] for name in _details(schema)]
    rows = connection.execute(select(*columns)).all()
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(values, schema, strict=True)], schema=schema)
