"""What writers sent and what the service confirmed, and whether the store has it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

import sqlalchemy as sa

from bundlemage.store.repository import Store

MOST_FAULTS = 20


@dataclass
class Bought:
    """Users who took a bundle, in one request."""

    users: tuple[str, ...]
    bundle: str
    key: str | None
    """The idempotency key."""
    confirmed: bool = False


@dataclass
class Put:
    """A bundle that was put."""

    bundle: str
    items: tuple[str, ...]
    title: str
    confirmed: bool = False


@dataclass
class Ledger:
    """All writes, in the order in which they were sent. Threads may share it."""

    bought: list[Bought] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    replayed: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def confirmed(self) -> int:
        with self.lock:
            return sum(each.confirmed for each in self.bought) + sum(each.confirmed for each in self.puts)

    @property
    def unconfirmed(self) -> int:
        return len(self.bought) + len(self.puts) - self.confirmed

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)


def faults_of_store(store: Store, ledger: Ledger) -> list[str]:
    """What is missing in the store, or is stored only in part."""
    found = [*_faults_of_purchases(store, ledger), *_faults_of_bundles(store, ledger), *integrity(store)]
    return found[:MOST_FAULTS]


def _faults_of_purchases(store: Store, ledger: Ledger) -> list[str]:
    found = []
    used = _used_keys(store)
    for start in range(0, len(ledger.bought), 500):
        part = ledger.bought[start : start + 500]
        histories = store.histories([user for each in part for user in each.users])
        for each in part:
            there = {each.bundle in histories[user].bundles for user in each.users}
            if each.confirmed and there != {True}:
                found.append(f"confirmed, but lost: {each}")
            elif len(there) > 1:
                found.append(f"stored by half: {each}")
            elif each.key is not None and used.get(each.key, 0) != sum(there):
                found.append(f"the idempotency key is there {used.get(each.key, 0)} times: {each}")
    return found


def _used_keys(store: Store) -> dict[str, int]:
    with store._database.read() as connection:
        counted = "select key, count(*) from idempotency group by key"
        return dict(connection.execute(sa.text(counted)).all())


def _faults_of_bundles(store: Store, ledger: Ledger) -> list[str]:
    """A bundle must be as the last confirmed PUT, or a later one, left it."""
    found = []
    there = {bundle.id: (bundle.items, bundle.title) for bundle in store.catalogue().bundles}
    allowed: dict[str, list[tuple[tuple[str, ...], str] | None]] = {}
    for put in ledger.puts:
        states = allowed.setdefault(put.bundle, [None])
        if put.confirmed:
            states.clear()
        states.append((put.items, put.title))
    for name, states in allowed.items():
        if there.get(name) not in states:
            found.append(f"the bundle {name} is {there.get(name)}; expected one of {states}")
    return found


def integrity(store: Store) -> list[str]:
    """What the database's own check finds."""
    kind: Literal["sqlite", "postgresql"] = "sqlite" if store.url.startswith("sqlite") else "postgresql"
    with store._database.write() as connection:
        if kind == "sqlite":
            rows = [str(row[0]) for row in connection.execute(sa.text("pragma integrity_check"))]
            broken = connection.execute(sa.text("pragma foreign_key_check")).all()
            return [f"integrity check: {row}" for row in rows if row != "ok"] + [
                f"foreign key without its row: {row}" for row in broken
            ]
        connection.execute(sa.text("create extension if not exists amcheck"))
        trees = "select c.oid::regclass::text from pg_class c join pg_am a on a.oid = c.relam "
        trees += "where a.amname = 'btree' and c.relnamespace = 'public'::regnamespace"
        for (name,) in connection.execute(sa.text(trees)).all():
            # It raises an error if an index does not fit its table.
            connection.execute(
                sa.text("select bt_index_check(cast(:name as regclass), true)"), {"name": name}
            )
    return []
