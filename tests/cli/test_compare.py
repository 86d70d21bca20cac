"""`bundlemage compare` and `bundlemage models`, as they are typed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from bundlemage.errors import CheckpointError
from bundlemage.sample.generate import write_shop
from bundlemage.studies.comparison import Comparison
from bundlemage.training.checkpoint import RunFolder
from tests.cli.run import TINY, run, run_apart, run_json, stopped
from tests.forked import run_forked
from tests.small_shop import small_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "shop"
    write_shop(small_shop(), folder, "csv")
    return folder


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results go to the working folder by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_defaults_give_tables_that_fit(shop: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bundlemage.cli import show

    monkeypatch.setattr(show.out, "_width", 100)
    first = run("compare", shop, *TINY, "--seeds", "0,1", "-o", "all.md", "-o", "all.html", "-o", "all.json")
    for text in (
        "bundlemage",
        "popularity",
        "ndcg@5",
        "recall@20",
        "shop, some-users: matching",
        "generation",
        "±",
    ):
        assert text in first.stdout
    assert max(map(len, first.stdout.splitlines())) <= 100
    assert "…" not in first.stdout
    assert "1 of 5: bundlemage on shop, some-users, seed 0: done in" in first.stderr
    assert (where / "runs" / "compare").is_dir()
    assert "| popularity" in (where / "all.md").read_text()
    assert ">popularity" in (where / "all.html").read_text()
    content = json.loads((where / "all.json").read_text())
    assert content.pop("command").startswith("bundlemage")
    assert len(Comparison.from_json(content).tables) == 2
    again = run("compare", shop, *TINY, "--seeds", "0,1")
    assert again.stderr.count("from the cache") == 5
    assert again.stdout == first.stdout


def test_models_protocols_settings_and_recipes(shop: Path, where: Path) -> None:
    (where / "wide.toml").write_text('model = "bundlemage"\n[settings]\nembedding_dim = 12\n')
    found = run_json(
        *("compare", shop, "--model", "popularity,bundlemage", "--model", "wide.toml", *TINY[2:]),
        *(
            "--protocol",
            "paper",
            "--protocol",
            "full",
            "--set",
            "bundlemage.embedding_dim=6",
            "--set",
            "dropout=0.1",
        ),
        *("--metric", "recall@20", "--split-seed", 3),
    )
    assert found["metric"] == "recall@20"
    assert [facts["protocol"] for facts in found["data"]] == ["paper", "full"]
    assert [(table["protocol"], table["task"]) for table in found["tables"]] == [
        ("paper", "matching"),
        ("paper", "generation"),
        ("full", "matching"),
    ]
    settings = {one["label"]: one["settings"] for one in found["outcomes"]}
    assert settings["bundlemage"]["embedding_dim"] == 6
    assert settings["wide"]["embedding_dim"] == 12  # its label is not the one that was named
    assert settings["wide"]["dropout"] == settings["bundlemage"]["dropout"] == 0.1
    assert settings["wide"]["epochs"] == 2
    assert "epochs" not in settings["popularity"]


def test_chosen_columns(shop: Path, where: Path) -> None:
    shown = run("compare", shop, "-m", "popularity", "--metrics", "recall@40,ndcg@40").stdout
    assert "recall@40" in shown
    assert "ndcg@5 " not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "bundelmage"], "Did you mean 'bundlemage'?"),
        (["-m", "missing.toml"], "recipe missing.toml cannot be read"),
        (["-o", "table.pdf"], "must end in one of .md, .html, .json"),
        (["-o", "nowhere/table.md"], "there is no folder nowhere"),
        (
            ["--set", "embeding_dim=3"],
            "--set embeding_dim: none of these models has a setting",
        ),
        (["--set", "popularity.epochs=3"], "popularity has no setting 'epochs'"),
        (["--set", "bpr2.epochs=3"], "there is no model 'bpr2' in this comparison"),
        (["--set", "seed=3"], "use --seeds"),
        (["--set", "epochs=-3"], "bundlemage: setting 'epochs' is -3"),
        (["--seeds", "a,b"], "--seeds 'a,b'"),
        (["--seeds", "1,1"], "the seed 1 is given twice"),
        (["--metric", "ndcg@6"], "stored for each case"),
        (["--metrics", "ndcg@6"], "unknown metric 'ndcg@6'"),
        (["--protocol", "half"], "unknown protocol 'half'"),
        (["--protocol", "none"], "nothing is held out"),
        (["--device", "cuda:77"], "is not present"),
        (["--cache", "a-file"], "is a file"),
        (["no-such-folder"], "no-such-folder"),
    ],
)
def test_bad_input(arguments: list[str], message: str, where: Path) -> None:
    (where / "a-file").write_text("")
    refused = run("compare", *arguments, code=2)
    assert message in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.output
    assert not (where / "runs").is_dir() or not list((where / "runs" / "compare").iterdir())


def test_a_model_that_fails_makes_exit_code_1(shop: Path, where: Path) -> None:
    failed = run("compare", shop, *TINY, "--set", "learning_rate=1e30", "-o", "all.html", code=1)
    assert "bundlemage failed:" in failed.stdout
    assert "Lower learning_rate" in " ".join(failed.stdout.split())
    assert "popularity" in failed.stdout
    assert "failed: " in (where / "all.html").read_text()


def test_a_password_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from bundlemage.cli.compare import command_line

    monkeypatch.setattr("sys.argv", ["x", "compare", "postgresql://me:secret@host/shop", "-m", "a b"])
    assert command_line() == "bundlemage compare DATABASE_URL -m 'a b'"


# ── Killed in the middle ─────────────────────────────────────────────────────────────────────────

SMALL = ["--set", "embedding_dim=8", "--set", "batch_size=512", "--set", "patience=500", "--device", "cpu"]


def epochs_done(cache: Path) -> int:
    for folder in cache.glob("*.run"):
        try:
            return RunFolder(folder).load()[1].epoch if RunFolder(folder).holds_progress() else 0
        except CheckpointError:  # looked between two files of one checkpoint
            return 0
    return 0


def without_times(found: Any) -> Any:
    """What must be equal in two runs of the same."""
    changing = {"fit_seconds", "evaluate_seconds", "memory", "date", "command"}
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key not in changing}
    return [without_times(one) for one in found] if isinstance(found, list) else found


def test_kill_and_run_again(shop: Path, tmp_path: Path) -> None:
    asked = ["compare", shop, "-m", "popularity,bundlemage", *SMALL, "--epochs", "12", "--json", "--cache"]
    whole = json.loads(run_apart(*asked, tmp_path / "whole"))

    cache = tmp_path / "killed"
    stopped("last.safetensors", 2, *asked, cache)
    assert 1 < epochs_done(cache) < 12
    finished = {file: file.stat().st_mtime_ns for file in cache.glob("*.json")}
    assert len(finished) == 1  # popularity

    again = run_forked([*asked, cache])
    assert again.returncode == 0, again.stderr
    assert "popularity on shop, some-users, seed 0: done from the cache" in again.stderr
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert without_times(json.loads(again.stdout)) == without_times(whole)
    assert {file.suffix for file in cache.iterdir()} == {".json", ".npz"}


def test_ctrl_c_keeps_what_is_done(shop: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    endless = ["--epochs", "5000", "--set", "patience=5000", "--cache", cache]
    command = ["compare", shop, "-m", "popularity,bundlemage", *SMALL, *endless]
    done = stopped("last.safetensors", 2, *command, how=signal.SIGINT)
    assert "the same command continues from here" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(list(cache.glob("*.json"))) == 1
    assert epochs_done(cache) >= 2


# ── Models ───────────────────────────────────────────────────────────────────────────────────────


def test_the_list_of_models() -> None:
    listed = {facts["name"]: facts for facts in run_json("models")}
    assert listed["bundlemage"] == {
        "name": "bundlemage",
        "title": "BundleMage",
        "matches": True,
        "generates": True,
        "learns": True,
        "knows_new_users": True,
        "publication": listed["bundlemage"]["publication"],
        "error": None,
    }
    assert "2023" in listed["bundlemage"]["publication"]
    assert listed["popularity"]["learns"] is False
    shown = run("models").stdout
    assert all(name in shown for name in listed)


def test_a_broken_model_of_another_package_is_listed_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "elsewhere-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[bundlemage.models]\nelsewhere = no_such_module:Model\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    listed = {facts["name"]: facts for facts in run_json("models")}
    assert "no_such_module" in listed["elsewhere"]["error"]
    assert listed["popularity"]["error"] is None
    assert "no_such_module" in run("models").stdout
    refused = run("compare", "-m", "elsewhere", code=2)
    assert "cannot be loaded" in refused.stderr
