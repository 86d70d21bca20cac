"""Measures beyond accuracy, and slices, as the commands print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bundlemage.measures.meaning import FEW_MEANS, LIST_MEASURES, MEANING
from tests.cli.run import run, run_json


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "shop"
    run("data", "sample", "--users", 200, "--items", 150, "--bundles", 60, "-o", folder)
    return folder


@pytest.fixture(scope="module")
def model(shop: Path) -> Path:
    run("train", shop, "-o", shop.parent / "model", "--model", "popularity")
    return shop.parent / "model"


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_terminal_shows_what_answers_show_and_what_it_means(shop: Path, model: Path) -> None:
    shown = run("evaluate", model, shop).stdout
    for name in LIST_MEASURES:
        assert f"{name}@10" in shown
        assert f"{name}: {MEANING[name]}" in flat(shown)
    assert "Where is the model good?" not in shown
    assert "mrr@" not in shown, "the table of accuracy stays as short as it was"


def test_slices_are_shown_if_asked_for(shop: Path, model: Path) -> None:
    shown = flat(run("evaluate", model, shop, "--slices").stdout)
    content = run_json("evaluate", model, shop)
    assert shown.count("Where is the model good?") == 2
    for task in ("matching", "generation"):
        for way in content["slices"][task]:
            assert f"{way['by']}: {way['about']}" in shown
            for each in way["slices"]:
                figure = each["metrics"]["ndcg@5"]
                number = f"{figure['mean']:.3f}" + (f" ± {figure['error']:.3f}" if figure["error"] else "")
                assert number in shown
    assert (FEW_MEANS in shown) == any(
        each["little"] for ways in content["slices"].values() for way in ways for each in way["slices"]
    )


def test_slices_by_a_column(shop: Path, model: Path) -> None:
    shown = run("evaluate", model, shop, "--slice-by", "price", "--slice-by", "tags").stdout
    content = run_json("evaluate", model, shop, "--slice-by", "price", "--slice-by", "tags")
    assert [way["by"] for way in content["slices"]["matching"]][-2:] == ["price", "tags"]
    price = content["slices"]["matching"][-2]
    assert sum(each["cases"] for each in price["slices"]) == content["test"][0]["matching_cases"]
    assert "The price of the right bundle" in flat(shown)
    refused = run("evaluate", model, shop, "--slice-by", "colour", code=2).stderr
    assert "error: cases cannot be divided by the column 'colour'; columns of the catalogue" in refused


def test_a_comparison_has_them_in_its_files(shop: Path, tmp_path: Path) -> None:
    command = ["compare", shop, "-m", "item-knn,popularity", "--cache", tmp_path / "cache"]
    files = [tmp_path / f"all.{kind}" for kind in ("md", "html", "json")]
    outputs = [part for file in files for part in ("-o", file)]
    shown = run(*command, "--metrics", "ndcg@5,mrr@10", "--slice-by", "price", *outputs).stdout
    assert "mrr@10" in shown
    for file in files[:2]:
        text = file.read_text()
        assert MEANING["gini"] in text
        assert "What the answers show" in text
        assert "The price of the right bundle" in text
    assert "--slice-by" in run("compare", "--help").stdout
