"""A database that is slow, blocked or gone keeps nobody waiting for long who need not wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from bundlemage.errors import BusyError, StoreError
from bundlemage.store import connections
from bundlemage.store import histories as answers
from bundlemage.store.connections import Database
from bundlemage.store.records import Item, Served
from bundlemage.store.repository import Store

OLD = datetime.now(UTC) - timedelta(days=40)


@pytest.fixture
def hasty(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that waits for a second where others wait for several."""
    monkeypatch.setattr(connections, "_LOCK_SECONDS", 1)
    monkeypatch.setattr(connections, "_STATEMENT_SECONDS", 2)
    store = Store.open(postgres_url)
    yield store
    store.close()


def test_those_who_write_and_wait_leave_connections_to_those_who_read(
    hasty: Store, postgres_url: str
) -> None:
    assert hasty.put(Item("lamp"))

    def put(number: int) -> str:
        try:
            hasty.put(Item(f"item {number}"))
        except StoreError as error:
            return str(error)
        return "put"

    with ThreadPoolExecutor(20) as pool, psycopg.connect(postgres_url) as other:
        other.execute("UPDATE clock SET catalogue = catalogue")
        waiting = pool.map(put, range(20))
        time.sleep(0.3)
        assert hasty.state().catalogue == 1
        assert len(hasty.catalogue().items) == 1
        assert hasty.histories(["ann"])
        told = set(waiting)  # each ends by its own limit, while the other still writes
        other.rollback()
    # Those who wait first wait for the one who writes, the others for their turn to wait.
    assert any("lock timeout. Another process has been writing for a long time" in words for words in told)
    assert all("lock timeout" in words or "or waited for another writer" in words for words in told)
    assert put(0) == "put"


def test_a_statement_that_takes_too_long_is_ended_in_words(hasty: Store) -> None:
    with (
        pytest.raises(
            StoreError, match=r"statement timeout\. It took over 8 s, or waited for another writer: find out"
        ),
        hasty._database.read() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(10)")
    with hasty._database.snapshot(long=True) as connection:
        connection.exec_driver_sql("SELECT pg_sleep(2.2)")
    assert hasty.is_empty()


def test_more_who_write_than_there_are_connections_are_told_so(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_STATEMENT_SECONDS", 1)
    database = Database(postgres_url)
    taken = [database.write() for _ in range(15)]
    for one in taken:
        one.__enter__()
    with pytest.raises(BusyError, match="all connections to the store were in use"), database.write():
        pass
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    for one in taken:
        one.__exit__(None, None, None)
    database.close()


def test_what_people_wait_for_has_limits_and_what_takes_long_has_none(postgres_url: str) -> None:
    database = Database(postgres_url)

    def limits(way: Any) -> tuple[Any, ...]:
        with way as connection:
            return tuple(
                connection.exec_driver_sql(f"SHOW {name}_timeout").scalar() for name in ("statement", "lock")
            )

    for _ in range(2):  # a connection that comes back from the pool has them again
        assert limits(database.read()) == limits(database.snapshot()) == limits(database.write())
        assert limits(database.write()) == ("8s", "7s")
        assert limits(database.snapshot(long=True)) == limits(database.write(long=True)) == ("0", "7s")
        assert limits(database.write(patient=True)) == ("0", "0")
    database.close()


@pytest.mark.parametrize("named", [{}, {"keepalives_idle": "9", "tcp_user_timeout": "4000"}])
def test_a_server_that_vanished_is_noticed(postgres_url: str, named: dict[str, str]) -> None:
    url = make_url(postgres_url).update_query_dict(named).render_as_string(hide_password=False)
    database = Database(url)
    for way in (database.read(), database.write()):
        with way as connection:
            driver: Any = connection.connection.driver_connection
            line = socket.socket(fileno=driver.fileno())
            found = [
                line.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            ]
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            line.detach()
        assert found == ([9, 5, 3, 4000] if named else [5, 5, 3, 15_000])
    database.close()


def test_others_write_while_old_answers_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FORGOTTEN_AT_ONCE", 100)
    store.add_served([Served(f"r{number}", "items", "ann", "m", (), OLD) for number in range(2000)])
    store.add_served([Served("new", "items", "ann", "m", (), datetime.now(UTC))])
    forgotten: list[int] = []
    work = threading.Thread(
        target=lambda: forgotten.append(store.forget_served(OLD + timedelta(days=1))), daemon=True
    )
    left: list[int] = []
    work.start()
    while work.is_alive():
        store.put(Item("lamp", stock=len(left)))
        left.append(store.served_since(OLD).answers)
    assert forgotten == [2000]
    assert store.served_since(OLD).answers == 1
    between = [count for count in left if 1 < count < 2001]
    assert len(between) >= 3
    assert {(count - 1) % 100 for count in between} == {0}
