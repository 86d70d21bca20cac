"""Whole datasets: imported into the store, and exported as training data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Select, Table, select

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, empty_catalogue
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import StoreError
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.frames import read_frames
from bundlemage.store.catalogue import has_no_items, next_version
from bundlemage.store.checks import check_ids
from bundlemage.store.connections import StorePart
from bundlemage.store.dialect import count_rows, insert_many
from bundlemage.store.models import SALES_INDEXES, bundle_item, bundles, items, user_bundle, user_item

_READ_AT_ONCE: Final = 100_000


class DatasetStore(StorePart):
    def import_dataset(self, dataset: BundleDataset, progress: Progress = in_silence) -> None:
        """Write a catalogue and histories to an empty store, all or nothing."""
        for vocabulary in (dataset.users, dataset.items, dataset.bundles):
            check_ids(vocabulary.kind, vocabulary)
        with self._database.write(patient=True) as connection:
            version = next_version(connection)  # from here on nobody else imports
            if not has_no_items(connection):
                raise StoreError(
                    "the store already has a catalogue; a dataset needs an empty store. Give another URL"
                )
            for (
                index
            ) in SALES_INDEXES:  # rebuilding them at the end is faster than updating them for each row
                index.drop(connection)
            tables = _tables(dataset, version)
            total, done = sum(size for _, _, size, _ in tables), 0
            for table, columns, _, rows in tables:
                for count in insert_many(connection, table, columns, rows):
                    done += count
                    progress("rows", done, total)
            for index in SALES_INDEXES:
                index.create(connection)
            count_rows(connection, [table for table, *_ in tables])

    def dataset(self) -> BundleDataset:
        """Everything as training data, with withdrawn items and bundles.

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


def _tables(
    dataset: BundleDataset, version: int
) -> list[tuple[Table, tuple[str, ...], int, Iterator[tuple[Any, ...]]]]:
    """Each table with its columns, its number of rows and its rows, in an order that foreign keys allow."""
    known = dataset.catalogue
    of_items = known.items if known else empty_catalogue(ITEM_SCHEMA, dataset.items)
    of_bundles = known.bundles if known else empty_catalogue(BUNDLE_SCHEMA, dataset.bundles)
    return [
        (items, (*_details(ITEM_SCHEMA), *_STAMP), len(of_items), _things(of_items, version)),
        (bundles, (*_details(BUNDLE_SCHEMA), *_STAMP), len(of_bundles), _things(of_bundles, version)),
        (
            bundle_item,
            ("bundle_id", "item_id", "position"),
            dataset.bundle_item.nnz,
            _contents(dataset.bundle_item, dataset.bundles, dataset.items),
        ),
        (
            user_item,
            ("user_id", "item_id"),
            dataset.user_item.nnz,
            _pairs(dataset.user_item, dataset.users, dataset.items),
        ),
        (
            user_bundle,
            ("user_id", "bundle_id"),
            dataset.user_bundle.nnz,
            _pairs(dataset.user_bundle, dataset.users, dataset.bundles),
        ),
    ]


_STAMP: Final = ("withdrawn", "version")


def _details(schema: pa.Schema) -> list[str]:
    return ["id", *schema.names[1:]]


def _things(table: pa.Table, version: int) -> Iterator[tuple[Any, ...]]:
    columns = [table[name].to_pylist() for name in table.column_names]
    tags = table.column_names.index("tags")
    columns[tags] = [json.dumps(names or []) for names in columns[tags]]
    for row in zip(*columns, strict=True):
        yield (*row, False, version)


def _pairs(matrix: Any, rows: Vocabulary, columns: Vocabulary) -> Iterator[tuple[str, str]]:
    """Pairs in the order of the table's key, so that the database always writes at the end."""
    ids, edges, indices = columns.ids, matrix.indptr.tolist(), matrix.indices
    for position in sorted(range(len(rows)), key=rows.ids.__getitem__):
        name = rows[position]
        for column in sorted(
            [ids[place] for place in indices[edges[position] : edges[position + 1]].tolist()]
        ):
            yield name, column


def _contents(matrix: Any, rows: Vocabulary, columns: Vocabulary) -> Iterator[tuple[str, str, int]]:
    ids, edges = columns.ids, matrix.indptr.tolist()
    for position in sorted(range(len(rows)), key=rows.ids.__getitem__):
        for place, column in enumerate(matrix.indices[edges[position] : edges[position + 1]].tolist()):
            yield rows[position], ids[column], place


def _arrow(connection: Connection, query: Select[Any]) -> pa.Table:
    """Ids as dictionary arrays, batch by batch, so that memory holds each id only once per batch."""
    result = connection.execute(query, execution_options={"stream_results": True})
    names = list(result.keys())
    batches = []
    for batch in result.yield_per(_READ_AT_ONCE).partitions():
        columns = zip(*batch, strict=True)
        batches.append(
            pa.table([pa.array(column, pa.string()).dictionary_encode() for column in columns], names)
        )
    empty = pa.table([pa.array([], pa.string()).dictionary_encode() for _ in names], names)
    return pa.concat_tables([empty, *batches])


def _described(connection: Connection, table: Table, schema: pa.Schema) -> pa.Table:
    columns = [table.c[name] for name in _details(schema)]
    rows = connection.execute(select(*columns)).all()
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(values, schema, strict=True)], schema=schema)
