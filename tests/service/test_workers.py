"""`bundlemage serve --workers 2`: several processes at one address, which share limits, counts and memory."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx
import pytest

from bundlemage.cli import serve
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.live import record_of
from bundlemage.service import workers
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Shared
from bundlemage.service.workers import Workers
from bundlemage.store.repository import Store
from tests.service.running import Command, command, copied, new_key, ok
from tests.waiting import wait_until

ASK = "/v1/users/u0007/bundles?k=3"
FOLDERS = "bundlemage-workers-*"


@dataclass
class Two:
    """A service with two workers, and a key for it."""

    running: Command
    key: str

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request on a new connection, so that any worker may answer it."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.request(method, self.running.url + path, headers=headers, timeout=60, **options)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.running.log().splitlines() if line.startswith("{")]

    def answered_by(self, route: str, after: int = 0) -> set[int]:
        """The workers that have answered this route since a line of the log."""
        return {line["worker"] for line in self.log()[after:] if line.get("route") == route}

    def hear_both(self) -> None:
        """Ask until each worker has answered."""
        after = len(self.log())

        def asked() -> bool:
            ok(self.request("GET", ASK))
            return self.answered_by("/v1/users/{user_id}/bundles", after) == {1, 2}

        wait_until(asked, "an answer of each worker")

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        first = self.running.process.pid
        return [int(each) for each in Path(f"/proc/{first}/task/{first}/children").read_text().split()]


@pytest.fixture(scope="module")
def two(sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    url = copied(sample_database, tmp_path_factory.mktemp("workers"))
    store = Store.open(url)
    key = new_key(store, "admin")
    store.close()
    with command(sample_model, url, "--workers", "2", "--shop", "currency=JPY") as running:
        yield Two(running, key)
        assert "Traceback" not in running.log()


def test_what_one_worker_writes_the_other_reads(two: Two) -> None:
    two.hear_both()
    new = {"title": "New", "items": ["g0022", "g0401"], "price": 5}
    for number in range(8):
        ok(two.request("PUT", f"/v1/bundles/new{number}", json=new), 201)
        ok(two.request("GET", f"/v1/bundles/new{number}"))


def test_their_requests_are_counted_together(two: Two) -> None:
    two.hear_both()
    asked = sum(line.get("route") == "/v1/users/{user_id}/bundles" for line in two.log())
    for _ in range(8):
        text = two.request("GET", "/metrics").text
        counted = re.search(r'requests_total\{[^}]*route="/v1/users/\{user_id\}/bundles"[^}]*\} (\S+)', text)
        assert counted is not None
        assert float(counted[1]) == asked
    assert ok(two.request("GET", "/v1/insights"))["latency"]["count"] == asked


def test_the_limit_on_logins_is_for_all_workers_together(two: Two) -> None:
    wrong = {"key": "bm_wrong"}
    codes = [two.request("POST", "/v1/session", json=wrong).status_code for _ in range(40)]
    assert two.answered_by("/v1/session") == {1, 2}
    # Two separate limits would allow 20. The bucket may gain a few tokens while the test runs.
    assert codes[:10] == [401] * 10
    assert codes.count(401) < 20


def test_the_model_is_in_memory_once(two: Two) -> None:
    two.hear_both()
    for worker in two.workers():
        told = Path(f"/proc/{worker}/smaps_rollup").read_text()
        resident, private = (
            sum(int(number) for number in re.findall(rf"^{name}:\s+(\d+)", told, re.M))
            for name in ("Rss", r"Private_\w+")
        )
        assert private < resident / 2


def test_a_second_service_at_the_same_address_is_refused(two: Two) -> None:
    port = int(two.running.url.rpartition(":")[2])
    for count in (1, 2):
        with pytest.raises(ConfigError, match="in use already"):
            serve._bound("127.0.0.1", port, count)


def test_they_load_a_new_model_one_after_the_other(two: Two, second_model: Path) -> None:
    store = Store.open(two.running.db)
    store.publish(record_of(second_model))
    store.close()

    def of_models() -> list[dict[str, Any]]:
        return [line for line in two.log() if "the model" in line["event"]]

    def followed() -> bool:
        ok(two.request("GET", ASK))
        return len(of_models()) == 4

    wait_until(followed, "both workers with the new model")
    # Each begins only when the other is done.
    assert [line["worker"] for line in of_models()] in ([1, 1, 2, 2], [2, 2, 1, 1])
    assert ok(two.request("GET", ASK))["model_version"] == record_of(second_model).version


def test_all_workers_have_the_settings_of_the_shop_that_the_command_was_given(two: Two) -> None:
    two.hear_both()  # they serve the model of the test above, which was loaded later
    after = len(two.log())
    told = [ok(two.request("GET", "/v1/models"))["shop"]["currency"] for _ in range(16)]
    assert two.answered_by("/v1/models", after) == {1, 2}
    assert set(told) == {"JPY"}


def test_a_killed_worker_is_replaced_and_the_other_goes_on(two: Two) -> None:
    before, serving = two.workers(), ok(two.request("GET", ASK))["model_version"]
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(set(two.workers()) - set(before)) == 1, "a new worker")
    two.hear_both()
    assert any("takes its place" in line["event"] for line in two.log())
    assert before[1] in two.workers()
    # The new worker was forked from a process with an older model, but serves the published one.
    assert all(ok(two.request("GET", ASK))["model_version"] == serving for _ in range(8))


# ── The processes themselves ─────────────────────────────────────────────────────────────────────

SLEEPERS = """
import os, signal, sys, time
from bundlemage.service.workers import Workers

def sleep(number):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.write(1, b"%d\\n" % os.getpid())  # in one piece, as both write to the same pipe
    while True:
        time.sleep(0.05)  # a signal just before signal.pause() would be missed

sys.exit(Workers(2, sleep).run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_first_process(number: signal.Signals) -> None:
    with Popen([sys.executable, "-c", SLEEPERS], stdout=PIPE, text=True) as first:
        assert first.stdout is not None
        started = [int(first.stdout.readline()) for _ in range(2)]
        first.send_signal(number)
        assert first.wait(timeout=60) == (-number if number == signal.SIGKILL else number)
        wait_until(lambda: not any(Path(f"/proc/{each}/stat").exists() for each in started), "their end")


def test_workers_that_cannot_start_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_FAILURES", 2)

    def fail(number: int) -> None:
        raise BundleMageError("no database")

    with pytest.raises(BundleMageError, match="2 workers in a row"):
        Workers(2, fail).run()


def test_a_worker_that_cannot_be_forked_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(BundleMageError, match="cannot start worker 1: no more processes"):
        Workers(2, lambda _: None).run()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "all signals arrive again"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_leaves_no_folder(
    sample_model: Path,
    sample_database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    with command(sample_model, copied(sample_database, tmp_path), "--workers", "2") as running:
        assert len([*place.glob(FOLDERS)]) == 1
        running.process.send_signal(number)
        assert running.process.wait(timeout=60) == (0 if number == signal.SIGINT else -number)
        assert not [*place.glob(FOLDERS)]


def test_the_folder_of_a_killed_service_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = os.fork()
    if not process:
        Shared(Settings(workers=2))
        os._exit(0)  # nothing is removed, as after a kill
    os.waitpid(process, 0)
    (left,) = tmp_path.glob(FOLDERS)
    living, following = Shared(Settings(workers=2)), Shared(Settings(workers=2))
    assert {*tmp_path.glob(FOLDERS)} == {living.folder, following.folder}
    assert left not in {living.folder, following.folder}
    living.close()
    following.close()


def test_a_worker_that_loads_a_model_may_wait_for_one_that_waits_to_load() -> None:
    shared = Shared(Settings(workers=2))
    counts = shared.lock(0)
    reading, writing = os.pipe()
    waiting, told = os.pipe()
    process = os.fork()
    if not process:  # it loads a model, and then counts a request
        code = 1
        try:
            with shared.loading:
                os.write(writing, b"1")
                os.read(waiting, 1)
                with counts:
                    code = 0
        finally:
            os._exit(code)
    os.read(reading, 1)
    loading = threading.Thread(target=lambda: shared.loading.__enter__())
    with counts:
        loading.start()
        wait_until(lambda: waits(os.getpid()), "a thread that waits for the other process")
        os.write(told, b"1")
        wait_until(lambda: waits(process) or has_ended(process), "the other process, which waits or fails")
    assert os.waitpid(process, 0)[1] == 0
    loading.join(60)
    assert not loading.is_alive()
    shared.close()


def waits(process: int) -> bool:
    """Whether a process waits for a lock."""
    return re.search(rf"-> .* {process} ", Path("/proc/locks").read_text()) is not None


def has_ended(process: int) -> bool:
    return "State:\tZ" in Path(f"/proc/{process}/status").read_text()


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
