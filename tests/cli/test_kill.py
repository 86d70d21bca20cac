"""Training that is killed in the middle goes on to the very same model."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from bundlemage.errors import CheckpointError
from bundlemage.training.checkpoint import RunFolder
from tests.cli.run import finish, run, start

SMALL = ["--set", "embedding_dim=32", "--set", "batch_size=128", "--device", "cpu"]
SETTINGS = [*SMALL, "--epochs", "60", "--json"]


def epochs_done(model: Path) -> int:
    folder = RunFolder(model.with_name(model.name + ".checkpoints"))
    try:
        return folder.load()[1].epoch if folder.holds_progress() else 0
    except CheckpointError:  # looked between two files of one checkpoint
        return 0


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="averaged weights"),
        pytest.param(["--set", "weight_average=0"], id="plain", marks=pytest.mark.slow),
    ],
)
def test_kill_and_resume_give_the_same_model(more: list[str], tmp_path: Path) -> None:
    whole = json.loads(finish(start("train", "-o", tmp_path / "whole", *SETTINGS, *more)))

    process = start("train", "-o", tmp_path / "killed", *SETTINGS, *more)
    deadline = time.monotonic() + 120
    while epochs_done(tmp_path / "killed") < 3:
        assert process.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    done = epochs_done(tmp_path / "killed")
    assert 3 <= done < 60

    resumed = json.loads(finish(start("train", "-o", tmp_path / "killed", "--resume", *SETTINGS, *more)))
    assert resumed["test"] == whole["test"]
    assert resumed["best_epoch"] == whole["best_epoch"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "killed.checkpoints").exists()


def test_ctrl_c_keeps_the_best_model_so_far(tmp_path: Path) -> None:
    process = start("train", "-o", tmp_path / "model", *SMALL, "--epochs", "5000", "--set", "patience=5000")
    deadline = time.monotonic() + 120
    while epochs_done(tmp_path / "model") < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "best model so far is saved" in stderr
    assert "Traceback" not in stderr
    run("recommend", tmp_path / "model", "--user", "u0001")
    # … and the run can still go on from there.
    one_more = epochs_done(tmp_path / "model") + 1
    run("train", "-o", tmp_path / "model", *SMALL, "--epochs", one_more, "--resume")


def test_an_unfinished_run_is_not_thrown_away_by_accident(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "model.checkpoints")
    folder.path.mkdir()
    (folder.path / "last.safetensors").write_bytes(b"progress")
    refused = run("train", "-o", tmp_path / "model", code=2)
    assert "--resume" in refused.stderr
    assert "--overwrite" in refused.stderr
    damaged = run("train", "-o", tmp_path / "model", "--resume", code=2)
    assert "cannot resume" in damaged.stderr
    assert (folder.path / "last.safetensors").read_bytes() == b"progress"
