"""`--engine` on every command that has it: without the extra, with a wrong name, with a wrong address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bundlemage import Recommender
from bundlemage.sample.generate import sample_shop
from tests.cli.run import run

WITHOUT_RAY = """
import sys

class Hidden:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("ray", "optuna", "faiss"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("ray", "optuna", "faiss"):
    sys.modules[name] = None
sys.meta_path.insert(0, Hidden())
sys.argv[0] = "bundlemage"
from bundlemage.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("engines") / "model"
    shop = sample_shop(users=60, items=80, bundles=30).dataset
    Recommender("popularity", device="cpu").fit(shop, progress=False).save(folder)
    return str(folder)


def commands(model: str, output: Path) -> dict[str, list[str]]:
    out = str(output)
    return {
        "train": ["train", "sample", "-o", out],
        "evaluate": ["evaluate", model, "sample"],
        "recommend": ["recommend-all", model, "-o", out],
        "campaign": ["campaign", model, "-o", out],
        "tune": ["tune", "sample", "-o", out],
    }


NAMES = [*commands("", Path())]


@pytest.mark.parametrize("name", NAMES)
def test_without_the_extra_a_command_says_how_to_install_it(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    done = run(*commands(model, tmp_path / "out")[name], "--engine", "ray", code=2)
    assert done.stderr.strip() == "error: the engine 'ray' needs an extra: pip install 'bundlemage[ray]'"
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_without_the_extras_nothing_else_changes(model: str, tmp_path: Path) -> None:
    for arguments in (commands(model, tmp_path / "out")["recommend"], ["data", "check", "sample"]):
        command = [sys.executable, "-c", WITHOUT_RAY, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_engine_and_an_address_without_one_are_refused(
    name: str, model: str, tmp_path: Path
) -> None:
    asked = commands(model, tmp_path / "out")[name]
    done = run(*asked, "--engine", "spark", code=2)
    assert "unknown engine 'spark'; the engines are: local, ray" in done.stderr
    done = run(*asked, "--address", "10.0.0.1:6379", code=2)
    assert "add --engine ray" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("train", "tune")])
def test_workers_without_a_cluster_are_refused(name: str, model: str, tmp_path: Path) -> None:
    done = run(*commands(model, tmp_path / "out")[name], "--workers", 7, code=2)
    assert "uses one process; --workers is 7: add --engine ray" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere:x"])
def test_a_cluster_that_is_not_there_is_one_message_at_once(
    address: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bundlemage[ray]'")
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have joined one
    command = commands(model, tmp_path / "out")["evaluate"]
    done = run(*command, "--engine", "ray", "--address", address, code=2)
    assert done.stderr.startswith(f"error: cannot join a Ray cluster at {address}: ")
    assert "ray start --head" in done.stderr
    assert done.stderr.count("\n") == 1
