"""The store's items and bundles, and the import and export of whole datasets.

Each change of items or bundles raises the catalogue's version by one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import repeat
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection, Row, Select, Table, delete, insert, select, update

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Vocabulary,
    empty_catalogue,
    row_of,
)
from bundlemage.data.events import UNDATED, Events
from bundlemage.errors import ExistsError, StoreError, UnknownThingsError, UnstorableError
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.assemble import read_frames
from bundlemage.store.connections import StorePart
from bundlemage.store.models import (
    EARLIEST,
    bundle_item,
    bundles,
    clock,
    insert_many,
    is_sqlite,
    items,
    one_of,
    user_bundle,
    user_item,
)
from bundlemage.store.records import (
    Bundle,
    CatalogueChange,
    Item,
    State,
    check_ids,
    check_thing,
    is_id,
    numbers_of,
    vector_of,
)

Kind = Literal["item", "bundle"]
_TABLES: dict[Kind, Table] = {"item": items, "bundle": bundles}
_STATE = select(clock.c.catalogue, clock.c.model)
_KNOWN = {kind: select(table.c.id).where(one_of(table.c.id, "ids")) for kind, table in _TABLES.items()}
ANY_ITEM = select(items.c.id).limit(1)
_LOCK = select(clock.c.catalogue).with_for_update()
"""Locks the catalogue against other writers until the transaction ends. (SQLite has only one writer.)"""
_TICK = update(clock).values(catalogue=clock.c.catalogue + 1)
# The fields of a record are columns of its table, except a bundle's items, which have their own table.
_ITEM = select(*(items.c[field.name] for field in fields(Item)))
_BUNDLE = select(*(bundles.c[field.name] for field in fields(Bundle) if field.name != "items"))
_QUERIES: dict[Kind, Select[Any]] = {"item": _ITEM, "bundle": _BUNDLE}
_READ_AT_ONCE: Final = 100_000
_WORTH: Final = {"taken": 1.0, "rejected": -1.0}
"""The types of events in `_events`."""
_Rows: TypeAlias = tuple[Table, Sequence[str], int, Iterable[tuple[Any, ...]]]
"""A table, the names of its columns, the number of rows, and the rows."""


class CatalogueStore(StorePart):
    """The methods of `Store` for items, bundles and datasets."""

    def state(self) -> State:
        """Return the version of the catalogue, and the version of the model selected for serving."""
        return State(**self._rows(_STATE)[0])

    def is_empty(self) -> bool:
        """Whether the store has no item yet."""
        return not self._rows(ANY_ITEM)

    def catalogue(self, since: int = 0) -> CatalogueChange:
        """Return the items and bundles that changed after version `since`, sorted by id; 0 returns all."""
        with self._database.snapshot(long=not since) as connection:
            contents: defaultdict[str, list[str]] = defaultdict(list)
            changed = bundles.c.version > since
            pairs = select(bundle_item.c.bundle_id, bundle_item.c.item_id).join(bundles).where(changed)
            in_order = pairs.order_by(bundle_item.c.bundle_id, bundle_item.c.position)
            for bundle_id, item_id in connection.execute(in_order):
                contents[bundle_id].append(item_id)
            item_rows = connection.execute(_ITEM.where(items.c.version > since).order_by(items.c.id))
            bundle_rows = connection.execute(_BUNDLE.where(changed).order_by(bundles.c.id))
            return CatalogueChange(
                connection.execute(_STATE).one().catalogue,
                [_item(row) for row in item_rows],
                [_bundle(row, contents[row.id]) for row in bundle_rows],
            )

    def put(self, thing: Item | Bundle, *, only_new: bool = False) -> bool:
        """Write an item or a bundle, and return whether it is new.

        With `only_new`, raises `ExistsError` if the id exists, even if it is withdrawn. Raises
        `UnknownThingsError` if a bundle contains an item that is not in the catalogue.
        """
        with self._database.write() as connection:
            return _put(connection, thing, only_new)

    def change(self, kind: Kind, thing_id: str, changes: Mapping[str, Any]) -> Item | Bundle | None:
        """Change some fields of an item or a bundle, and return the result; None if the id is unknown."""
        if not is_id(thing_id):
            return None
        query, of_bundle = _QUERIES[kind], bundle_item.c.bundle_id == thing_id
        with self._database.write() as connection:
            connection.execute(_LOCK)
            row = connection.execute(query.where(_TABLES[kind].c.id == thing_id)).one_or_none()
            if row is None:
                return None
            contents = select(bundle_item.c.item_id).where(of_bundle).order_by(bundle_item.c.position)
            before = _item(row) if kind == "item" else _bundle(row, connection.scalars(contents))
            after = replace(before, **changes)
            _put(connection, after)
            return after

    def withdraw(self, kind: Kind, thing_id: str) -> bool:
        """Mark an item or a bundle as withdrawn. Returns False if the id is unknown."""
        table = _TABLES[kind]
        this_one = table.c.id == thing_id
        with self._database.write() as connection:
            if not is_id(thing_id) or connection.execute(select(table.c.id).where(this_one)).first() is None:
                return False
            change = update(table).where(this_one)
            connection.execute(change.values(withdrawn=True, version=next_version(connection)))
            return True

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
            connection.execute(update(clock).values(vector_length=_vector_length(dataset)))
            total, done = sum(size for _, _, size, _ in tables), 0
            for table, columns, _, rows in tables:
                for count in insert_many(connection, table, columns, rows):
                    done += count
                    progress("rows", done, total)
            for index in indexes:
                index.create(connection)
            for table, *_ in [] if is_sqlite(connection) else tables:
                connection.exec_driver_sql(f'ANALYZE "{table.name}"')  # so that PostgreSQL plans good queries

    def dataset(self) -> BundleDataset:
        """Return the store's data as a dataset for training, including withdrawn items and bundles.

        Raises `DataError` if one of the tables is empty.
        """
        with self._database.snapshot(long=True) as connection:
            of_items, of_bundles = (_events(connection, table) for table in (user_item, user_bundle))
            has_types = "event" in {*of_items.column_names, *of_bundles.column_names}
            found = read_frames(
                of_items,
                of_bundles,
                bundle_item=_arrow(connection, select(bundle_item.c.bundle_id, bundle_item.c.item_id)),
                items=_described(connection, items, ITEM_SCHEMA),
                bundles=_described(connection, bundles, BUNDLE_SCHEMA),
                name="store",
                events=_WORTH if has_types else None,
            ).dataset
        return replace(found, event_weights=None)  # the types above are not those of the shop


def _check_vector(connection: Connection, item: Item) -> None:
    """Raise `UnstorableError` if an item's vector is not as long as those of the others. The row of the
    `clock` table must be locked."""
    if item.vector is None:
        return
    length, given = connection.scalar(select(clock.c.vector_length)), len(item.vector) // 4
    if length == given:
        return
    # The length is that of vectors which may be gone by now.
    others = select(items.c.vector).where(items.c.vector.is_not(None), items.c.id != item.id).limit(1)
    other = None if length is None else connection.scalar(others)
    if other is not None:
        raise UnstorableError(
            f"the vector of item {item.id!r} has {given:,} numbers, but those of other items have "
            f"{len(other) // 4:,}. Give all items vectors of one length; to change the length, first "
            "remove the vectors of all items"
        )
    connection.execute(update(clock).values(vector_length=given))


def next_version(connection: Connection) -> int:
    """Raise the catalogue's version by one, and return it.

    This locks the row of the `clock` table until the transaction ends, so readers see all versions in order.
    """
    connection.execute(_TICK)
    return int(connection.execute(_STATE).one().catalogue)


def check_known(connection: Connection, kind: Kind, ids: Iterable[str]) -> None:
    """Raise `UnknownThingsError` for ids that are not in the catalogue."""
    names = list(dict.fromkeys(ids))
    if names:
        known = connection.scalars(_KNOWN[kind], {"ids": names})
        missing = set(names).difference(known)
        if missing:
            raise UnknownThingsError(kind, [name for name in names if name in missing])


def _put(connection: Connection, thing: Item | Bundle, only_new: bool = False) -> bool:
    kind: Kind = "item" if isinstance(thing, Item) else "bundle"
    check_thing(thing)
    values = dict(vars(thing))
    if isinstance(thing, Bundle):
        check_known(connection, "item", values.pop("items"))
        check_known(connection, "bundle", [thing.sells_like] if thing.sells_like is not None else [])
    table = _TABLES[kind]
    values["version"] = next_version(connection)
    if isinstance(thing, Item):
        _check_vector(connection, thing)
    changed = connection.execute(update(table).where(table.c.id == thing.id).values(values)).rowcount
    if changed and only_new:
        raise ExistsError(kind, thing.id)  # the error rolls the change back
    if not changed:
        connection.execute(insert(table).values(values))
    if isinstance(thing, Bundle):
        connection.execute(delete(bundle_item).where(bundle_item.c.bundle_id == thing.id))
        contents = [
            {"bundle_id": thing.id, "position": position, "item_id": item_id}
            for position, item_id in enumerate(thing.items)
        ]
        if contents:
            connection.execute(insert(bundle_item), contents)
    return not changed


def _item(row: Row[Any]) -> Item:
    return Item(**{**row._mapping, "tags": tuple(row.tags)})


def _bundle(row: Row[Any], contents: Iterable[str]) -> Bundle:
    return Bundle(items=tuple(contents), **{**row._mapping, "tags": tuple(row.tags)})


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
        _pairs(user_item, dataset.user_item, dataset.item_events, users, dataset.items),
        _pairs(user_bundle, dataset.user_bundle, dataset.bundle_events, users, dataset.bundles),
    ]


def _vector_length(dataset: BundleDataset) -> int | None:
    """Returns the length of the items' vectors; None if there are none."""
    if dataset.catalogue is None:
        return None
    vectors = dataset.catalogue.items["vector"]
    lengths = pc.list_value_length(vectors).combine_chunks()
    known = lengths.drop_null().unique().to_pylist()
    if len(known) > 1:
        different = lengths.index(known[1]).as_py()
        raise UnstorableError(
            f"the vector of item {dataset.items[different]!r} has {known[1]:,} numbers, but that of another "
            f"item has {known[0]:,}. Give all items vectors of one length"
        )
    return known[0] if known else None


def _details(schema: pa.Schema) -> list[str]:
    return ["id", *schema.names[1:]]


def _things(table: Table, rows: pa.Table, version: int) -> _Rows:
    columns = [rows[name].to_pylist() if name != "vector" else [] for name in rows.column_names]
    tags = rows.column_names.index("tags")
    columns[tags] = [json.dumps(names or []) for names in columns[tags]]
    if "vector" in rows.column_names:
        columns[rows.column_names.index("vector")] = [
            vector_of(numbers.values.to_numpy()) if numbers.is_valid else None for numbers in rows["vector"]
        ]
    stamped = ((*row, False, version) for row in zip(*columns, strict=True))
    return table, [*_details(rows.schema), "withdrawn", "version"], len(rows), stamped


def _pairs(table: Table, matrix: Any, events: Events, users: Vocabulary, things: Vocabulary) -> _Rows:
    """Returns the pairs in the order of the table's key: the database then only appends, which is fast."""
    key = table.c.keys()[:2]
    if not events:
        pairs = ((user, thing) for user, names in _lists(matrix, users, things) for thing in sorted(names))
        return table, key, matrix.nnz, pairs
    size = matrix.nnz + (0 if events.rejected is None else events.rejected.nnz)
    return table, [*key, "at", "weight"], size, _dated(matrix, events, users, things)


def _dated(
    matrix: Any, events: Events, users: Vocabulary, things: Vocabulary
) -> Iterator[tuple[str, str, int | None, float | None]]:
    """Yields the pairs with their times and weights, and the rejected ones."""
    ids, edges = things.ids, matrix.indptr.tolist()
    for row in sorted(range(len(users)), key=users.ids.__getitem__):
        entries = slice(edges[row], edges[row + 1])
        names = [ids[entry] for entry in matrix.indices[entries].tolist()]
        at: Iterable[int] = repeat(UNDATED) if events.at is None else events.at[entries].tolist()
        weights: Iterable[float] = repeat(1.0)
        if events.weight is not None:
            weights = map(float, map(str, events.weight[entries]))  # 0.2, and not 0.20000000298
        rows = list(zip(names, at, weights, strict=False))
        if events.rejected is not None:
            rows += [(ids[entry], UNDATED, -1.0) for entry in row_of(events.rejected, row).tolist()]
        for name, moment, weight in sorted(rows):
            yield users[row], name, None if moment == UNDATED else moment, None if weight == 1 else weight


def _lists(matrix: Any, rows: Vocabulary, columns: Vocabulary) -> Iterator[tuple[str, list[str]]]:
    """Yields the rows of a matrix, sorted by id: each row's id, and the ids of its entries in their order."""
    ids, edges = columns.ids, matrix.indptr.tolist()
    for position in sorted(range(len(rows)), key=rows.ids.__getitem__):
        entries = matrix.indices[edges[position] : edges[position + 1]].tolist()
        yield rows[position], [ids[entry] for entry in entries]


def _events(connection: Connection, table: Table) -> pa.Table:
    """Returns interactions as `read_frames` takes them, without columns that say nothing."""
    user_id, thing_id, *_ = table.c
    query = select(user_id, thing_id, sa.type_coerce(table.c.at, sa.BigInteger), table.c.weight)
    result = connection.execute(query, execution_options={"stream_results": True})
    names, says = [user_id.name, thing_id.name, "at", "weight", "event"], [True, True, False, False, False]
    tables = [_events_table(names, ((),) * 4)]
    for rows in result.yield_per(_READ_AT_ONCE).partitions():
        columns = tuple(zip(*rows, strict=True))
        tables.append(_events_table(names, columns))
        known = [weight for weight in columns[3] if weight is not None]
        facts = any(at is not None for at in columns[2]), bool(known), any(weight < 0 for weight in known)
        says = [*says[:2], *(before or now for before, now in zip(says[2:], facts, strict=True))]
    whole = pa.concat_tables(tables)
    return whole.select([name for name, kept in zip(names, says, strict=True) if kept])


def _events_table(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> pa.Table:
    """Returns some interactions: users, things, times, weights, and whether they were taken or rejected. Ids
    are dictionary arrays: a batch stores each distinct id once."""
    users, things, at, weights = columns
    known = np.array([1.0 if weight is None else weight for weight in weights], np.float64)
    event = pa.DictionaryArray.from_arrays(pa.array(known < 0).cast(pa.int32()), list(_WORTH))
    ids = [pa.array(values, pa.string()).dictionary_encode() for values in (users, things)]
    times = pc.max_element_wise(pa.array(at, pa.int64()), EARLIEST, skip_nulls=False)
    return pa.table([*ids, times.cast(pa.timestamp("us", "UTC")), pa.array(np.abs(known)), event], names)


def _arrow(connection: Connection, query: Select[Any]) -> pa.Table:
    """Returns a query's ids as dictionary arrays, one per batch. A batch stores each distinct id once."""
    result = connection.execute(query, execution_options={"stream_results": True})
    names = list(result.keys())

    def table(columns: Iterable[Sequence[str]]) -> pa.Table:
        return pa.table([pa.array(column, pa.string()).dictionary_encode() for column in columns], names)

    batches = result.yield_per(_READ_AT_ONCE).partitions()
    return pa.concat_tables([table([()] * len(names)), *(table(zip(*rows, strict=True)) for rows in batches)])


def _described(connection: Connection, table: Table, schema: pa.Schema) -> pa.Table:
    columns = [table.c[name] for name in _details(schema)]
    rows = connection.execute(select(*columns)).all()
    values = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in columns]
    if "vector" in schema.names:
        place = schema.names.index("vector")
        values[place] = [None if vector is None else numbers_of(vector) for vector in values[place]]
    return pa.table([pa.array(c, f.type) for c, f in zip(values, schema, strict=True)], schema=schema)
