"""The answers of the service, what users took after them, and the erasure of users."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from bundlemage.store.checks import check_served, check_time, is_id
from bundlemage.store.connections import Database, StorePart
from bundlemage.store.dialect import elements, insert_or_replace, is_sqlite, one_of
from bundlemage.store.models import erased, served, user_bundle, user_item
from bundlemage.store.records import Served, ServedSummary

FORGOTTEN_AT_ONCE: Final = 10_000
ERASED_KEPT_FOR: Final = timedelta(hours=1)
"""How long the store remembers an erasure. Answers are written much sooner than that."""
CLOCKS_DIFFER_BY: Final = timedelta(seconds=5)
"""Assumed clock difference between the machine that dates an answer and the one that erases a user."""
_LOCK_NUMBER: Final = 6_235_118_048
_LONGEST_PAUSE: Final = 1.0
_ERASED_AMONG: Final = select(erased.c.digest, erased.c.at).where(one_of(erased.c.digest, "digests"))


class ServedStore(StorePart):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._log_is_due = True  # a killed process may not have emptied the log

    def add_served(self, answers: Sequence[Served]) -> None:
        """Write answers. Skips an answer if its user was erased after it."""
        with self._database.write() as connection:
            add_served(connection, answers)

    def served_since(self, at: datetime, most: int = 20_000) -> ServedSummary:
        """Return counts of the answers since a time. Counts only the latest `most` answers, to be fast."""
        with self._database.snapshot(long=True) as connection:
            return _summary(connection, at, most)

    def forget_served(self, before: datetime) -> int:
        """Delete answers before a time, in batches so others can write. Returns their number."""
        check_time(before)
        forgotten = 0
        while True:
            began = time.monotonic()
            with self._database.write(long=True) as connection:
                oldest = select(served.c.number).where(served.c.at < before).order_by(served.c.at)
                some = oldest.limit(FORGOTTEN_AT_ONCE).scalar_subquery()
                deleted = connection.execute(delete(served).where(served.c.number.in_(some))).rowcount
                _forget_erased(connection)
            forgotten += deleted
            if not deleted:
                return forgotten
            # Without a pause, other writers never get the lock: threads wake slowly, processes poll.
            time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))

    def erase_user(self, user_id: str) -> bool:
        """Delete a user's interactions and answers. Answers that are not written yet are skipped later.

        Returns False if the user had no data. If another connection is reading, SQLite's log still contains
        the data, and a later `tidy` removes it.
        """
        with self._database.write() as connection:
            existed = erase_user(connection, user_id)
        self._log_is_due = True
        self.tidy()
        return existed

    def tidy(self) -> None:
        """Empty SQLite's log after an erasure. It never waits; the service calls it every few seconds."""
        if not self._log_is_due:
            return
        self._log_is_due, done = False, False  # before the work: another thread may set it again
        try:
            done = self._database.write_log_anew()
        finally:
            self._log_is_due = self._log_is_due or not done


def add_served(connection: Connection, answers: Sequence[Served]) -> None:
    check_served(answers)
    kept = _without_erased(connection, answers) if answers else []
    if kept:
        connection.execute(insert(served), [vars(answer) for answer in kept])


def erase_user(connection: Connection, user_id: str) -> bool:
    """Delete a user's data. Returns whether the user had any. The store always remembers the erasure, because
    another process may still have an answer to write."""
    if not is_id(user_id):
        return False
    if not is_sqlite(connection):  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    deleted = [
        connection.execute(delete(table).where(table.c.user_id == user_id)).rowcount
        for table in (user_item, user_bundle, served)
    ]
    _forget_erased(connection)
    insert_or_replace(connection, erased, {"digest": _digest(user_id), "at": datetime.now(UTC)})
    return any(deleted)


def _without_erased(connection: Connection, answers: Sequence[Served]) -> list[Served]:
    """Returns the answers whose user was not erased later. Blocks erasures until the transaction ends."""
    if not is_sqlite(connection):
        connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK_NUMBER)))
    users = {answer.user_id for answer in answers if answer.user_id is not None}
    digests = {user_id: _digest(user_id) for user_id in users}
    rows = connection.execute(_ERASED_AMONG, {"digests": digests.values()})
    erased_at: dict[str, datetime] = {row.digest: row.at for row in rows}

    def is_erased(answer: Served) -> bool:
        at = None if answer.user_id is None else erased_at.get(digests[answer.user_id])
        return at is not None and answer.at <= at + CLOCKS_DIFFER_BY

    return [answer for answer in answers if not is_erased(answer)]


def _forget_erased(connection: Connection) -> None:
    connection.execute(delete(erased).where(erased.c.at < datetime.now(UTC) - ERASED_KEPT_FOR))


def _digest(user_id: str) -> str:
    """Returns the value that the store keeps in place of an erased user's id."""
    return hashlib.sha256(user_id.encode()).hexdigest()


def _summary(connection: Connection, since: datetime, most: int) -> ServedSummary:
    check_time(since)
    latest = select(served.c.at).order_by(served.c.at.desc()).offset(most - 1).limit(1)
    cut_at = connection.scalar(latest)
    if cut_at is None or cut_at <= since:
        cut_at = None
    since = cut_at or since
    # Count in the database: in Python, 100,000 lists of ids would block other requests.
    shown = elements(served.c.ids, is_sqlite(connection))
    recent = (served.c.at >= since, served.c.kind == "bundles")
    counts = (
        select(shown.c.value, func.count().label("shown"))
        .select_from(served, shown)
        .where(*recent)
        .group_by(shown.c.value)
    )
    taken = (
        select(user_bundle.c.user_id, user_bundle.c.bundle_id)
        .select_from(served, shown, user_bundle)
        .where(
            *recent,
            user_bundle.c.user_id == served.c.user_id,
            user_bundle.c.bundle_id == shown.c.value,
            user_bundle.c.at >= served.c.at,
        )
        .distinct()
        .subquery()
    )
    answers = select(func.count()).select_from(served).where(served.c.at >= since)
    return ServedSummary(
        connection.scalar(answers) or 0,
        {row.value: row.shown for row in connection.execute(counts)},
        connection.scalar(select(func.count()).select_from(taken)) or 0,
        cut_at,
    )
