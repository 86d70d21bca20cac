"""What the commands say of a shop whose user_item gives held-out bundles away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bundlemage.sample.generate import write_shop
from tests.cli.run import TINY, run, run_json
from tests.leaking_shop import leaking_shop

GIVEN_AWAY = "Of 100 held-out bundles, 100 have only items that the buyer also has in user_item"
LEFT_OUT = "Histories are used without the items of held-out bundles."


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaking") / "shop"
    write_shop(leaking_shop(users=60), folder, "csv")
    return folder


def test_check_names_it_and_finds_no_problem(shop: Path) -> None:
    assert (
        "Of 100 bought bundles, 100 have only items that the buyer also has"
        in run("data", "check", shop).stderr
    )
    found = run_json("data", "check", shop)
    counts = found["leakage"]
    assert (found["ok"], counts["pairs"], counts["leaking"], counts["share"]) == (True, 360, 360, 1.0)
    assert counts["by_chance"] == counts["others_leaking"] / counts["others"] < 0.02
    assert (counts["items_of_bought"], counts["items_of_others"]) == (1.0, 0.0)


def test_check_of_a_clean_shop_tells_the_shares() -> None:
    told = run("data", "check", "sample").stderr
    assert told == (
        "Of 100 bought bundles, 2.2 have only items that the buyer also has in user_item (0.4 for bundles "
        "not bought). Users have 11.3% of the items of their bundles, and 4.4% of the items of other "
        "bundles; items from their other bundles are not counted.\n"
    )
    assert "leakage:" not in told
    assert "come from bundles" not in told


def test_check_names_a_leak_of_some_items(tmp_path: Path) -> None:
    write_shop(leaking_shop(users=60, recorded=0.4), tmp_path / "shop", "csv")
    told = run("data", "check", tmp_path / "shop").stderr
    assert "some items in user_item come from bundles" in told
    assert "--histories without-held-out" in told
    assert "leakage:" not in told


def test_train_and_evaluate_leave_the_items_out(shop: Path, tmp_path: Path) -> None:
    trained = run("train", shop, "-o", tmp_path / "model", "--model", "popularity", "--device", "cpu")
    assert f"leakage: {GIVEN_AWAY}" in trained.stderr
    assert LEFT_OUT in trained.stderr
    rows = run_json("evaluate", tmp_path / "model", shop)["test"]
    assert {(row["leakage"], row["histories"]) for row in rows} == {(1.0, "without held-out")}
    assert {0 <= row["leakage_by_chance"] < 0.02 for row in rows} == {True}
    assert LEFT_OUT in run("evaluate", tmp_path / "model", shop).stderr


def test_a_rule_that_sees_the_answers_is_flagged(shop: Path, tmp_path: Path) -> None:
    owned = ("--model", "owned-share", "--device", "cpu", "--histories", "as-given")
    trained = run("train", shop, "-o", tmp_path / "model", *owned)
    told = run("evaluate", tmp_path / "model", shop)
    for stderr in (trained.stderr, told.stderr):
        assert "Histories are used as given, so figures say little" in stderr
    for stdout in (trained.stdout, told.stdout):
        assert "note: Share of items owned learns nothing and reaches ndcg@5 " in " ".join(stdout.split())
    findings = run_json("evaluate", tmp_path / "model", shop)["findings"]
    assert "in matching" in findings[0]


def test_compare_leaves_the_items_out_or_flags_the_rule(shop: Path, tmp_path: Path) -> None:
    options = ("--model", "owned-share,popularity", "--cache", tmp_path / "cache", "--device", "cpu")
    table, page = tmp_path / "table.json", tmp_path / "table.md"
    clean = run("compare", shop, *options, "-o", table, "-o", page)
    assert LEFT_OUT in clean.stderr
    assert "learns nothing" not in clean.stderr
    assert LEFT_OUT in page.read_text()
    found = json.loads(table.read_text())
    (facts,) = found["data"]
    assert (facts["leakage"], facts["histories"]) == (1.0, "without held-out")
    assert 0 <= facts["leakage_by_chance"] < 0.02
    assert GIVEN_AWAY in facts["about_leakage"]
    assert found["warnings"] == []
    given = run("compare", shop, *options, "--histories", "as-given", "-o", table, "-o", page)
    assert "warning: owned-share learns nothing and reaches" in given.stderr
    assert "owned-share learns nothing and reaches" in page.read_text()
    assert [warning.split()[0] for warning in json.loads(table.read_text())["warnings"]] == ["owned-share"]


def test_tune_tells_it_and_keeps_the_way_in_the_recipe(shop: Path, tmp_path: Path) -> None:
    told = run(
        *("tune", shop, "-o", tmp_path / "study", "--trials", "1", "--histories", "without-held-out"),
        *TINY[:4],
        *("--set", "epochs=1", "--device", "cpu"),
    )
    assert LEFT_OUT in told.stderr
    assert 'histories = "without held-out"' in (tmp_path / "study" / "best.toml").read_text()


def test_a_wrong_word_is_refused(shop: Path, tmp_path: Path) -> None:
    refused = run("train", shop, "-o", tmp_path / "model", "--histories", "clean", code=2)
    assert "histories are 'clean'; they can be: auto, as given, without held-out" in refused.stderr
