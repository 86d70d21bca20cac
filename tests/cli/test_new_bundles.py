"""Bundles that came after training, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bundlemage.sample.generate import write_shop
from tests.cli.run import BUNDLEMAGE, TINY, run, run_json
from tests.small_shop import small_shop

NEW = ["--new-bundle", "box=g0001,g0002,g0003"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "shop"
    write_shop(small_shop(bundles=60), folder, "csv")
    return folder


@pytest.fixture(scope="module")
def model(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    result = run("train", shop, "-o", folder, *BUNDLEMAGE, "--protocol", "none")
    assert "A new bundle is ranked as if it had sold" in " ".join(result.stdout.split())
    return folder


def scores(model: Path, *more: str) -> dict[str, float]:
    asked = run_json("recommend", model, "--user", "u0001", "-k", "100", *NEW, *more)
    return {bundle["id"]: bundle["score"] for bundle in asked["bundles"]}


def test_training_writes_down_what_a_new_bundle_is_credited_with(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    credit = config["new_bundle_credit"]
    assert credit["sales"] >= credit["median"]
    assert credit["at_credit"]["known_ndcg"] >= 0.98 * credit["at_median"]["known_ndcg"]
    assert f"as if it had sold {round(credit['sales']):,} time" in (model / "README.md").read_text("utf-8")


def test_a_new_bundle_is_ranked_by_what_it_should_sell(model: Path) -> None:
    plain = scores(model)["box"]
    assert scores(model, "--expected-sales", "box=0")["box"] < plain
    assert scores(model, "--expected-sales", "box=90000")["box"] > plain
    assert scores(model, "--sells-like", "box=b0001")["box"] > 0
    shown = run("recommend", model, "--user", "u0001", *NEW, "--expected-sales", "box=90000").output
    assert "box" in shown
    assert "new" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--expected-sales", "box=-4"], "expected a number of sales, 0 or more"),
        (["--expected-sales", "box=many"], "expected a number of sales, 0 or more"),
        (["--expected-sales", "box"], "write it as NAME=VALUE"),
        (["--expected-sales", "box=4", "--sells-like", "box=b0001"], "give either the expected sales"),
        (["--sells-like", "box=nowhere"], "unknown bundle id 'nowhere'"),
        (["--sells-like", "bax=b0001"], "is not among the new bundles"),
        (["--new-bundle", "b0001=g0001"], "has the id of a bundle that the shop already has"),
        (["--new-bundle", "other=nothing"], "unknown item id 'nothing'"),
    ],
)
def test_nonsense_is_refused(model: Path, options: list[str], words: str) -> None:
    result = run("recommend", model, "--user", "u0001", *NEW, *options, code=2)
    assert words in " ".join(result.stderr.split())


def test_new_bundles_are_not_for_everyone_at_once(model: Path, tmp_path: Path) -> None:
    result = run("recommend-all", model, "-o", tmp_path / "all.parquet", *NEW, code=2)
    assert "No such option: --new-bundle" in " ".join(result.stderr.split())


def test_models_are_compared_on_new_bundles(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["compare", shop, *TINY, "-m", "bundlemage,coheat,ease,popularity", "-o", "all.json"]
    protocols = ("new-bundles", "new-bundles-known")
    run(*asked, *(option for name in protocols for option in ("--protocol", name)))
    found: Any = json.loads(Path("all.json").read_text(encoding="utf-8"))
    text = json.dumps(found)
    for name in protocols:
        assert name in text
    median = ["--set", "bundlemage.new_bundle_credit=median"]
    run("compare", shop, *TINY, "-m", "bundlemage", "--protocol", "new-bundles", *median)
