"""A user who is erased is gone: from the files, and from what others were about to write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from bundlemage.store import connections
from bundlemage.store import histories as answers
from bundlemage.store.models import erased, served
from bundlemage.store.records import InteractionRecord, Item, Owned, Served
from bundlemage.store.repository import Store
from tests.small_shop import dataset_of

SOMEBODY = "somebody-in-particular"
MINUTE = timedelta(minutes=1)


def answer(user: str | None, at: datetime) -> Served:
    return Served("r", "bundles", user, "m", ("b0",), at)


def users_shown(store: Store) -> list[str | None]:
    with store._database.read() as connection:
        return sorted(connection.scalars(select(served.c.user_id)), key=str)


def digests(store: Store) -> list[str]:
    with store._database.read() as connection:
        return list(connection.scalars(select(erased.c.digest)))


def is_in_a_file(folder: Path) -> bool:
    files = list(folder.glob("shop.db*"))
    assert len(files) > 1
    return any(SOMEBODY.encode() in file.read_bytes() for file in files)


@pytest.fixture
def file_store(tmp_path: Path) -> Store:
    store = Store.open(f"sqlite:///{tmp_path / 'shop.db'}")
    store.import_dataset(dataset_of([[0]], [[0]], [[0]], 1))
    store.add_interactions([InteractionRecord(SOMEBODY, "bundle", "b0")])
    return store


def test_what_was_erased_is_not_in_the_files_either(file_store: Store, tmp_path: Path) -> None:
    assert is_in_a_file(tmp_path)
    file_store.erase_user(SOMEBODY)
    assert not is_in_a_file(tmp_path)
    file_store.close()


def test_to_erase_waits_for_no_reader_and_the_files_are_tidied_later(
    file_store: Store, tmp_path: Path
) -> None:
    with file_store._database.snapshot() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM user_bundle").scalar()
        began = time.monotonic()
        assert file_store.erase_user(SOMEBODY)
        file_store.put(Item("lamp"))
        file_store.tidy()
        assert (
            time.monotonic() - began < connections._BUSY_SECONDS
        )  # the reader stays, so a wait would take this long
        assert file_store.histories([SOMEBODY]) == {SOMEBODY: Owned()}
        assert is_in_a_file(tmp_path)  # which the reader still has to see
    file_store.tidy()
    assert not is_in_a_file(tmp_path)
    log = tmp_path / "shop.db-wal"
    assert log.stat().st_size == 0
    file_store.put(Item("rug"))
    size = log.stat().st_size
    file_store.tidy()  # nothing is left to do
    assert log.stat().st_size == size > 0
    file_store.close()


def test_connections_still_wait_for_others_after_an_erasure(file_store: Store) -> None:
    file_store.erase_user(SOMEBODY)
    with file_store._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    file_store.close()


def test_what_one_left_that_was_killed_is_tidied_by_the_next(file_store: Store, tmp_path: Path) -> None:
    with file_store._database.snapshot() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM user_bundle").scalar()
        file_store.erase_user(SOMEBODY)
    another = Store.open(f"sqlite:///{tmp_path / 'shop.db'}")
    another.tidy()
    assert not is_in_a_file(tmp_path)
    another.close()
    file_store.close()


def test_an_answer_that_waited_while_its_user_was_erased_is_not_written(store: Store) -> None:
    before = datetime.now(UTC) - MINUTE
    store.add_served([answer("ann", before)])
    assert store.erase_user("ann")
    assert not store.erase_user("bob")  # who has nothing there yet
    later = datetime.now(UTC) + MINUTE
    store.add_served([answer(user, before) for user in ("ann", "bob", "cat", None)])
    assert users_shown(store) == [None, "cat"]
    store.add_served([answer("ann", before)])
    store.add_served([answer("ann", later), answer("bob", later)])
    assert users_shown(store) == [None, "ann", "bob", "cat"]
    assert store.erase_user("ann")
    assert users_shown(store) == [None, "bob", "cat"]


def test_it_is_kept_for_an_hour_who_was_erased_and_not_in_clear(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.erase_user("ann")
    store.forget_served(datetime.now(UTC))
    (digest,) = digests(store)
    assert "ann" not in digest
    monkeypatch.setattr(answers, "ERASED_KEPT_FOR", timedelta(0))
    store.erase_user("bob")
    assert len(digests(store)) == 1
    assert digest not in digests(store)
    store.forget_served(datetime.now(UTC))
    assert digests(store) == []


def waited_for(held: Callable[[], object], work: threading.Thread) -> None:
    """Starts work that must wait until the caller's transaction has ended."""
    held()
    work.start()
    work.join(0.3)
    assert work.is_alive()


def test_answers_that_are_being_written_are_erased_too(store: Store) -> None:
    now = datetime.now(UTC)
    work = threading.Thread(target=store.erase_user, args=("ann",))
    with store._database.write() as connection:
        waited_for(lambda: answers.add_served(connection, [answer("ann", now), answer("bob", now)]), work)
    work.join()
    assert users_shown(store) == ["bob"]


def test_answers_wait_for_an_erasure_that_is_under_way(store: Store) -> None:
    now = datetime.now(UTC)
    work = threading.Thread(target=store.add_served, args=([answer("ann", now), answer("bob", now)],))
    with store._database.write() as connection:
        waited_for(lambda: answers.erase_user(connection, "ann"), work)
    work.join()
    assert users_shown(store) == ["bob"]
