"""A model of another package, really installed, goes through `compare` like those of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks


def installed(folder: Path, name: str = "two-towers", code: str | None = None) -> Path:
    """The package that docs/how-to/add-a-model.md shows, installed into a folder of its own."""
    for block in blocks(ROOT / "docs" / "how-to" / "add-a-model.md", "python", "toml"):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            text = block.text if code is None or file.suffix != ".py" else code
            file.write_text(text.replace('two-towers = "', f'{name} = "'), encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", folder / "site", folder / "two-towers"], check=True, timeout=120)
    return folder / "site"


def bundlemage(site: Path, folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "bundlemage", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("package"))


def test_it_is_listed_and_compared(site: Path, tmp_path: Path) -> None:
    listed: list[dict[str, Any]] = json.loads(bundlemage(site, tmp_path, "models", "--json").stdout)
    mine = next(model for model in listed if model["name"] == "two-towers")
    assert mine["title"] == "Two towers"
    quick = ["--epochs", "20", "--set", "batch_size=256", "--set", "learning_rate=0.01", "--device", "cpu"]
    done = bundlemage(site, tmp_path, "compare", "--model", "two-towers,popularity", *quick, "--json")
    tables = {table["task"]: table for table in json.loads(done.stdout)["tables"]}
    figures = {row["label"]: row["metrics"]["ndcg@5"]["mean"] for row in tables["matching"]["rows"]}
    assert figures["two-towers"] > 1.5 * figures["popularity"], "it learned the tastes of the sample shop"


def test_without_its_package_the_name_is_unknown(tmp_path: Path) -> None:
    done = bundlemage(tmp_path, tmp_path, "compare", "--model", "two-towers", code=2)
    assert "unknown model 'two-towers'" in done.stderr


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("two-towers", "import nothing_of_the_kind\n", "cannot be loaded: ModuleNotFoundError"),
        ("two-towers", "TwoTowers = 3\n", "is not a subclass of bundlemage.models.base.Model"),
        ("three-towers", None, "has the name 'two-towers'"),
    ],
    ids=["does-not-import", "no-model", "another-name"],
)
def test_a_broken_one_is_named_and_the_others_go_on(
    name: str, code: str | None, message: str, tmp_path: Path
) -> None:
    site = installed(tmp_path, name, code)
    assert message in bundlemage(site, tmp_path, "train", "-o", "m", "--model", name, code=2).stderr
    listed = json.loads(bundlemage(site, tmp_path, "models", "--json").stdout)
    assert message in next(model["error"] for model in listed if model["name"] == name)
    assert any(model["name"] == "bundlemage" for model in listed)


def test_changed_code_of_its_own_is_run_again(tmp_path: Path) -> None:
    """Whoever writes a model compares, edits, and compares again."""
    site = installed(tmp_path)
    command = (
        "compare",
        "--model",
        "two-towers",
        "--epochs",
        "2",
        "--set",
        "batch_size=256",
        "--device",
        "cpu",
    )
    assert "from the cache" not in bundlemage(site, tmp_path, *command).stderr
    assert "from the cache" in bundlemage(site, tmp_path, *command).stderr
    code = site / "two_towers.py"
    code.write_text(code.read_text().replace("return user @", "return -user @"))
    assert "from the cache" not in bundlemage(site, tmp_path, *command).stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".T  # [rows, bundles]", ".T[:, :3]", "TwoTowers.score_bundles gave"),
        ("return user @", "return torch.nan * user @", "not a finite number"),
        ('over="user_bundle"', 'over="user_bundles"', "it can run over: users, items"),
        ("def loss(", "def forgotten_loss(", "has no method 'loss'"),
    ],
    ids=["shape", "nan", "phase", "no-loss"],
)
def test_what_breaks_the_contract_is_said_in_a_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    site = installed(tmp_path)
    code = site / "two_towers.py"
    code.write_text(code.read_text().replace(old, new))
    done = bundlemage(site, tmp_path, "train", "-o", "m", "--model", "two-towers", "--epochs", "1", code=2)
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
