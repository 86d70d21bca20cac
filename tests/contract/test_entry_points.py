"""A model of another package, really installed, goes through `compare` like those of this one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.forked import run_forked


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that docs/how-to/add-a-model.md shows, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("package")
    for block in blocks(ROOT / "docs" / "how-to" / "add-a-model.md", "python", "toml"):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    where = ["--no-index", "--target", str(folder / "site"), str(folder / "two-towers")]
    subprocess.run([*pip, *where], check=True, timeout=300)
    return folder / "site"


@pytest.fixture
def own_site(site: Path, tmp_path: Path) -> Path:
    """The same package again, for a test that changes it."""
    return shutil.copytree(site, tmp_path / "site")


def find_packages_in(folder: str) -> None:
    """As if the command had been started with the folder in PYTHONPATH."""
    sys.path.insert(0, folder)


def bundlemage(site: Path, folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_forked(arguments, folder, before=partial(find_packages_in, str(site)))
    assert done.returncode == code, done.stderr
    return done


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
    name: str, code: str | None, message: str, own_site: Path, tmp_path: Path
) -> None:
    (points,) = own_site.glob("*.dist-info/entry_points.txt")
    points.write_text(points.read_text().replace("two-towers =", f"{name} ="))
    if code is not None:
        (own_site / "two_towers.py").write_text(code)
    assert message in bundlemage(own_site, tmp_path, "train", "-o", "m", "--model", name, code=2).stderr
    listed = json.loads(bundlemage(own_site, tmp_path, "models", "--json").stdout)
    assert message in next(model["error"] for model in listed if model["name"] == name)
    assert any(model["name"] == "bundlemage" for model in listed)


def test_changed_code_of_its_own_is_run_again(own_site: Path, tmp_path: Path) -> None:
    """The author of a model compares, edits, and compares again."""
    quick = ["--epochs", "2", "--set", "batch_size=256", "--device", "cpu"]
    command = ["compare", "--model", "two-towers", *quick]
    assert "from the cache" not in bundlemage(own_site, tmp_path, *command).stderr
    assert "from the cache" in bundlemage(own_site, tmp_path, *command).stderr
    code = own_site / "two_towers.py"
    code.write_text(code.read_text().replace("return user @", "return -user @"))
    assert "from the cache" not in bundlemage(own_site, tmp_path, *command).stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".T  # [rows, bundles]", ".T[:, :3]", "TwoTowers.score_bundles returned"),
        ("return user @", "return torch.nan * user @", "not a finite number"),
        ('over="user_bundle"', 'over="user_bundles"', "it can run over: users, items"),
        ("def loss(", "def forgotten_loss(", "has no method 'loss'"),
    ],
    ids=["shape", "nan", "phase", "no-loss"],
)
def test_what_breaks_the_contract_is_said_in_a_line(
    old: str, new: str, message: str, own_site: Path, tmp_path: Path
) -> None:
    code = own_site / "two_towers.py"
    code.write_text(code.read_text().replace(old, new))
    done = bundlemage(
        own_site, tmp_path, "train", "-o", "m", "--model", "two-towers", "--epochs", "1", code=2
    )
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
