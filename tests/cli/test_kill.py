"""Training that is killed in the middle goes on to the very same model."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bundlemage.errors import CheckpointError
from bundlemage.training.checkpoint import RunFolder
from tests.cli.run import run, run_apart, stopped

SMALL = ["--set", "embedding_dim=16", "--set", "batch_size=512", "--device", "cpu"]
SETTINGS = [*SMALL, "--epochs", "20", "--json"]


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
    whole = json.loads(run_apart("train", "-o", tmp_path / "whole", *SETTINGS, *more))

    killed = ["train", "-o", tmp_path / "killed", *SETTINGS, *more]
    stopped("last.safetensors", 3, *killed, "--checkpoint-every", 1)
    assert not (tmp_path / "killed").exists()
    assert epochs_done(tmp_path / "killed") == 3

    resumed = json.loads(run_apart(*killed, "--resume"))
    assert resumed["test"] == whole["test"]
    assert resumed["best_epoch"] == whole["best_epoch"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "killed.checkpoints").exists()


def test_ctrl_c_keeps_the_best_model_so_far(tmp_path: Path) -> None:
    endless = ["train", "-o", tmp_path / "model", *SMALL, "--epochs", "5000", "--set", "patience=5000"]
    done = stopped("last.safetensors", 2, *endless, "--checkpoint-every", 1, how=signal.SIGINT)
    assert "best model so far is saved" in done.stderr
    assert "Traceback" not in done.stderr
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
