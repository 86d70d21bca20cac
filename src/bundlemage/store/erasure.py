"""Erasing a user, so that nothing that was on its way at that moment comes in afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, delete, func, select

from bundlemage.store.checks import is_id
from bundlemage.store.dialect import insert_or_replace, is_sqlite, listed, one_of
from bundlemage.store.models import erased, served, user_bundle, user_item
from bundlemage.store.records import Served

KEPT_FOR: Final = timedelta(hours=1)
"""How long it is remembered who was erased: far longer than an answer waits until it is written."""
CLOCKS_DIFFER_BY: Final = timedelta(seconds=5)
"""An answer is dated by the process that gave it, perhaps on another machine than the one that erases."""
_LOCK_NUMBER: Final = 6_235_118_048


def erase_user(connection: Connection, user_id: str) -> bool:
    """Whether there was anything. It is remembered anyhow: another process may have an answer waiting."""
    if not is_id(user_id):
        return False
    if not is_sqlite(connection):  # where there is one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    found = [
        connection.execute(delete(table).where(table.c.user_id == user_id)).rowcount
        for table in (user_item, user_bundle, served)
    ]
    forget_erased(connection)
    insert_or_replace(connection, erased, {"digest": _digest(user_id), "at": datetime.now(UTC)})
    return any(found)


def without_erased(connection: Connection, answers: Sequence[Served]) -> list[Served]:
    """Those that were not given to a user before that user was erased. Nobody is erased until they are in."""
    sqlite = is_sqlite(connection)
    if not sqlite:
        connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK_NUMBER)))
    digests = {user_id: _digest(user_id) for user_id in _users(answers)}
    rows = connection.execute(_among(sqlite), {"digests": listed(digests.values(), sqlite)})
    gone: dict[str, datetime] = {row.digest: row.at for row in rows}

    def is_gone(answer: Served) -> bool:
        erased_at = None if answer.user_id is None else gone.get(digests[answer.user_id])
        return erased_at is not None and answer.at <= erased_at + CLOCKS_DIFFER_BY

    return [answer for answer in answers if not is_gone(answer)]


def forget_erased(connection: Connection) -> None:
    connection.execute(delete(erased).where(erased.c.at < datetime.now(UTC) - KEPT_FOR))


def _users(answers: Iterable[Served]) -> set[str]:
    return {answer.user_id for answer in answers if answer.user_id is not None}


@cache
def _among(sqlite: bool) -> Select[Any]:
    return select(erased.c.digest, erased.c.at).where(one_of(erased.c.digest, "digests", sqlite))


def _digest(user_id: str) -> str:
    """Not the id itself, which is to be gone."""
    return hashlib.sha256(user_id.encode()).hexdigest()
