"""Answers that were given, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from bundlemage.store.checks import check_served, check_time
from bundlemage.store.dialect import elements, is_sqlite
from bundlemage.store.erasure import without_erased
from bundlemage.store.models import served, user_bundle
from bundlemage.store.records import Served, ServedSummary

FORGOTTEN_AT_ONCE: Final = 10_000


def add_served(connection: Connection, answers: Sequence[Served]) -> None:
    check_served(answers)
    if answers:
        kept = without_erased(connection, answers)
        if kept:
            connection.execute(insert(served), [vars(answer) for answer in kept])


def summary(connection: Connection, since: datetime, most: int) -> ServedSummary:
    check_time(since)
    latest = select(served.c.at).order_by(served.c.at.desc()).offset(most - 1).limit(1)
    cut_at = connection.scalar(latest)
    if cut_at is None or cut_at <= since:
        cut_at = None
    since = cut_at or since
    # Counted by the database: lists of ids by the hundred thousand would keep Python from answering others.
    shown = elements(served.c.ids, is_sqlite(connection))
    recent = (served.c.at >= since, served.c.kind == "bundles")
    counts = (
        select(shown.c.value, func.count().label("shown"))
        .select_from(served, shown)
        .where(*recent)
        .group_by(shown.c.value)
    )
    pairs = (
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
        connection.scalar(select(func.count()).select_from(pairs)) or 0,
        cut_at,
    )


def forget_some(connection: Connection, before: datetime) -> int:
    """The oldest, as many as others can wait for."""
    check_time(before)
    oldest = select(served.c.number).where(served.c.at < before).order_by(served.c.at)
    some = oldest.limit(FORGOTTEN_AT_ONCE).scalar_subquery()
    return connection.execute(delete(served).where(served.c.number.in_(some))).rowcount
