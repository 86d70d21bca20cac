"""`bundlemage tune` as people and programs use it, and as it is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.cli.run import run, run_json, stopped

QUICK = ["--set", "embedding_dim=16", "--set", "epochs=4", "--space", "batch_size=128,256", "--device", "cpu"]


def made(study: Path) -> list[Path]:
    return sorted((study / "trials").glob("*.json"))


def seen(found: dict[str, Any]) -> list[Any]:
    """All of the trials but their time."""
    return [{**trial, "seconds": None} for trial in found["trials"]]


def test_kill_and_resume_give_the_same_trials(tmp_path: Path) -> None:
    options = [*QUICK, "--set", "epochs=6", "--trials", 5, "--json"]
    stopped("[0-9]*.json", 2, "tune", "-o", tmp_path / "killed", *options)
    files = {file: file.read_bytes() for file in made(tmp_path / "killed")}
    assert len(files) == 2

    refused = run("tune", "-o", tmp_path / "killed", *options, code=2)
    assert "holds a study already: add --resume" in refused.stderr
    resumed = json.loads(run("tune", "-o", tmp_path / "killed", "--resume", *options).stdout)
    whole = json.loads(run("tune", "-o", tmp_path / "whole", *options).stdout)
    assert seen(resumed) == seen(whole)
    assert {file: file.read_bytes() for file in files} == files
    assert (tmp_path / "killed" / "best.toml").read_text() == (tmp_path / "whole" / "best.toml").read_text()


def test_ctrl_c_keeps_what_is_there(tmp_path: Path) -> None:
    study = tmp_path / "study"
    done = stopped("[0-9]*.json", 2, "tune", "-o", study, *QUICK, "--trials", 500, how=signal.SIGINT)
    assert "--resume continues from here" in done.stderr
    assert "best of" in done.stdout
    assert len(made(study)) == 2


def test_the_best_can_be_trained_as_the_last_line_says(tmp_path: Path) -> None:
    study = tmp_path / "study"
    shown = run("tune", "-o", study, *QUICK, "--trials", 2, "--seed", 5)
    assert "--recipe" in shown.stdout
    assert "validation times popularity" in " ".join(shown.stdout.split())
    assert "trial 2 of 2: times popularity" in shown.stderr
    found = run_json("tune", "-o", study, *QUICK, "--trials", 2, "--seed", 5, "--resume")
    trained = run_json("train", "-o", tmp_path / "model", "--recipe", study / "best.toml", "--device", "cpu")
    assert found["recipe"] == str(study / "best.toml")
    assert trained["validation"]["value"] == found["best"]["value"]
    assert trained["best_epoch"] == found["best"]["best_epoch"]


def test_a_recipe_is_where_the_search_begins(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'model = "bpr"\n[settings]\nlearning_rate = 0.02\nepochs = 2\nseed = 4\n[split]\nprotocol = "full"\n'
    )
    options = [
        "--recipe",
        tmp_path / "mine.toml",
        "--set",
        "embedding_dim=8",
        "--device",
        "cpu",
        "--trials",
        1,
    ]
    found = run_json("tune", "-o", tmp_path / "study", *options)
    assert found["model"] == "bpr"
    assert found["trials"][0]["settings"]["learning_rate"] == 0.02
    assert found["trials"][0]["epochs"] == 2
    stored = json.loads((tmp_path / "study" / "study.json").read_text())
    assert stored["settings"].items() >= {"epochs": 2, "embedding_dim": 8, "seed": 4}.items()
    assert stored["split"]["protocol"] == "full"
    other = run("tune", "-o", tmp_path / "study", *options, "--resume", "--space", "negatives=1,2", code=2)
    assert 'space was {"negatives": {"one_of": [1, 4, 8]}}' in other.stderr


def test_what_is_asked_wrongly_is_said_at_once(tmp_path: Path) -> None:
    for options, message in (
        (["--space", "learning_rate=1..0"], "--space learning_rate=1..0: the first number must be less"),
        (["--space", "learning_rate=a..b"], "write a range as learning_rate=LOW..HIGH"),
        (["--space", "learning_rate=0.1..0.2,lin"], "learning_rate=LOW..HIGH,log"),
        (["--space", "batch_size=4"], "--space batch_size=4: name two or more values"),
        (["--workers", "0"], "0: the number must be at least 1"),
        (["--jobs", "0"], "--jobs 0: the number must be at least 1"),
        (["--address", "auto"], "add --engine ray"),
        (["--timeout", "0"], "timeout is 0"),
        (["--device", "nonsense"], "unknown device"),
    ):
        assert message in run("tune", "-o", tmp_path / "study", *options, code=2).stderr
    assert not (tmp_path / "study").exists()


def test_if_every_trial_fails_that_is_an_error(tmp_path: Path) -> None:
    failed = run(
        "tune", "-o", tmp_path / "study", *QUICK, "--trials", 2, "--set", "learning_rate=1e30", code=2
    )
    assert "every trial failed. The first one failed because: the loss or the " in failed.stderr
    assert "weights are no longer finite" in failed.stderr
    assert not (tmp_path / "study" / "best.toml").exists()


def test_a_models_space_is_shown() -> None:
    shown = run("models", "bpr").stdout
    assert "learning_rate=0.0003..0.03,log" in shown
    assert "negatives=1,4,8" in shown
    assert run_json("models", "bpr")["space"]["negatives"] == {"one_of": [1, 4, 8]}
