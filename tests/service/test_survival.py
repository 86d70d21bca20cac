"""What was acknowledged is there after kill -9; what one process wrote, the other knows. On each database."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import psycopg
import pytest

from bundlemage.core.history import History
from bundlemage.data.dataset import BundleDataset
from bundlemage.recommender import Recommender
from bundlemage.store.repository import Store
from tests.forked import start_forked
from tests.service.running import command, ids, inside, new_key, ok, problem
from tests.waiting import wait_until

SOMEONE = "u0007"


@pytest.fixture
def shop_url(store_url: str, recommender: Recommender) -> str:
    """A database that has taken over the sample shop."""
    store = Store.open(store_url)
    store.import_dataset(recommender.dataset)
    store.close()
    return store_url


def took(client: httpx.Client, user: str, bundle: str, key: str | None = None) -> httpx.Response:
    body = {"interactions": [{"user_id": user, "bundle_id": bundle}]}
    return client.post("/v1/interactions", json=body, headers={"Idempotency-Key": key} if key else {})


def bundles(client: httpx.Client, user: str, k: int = 20) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(client.get(f"/v1/users/{user}/bundles", params={"k": k}))["bundles"]
    return found


def test_all_that_was_acknowledged_survives_kill_9_and_counts(
    sample_model: Path, shop_url: str, recommender: Recommender
) -> None:
    store = Store.open(shop_url)
    key = new_key(store, "write")
    store.close()
    best = recommender.recommend(SOMEONE, 1)[0].id
    place = recommender.dataset.bundles.position(best)
    contents = [recommender.dataset.items[item] for item in recommender.dataset.bundle_item[place].indices]
    with command(sample_model, shop_url) as service, service.client(key) as client:
        assert bundles(client, SOMEONE)[0]["id"] == best
        assert client.post("/v1/session", json={"key": key}).status_code == 204
        cookies = dict(client.cookies)
        ok(client.put("/v1/items/lamp", json={"title": "A lamp", "price": 3, "tags": ["x"], "stock": 2}), 201)
        ok(client.put("/v1/bundles/planted", json={"items": [*contents, "lamp"], "title": "Planted"}), 201)
        assert client.delete("/v1/bundles/b0013").status_code == 204
        ok(took(client, "newcomer", best))
        receipt = ok(took(client, SOMEONE, best, key="order-1"))
        service.kill()  # right after the acknowledgement
    with command(sample_model, shop_url) as service, service.client(key) as client:
        lamp = ok(client.get("/v1/items/lamp"))
        assert (lamp["title"], lamp["price"], lamp["tags"], lamp["stock"]) == ("A lamp", 3, ["x"], 2)
        assert ids(client.get("/v1/bundles/planted"), "items") == [*contents, "lamp"]
        assert ok(client.get("/v1/bundles/b0013"))["withdrawn"]
        names = [bundle["id"] for bundle in bundles(client, SOMEONE)]
        assert "planted" in names  # put before the kill, recommended at once after it
        assert not {best, "b0013"} & set(names)
        assert ids(client.get("/v1/users/newcomer")) == [best]
        expected = recommender.recommend(History(bundles=[best]), 30)
        without = [each.id for each in expected if each.id != "b0013"][:5]
        known = [each["id"] for each in bundles(client, "newcomer") if each["id"] != "planted"]
        assert known[:5] == without
        again = ok(took(client, SOMEONE, best, key="order-1"))
        assert again == {**receipt, "replayed": True, "request_id": again["request_id"]}
        with service.client() as nobody:
            problem(nobody.get("/v1/tags"), 401)
        with service.client(cookies=cookies) as logged_in:
            ok(logged_in.get("/v1/tags"))


def test_every_acknowledged_write_of_a_stream_survives_kill_9(sample_model: Path, shop_url: str) -> None:
    acknowledged: list[tuple[str, str]] = []
    with command(sample_model, shop_url) as service:

        def write(writer: int) -> None:
            with service.client() as client:
                for number in range(100_000):
                    user, item = f"writer-{writer}-{number:05}", f"thing-{writer}-{number:05}"
                    try:
                        if took(client, user, "b0013").status_code == 200:
                            acknowledged.append(("user", user))
                        if client.put(f"/v1/items/{item}", json={}).status_code == 201:
                            acknowledged.append(("item", item))
                    except httpx.TransportError:
                        return

        with ThreadPoolExecutor(12) as pool:  # so many that several interactions are committed together
            writers = [pool.submit(write, writer) for writer in range(12)]
            wait_until(lambda: len(acknowledged) > 240, "the stream of writes")
            service.kill()
            for writer in writers:
                writer.result()
    store = Store.open(shop_url)
    try:
        users = [name for kind, name in acknowledged if kind == "user"]
        items = [name for kind, name in acknowledged if kind == "item"]
        assert min(len(users), len(items)) > 20
        histories = store.histories(users)
        assert [user for user in users if histories[user].bundles != ("b0013",)] == []
        there = {item.id for item in store.catalogue().items}
        assert set(items) <= there
    finally:
        store.close()
    with inside(sample_model, shop_url) as again, again.client() as client:
        assert ok(client.get(f"/v1/users/{users[-1]}/bundles"))["history"]["bundles"] == 1
        ok(client.get(f"/v1/items/{items[-1]}"))


def stop_halfway() -> None:
    """The import of the shop stops halfway until the process is killed."""
    whole = Store.import_dataset

    def halfway(self: Store, dataset: BundleDataset, progress: Any = None) -> None:
        def stop(stage: str, done: float, of: float, note: str = "") -> None:
            if done > of / 2:
                print("half", flush=True)
                time.sleep(600)

        whole(self, dataset, stop)

    Store.import_dataset = halfway  # type: ignore[assignment, method-assign]


def test_a_start_that_is_killed_while_it_takes_over_the_shop_can_be_repeated(
    sample_model: Path, store_url: str, recommender: Recommender, tmp_path: Path
) -> None:
    arguments = ["serve", sample_model, "--db", store_url, "--port", 0]
    with (tmp_path / "stderr").open("w") as output:
        process = start_forked(arguments, stdout=PIPE, stderr=output.fileno(), before=stop_halfway)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.kill()
    process.wait()
    with inside(sample_model, store_url) as service, service.client() as client:
        assert bundles(client, SOMEONE)[0]["id"] == recommender.recommend(SOMEONE, 1)[0].id
        assert ok(client.get("/v1/bundles"))["total"] == len(recommender.dataset.bundles)
    store = Store.open(store_url)
    assert store.dataset().fingerprint() == recommender.dataset.fingerprint()
    store.close()


def once(one: str, other: str, number: int) -> list[dict[str, Any]]:
    """The same purchase with the same key, sent to two processes at the same time."""
    begin = threading.Barrier(2)

    def send(url: str) -> dict[str, Any]:
        with httpx.Client(base_url=url, timeout=30) as client:
            begin.wait()
            answer: dict[str, Any] = ok(took(client, f"hasty-{number}", "b0013", key=f"once-{number}"))
            return answer

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(send, (one, other)))


def test_what_one_process_acknowledges_the_other_answers_by(sample_model: Path, shop_url: str) -> None:
    with (
        command(sample_model, shop_url) as one,
        inside(sample_model, shop_url) as other,
        one.client() as writer,
        other.client() as reader,
    ):
        for turn in range(6):
            if turn == 3:
                writer, reader = reader, writer
            before = ok(reader.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 20, "details": True}))
            best = before["bundles"][0]
            name = f"planted-{turn}"
            ok(took(writer, SOMEONE, best["id"]))
            contents = [part["id"] for part in best["items"]]
            missing = (item for bundle in before["bundles"] for item in bundle["missing"])
            contents.append(next(item for item in missing if item not in contents))  # else it is wholly owned
            ok(writer.put(f"/v1/bundles/{name}", json={"items": contents}), 201)
            after = ok(reader.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 100}))
            names = [bundle["id"] for bundle in after["bundles"]]
            assert best["id"] not in names
            assert name in names
            assert after["history"]["bundles"] == before["history"]["bundles"] + 1
            assert writer.delete(f"/v1/bundles/{name}").status_code == 204
            assert name not in [bundle["id"] for bundle in bundles(reader, SOMEONE, 100)]
            assert ok(reader.get(f"/v1/bundles/{name}"))["withdrawn"]
            answers = once(one.url, other.url, turn)
            assert sorted(answer["replayed"] for answer in answers) == [False, True]
            assert {answer["new"] for answer in answers} == {1}


def test_ctrl_c_ends_it_cleanly_and_at_once(sample_model: Path, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/shop.db"
    with command(sample_model, db) as service, service.client() as client:
        ok(client.get(f"/v1/users/{SOMEONE}/bundles"))
        service.process.send_signal(signal.SIGINT)
        service.process.wait(timeout=240)
        assert "graceful shutdown exceeded" not in service.log()
        assert "Traceback" not in service.log()
    store = Store.open(db)  # what was served was still written
    published = store.models()[0].published_at
    assert published is not None
    assert store.served_since(published).answers == 1
    store.close()


# ── A database that goes away ────────────────────────────────────────────────────────────────────


@pytest.fixture
def doomed(postgres_server: str, postgres_url: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A database, and a connection from which it can be shut and opened."""
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as control:
        yield postgres_url, control


def test_while_the_database_is_away_it_says_so_and_afterwards_goes_on(
    sample_model: Path, doomed: tuple[str, psycopg.Connection[Any]]
) -> None:
    url, control = doomed
    name = url.rpartition("/")[2]
    with inside(sample_model, url) as service, service.client() as client:
        ok(client.get("/readyz"))
        control.execute(f"alter database {name} allow_connections false")
        control.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        try:
            wait_until(lambda: not client.get("/readyz").is_success, "the last outcome of /readyz to pass")
            for answer in (
                client.get("/readyz"),
                client.get(f"/v1/users/{SOMEONE}/bundles"),
                took(client, SOMEONE, "b0013"),
                client.put("/v1/items/lamp", json={}),
                client.get("/v1/users"),
            ):
                told = problem(answer, 503, "does not answer")
                assert int(answer.headers["retry-after"]) > 0
                assert name not in told["detail"]
            assert ok(client.get("/healthz")) == {"status": "ok"}  # the process itself is well
        finally:
            control.execute(f"alter database {name} allow_connections true")
        wait_until(lambda: client.get("/readyz").is_success, "the service")
        problem(client.get("/v1/items/lamp"), 404)
        ok(took(client, SOMEONE, "b0013"))
