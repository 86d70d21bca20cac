"""`bundlemage serve --workers 2`: several processes at one address, which share limits, counts and memory."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from bundlemage.cli import serve
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.service import workers
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Shared
from bundlemage.service.workers import Workers
from bundlemage.store.repository import Store
from tests.service.running import Command, command, copied, new_key, ok
from tests.waiting import wait_until

ASK = "/v1/users/u0007/bundles?k=3"


@contextmanager
def two_workers(model: Path, database: Path, folder: Path, *options: str) -> Iterator[Command]:
    with command(model, copied(database, folder), "--workers", "2", *options) as running:
        yield running


def lines(running: Command) -> list[dict[str, object]]:
    return [json.loads(line) for line in running.log().splitlines() if line.startswith("{")]


def answered_by(running: Command, path: str = ASK) -> set[int]:
    """The workers that have answered this path."""
    template = re.sub("u0007", "{user_id}", path.partition("?")[0])
    return {int(str(line["worker"])) for line in lines(running) if line.get("route") == template}


def both_answer(running: Command, **options: str) -> Callable[[], bool]:
    """Each call asks once on a new connection. Returns whether both workers have answered so far."""

    def ask() -> bool:
        assert httpx.get(running.url + ASK, timeout=60, **options).status_code == 200  # type: ignore[arg-type]
        return answered_by(running) == {1, 2}

    return ask


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_they_share_address_store_limits_and_counts(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        wait_until(both_answer(running), "an answer of each worker")
        # What one writes, the other reads.
        new = {"title": "New", "items": ["g0022", "g0401"], "price": 5}
        for number in range(8):
            assert httpx.put(f"{running.url}/v1/bundles/new{number}", json=new, timeout=60).status_code == 201
            assert httpx.get(f"{running.url}/v1/bundles/new{number}", timeout=60).status_code == 200
        # Every request counts once, whichever worker is asked for the metrics.
        asked = sum(line.get("route") == "/v1/users/{user_id}/bundles" for line in lines(running))
        for _ in range(8):
            text = httpx.get(f"{running.url}/metrics", timeout=60).text
            counted = re.search(
                r'requests_total\{[^}]*route="/v1/users/\{user_id\}/bundles"[^}]*\} (\S+)', text
            )
            assert counted is not None
            assert float(counted[1]) == asked
        latency = ok(httpx.get(f"{running.url}/v1/insights", timeout=60))["latency"]
        assert latency["count"] == asked


def test_ten_logins_a_minute_are_for_all_workers_together(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    url = copied(sample_database, tmp_path)
    store = Store.open(url)
    key = new_key(store, "admin")
    store.close()
    with command(sample_model, url, "--workers", "2") as running:
        headers = {"Authorization": f"Bearer {key}"}
        wait_until(both_answer(running, headers=headers), "an answer of each worker")  # type: ignore[arg-type]
        login = {"key": "bm_wrong"}
        codes = [
            httpx.post(f"{running.url}/v1/session", json=login, timeout=60).status_code for _ in range(40)
        ]
        assert answered_by(running, "/v1/session") == {1, 2}
        # Two limits of their own would let 20 through. The bucket may gain a few while the test runs.
        assert codes[:10] == [401] * 10
        assert codes.count(401) < 20


def test_a_killed_worker_is_replaced_and_the_other_goes_on(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        before = children(running.process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(children(running.process.pid)) - set(before)) == 1, "a new worker")
        wait_until(both_answer(running), "an answer of each worker")
        assert any("takes its place" in str(line["event"]) for line in lines(running))
        assert before[1] in children(running.process.pid)


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_first_process(
    signal_: signal.Signals, sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        started = children(running.process.pid)
        running.process.send_signal(signal_)
        running.process.wait(timeout=60)
        wait_until(lambda: not any(Path(f"/proc/{each}/stat").exists() for each in started), "their end")
        assert "Traceback" not in running.log()


def test_they_load_a_new_model_one_after_the_other(
    sample_model: Path, second_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            first = ok(client.get(ASK))["model_version"]
            with command(second_model, running.db):  # publishes it
                pass

            def follow() -> bool:
                ok(httpx.get(running.url + ASK, timeout=60))
                return len(events(running, "serves")) == 2

            wait_until(follow, "both workers with the new model")
            assert ok(client.get(ASK))["model_version"] != first
        told = [
            (line["event"], line["worker"]) for line in lines(running) if "the model" in str(line["event"])
        ]
        # Each begins only when the other is done.
        assert [worker for _, worker in told] in ([1, 1, 2, 2], [2, 2, 1, 1])


def events(running: Command, word: str) -> list[dict[str, object]]:
    return [line for line in lines(running) if word in str(line["event"])]


def test_the_model_is_in_memory_once(sample_model: Path, sample_database: Path, tmp_path: Path) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        wait_until(both_answer(running), "an answer of each worker")
        for worker in children(running.process.pid):
            told = Path(f"/proc/{worker}/smaps_rollup").read_text()
            resident, private = (
                sum(int(number) for number in re.findall(rf"^{name}:\s+(\d+)", told, re.M))
                for name in ("Rss", r"Private_\w+")
            )
            assert private < resident / 2


def test_a_second_service_at_the_same_address_is_refused(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with two_workers(sample_model, sample_database, tmp_path) as running:
        port = int(running.url.rpartition(":")[2])
        for count in (1, 2):
            with pytest.raises(ConfigError, match="in use already"):
                serve._bound("127.0.0.1", port, count)


def test_workers_that_cannot_start_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_FAILURES", 2)

    def fail(number: int) -> None:
        raise BundleMageError("no database")

    with pytest.raises(BundleMageError, match="2 workers in a row"):
        Workers(2, fail).run()


def test_a_dead_process_releases_its_lock() -> None:
    shared = Shared(Settings(workers=2))
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        shared.loading.__enter__()
        os.write(writing, b"1")
        signal.pause()
    os.read(reading, 1)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with shared.loading:
        pass
    shared.close()
