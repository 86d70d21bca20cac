"""`--events`: in every command that reads data, in recipes, in saved models, and in what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.readers.load import read
from bundlemage.recommender import Recommender
from tests.cli.run import run, run_json
from tests.small_shop import small_shop

EVENTS = "view=0.2,buy=1,return=-1"
PLAIN = ["--model", "popularity", "--device", "cpu"]


def write_events(data: BundleDataset, folder: Path) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    rows, columns = data.user_item.nonzero()
    kinds = random.choice(["view", "buy", "return"], len(rows), p=[0.3, 0.65, 0.05])
    days = random.integers(0, 28, len(rows))
    lines = [
        f"{data.users[row]},{data.items[column]},2026-01-{1 + int(day):02},{kind}"
        for row, column, day, kind in zip(rows, columns, days, kinds, strict=True)
    ]
    (folder / "user_item.csv").write_text("\n".join(["user_id,item_id,date,type", *lines]) + "\n")
    for name, one, other in (("user_bundle", "users", "bundles"), ("bundle_item", "bundles", "items")):
        rows, columns = getattr(data, name).nonzero()
        pairs = zip(rows, columns, strict=True)
        lines = [f"{getattr(data, one)[row]},{getattr(data, other)[column]}" for row, column in pairs]
        header = f"{one[:-1]}_id,{other[:-1]}_id"
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(small_shop(), tmp_path_factory.mktemp("data") / "shop")


def test_check_says_what_is_known(tables: Path) -> None:
    said = run("data", "check", tables, "--events", EVENTS).stdout
    assert "no problem found" in said
    assert "user_item: types of events (rows): buy " in said
    assert "user_item: times: 2026-01-01T00:00:00Z to 2026-01-28T00:00:00Z" in said
    assert "user_item: weights of pairs: 0.2 to 1, median 1" in said
    assert "user_item: rejected, because the latest event is negative: " in said
    known = run_json("data", "check", tables, "--events", EVENTS)["events"]
    assert known == run_json("data", "stats", tables, "--events", EVENTS)["events"]
    assert known["user_item"]["weights"] == [pytest.approx(0.2), 1.0, 1.0]
    assert "user_item: rejected, " in run("data", "stats", tables, "--events", EVENTS).stdout


def test_without_events_each_type_counts_as_one_and_says_so(tables: Path) -> None:
    said = run("data", "check", tables).stderr
    assert "warning: user_item.csv: 'type' (read as 'event') holds several types of events" in said
    assert "as in --events buy=1,view=0.2,return=-1" in said


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ("buy", "--events 'buy': write it as TYPE=WEIGHT"),
        ("buy=1,buy=2", "--events names 'buy' twice"),
        ("buy=lots", "the event 'buy' has the weight 'lots'; expected a number"),
        ("buy=nan", "the event 'buy' has the weight nan; expected a number"),
        (",", "--events is empty"),
        ("view=0", "no event has a weight above 0"),
        ("buy=1", "does not name"),
    ],
)
def test_what_is_wrong_with_them(events: str, message: str, tables: Path) -> None:
    for command in (("check",), ("stats",)):
        assert message in " ".join(run("data", *command, tables, "--events", events, code=2).output.split())


def test_a_shop_without_types_of_events_takes_no_weights() -> None:
    said = run("data", "stats", "sample", "--events", "buy=1", code=2).output
    assert "a built-in shop has no types of events" in " ".join(said.split())


def test_a_model_keeps_them_and_evaluate_uses_them(tables: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    trained = run_json("train", tables, "-o", model, "--events", EVENTS, *PLAIN)
    loaded = Recommender.load(model).dataset
    weights = {"view": 0.2, "buy": 1.0, "return": -1.0}
    assert loaded.event_weights == weights
    assert loaded.fingerprint() == read(tables, events=weights).dataset.fingerprint()
    evaluated = run_json("evaluate", model, tables)
    assert not evaluated["data_changed"]
    assert evaluated["test"] == trained["test"]
    other = run_json("evaluate", model, tables, "--events", "view=1,buy=1,return=-1")
    assert other["data_changed"]


def test_a_recipe_and_shards_give_the_same_model(tables: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "shop.toml"
    recipe.write_text('model = "popularity"\n[events]\nview = 0.2\nbuy = 1\nreturn = -1\n')
    run("train", tables, "-o", tmp_path / "model", "--recipe", recipe)
    run("data", "ingest", tables, "-o", tmp_path / "shards", "--events", EVENTS)
    run("train", tmp_path / "shards", "-o", tmp_path / "other", *PLAIN)
    by_recipe, by_shards = (Recommender.load(tmp_path / name).dataset for name in ("model", "other"))
    assert by_recipe.fingerprint() == by_shards.fingerprint()
    assert by_recipe.event_weights == by_shards.event_weights
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[events]\nbuy = "1"\n')
    said = run("train", tables, "-o", tmp_path / "no", "--recipe", wrong, code=2).output
    assert "the event 'buy' has the weight '1'" in " ".join(said.split())


def test_compare_and_tune_take_them(tables: Path, tmp_path: Path) -> None:
    compared = run_json(
        "compare", tables, "--model", "popularity", "--events", EVENTS, "--cache", tmp_path / "cache"
    )
    assert not compared["warnings"]
    tuning = ["tune", tables, "-o", tmp_path / "study", "--model", "ease", "--trials", "1", "--jobs", "1"]
    run(*tuning, "--events", EVENTS)
    assert '[events]\n"view" = 0.2' in (tmp_path / "study" / "best.toml").read_text()


def test_a_run_is_not_resumed_with_other_weights(tables: Path, tmp_path: Path) -> None:
    study = ["tune", tables, "-o", tmp_path / "study", "--model", "ease", "--trials", "1"]
    run(*study, "--events", EVENTS)
    said = run(*study, "--events", "view=1,buy=1,return=-1", "--resume", code=2).output
    assert "data" in said
    assert json.loads(run(*study, "--events", EVENTS, "--resume", "--json").stdout)
