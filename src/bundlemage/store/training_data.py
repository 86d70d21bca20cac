"""Whole datasets into the store and out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Select, Table, select

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, empty_catalogue
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import StoreError
from bundlemage.readers.frames import read_frames
from bundlemage.store.catalogue import next_version
from bundlemage.store.checks import check_ids
from bundlemage.store.dialect import count_rows, insert_many
from bundlemage.store.models import SALES_INDEXES, bundle_item, bundles, items, user_bundle, user_item

Progress = Callable[[int, int], None]
_READ_AT_ONCE: Final = 100_000


def is_empty(connection: Connection) -> bool:
    return connection.execute(select(items.c.id).limit(1)).first() is None


def import_dataset(connection: Connection, dataset: BundleDataset, progress: Progress | None) -> None:
    for vocabulary in (dataset.users, dataset.items, dataset.bundles):
        check_ids(vocabulary.kind, vocabulary)
    version = next_version(connection)  # from here on nobody else imports
    if not is_empty(connection):
        raise StoreError(
            "the store holds a catalogue already; a dataset goes only into an empty one. Give another URL"
        )
    for index in SALES_INDEXES:  # made anew at the end, which is faster than keeping them up row by row
        index.drop(connection)
    tables = _tables(dataset, version)
    total, done = sum(size for _, _, size, _ in tables), 0
    for table, columns, _, rows in tables:
        for count in insert_many(connection, table, columns, rows):
            done += count
            if progress is not None:
                progress(done, total)
    for index in SALES_INDEXES:
        index.create(connection)
    count_rows(connection, [table for table, *_ in tables])


def _tables(
    dataset: BundleDataset, version: int
) -> list[tuple[Table, tuple[str, ...], int, Iterator[tuple[Any, ...]]]]:
    """Each table with its columns, the number of its rows, and the rows; in an order that keys allow."""
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
    columns[tags] = [json.dumps(found or []) for found in columns[tags]]
    for row in zip(*columns, strict=True):
        yield (*row, False, version)


def _pairs(matrix: Any, rows: Vocabulary, columns: Vocabulary) -> Iterator[tuple[str, str]]:
    """In the order of the table's key, so that a database only ever writes at its end."""
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


def export_dataset(connection: Connection) -> BundleDataset:
    frames = {
        "user_item": _arrow(connection, select(user_item.c.user_id, user_item.c.item_id)),
        "user_bundle": _arrow(connection, select(user_bundle.c.user_id, user_bundle.c.bundle_id)),
        "bundle_item": _arrow(connection, select(bundle_item.c.bundle_id, bundle_item.c.item_id)),
        "items": _described(connection, items, ITEM_SCHEMA),
        "bundles": _described(connection, bundles, BUNDLE_SCHEMA),
    }
    return read_frames(**frames, name="store").dataset


def _arrow(connection: Connection, query: Select[Any]) -> pa.Table:
    """Ids as dictionaries, a batch at a time: memory holds each only once in a batch."""
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
    found = zip(*rows, strict=True) if rows else [()] * len(columns)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(found, schema, strict=True)], schema=schema)
