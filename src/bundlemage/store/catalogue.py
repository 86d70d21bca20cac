"""The store's items and bundles. Each change of them raises the catalogue's version by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, Table, delete, insert, select, update

from bundlemage.errors import ExistsError, UnknownThingsError
from bundlemage.store.checks import check_thing, is_id
from bundlemage.store.connections import StorePart
from bundlemage.store.dialect import one_of
from bundlemage.store.models import bundle_item, bundles, clock, items
from bundlemage.store.records import Bundle, CatalogueChange, Item, State

Kind = Literal["item", "bundle"]
_TABLES: dict[Kind, Table] = {"item": items, "bundle": bundles}
_STATE = select(clock.c.catalogue, clock.c.model)
ANY_ITEM = select(items.c.id).limit(1)
_LOCK = select(clock.c.catalogue).with_for_update()
"""Locks the catalogue against other writers until the transaction ends. (SQLite has only one writer.)"""
_TICK = update(clock).values(catalogue=clock.c.catalogue + 1)
# The fields of a record are columns of its table, except a bundle's items, which have their own table.
_ITEM = select(*(items.c[field.name] for field in fields(Item)))
_BUNDLE = select(*(bundles.c[field.name] for field in fields(Bundle) if field.name != "items"))
_QUERIES: dict[Kind, Select[Any]] = {"item": _ITEM, "bundle": _BUNDLE}


class CatalogueStore(StorePart):
    def state(self) -> State:
        """Return the version of the catalogue, and the version of the model selected for serving."""
        return State(**self._rows(_STATE)[0])

    def is_empty(self) -> bool:
        """Whether the store has no item yet."""
        return not self._rows(ANY_ITEM)

    def catalogue(self, since: int = 0) -> CatalogueChange:
        """Return the items and bundles that changed after the version `since`, by id; 0 returns all."""
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
        `UnknownThingsError` if the catalogue does not have an item of a bundle.
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


def next_version(connection: Connection) -> int:
    """Raise the catalogue's version by one, and return it.

    This locks the `clock` table until the transaction ends. So readers see versions in order, and miss none.
    """
    connection.execute(_TICK)
    return int(connection.execute(_STATE).one().catalogue)


def check_known(connection: Connection, kind: Kind, ids: Iterable[str]) -> None:
    """Raise `UnknownThingsError` for ids that are not in the catalogue."""
    wanted = list(dict.fromkeys(ids))
    if wanted:
        column = _TABLES[kind].c.id
        known = connection.scalars(select(column).where(one_of(column, "ids")), {"ids": wanted})
        missing = set(wanted).difference(known)
        if missing:
            raise UnknownThingsError(kind, [name for name in wanted if name in missing])


def _put(connection: Connection, thing: Item | Bundle, only_new: bool = False) -> bool:
    kind: Kind = "item" if isinstance(thing, Item) else "bundle"
    check_thing(thing)
    values = dict(vars(thing))
    if isinstance(thing, Bundle):
        check_known(connection, "item", values.pop("items"))
        check_known(connection, "bundle", [thing.sells_like] if thing.sells_like is not None else [])
    table = _TABLES[kind]
    values["version"] = next_version(connection)
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
