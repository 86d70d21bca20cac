"""Interactions of many requests are written with one commit. Each request still has its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from bundlemage.errors import BusyError, IdempotencyError, StoreError, UnknownThingsError, UnstorableError
from bundlemage.recommender import Recommender
from bundlemage.service.answerer import Batcher
from bundlemage.service.routes import users
from bundlemage.store.records import InteractionRecord, InteractionsRecord, Item, Owned, Recorded
from bundlemage.store.repository import Store
from tests.service.running import Inside, copied, inside, ok, problem
from tests.waiting import wait_until

BUNDLE = "b0013"


def took(*users: str, thing: str = "lamp", key: str | None = None) -> InteractionsRecord:
    return InteractionsRecord([InteractionRecord(user, "item", thing) for user in users], key)


@contextmanager
def listening(name: str, listener: Callable[..., None], engine: Any = Engine) -> Iterator[None]:
    event.listen(engine, name, listener)
    try:
        yield
    finally:
        event.remove(engine, name, listener)


@pytest.fixture
def shop(store: Store) -> Store:
    store.put(Item("lamp"))
    return store


# ── The store ────────────────────────────────────────────────────────────────────────────────────


def test_each_record_of_a_group_has_its_own_outcome(shop: Store) -> None:
    commits: list[Connection] = []
    group = [
        took("ann", "bob"),
        took("cat", "cat", thing="never-heard-of", key="claimed"),
        took("dan", key="k"),
        took("dan", key="k"),
        took("eve", key="k"),
        took("\x00"),
        took("ann", "fay"),
        took("gus", key="claimed"),  # the record that failed has left no trace of its key
    ]
    with listening("commit", commits.append, shop._database._write):
        results = shop.add_all_interactions(group)
    assert len(commits) == 1
    unknown, other, odd = results.pop(1), results.pop(3), results.pop(3)
    assert results == [
        Recorded(2, 0), Recorded(1, 0), Recorded(1, 0, replayed=True), Recorded(1, 1), Recorded(1, 0),
    ]  # fmt: skip
    assert isinstance(unknown, UnknownThingsError)
    assert isinstance(other, IdempotencyError)
    assert isinstance(odd, UnstorableError)
    assert shop.sales().items == {"lamp": 5}
    assert shop.histories(["cat", "eve"]) == {"cat": Owned(), "eve": Owned()}
    assert shop.add_interactions(took("dan").interactions, idempotency_key="k").replayed


def test_if_the_commit_fails_nothing_is_acknowledged(shop: Store, store_url: str) -> None:
    def fail(connection: Connection) -> None:
        if shop._database.is_sqlite:
            raise OperationalError("COMMIT", None, Exception("database or disk is full"))
        cut_off(connection, store_url)

    with (
        listening("commit", fail, shop._database._write),
        pytest.raises(StoreError, match=r"disk is full\. Make room|terminating|closed"),
    ):
        shop.add_all_interactions([took("ann"), took("bob")])
    assert shop.sales().items == {}
    assert shop.add_all_interactions([took("ann"), took("bob")]) == [Recorded(1, 0)] * 2


def cut_off(connection: Connection, url: str) -> None:
    """End a connection on the server's side."""
    driver: Any = connection.connection.driver_connection
    with psycopg.connect(url, autocommit=True) as control:
        control.execute("SELECT pg_terminate_backend(%s)", [driver.info.backend_pid])
        wait_until(
            lambda: (
                not control.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE pid = %s", [driver.info.backend_pid]
                ).fetchall()
            ),
            "the end of the connection",
        )


@pytest.mark.parametrize("last", [False, True])
def test_if_the_connection_is_lost_nothing_is_acknowledged(postgres_url: str, last: bool) -> None:
    store = Store.open(postgres_url)
    store.put(Item("lamp"))
    group = [took("ann"), took("bob"), took("cat")]

    def lose(connection: Connection, *more: Any) -> None:
        if "INSERT INTO user_item" in more[1]:
            inserts.append(None)
            if len(inserts) == (3 if last else 2):
                cut_off(connection, postgres_url)

    inserts: list[None] = []
    with listening("before_cursor_execute", lose, store._database._write):
        try:
            assert store.add_all_interactions(group) == [None] * 3
        except StoreError:
            assert last  # then nothing is left to do but to commit
    assert store.sales().items == {}
    assert store.add_all_interactions(group) == [Recorded(1, 0)] * 3
    store.close()


def test_an_error_of_sqlite_ends_the_group_and_each_is_tried_alone(tmp_path: Path) -> None:
    """SQLite may have ended the transaction. What was written before must not count as committed."""
    store = Store.open(f"sqlite:///{tmp_path}/store.db")
    store.put(Item("lamp"))

    def end(connection: Connection, *more: Any) -> None:
        if "INSERT INTO user_item" in more[1] and more[2][0] == "bob":
            connection.exec_driver_sql("ROLLBACK")  # as SQLite does by itself if the disk is full
            connection.exec_driver_sql("INSERT INTO no_such_table VALUES (1)")

    with listening("before_cursor_execute", end, store._database._write):
        assert store.add_all_interactions([took("ann"), took("bob"), took("cat")]) == [None] * 3
    assert store.sales().items == {}
    store.close()


def test_groups_of_two_processes_in_opposite_orders_do_not_block_each_other(postgres_url: str) -> None:
    stores = [Store.open(postgres_url), Store.open(postgres_url)]
    stores[0].put(Item("lamp"))
    both_have_one = threading.Barrier(2, timeout=60)

    def meet(connection: Connection, *more: Any) -> None:
        if "INSERT INTO user_item" in more[1]:
            connection.info["inserts"] = connection.info.get("inserts", 0) + 1
            if connection.info["inserts"] == 2:
                both_have_one.wait()

    def write(store: Store, *names: str) -> int:
        group = [took(name) for name in names]
        with listening("before_cursor_execute", meet, store._database._write):
            results = store.add_all_interactions(group)
        again = [
            result or store.add_interactions(record.interactions)
            for result, record in zip(results, group, strict=True)
        ]
        return sum(each.new for each in again if isinstance(each, Recorded))

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(write, stores[0], "ann", "bob")
        other = pool.submit(write, stores[1], "bob", "ann")
        assert one.result() + other.result() == 2
    assert stores[0].sales().items == {"lamp": 2}
    for store in stores:
        store.close()


# ── The service ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def running(sample_model: Path, store_url: str, recommender: Recommender) -> Iterator[Inside]:
    store = Store.open(store_url)
    store.import_dataset(recommender.dataset)
    store.close()
    with inside(sample_model, store_url) as running:
        yield running


def post(running: Inside, user: str, bundle: str = BUNDLE, key: str | None = None) -> httpx.Response:
    body = {"interactions": [{"user_id": user, "bundle_id": bundle}]}
    with running.client(timeout=120) as client:
        return client.post("/v1/interactions", json=body, headers={"Idempotency-Key": key} if key else {})


def test_requests_that_arrive_together_share_commits(
    running: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[None] = []
    commits: list[None] = []
    record_of = users._record

    def arrive(*interaction: Any) -> InteractionRecord:
        arrived.append(None)
        return record_of(*interaction)

    def execute(connection: Connection, *more: Any) -> None:
        if "INSERT INTO user_bundle" in more[1]:
            connection.info["writes"] = True

    def commit(connection: Connection) -> None:
        if connection.info.pop("writes", False):
            commits.append(None)
            wait_until(lambda: len(arrived) == 24, "all requests", 60)  # the first commit is held back

    monkeypatch.setattr(users, "_record", arrive)
    with (
        listening("before_cursor_execute", execute),
        listening("commit", commit),
        ThreadPoolExecutor(24) as pool,
    ):
        good = [pool.submit(post, running, f"user-{number}") for number in range(21)]
        unknown = pool.submit(post, running, "nobody", bundle="never-heard-of")
        twice = [pool.submit(post, running, "hasty", key="order-1") for _ in range(2)]
        assert [ok(each.result())["new"] for each in good] == [1] * 21
        problem(unknown.result(), 422, "never-heard-of")
        answers = [ok(each.result()) for each in twice]
    assert sorted(answer["replayed"] for answer in answers) == [False, True]
    assert [answer["new"] for answer in answers] == [1, 1]
    assert len(commits) < 8
    names = [f"user-{number}" for number in range(21)]
    histories = running.store.histories([*names, "hasty", "nobody"])
    assert histories.pop("nobody") == Owned()
    assert set(histories.values()) == {Owned(bundles=(BUNDLE,))}
    with running.client() as client:
        assert "bundlemage_interactions_total 22.0" in client.get("/metrics").text


def test_who_waits_for_a_lock_holds_up_nobody_else(
    sample_model: Path, postgres_url: str, recommender: Recommender
) -> None:
    with inside(sample_model, postgres_url) as running, psycopg.connect(postgres_url) as other:
        other.execute("INSERT INTO user_bundle VALUES ('ann', %s)", [BUNDLE])  # and does not commit
        with ThreadPoolExecutor(1) as pool:
            ann = pool.submit(post, running, "ann")
            for number in range(5):
                assert ok(post(running, f"bob-{number}"))["new"] == 1
            assert not ann.done()
            other.rollback()
            assert ok(ann.result())["new"] == 1


def test_who_waited_too_long_is_refused_before_it_is_written(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    url = copied(sample_database, tmp_path)
    with inside(sample_model, url, answer_timeout_s=1.0) as running, ThreadPoolExecutor(2) as pool:
        other = Store.open(url)
        with other._database.write():  # another process writes
            first = pool.submit(post, running, "first")
            writer = running.service.writer.batcher
            wait_until(lambda: running.store._database._writing.locked(), "the first to begin")
            second = pool.submit(post, running, "second")
            problem(second.result(), 503, "no answer within 1 s")
            assert not first.done()
        assert ok(first.result())["new"] == 1  # it had begun, so it was not refused
        wait_until(lambda: not len(writer), "the second to be dropped")
        assert ok(post(running, "third"))["new"] == 1
        assert other.histories(["second"]) == {"second": Owned()}
        other.close()


def test_what_has_begun_is_finished_and_what_was_refused_is_never_begun() -> None:
    begun: list[str] = []
    go_on = threading.Event()

    def work(batch: list[str]) -> list[str]:
        begun.extend(batch)
        assert go_on.wait(60)
        return [name.upper() for name in batch]

    async def play() -> None:
        batcher = Batcher(work, patience=0.2, finish=True)
        first = asyncio.create_task(batcher.ask("first"))
        await asyncio.to_thread(wait_until, lambda: begun, "the first")
        with pytest.raises(BusyError, match=r"within 0\.2 s"):
            await batcher.ask("second")
        await asyncio.sleep(0.3)
        assert not first.done()
        go_on.set()
        assert await first == "FIRST"
        assert await batcher.ask("third") == "THIRD"
        batcher.close()

    asyncio.run(play())
    assert begun == ["first", "third"]
