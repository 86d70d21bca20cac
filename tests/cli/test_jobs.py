"""`--jobs` as it is typed, and no process left behind, however the command ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bundlemage.sample.generate import write_shop
from bundlemage.training.checkpoint import RunFolder
from tests.cli.run import run
from tests.small_shop import small_shop
from tests.waiting import wait_until

WITHOUT = (
    "bgcn,bpr,br,bundlemage,bundlemage-ensemble,bundlemage-paper,crosscbr,dam,efm,gram-smot,lightgcn,ncf,"
    "vae-cf"
)


def descendants(parent: int) -> set[int]:
    """Processes that a process has started, by /proc."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(after_name[1]) == parent:
            found.add(int(file.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether it is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(how: signal.Signals, tmp_path: Path) -> None:
    write_shop(small_shop(), tmp_path / "shop", "csv")
    settings = ["--set", "epochs=1000000", "--set", "patience=1000000", "--set", "embedding_dim=8"]
    command = [sys.executable, "-m", "bundlemage", "compare", str(tmp_path / "shop"), "-m", "bpr", *settings]
    command += ["--seeds", "0,1", "--jobs", "2", "--device", "cpu", "--cache", str(tmp_path / "cache")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    checkpoints = partial((tmp_path / "cache").glob, "*.run/last.safetensors")
    wait_until(lambda: len(list(checkpoints())) == 2 or process.poll() is not None, "both checkpoints")
    assert process.poll() is None
    children = descendants(process.pid)
    assert len(children) >= 2
    if how is signal.SIGINT:  # as a terminal does it: to all of them
        os.killpg(process.pid, how)
    else:
        os.kill(process.pid, how)
    _, errors = process.communicate(timeout=100)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-2:] == [
            "Finished results are kept: the same command continues from here.",
            "error: interrupted",
        ]
        assert "Traceback" not in errors
    wait_until(lambda: not any(map(alive, children)), "the end of all processes")
    for folder in (tmp_path / "cache").glob("*.run"):  # what there is of each is sound
        assert RunFolder(folder).load()[1].epoch >= 1


@pytest.mark.parametrize("command", [("compare",), ("reproduce", "sample"), ("tune", "-o", "study")])
@pytest.mark.parametrize("jobs", [0, -2])
def test_less_than_one_job_is_refused_in_one_line(command: tuple[str, ...], jobs: int) -> None:
    refused = run(*command, "--jobs", jobs, code=2)
    assert refused.stderr == f"error: --jobs {jobs}: the number must be at least 1\n"


def test_a_report_says_that_its_runs_were_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'bundlemage[plots]'")
    options = [
        "--epochs",
        1,
        "--skip",
        WITHOUT,
        "--skip",
        "generation,ablations,cases",
        "--device",
        "cpu",
        "--cache",
        tmp_path / "cache",
    ]
    shown = run("reproduce", "sample", "--jobs", 2, "-o", tmp_path / "report", *options)
    assert "Written to" in shown.stdout
    assert "measured with 2 runs at a time" in (tmp_path / "report" / "report.md").read_text()
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert {outcome["jobs"] for outcome in results["outcomes"]} == {2}
