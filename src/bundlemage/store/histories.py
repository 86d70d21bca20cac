"""Who has what."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    cast,
    delete,
    func,
    literal,
    select,
    type_coerce,
    union,
    union_all,
    update,
)
from sqlalchemy.sql.selectable import CompoundSelect

from bundlemage.errors import IdempotencyError
from bundlemage.store.catalogue import check_known
from bundlemage.store.checks import check_ids, check_interactions, is_id
from bundlemage.store.dialect import insert_new, is_sqlite, listed, one_of
from bundlemage.store.models import idempotency, user_bundle, user_item
from bundlemage.store.records import Interaction, Owned, Recorded, Sales, UserSummary

KEPT_FOR: Final = timedelta(days=7)
"""How long an idempotency key is remembered at the least."""
Kind = Literal["item", "bundle"]
_SEPARATOR: Final = "\x1f"  # a control character, which no id has
_LONG_AGO: Final = -(2**63)  # what was imported has no time
_LAST_LETTER: Final = 0x10FFFF
_TABLES: dict[Kind, tuple[Table, Column[str]]] = {
    "item": (user_item, user_item.c.item_id),
    "bundle": (user_bundle, user_bundle.c.bundle_id),
}


def histories(connection: Connection, user_ids: Sequence[str]) -> dict[str, Owned]:
    sqlite = is_sqlite(connection)
    rows = connection.execute(
        _histories(sqlite), {"users": listed(filter(is_id, dict.fromkeys(user_ids)), sqlite)}
    )
    owned = {(user_id, kind): _oldest_first(things, times) for user_id, kind, things, times in rows}
    return {
        user_id: Owned(owned.get((user_id, "item"), ()), owned.get((user_id, "bundle"), ()))
        for user_id in user_ids
    }


def _oldest_first(things: str, times: str) -> tuple[str, ...]:
    names, moments = things.split(_SEPARATOR), times.split(_SEPARATOR)
    if not any(moments):
        return tuple(sorted(names))
    dated = sorted((int(at or _LONG_AGO), name) for at, name in zip(moments, names, strict=True))
    return tuple(name for _, name in dated)


@cache
def _histories(sqlite: bool) -> CompoundSelect[Any]:
    """A row for each user and kind: rows by the thousand would take Python longer than the database."""
    parts = []
    for kind, (table, thing) in _TABLES.items():
        at = func.coalesce(cast(type_coerce(table.c.at, BigInteger), Text), "")
        names, moments = (func.aggregate_strings(one, _SEPARATOR) for one in (thing, at))
        columns = (table.c.user_id, literal(kind), names, moments)
        parts.append(
            select(*columns).where(one_of(table.c.user_id, "users", sqlite)).group_by(table.c.user_id)
        )
    return union_all(*parts)


def add_interactions(
    connection: Connection, interactions: Sequence[Interaction], key: str | None, caller: str
) -> Recorded:
    check_interactions(interactions)
    if key is not None:
        before = _claim(connection, caller, key, _digest(interactions))
        if before is not None:
            return before
    new = 0
    for kind, (table, thing) in _TABLES.items():
        # In one order everywhere, so that two transactions never wait for each other's rows.
        of_kind = [interaction for interaction in interactions if interaction.kind == kind]
        rows = sorted(of_kind, key=lambda interaction: (interaction.user_id, interaction.thing_id))
        if rows:
            check_known(connection, kind, (row.thing_id for row in of_kind))
            new += _insert(connection, table, thing.name, rows)
    recorded = Recorded(new, len(interactions) - new)
    if key is not None:
        outcome = update(idempotency).where(idempotency.c.caller == caller, idempotency.c.key == key)
        connection.execute(outcome.values(new=recorded.new, known=recorded.known))
    return recorded


def _insert(connection: Connection, table: Table, thing: str, rows: Sequence[Interaction]) -> int:
    now = datetime.now(UTC)
    values = [
        {"user_id": row.user_id, thing: row.thing_id, "at": row.at or now, "request_id": row.request_id}
        for row in rows
    ]
    return insert_new(connection, table, values)


def _digest(interactions: Sequence[Interaction]) -> bytes:
    told = [
        (one.user_id, one.kind, one.thing_id, one.at and one.at.timestamp(), one.request_id)
        for one in interactions
    ]
    return hashlib.sha256(json.dumps(told).encode()).digest()


def _claim(connection: Connection, caller: str, key: str, digest: bytes) -> Recorded | None:
    """Takes the key for this transaction, or gives the outcome of the one that took it before.

    Another transaction that has taken it and is not done yet is waited for: that is what the insert does.
    """
    check_ids("idempotency", [key])
    row = {"caller": caller, "key": key, "digest": digest, "new": 0, "known": 0, "at": datetime.now(UTC)}
    if insert_new(connection, idempotency, [row]):
        return None
    taken = select(idempotency).where(idempotency.c.caller == caller, idempotency.c.key == key)
    before = connection.execute(taken).one()
    if before.digest != digest:
        raise IdempotencyError(key)
    return Recorded(before.new, before.known, replayed=True)


def forget_keys(connection: Connection) -> None:
    connection.execute(delete(idempotency).where(idempotency.c.at < datetime.now(UTC) - KEPT_FOR))


def sales(connection: Connection) -> Sales:
    counted = []
    for _, thing in _TABLES.values():
        rows = connection.execute(select(thing.label("id"), func.count().label("users")).group_by(thing))
        counted.append({row.id: row.users for row in rows})
    return Sales(*counted)


def users(connection: Connection, search: str, limit: int, after: str) -> list[UserSummary]:
    check_ids("user", [after] if after else [])
    if search and not is_id(search):
        return []
    end = _behind(search)
    parts: list[Select[Any]] = []
    for table, _ in _TABLES.values():
        user_id = table.c.user_id
        # One bound below: of two SQLite would take the wrong one to begin its search at.
        conditions: list[ColumnElement[bool]] = [user_id > after if after >= search else user_id >= search]
        if end is not None:
            conditions.append(user_id < end)
        # Each table gives its first few in the order of its key, so neither is read whole.
        first = select(user_id).where(and_(*conditions)).distinct().order_by(user_id).limit(limit)
        parts.append(select(first.subquery().c.user_id))
    page = union(*parts).order_by("user_id").limit(limit)
    names = list(connection.scalars(page))
    items, bundles = (_counts(connection, table, names) for table, _ in _TABLES.values())
    return [UserSummary(name, items[name], bundles[name]) for name in names]


def _counts(connection: Connection, table: Table, names: Sequence[str]) -> Counter[str]:
    sqlite = is_sqlite(connection)
    user_id = table.c.user_id
    query = select(user_id, func.count().label("things")).where(one_of(user_id, "users", sqlite))
    rows = connection.execute(query.group_by(user_id), {"users": listed(names, sqlite)})
    return Counter({row.user_id: row.things for row in rows})


def _behind(prefix: str) -> str | None:
    """The least text that comes after every text with this prefix; None: there is none."""
    shorter = prefix.rstrip(chr(_LAST_LETTER))
    if not shorter:
        return None
    following = ord(shorter[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # halves of characters: no text holds them
        following = 0xE000
    return shorter[:-1] + chr(following)
