"""Joining Ray: what fails is one message, what hangs can be ended, and nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from benchmarks.scoring import command_of, family
from bundlemage import Recommender
from bundlemage.sample.generate import sample_shop
from tests.forked import Forked, run_forked, start_forked
from tests.waiting import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that does little on Ray."""
    folder = tmp_path_factory.mktemp("joining") / "model"
    shop = sample_shop(users=60, items=80, bundles=30).dataset
    Recommender("popularity", device="cpu").fit(shop, progress=False).save(folder)
    return ["recommend-all", str(folder), "-o", str(folder.with_name("answers")), "--engine", "ray"]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where Ray puts its own. The paths of pytest's folders are too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="bm", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_a_job_leaves_no_folder_behind(command: list[str], temporary: Path) -> None:
    abandoned, locked = (temporary / f"bundlemage-ray-{name}" for name in ("abandoned", "locked"))
    for folder in (abandoned, locked):
        (folder / "session").mkdir(parents=True)
    living = os.open(locked, os.O_RDONLY)
    fcntl.flock(living, fcntl.LOCK_EX)
    done = run_forked([*command, "--workers", "1"], before=partial(_wait, 600))
    os.close(living)
    assert done.returncode == 0, done.stderr
    assert [*temporary.iterdir()] == [locked]


def test_a_failed_start_is_one_message(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", "this ends processes of Ray")
    done = run_forked(command)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: cannot start Ray on this machine: ")
    assert "if --engine is left out" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_hangs_can_be_ended(command: list[str], temporary: Path, how: signal.Signals) -> None:
    stopped: list[int] = []

    def server_stopped(starting: Forked) -> bool:
        for process in family(starting.pid):
            if "gcs_server" in command_of(process).partition("\0")[0]:
                os.kill(process, signal.SIGSTOP)
                stopped.append(process)
        return bool(stopped)

    with Path(os.devnull).open("w") as nothing:
        starting = start_forked(command, stdout=nothing.fileno(), stderr=nothing.fileno())
    try:
        wait_until(lambda: server_stopped(starting), "a server of Ray")
        started = family(starting.pid)
        starting.send_signal(how)
        assert starting.wait(timeout=240) == (130 if how == signal.SIGINT else -how)
    finally:
        starting.kill()
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in started), "the end of Ray")
    wait_until(lambda: not [*temporary.iterdir()], "the end of its folder")


def test_a_cluster_that_does_not_answer_is_given_up(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        done = run_forked([*command, "--address", address], before=partial(_wait, 1))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        f"error: cannot join a Ray cluster at {address}: no answer within 1 s. Is it"
    )
    assert done.stderr.count("\n") == 1


def _wait(seconds: float) -> None:
    """Sets the time limits of a command. A busy machine takes longer than others."""
    from bundlemage.engines.ray import joining

    joining.SECONDS_TO_JOIN = joining.SECONDS_TO_START = seconds
