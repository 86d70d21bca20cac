"""Items and bundles: what each is now, and which changed since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, Table, delete, insert, select, update

from bundlemage.errors import ExistsError, UnknownThingsError
from bundlemage.store.checks import check_bundle, check_item, is_id
from bundlemage.store.dialect import is_sqlite, listed, one_of
from bundlemage.store.models import bundle_item, bundles, clock, items
from bundlemage.store.records import Bundle, CatalogueChange, Item, State

THINGS: dict[Literal["item", "bundle"], Table] = {"item": items, "bundle": bundles}

_STATE = select(clock.c.catalogue, clock.c.model)
_LOCK = select(clock.c.catalogue).with_for_update()
"""Nobody else changes the catalogue until the transaction ends. (With SQLite nobody does anyway.)"""
_TICK = update(clock).values(catalogue=clock.c.catalogue + 1)


def state(connection: Connection) -> State:
    return State(*connection.execute(_STATE).one())


def next_version(connection: Connection) -> int:
    """Locks the clock until the transaction ends: so versions come into sight in order, none missed."""
    connection.execute(_TICK)
    return state(connection).catalogue


def changes(connection: Connection, since: int) -> CatalogueChange:
    contents: defaultdict[str, list[str]] = defaultdict(list)
    changed = bundles.c.version > since
    within = select(bundle_item.c.bundle_id, bundle_item.c.item_id).join(bundles).where(changed)
    for bundle_id, item_id in connection.execute(
        within.order_by(bundle_item.c.bundle_id, bundle_item.c.position)
    ):
        contents[bundle_id].append(item_id)
    found_items = connection.execute(select(items).where(items.c.version > since).order_by(items.c.id))
    found_bundles = connection.execute(select(bundles).where(changed).order_by(bundles.c.id))
    return CatalogueChange(
        state(connection).catalogue,
        [_item(row) for row in found_items],
        [_bundle(row, contents[row.id]) for row in found_bundles],
    )


def put_item(connection: Connection, item: Item, only_new: bool) -> bool:
    check_item(item)
    return _put(connection, "item", item_values(item), only_new)


def put_bundle(connection: Connection, bundle: Bundle, only_new: bool) -> bool:
    check_bundle(bundle)
    check_known(connection, "item", bundle.items)
    if bundle.sells_like is not None:
        check_known(connection, "bundle", [bundle.sells_like])
    new = _put(connection, "bundle", bundle_values(bundle), only_new)
    connection.execute(delete(bundle_item).where(bundle_item.c.bundle_id == bundle.id))
    contents = [
        {"bundle_id": bundle.id, "position": position, "item_id": item_id}
        for position, item_id in enumerate(bundle.items)
    ]
    if contents:
        connection.execute(insert(bundle_item), contents)
    return new


def change_item(connection: Connection, item_id: str, changes: Mapping[str, Any]) -> Item | None:
    if not is_id(item_id):
        return None
    connection.execute(_LOCK)
    row = connection.execute(select(items).where(items.c.id == item_id)).one_or_none()
    if row is None:
        return None
    after = replace(_item(row), **changes)
    put_item(connection, after, only_new=False)
    return after


def change_bundle(connection: Connection, bundle_id: str, changes: Mapping[str, Any]) -> Bundle | None:
    if not is_id(bundle_id):
        return None
    connection.execute(_LOCK)
    row = connection.execute(select(bundles).where(bundles.c.id == bundle_id)).one_or_none()
    if row is None:
        return None
    within = select(bundle_item.c.item_id).where(bundle_item.c.bundle_id == bundle_id)
    contents = connection.scalars(within.order_by(bundle_item.c.position))
    after = replace(_bundle(row, contents), **changes)
    put_bundle(connection, after, only_new=False)
    return after


def withdraw(connection: Connection, kind: Literal["item", "bundle"], thing_id: str) -> bool:
    table = THINGS[kind]
    this_one = table.c.id == thing_id
    if not is_id(thing_id) or connection.execute(select(table.c.id).where(this_one)).first() is None:
        return False
    change = update(table).where(this_one)
    connection.execute(change.values(withdrawn=True, version=next_version(connection)))
    return True


def check_known(connection: Connection, kind: Literal["item", "bundle"], ids: Iterable[str]) -> None:
    wanted = list(dict.fromkeys(ids))
    if wanted:
        sqlite = is_sqlite(connection)
        found = connection.scalars(_among(kind, sqlite), {"ids": listed(wanted, sqlite)})
        missing = set(wanted).difference(found)
        if missing:
            raise UnknownThingsError(kind, [name for name in wanted if name in missing])


@cache
def _among(kind: Literal["item", "bundle"], sqlite: bool) -> Select[Any]:
    column = THINGS[kind].c.id
    return select(column).where(one_of(column, "ids", sqlite))


def _put(
    connection: Connection, kind: Literal["item", "bundle"], values: dict[str, Any], only_new: bool
) -> bool:
    table = THINGS[kind]
    values["version"] = next_version(connection)
    changed = connection.execute(update(table).where(table.c.id == values["id"]).values(values)).rowcount
    if changed and only_new:
        raise ExistsError(kind, values["id"])  # which undoes the change
    if not changed:
        connection.execute(insert(table).values(values))
    return not changed


def item_values(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "title": item.title,
        "price": item.price,
        "tags": item.tags,
        "stock": item.stock,
        "withdrawn": item.withdrawn,
    }


def bundle_values(bundle: Bundle) -> dict[str, Any]:
    return {
        "id": bundle.id,
        "title": bundle.title,
        "price": bundle.price,
        "discount": bundle.discount,
        "tags": bundle.tags,
        "withdrawn": bundle.withdrawn,
        "expected_sales": bundle.expected_sales,
        "sells_like": bundle.sells_like,
    }


def _item(row: Row[Any]) -> Item:
    return Item(row.id, row.title, row.price, tuple(row.tags), row.stock, row.withdrawn)


def _bundle(row: Row[Any], contents: Iterable[str]) -> Bundle:
    return Bundle(
        row.id,
        tuple(contents),
        row.title,
        row.price,
        row.discount,
        tuple(row.tags),
        row.withdrawn,
        row.expected_sales,
        row.sells_like,
    )
