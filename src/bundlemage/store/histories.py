"""The store's interactions: which user has which items and bundles."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, Table, Text, delete, func, select, update
from sqlalchemy.sql.selectable import CompoundSelect

from bundlemage.errors import IdempotencyError
from bundlemage.store.catalogue import Kind, check_known
from bundlemage.store.checks import check_ids, check_interactions, is_id
from bundlemage.store.connections import Database, StorePart
from bundlemage.store.dialect import insert_new, one_of
from bundlemage.store.models import idempotency, user_bundle, user_item
from bundlemage.store.records import InteractionRecord, Owned, Recorded, Sales
from bundlemage.wire.answers import UserLine

KEYS_KEPT_FOR: Final = timedelta(days=7)
"""The store remembers an idempotency key for at least this time."""
_SECONDS_BETWEEN_FORGETTING: Final = 3600
_SEPARATOR: Final = "\x1f"  # a control character, which no id contains
_LONG_AGO: Final = -(2**63)  # imported interactions have no time
_LAST_LETTER: Final = 0x10FFFF
_TABLES: dict[Kind, tuple[Table, sa.Column[str]]] = {
    "item": (user_item, user_item.c.item_id),
    "bundle": (user_bundle, user_bundle.c.bundle_id),
}


class HistoryStore(StorePart):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._forgot_at: float | None = None

    def histories(self, user_ids: Sequence[str]) -> dict[str, Owned]:
        """Return the history of each user, with one query; `Owned()` for a user without a history."""
        names = list(filter(is_id, dict.fromkeys(user_ids)))
        with self._database.read() as connection:
            rows = connection.execute(_histories(), {"users": names})
            owned = {(user_id, kind): _oldest_first(things, times) for user_id, kind, things, times in rows}
        return {
            user_id: Owned(owned.get((user_id, "item"), ()), owned.get((user_id, "bundle"), ()))
            for user_id in user_ids
        }

    def add_interactions(
        self,
        interactions: Sequence[InteractionRecord],
        *,
        idempotency_key: str | None = None,
        caller: str = "",
    ) -> Recorded:
        """Write all interactions, or none if an error is raised.

        A repeated call with the same `caller`, `idempotency_key` and interactions writes nothing and returns
        the first result. Raises `IdempotencyError` if the interactions differ, and `UnknownThingsError` for
        unknown items or bundles.
        """
        check_interactions(interactions)
        with self._database.write() as connection:
            if idempotency_key is None:
                return _add(connection, interactions)
            this_key = (idempotency.c.caller == caller, idempotency.c.key == idempotency_key)
            recorded = _claim(connection, caller, idempotency_key, _digest(interactions))
            if recorded is None:
                recorded = _add(connection, interactions)
                outcome = update(idempotency).where(*this_key)
                connection.execute(outcome.values(new=recorded.new, known=recorded.known))
            if self._is_time_to_forget():
                too_old = datetime.now(UTC) - KEYS_KEPT_FOR
                connection.execute(delete(idempotency).where(idempotency.c.at < too_old))
            return recorded

    def _is_time_to_forget(self) -> bool:
        now = time.monotonic()
        due = self._forgot_at is None or now - self._forgot_at > _SECONDS_BETWEEN_FORGETTING
        if due:
            self._forgot_at = now
        return due

    def users(self, search: str = "", limit: int = 50, after: str = "") -> list[UserLine]:
        """Return users with a history, ordered by id: ids that start with `search` and come after `after`."""
        check_ids("user", [after] if after else [])
        if search and not is_id(search):
            return []
        with self._database.snapshot() as connection:
            names = list(connection.scalars(_page(search, limit, after)))
            items, bundles = (_counts(connection, table, names) for table, _ in _TABLES.values())
            return [UserLine(id=name, items=items[name], bundles=bundles[name]) for name in names]

    def sales(self) -> Sales:
        """Return the number of users who have each item and each bundle."""
        counts = []
        with self._database.snapshot(long=True) as connection:
            for _, thing in _TABLES.values():
                counted = select(thing.label("id"), func.count().label("users")).group_by(thing)
                counts.append({row.id: row.users for row in connection.execute(counted)})
        return Sales(*counts)


def _oldest_first(things: str, times: str) -> tuple[str, ...]:
    names, moments = things.split(_SEPARATOR), times.split(_SEPARATOR)
    if not any(moments):
        return tuple(sorted(names))
    dated = sorted((int(at or _LONG_AGO), name) for at, name in zip(moments, names, strict=True))
    return tuple(name for _, name in dated)


@cache
def _histories() -> CompoundSelect[Any]:
    """A query with one row per user and kind. The database joins the ids: Python would be slower."""
    parts = []
    for kind, (table, thing) in _TABLES.items():
        at = func.coalesce(sa.cast(sa.type_coerce(table.c.at, sa.BigInteger), Text), "")
        names, moments = (func.aggregate_strings(one, _SEPARATOR) for one in (thing, at))
        user_id = table.c.user_id
        columns = (user_id, sa.literal(kind), names, moments)
        parts.append(select(*columns).where(one_of(user_id, "users")).group_by(user_id))
    return sa.union_all(*parts)


def _add(connection: Connection, interactions: Sequence[InteractionRecord]) -> Recorded:
    new, now = 0, datetime.now(UTC)
    for kind, (table, thing) in _TABLES.items():
        of_kind = [interaction for interaction in interactions if interaction.kind == kind]
        if not of_kind:
            continue
        check_known(connection, kind, (interaction.thing_id for interaction in of_kind))
        # A fixed order, so two transactions never wait for each other's rows (a deadlock).
        of_kind.sort(key=lambda interaction: (interaction.user_id, interaction.thing_id))
        columns = ("user_id", thing.name, "at", "request_id")
        rows = ((one.user_id, one.thing_id, one.at or now, one.request_id) for one in of_kind)
        new += insert_new(connection, table, [dict(zip(columns, row, strict=True)) for row in rows])
    return Recorded(new, len(interactions) - new)


def _digest(interactions: Sequence[InteractionRecord]) -> bytes:
    facts = [
        (one.user_id, one.kind, one.thing_id, one.at and one.at.timestamp(), one.request_id)
        for one in interactions
    ]
    return hashlib.sha256(json.dumps(facts).encode()).digest()


def _claim(connection: Connection, caller: str, key: str, digest: bytes) -> Recorded | None:
    """Reserve the key and return None, or return the result of the transaction that used it before.

    If a transaction that uses the key is still running, the insert waits for it.
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


def _page(search: str, limit: int, after: str) -> CompoundSelect[Any]:
    """The query for a page of user ids."""
    end = _behind(search)
    parts: list[Select[Any]] = []
    for table, _ in _TABLES.values():
        user_id = table.c.user_id
        # Use only one lower bound: with two, SQLite may start its search at the smaller one.
        conditions: list[ColumnElement[bool]] = [user_id > after if after >= search else user_id >= search]
        if end is not None:
            conditions.append(user_id < end)
        # Each table returns its first ids in the order of its key, so it is not read completely.
        first = select(user_id).where(*conditions).distinct().order_by(user_id).limit(limit)
        parts.append(select(first.subquery().c.user_id))
    return sa.union(*parts).order_by("user_id").limit(limit)


def _counts(connection: Connection, table: Table, names: Sequence[str]) -> Counter[str]:
    user_id = table.c.user_id
    query = select(user_id, func.count().label("things")).where(one_of(user_id, "users"))
    rows = connection.execute(query.group_by(user_id), {"users": names})
    return Counter({row.user_id: row.things for row in rows})


def _behind(prefix: str) -> str | None:
    """Returns the smallest text after all texts with this prefix; None if no text comes after them."""
    shorter = prefix.rstrip(chr(_LAST_LETTER))
    if not shorter:
        return None
    following = ord(shorter[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates, which no valid text contains
        following = 0xE000
    return shorter[:-1] + chr(following)
