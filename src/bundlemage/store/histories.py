"""The users' data: their interactions, the answers of the service to them, and the erasure of users."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy import Connection, Select, Table, Text, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.selectable import CompoundSelect, TextualSelect

from bundlemage.data.events import DAY, UNDATED
from bundlemage.errors import BundleMageError, IdempotencyError, StoreError
from bundlemage.store.catalogue import Kind, check_known
from bundlemage.store.connections import StorePart
from bundlemage.store.models import (
    IS_WEAK,
    elements,
    erased,
    idempotency,
    insert_into,
    insert_new,
    insert_or_replace,
    is_sqlite,
    name_type,
    one_of,
    served,
    user_bundle,
    user_item,
    written,
)
from bundlemage.store.records import (
    Entry,
    InteractionRecord,
    InteractionsRecord,
    Owned,
    Recorded,
    Sales,
    Served,
    ServedSummary,
    check_event,
    check_ids,
    check_time,
    is_id,
)
from bundlemage.wire.answers import UserLine
from bundlemage.wire.requests import LONGEST_ID

KEYS_KEPT_FOR: Final = timedelta(days=7)
"""The store remembers an idempotency key for at least this time."""
_SECONDS_BETWEEN_FORGETTING: Final = 3600
_GROUP_LOCK_MS: Final = 200
"""Milliseconds that one record of several waits for a PostgreSQL lock. The others wait with it."""
_SEPARATOR: Final = "\x1f"  # a control character, which no id contains
_BEFORE_WEIGHT: Final = "\x1e"  # another one
_LAST_LETTERS: Final = LONGEST_ID * "\U0010ffff"
"""The beginning of an id, followed by these letters, sorts after every id with the same beginning."""
_TABLES: dict[Kind, tuple[Table, sa.Column[str]]] = {
    "item": (user_item, user_item.c.item_id),
    "bundle": (user_bundle, user_bundle.c.bundle_id),
}
FORGOTTEN_AT_ONCE: Final = 10_000
_READ_AT_ONCE: Final = 100_000
_USERS_AT_ONCE: Final = 10_000
ERASED_KEPT_FOR: Final = timedelta(hours=1)
"""The store remembers an erasure for at least this time. Answers are written much sooner than that."""
CLOCKS_DIFFER_BY: Final = timedelta(seconds=5)
"""Assumed clock difference between the machine that dates an answer and the one that erases a user."""
_LOCK_NUMBER: Final = 6_235_118_048
_LONGEST_PAUSE: Final = 1.0
_ERASED_AMONG: Final = select(erased.c.digest, erased.c.at).where(one_of(erased.c.digest, "digests"))


class HistoryStore(StorePart):
    """The methods of `Store` for users' data."""

    _forgot_at = -math.inf
    _must_empty_log = True  # at the start, too: an earlier process may have been killed before emptying it

    def histories(
        self, user_ids: Sequence[str], *, in_order: bool = True, times: bool = False
    ) -> dict[str, Owned]:
        """Return the history of each user, with one query; `Owned()` for a user without a history.

        Without `in_order`, nothing is sorted, which takes less time. With `times`, the histories have their
        times.
        """
        names = list(filter(is_id, dict.fromkeys(user_ids)))
        with self._database.read() as connection:
            rows = connection.execute(_histories(is_sqlite(connection)), {"users": names}).all()
        owned: dict[tuple[str, Kind], tuple[str, ...]] = {
            (user_id, kind): _oldest_first(things, at) if in_order else tuple(things.split(_SEPARATOR))
            for user_id, kind, things, at, _ in rows
        }
        weighted: dict[tuple[str, Kind], dict[str, float]] = {
            (user_id, kind): _weights_in(weights) for user_id, kind, _, _, weights in rows if weights
        }
        moments: dict[tuple[str, Kind], dict[str, int]] = {
            (user_id, kind): _moments_in(things, at) for user_id, kind, things, at, _ in rows if times
        }
        if weighted or times:
            return {user_id: _history(user_id, owned, weighted, moments, times) for user_id in user_ids}
        return {
            user_id: Owned(owned.get((user_id, "item"), ()), owned.get((user_id, "bundle"), ()))
            for user_id in user_ids
        }

    def entries(self, kind: Kind, user_id: str) -> list[Entry]:
        """Return all that the store knows about a user's items or bundles, oldest first."""
        table, thing = _TABLES[kind]
        columns = (thing.label("thing_id"), table.c.at, table.c.weight, table.c.event)
        in_order = func.coalesce(sa.type_coerce(table.c.at, sa.BigInteger), UNDATED)
        query = select(*columns).where(table.c.user_id == user_id).order_by(in_order, thing)
        rows = self._rows(query) if is_id(user_id) else []
        return [Entry(**{**row, "weight": 1.0 if row["weight"] is None else row["weight"]}) for row in rows]

    def add_interactions(
        self,
        interactions: Sequence[InteractionRecord],
        *,
        idempotency_key: str | None = None,
        caller: str = "",
    ) -> Recorded:
        """Write all interactions, or none if an error is raised.

        The store keeps one interaction of each user and thing. The strongest counts, and of equal ones the
        first. A later rejection takes its place, and a still later interaction takes the rejection back. At
        equal times the rejection counts.

        A repeated call with the same `caller`, `idempotency_key` and interactions writes nothing and returns
        the first result. Raises `IdempotencyError` if the interactions differ, and `UnknownThingsError` for
        unknown items or bundles.
        """
        record = InteractionsRecord(interactions, idempotency_key, caller)
        with self._database.write() as connection:
            return self._record(connection, record)

    def add_all_interactions(
        self, records: Sequence[InteractionsRecord]
    ) -> list[Recorded | BundleMageError | None]:
        """Write several records like `add_interactions`, but with one commit, which takes the most time.

        Returns for each record its result or its error, which does not affect the other records. None means
        that the database refused it, for example because another process holds a lock: nothing was written,
        and `add_interactions` may succeed. Raises `StoreError` if the commit fails.
        """
        results: list[Recorded | BundleMageError | None] = []
        try:
            with self._database.write() as connection:
                if not is_sqlite(connection):
                    # PostgreSQL looks for deadlocks only after a longer time. So this limit ends them, too.
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_GROUP_LOCK_MS}ms'")
                results.extend(self._apart(connection, record) for record in records)
        except StoreError:
            if len(results) == len(records):
                raise
            return [None] * len(records)
        return results

    def _apart(self, connection: Connection, record: InteractionsRecord) -> Recorded | BundleMageError | None:
        """Write a record as a part of a transaction. If it fails, the rest of the transaction goes on."""
        savepoint = connection.begin_nested()
        try:
            recorded = self._record(connection, record)
        except BundleMageError as error:
            savepoint.rollback()
            return error
        except DBAPIError:
            if is_sqlite(connection):  # SQLite may have rolled back the whole transaction
                raise
            savepoint.rollback()
            return None
        savepoint.commit()
        return recorded

    def _record(self, connection: Connection, record: InteractionsRecord) -> Recorded:
        interactions, key, caller = record.interactions, record.idempotency_key, record.caller
        for interaction in interactions:
            check_event(interaction)
        if key is None:
            return _add(connection, interactions)
        recorded = _claim(connection, caller, key, _digest(interactions))
        if recorded is None:
            recorded = _add(connection, interactions)
            outcome = update(idempotency).where(idempotency.c.caller == caller, idempotency.c.key == key)
            connection.execute(outcome.values(new=recorded.new, known=recorded.known))
        if time.monotonic() - self._forgot_at > _SECONDS_BETWEEN_FORGETTING:
            self._forgot_at = time.monotonic()
            too_old = datetime.now(UTC) - KEYS_KEPT_FOR
            connection.execute(delete(idempotency).where(idempotency.c.at < too_old))
        return recorded

    def users(self, search: str = "", limit: int = 50, after: str = "") -> list[UserLine]:
        """Return users with a history, ordered by id: ids that start with `search` and come after `after`."""
        check_ids("user", [after] if after else [])
        if search and not is_id(search):
            return []
        with self._database.snapshot() as connection:
            names = list(connection.scalars(_page(search, limit, after)))
            items, bundles = (_counts(connection, table, names) for table, _ in _TABLES.values())
            return [UserLine(id=name, items=items[name], bundles=bundles[name]) for name in names]

    def user_ids(self, limit: int, after: str = "") -> list[str]:
        """Return the ids of at most `limit` users with a history, ordered by id, that come after `after`."""
        with self._database.read() as connection:
            return list(connection.scalars(_page("", limit, after)))

    def user_count(self) -> int:
        """Return the number of users with a history."""
        with self._database.snapshot(long=True) as connection:
            return connection.scalar(select(func.count()).select_from(_each_user().subquery())) or 0

    def sample_of_users(self, size: int, seed: int = 0) -> tuple[list[str], int]:
        """Return the ids of `size` users with a history, drawn at random, and the number of all such users.

        The ids are in ascending order. If there are no more users than `size`, all are returned. The same
        users in the store and the same seed give the same sample. Histories are not read, only ids.
        """
        random, count = np.random.default_rng(seed), 0
        names, keys = np.empty(0, object), np.empty(0)
        with self._database.snapshot(long=True) as connection:
            rows = connection.execute(_each_user(), execution_options={"stream_results": True})
            for part in rows.scalars().partitions(_READ_AT_ONCE):
                count += len(part)
                # Each user gets a random key. The users with the lowest keys are the sample.
                names = np.concatenate([names, np.array(part, object)])
                keys = np.concatenate([keys, random.random(len(part))])
                if len(names) > size:
                    lowest = np.argpartition(keys, size)[:size]
                    names, keys = names[lowest], keys[lowest]
        return sorted(names.tolist()), count

    def request_ids(self) -> Iterator[tuple[str, str, str]]:
        """Yield the users' bundles that were written with a request id: the user, the bundle, and this id."""
        table = user_bundle
        query = select(table.c.user_id, table.c.bundle_id, table.c.request_id)
        query = query.where(table.c.request_id.is_not(None))
        with self._database.snapshot(long=True) as connection:
            rows = connection.execute(query, execution_options={"stream_results": True})
            yield from map(tuple, rows.yield_per(_READ_AT_ONCE))

    def sales(self) -> Sales:
        """Return the number of users who bought each item and each bundle.

        If nothing has a weight of 1 or more, the weights are no such scale, and all that users have counts.
        """
        with self._database.snapshot(long=True) as connection:
            items, bundles = (_sales(connection, table, thing) for table, thing in _TABLES.values())
            return Sales(items, bundles, _by_month(connection))

    def add_served(self, answers: Sequence[Served]) -> None:
        """Write answers, except those whose user was erased after the answer."""
        with self._database.write() as connection:
            add_served(connection, answers)

    def lists_shown_to(self, user_ids: Sequence[str]) -> Iterator[tuple[str, str, int, list[str]]]:
        """Yield the stored lists of bundles of these users: the user, the request id, the time in
        microseconds since 1970, and the ids of the bundles."""
        at = sa.type_coerce(served.c.at, sa.BigInteger)
        query = select(served.c.user_id, served.c.request_id, at, served.c.ids).where(
            one_of(served.c.user_id, "users"), served.c.kind == "bundles"
        )
        for start in range(0, len(user_ids), _USERS_AT_ONCE):
            names = list(user_ids[start : start + _USERS_AT_ONCE])
            with self._database.snapshot(long=True) as connection:
                yield from map(tuple, connection.execute(query, {"users": names}))

    def models_in_use(self, since: datetime) -> set[str]:
        """Return the versions of the models that have answered since a time."""
        check_time(since)
        with self._database.snapshot(long=True) as connection:
            return set(connection.scalars(select(served.c.model).where(served.c.at >= since).distinct()))

    def served_since(self, at: datetime, most: int = 20_000) -> ServedSummary:
        """Return counts of the answers since a time. Counts only the latest `most` answers, to be fast."""
        check_time(at)
        with self._database.snapshot(long=True) as connection:
            latest = select(served.c.at).order_by(served.c.at.desc()).offset(most - 1).limit(1)
            cut_at = connection.scalar(latest)
            if cut_at is None or cut_at <= at:
                cut_at = None
            at = cut_at or at
            # Count in the database: in Python, 20,000 lists of ids would block other requests. By themselves,
            # the databases would choose slow plans: they would read all answers, or all of `user_bundle` for
            # each answer. So the recent answers come first, and each shown bundle is looked up by the key.
            recent = (
                select(served.c.user_id, served.c.ids, served.c.at)
                .where(served.c.at >= at, served.c.kind == "bundles")
                .cte("recent")
                .prefix_with("MATERIALIZED")
            )
            shown = elements(recent.c.ids, is_sqlite(connection))
            counts = (
                select(shown.c.value, func.count().label("shown"))
                .select_from(recent, shown)
                .group_by(shown.c.value)
            )
            taken_at = (
                select(user_bundle.c.at)
                .where(
                    user_bundle.c.user_id == recent.c.user_id,
                    user_bundle.c.bundle_id == shown.c.value,
                    func.coalesce(user_bundle.c.weight, 1.0) >= 1,
                )
                .scalar_subquery()
            )
            taken = (
                select(recent.c.user_id, shown.c.value)
                .select_from(recent, shown)
                .where(taken_at >= recent.c.at)
                .distinct()
                .subquery()
            )
            answers = select(func.count()).select_from(served).where(served.c.at >= at)
            return ServedSummary(
                connection.scalar(answers) or 0,
                dict(connection.execute(counts).all()),
                connection.scalar(select(func.count()).select_from(taken)) or 0,
                cut_at,
            )

    def forget_served(self, before: datetime) -> int:
        """Delete answers given before a time, in batches so that others can write. Returns their number."""
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
            # Without a pause, this loop would always take the lock again before another writer gets it.
            time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))

    def erase_user(self, user_id: str) -> bool:
        """Delete a user's interactions and answers. Answers that still wait to be written will be skipped.

        Returns False if the user had no data. If another connection is reading, SQLite's log still contains
        the data, and a later `tidy` removes it.
        """
        with self._database.write() as connection:
            existed = erase_user(connection, user_id)
        self._must_empty_log = True
        self.tidy()
        return existed

    def tidy(self) -> None:
        """Empty SQLite's log after an erasure. It never waits; the service calls it twice a second."""
        if not self._must_empty_log:
            return
        self._must_empty_log, done = False, False  # before the work: another thread may set it again
        try:
            done = self._database.empty_log()
        finally:
            self._must_empty_log = self._must_empty_log or not done


def _oldest_first(things: str, times: str) -> tuple[str, ...]:
    names = things.split(_SEPARATOR)
    if not times.strip(_SEPARATOR):
        return tuple(sorted(names))
    moments = times.split(_SEPARATOR)
    dated = sorted((int(at or UNDATED), name) for at, name in zip(moments, names, strict=True))
    return tuple(name for _, name in dated)


def _moments_in(things: str, times: str) -> dict[str, int]:
    """Returns the times of things, from the texts that `_histories` makes."""
    pairs = zip(things.split(_SEPARATOR), times.split(_SEPARATOR), strict=True)
    return {name: int(at or UNDATED) for name, at in pairs}


def _weights_in(text: str) -> dict[str, float]:
    """Returns the weights of things, from the text that `_histories` makes."""
    pairs = (part.rpartition(_BEFORE_WEIGHT) for part in text.split(_SEPARATOR))
    return {name: float(weight) for name, _, weight in pairs}


def _history(
    user_id: str,
    owned: Mapping[tuple[str, Kind], tuple[str, ...]],
    weighted: Mapping[tuple[str, Kind], Mapping[str, float]],
    moments: Mapping[tuple[str, Kind], Mapping[str, int]],
    times: bool,
) -> Owned:
    """Returns a history with weights, in which rejected things stand apart."""
    parts: dict[str, Any] = {}
    at: list[tuple[int, ...]] = []
    for kind in _TABLES:
        key = user_id, kind
        names, own = owned.get(key, ()), weighted.get(key, {})
        kept = tuple(name for name in names if own.get(name, 1) > 0)
        parts[f"{kind}s"] = kept
        parts[f"rejected_{kind}s"] = tuple(name for name in names if own.get(name, 1) < 0)
        if any(weight > 0 for weight in own.values()):
            parts[f"{kind}_weights"] = tuple(own.get(name, 1.0) for name in kept)
        at.append(tuple(moments.get(key, {}).get(name, UNDATED) for name in kept))
    return Owned(**parts, times=(at[0], at[1]) if times else None)


@cache
def _histories(for_sqlite: bool) -> CompoundSelect[Any]:
    """A query with one row per user and kind. The database concatenates the ids, faster than Python would.
    Of the weights it concatenates only those that are not 1, each with its id: for most users this is null.
    """
    # Not `func.aggregate_strings`: SQLAlchemy writes its separators into the statement at each execution.
    joined = func.group_concat if for_sqlite else func.string_agg
    separator: sa.ColumnElement[str] = sa.literal_column(f"'{_SEPARATOR}'", Text)
    parts = []
    for kind, (table, thing) in _TABLES.items():
        at = func.coalesce(sa.cast(sa.type_coerce(table.c.at, sa.BigInteger), Text), "")
        weight = thing + _BEFORE_WEIGHT + sa.cast(table.c.weight, Text)
        names, moments, weights = (joined(text, separator) for text in (thing, at, weight))
        user_id, is_weighted = table.c.user_id, table.c.weight.is_not(None)
        columns = (user_id, sa.literal(kind), names, moments, weights.filter(is_weighted))
        parts.append(select(*columns).where(one_of(user_id, "users")).group_by(user_id))
    return sa.union_all(*parts)


@cache
def _each_user() -> TextualSelect:
    """A query for the ids of all users with a history, in ascending order.

    It looks for the next id after the last one, in the key of each table. So it takes one step for a user,
    and not one for each interaction, as `SELECT DISTINCT` would.
    """

    def lowest(above: str) -> str:
        parts = (f"SELECT min(user_id) AS id FROM {table.name}{above}" for table, _ in _TABLES.values())
        return f"SELECT min(id) FROM ({' UNION ALL '.join(parts)}) AS lowest"

    following = lowest(" WHERE user_id > users.id")
    return sa.text(
        f"WITH RECURSIVE users(id) AS ({lowest('')} UNION ALL "
        f"SELECT ({following}) FROM users WHERE id IS NOT NULL) SELECT id FROM users WHERE id IS NOT NULL"
    ).columns(sa.Column("id", name_type()))


def _add(connection: Connection, interactions: Sequence[InteractionRecord]) -> Recorded:
    new, now = 0, datetime.now(UTC)
    for kind, (table, thing) in _TABLES.items():
        of_kind = [interaction for interaction in interactions if interaction.kind == kind]
        if not of_kind:
            continue
        check_known(connection, kind, (interaction.thing_id for interaction in of_kind))
        # A fixed order, so two transactions never wait for each other's rows (a deadlock).
        of_kind.sort(key=lambda interaction: (interaction.user_id, interaction.thing_id))
        rows = [
            {
                "user_id": each.user_id,
                thing.name: each.thing_id,
                "at": each.at or now,
                "request_id": each.request_id,
                "weight": None if each.weight == 1 else each.weight,
                "event": each.event,
            }
            for each in of_kind
        ]
        new += written(connection, _insert_what_counts(is_sqlite(connection), table), rows)
    return Recorded(new, len(interactions) - new)


@cache
def _insert_what_counts(for_sqlite: bool, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Inserts interactions. If the store has one of the same user and thing, it keeps the one that counts."""
    statement = insert_into(for_sqlite, table)
    new, old = statement.excluded, table.c
    before, after = func.coalesce(old.weight, 1.0), func.coalesce(new.weight, 1.0)
    now = sa.type_coerce(new.at, sa.BigInteger)
    then = func.coalesce(sa.type_coerce(old.at, sa.BigInteger), UNDATED)
    counts = sa.or_(
        sa.and_(before > 0, after > before),
        sa.and_(before > 0, after < 0, now >= then),
        sa.and_(before < 0, now > then),
    )
    changed = {name: new[name] for name in ("at", "request_id", "weight", "event")}
    return statement.on_conflict_do_update(index_elements=table.primary_key, set_=changed, where=counts)


def _sales(connection: Connection, table: Table, thing: sa.Column[str]) -> dict[str, int]:
    """Returns how many users bought each thing. Pairs that are no purchases have their own index."""

    def counted(*conditions: Any) -> dict[str, int]:
        query = select(thing.label("id"), func.count().label("users")).where(*conditions).group_by(thing)
        return {row.id: row.users for row in connection.execute(query)}

    sales, weak = counted(), counted(IS_WEAK)
    if not weak:
        return sales
    if sum(sales.values()) == sum(weak.values()):
        return counted(IS_WEAK, table.c.weight > 0)
    left = {name: users - weak.get(name, 0) for name, users in sales.items()}
    return {name: users for name, users in left.items() if users}


def _by_month(connection: Connection) -> dict[str, int]:
    """Returns the number of dated purchases of bundles in each month. The database counts them by day."""
    at = sa.type_coerce(user_bundle.c.at, sa.BigInteger)
    day = at.op("/")(sa.literal_column(str(DAY))).label("day")
    bought = sa.or_(user_bundle.c.weight.is_(None), user_bundle.c.weight >= 1)
    query = select(day, func.count().label("purchases")).where(at.is_not(None), bought)
    months: Counter[str] = Counter()
    for row in connection.execute(query.group_by(day).order_by(day)):
        months[f"{datetime(1970, 1, 1) + timedelta(days=row.day):%Y-%m}"] += row.purchases
    return dict(months)


def _digest(interactions: Sequence[InteractionRecord]) -> bytes:
    facts = [
        (
            *(each.user_id, each.kind, each.thing_id, each.at and each.at.timestamp(), each.request_id),
            # Earlier versions knew no strength. The weight of a type of event may change with the model.
            *([each.event or each.weight] if each.event or each.weight is not None else []),
        )
        for each in interactions
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
    parts: list[Select[Any]] = []
    for table, _ in _TABLES.values():
        user_id = table.c.user_id
        # Use only one lower bound: with two, SQLite may start its search at the smaller one.
        begin, end = user_id > after if after >= search else user_id >= search, search + _LAST_LETTERS
        # Each table returns its first `limit` ids in the order of its key, so it is not read completely.
        first = select(user_id).where(begin, user_id <= end).distinct().order_by(user_id).limit(limit)
        parts.append(select(first.subquery().c.user_id))
    return sa.union(*parts).order_by("user_id").limit(limit)


def _counts(connection: Connection, table: Table, names: Sequence[str]) -> Counter[str]:
    user_id = table.c.user_id
    is_kept = func.coalesce(table.c.weight, 1.0) > 0
    query = select(user_id, func.count().label("things")).where(one_of(user_id, "users"), is_kept)
    rows = connection.execute(query.group_by(user_id), {"users": names})
    return Counter({row.user_id: row.things for row in rows})


def erase_user(connection: Connection, user_id: str) -> bool:
    """Delete a user's data. Returns whether there was any. The erasure is always recorded, because another
    process may still have an answer to write."""
    if not is_id(user_id):
        return False
    if not is_sqlite(connection):  # SQLite has one writer at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    deleted = [
        connection.execute(delete(table).where(table.c.user_id == user_id)).rowcount
        for table in (user_item, user_bundle, served)
    ]
    _forget_erased(connection)
    insert_or_replace(connection, erased, {"digest": _digest_of_id(user_id), "at": datetime.now(UTC)})
    return any(deleted)


def add_served(connection: Connection, answers: Sequence[Served]) -> None:
    """Write answers, except those whose user was erased since. Blocks erasures until the transaction ends."""
    for answer in answers:
        check_event(answer)
    if not is_sqlite(connection):
        connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK_NUMBER)))
    users = {answer.user_id for answer in answers if answer.user_id is not None}
    digests = {user_id: _digest_of_id(user_id) for user_id in users}
    rows = connection.execute(_ERASED_AMONG, {"digests": list(digests.values())})
    erased_at: dict[str, datetime] = {row.digest: row.at for row in rows}

    def is_erased(answer: Served) -> bool:
        at = None if answer.user_id is None else erased_at.get(digests[answer.user_id])
        return at is not None and answer.at <= at + CLOCKS_DIFFER_BY

    kept = [vars(answer) for answer in answers if not is_erased(answer)]
    if kept:
        connection.execute(insert(served), kept)


def _forget_erased(connection: Connection) -> None:
    connection.execute(delete(erased).where(erased.c.at < datetime.now(UTC) - ERASED_KEPT_FOR))


def _digest_of_id(user_id: str) -> str:
    """Returns the value that the store keeps in place of an erased user's id."""
    return hashlib.sha256(user_id.encode()).hexdigest()
