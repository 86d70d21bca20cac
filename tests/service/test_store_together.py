"""Several threads and processes at one store, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from select import select as ready_to_read

import pytest
from sqlalchemy import func, select

from bundlemage.errors import StoreError
from bundlemage.store.connections import Database
from bundlemage.store.records import Bundle, InteractionRecord, Item, Owned, Recorded
from bundlemage.store.repository import LOCK_NUMBER, Store
from tests.small_shop import dataset_of, small_shop

BEGINNING = """
import sys, time
from bundlemage.store.connections import Database
from bundlemage.store.records import Bundle, InteractionRecord, Item
from bundlemage.store.repository import LOCK_NUMBER, Store

def say(*words):
    print(*words, flush=True)

store = Store.open(sys.argv[1])
"""


def started(url: str, script: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGINNING + script, url]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_comes_and_goes_takes_no_write_of_another_one_with_it(store_url: str) -> None:
    """It must not take itself for the last user of a SQLite file, which removes the log of the file."""
    script = """
store.put(Item("lamp", "A lamp"))
store.put(Bundle("room", ("lamp",)))
beside = store.beside(1)
again = Store.open(sys.argv[1])
say("open")
sys.stdin.readline()
store.add_interactions([InteractionRecord("ann", "bundle", "room")])
say("done")
time.sleep(60)
"""
    process = started(store_url, script)
    assert heard(process) == "open"
    visitor = started(store_url, "store.keys(); store.close(); say('gone')")
    assert heard(visitor) == "gone"
    visitor.communicate()
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert heard(process) == "done"
    killed(process)
    store = Store.open(store_url)
    assert store.histories(["ann"])["ann"].bundles == ("room",)
    store.close()


def test_what_was_acknowledged_outlives_the_process(store_url: str) -> None:
    script = """
store.put(Item("lamp", "A lamp"))
store.put(Bundle("room", ("lamp",)))
store.add_interactions([InteractionRecord("ann", "bundle", "room")], idempotency_key="k")
say("done")
time.sleep(60)
"""
    process = started(store_url, script)
    assert heard(process) == "done"
    killed(process)
    store = Store.open(store_url)
    assert store.catalogue().items == [Item("lamp", "A lamp")]
    assert store.catalogue().bundles == [Bundle("room", ("lamp",))]
    assert store.histories(["ann"]) == {"ann": Owned(bundles=("room",))}
    again = store.add_interactions([InteractionRecord("ann", "bundle", "room")], idempotency_key="k")
    assert again == Recorded(1, 0, replayed=True)
    store.close()


def test_an_import_that_is_killed_leaves_nothing_half(store_url: str) -> None:
    script = """
from tests.small_shop import dataset_of, small_shop

def progress(stage, done, of, note=""):
    if done > of / 2:
        say("half")
        time.sleep(60)

store.import_dataset(small_shop(), progress)
"""
    process = started(store_url, script)
    assert heard(process) == "half"
    killed(process)
    store = Store.open(store_url)
    assert store.is_empty()
    assert store.state().catalogue == 0
    assert store.users() == []
    store.import_dataset(small_shop())
    assert store.dataset().fingerprint() == small_shop().fingerprint()
    store.close()


def test_processes_that_open_a_new_store_wait_for_the_one_that_makes_its_tables(store_url: str) -> None:
    script = 'say("opened", store.put(Item(sys.stdin.readline().strip())))'
    database = Database(store_url)
    with database.write() as connection:  # as the one that makes them does
        if not database.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(LOCK_NUMBER)))
        processes = [started(store_url, script) for _ in range(2)]
        for number, process in enumerate(processes):
            assert process.stdin is not None
            process.stdin.write(f"item {number}\n")
            process.stdin.flush()
        assert ready_to_read([process.stdout for process in processes if process.stdout], [], [], 2.0) == (
            [],
            [],
            [],
        )
    assert [heard(process) for process in processes] == ["opened True"] * 2
    for process in processes:
        process.communicate()
    database.close()


def test_processes_write_at_once(store: Store, store_url: str) -> None:
    store.put(Item("lamp"))
    script = """
say("ready")
name = sys.stdin.readline().strip()
new = store.add_interactions([InteractionRecord("all", "item", "lamp")], idempotency_key="one").new
for number in range(20):
    store.add_interactions([InteractionRecord(f"{name} {number}", "item", "lamp")])
    store.put(Item(f"{name} {number}"))
say(new)
"""
    processes = [started(store_url, script) for _ in range(2)]
    for process in processes:
        assert heard(process) == "ready"
    answers = []
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
    for process in processes:
        answers.append(heard(process))
        process.communicate()
        assert process.returncode == 0
    assert answers == ["1", "1"]  # the second was told what the first one did
    assert store.sales().items == {"lamp": 41}
    assert len(store.catalogue().items) == 41
    assert store.state().catalogue == 41


def test_one_key_writes_once_however_many_send_it(store: Store) -> None:
    store.put(Item("lamp"))
    begin = threading.Barrier(8)

    def send(number: int) -> Recorded:
        begin.wait()
        given = [InteractionRecord("ann", "item", "lamp"), InteractionRecord("bob", "item", "lamp")]
        return store.add_interactions(given, idempotency_key="k", caller="c")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert {(answer.new, answer.known) for answer in answers} == {(2, 0)}


def test_threads_that_write_the_same_in_other_orders_do_not_block_each_other(store: Store) -> None:
    store.import_dataset(dataset_of([[]], [[]], [[0]], 500))

    def send(number: int) -> int:
        things = [InteractionRecord(f"user {number // 2}", "item", f"i{thing}") for thing in range(500)]
        return store.add_interactions(things if number % 2 else things[::-1]).new

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(send, range(20))) == 5000


def test_a_reader_of_changes_misses_none_and_sees_whole_bundles(store: Store) -> None:
    store.put(Item("first"))
    writing = threading.Event()
    writing.set()
    seen: dict[str, Bundle] = {}
    known: set[str] = set()

    def follow() -> None:
        version = 0
        while True:
            last = not writing.is_set()
            change = store.catalogue(version)
            assert change.version >= version
            version = change.version
            known.update(item.id for item in change.items)
            for bundle in change.bundles:
                # Each bundle is put with its title naming its items, all of which were put before.
                assert bundle.title == " ".join(bundle.items)
                assert known.issuperset(bundle.items)
                seen[bundle.id] = bundle
            if last:
                return

    def write(writer: int) -> None:
        for number in range(25):
            name = f"{writer}-{number}"
            store.put(Item(name))
            store.put(Bundle(f"own {writer}", (name, "first"), f"{name} first"))
            store.put(Bundle("shared", ("first", name), f"first {name}"))

    with ThreadPoolExecutor(5) as pool:
        follower = pool.submit(follow)
        writers = [pool.submit(write, number) for number in range(4)]
        for writer in writers:
            writer.result()
        writing.clear()
        follower.result()
    assert len(known) == 101
    assert seen == {bundle.id: bundle for bundle in store.catalogue().bundles}
    assert len(seen) == 5


def test_a_failing_import_leaves_nothing_and_one_of_two_at_once_wins(store: Store) -> None:
    def stumble(stage: str, done: float, of: float, note: str = "") -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.import_dataset(small_shop(), stumble)
    assert store.is_empty()

    def attempt(_: int) -> str:
        try:
            store.import_dataset(small_shop())
        except StoreError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        answers = sorted(pool.map(attempt, range(2)))
    assert answers[0] == "done"
    assert "already has a catalogue" in answers[1]
