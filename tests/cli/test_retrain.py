"""`bundlemage retrain` as a shop runs it: what it prints, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bundlemage import Recommender
from bundlemage.artifact.files import artifact_version
from bundlemage.data.splits import SplitPlan
from bundlemage.store.records import InteractionRecord
from bundlemage.store.repository import Store
from tests.cli.run import run, run_json
from tests.growing_shop import (
    USERS,
    early_model,
    early_shop,
    late_model,
    open_early,
    open_late,
    record_of,
    sell,
)

CRIPPLED = ["--set", "learning_rate=1e-9", "--set", "popularity_weight=0", "--epochs", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return early_model(tmp_path_factory.mktemp("models") / "shop")


@pytest.fixture
def store(tmp_path: Path, model: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/shop.db")
    open_early(opened, model)
    sell(opened)
    yield opened
    opened.close()


def test_what_a_published_model_prints_and_what_nothing_new_does(
    store: Store, tmp_path: Path, model: Path
) -> None:
    where = ["--db", tmp_path / "shop.db", "--models", tmp_path / "models"]
    first = run_json("retrain", *where, "--seed", "3")
    assert first["published"]
    assert first["cases"] == first["comparison"]["cases"] == USERS
    assert first["serving"] == artifact_version(model)
    assert first["version"] == artifact_version(Path(first["path"])) == store.state().model
    assert first["decided_by"] == "ndcg@10"
    comparison = first["comparison"]
    assert comparison["candidate"]["ndcg@10"] > comparison["serving"]["ndcg@10"]
    assert comparison["difference"] == pytest.approx(
        comparison["candidate"]["ndcg@10"] - comparison["serving"]["ndcg@10"]
    )
    assert first["epochs"] == 20
    assert (first["prompted"], first["since"], first["new_bundles"], first["removed"]) == (0, None, 0, [])
    assert first["generation"] is None
    assert (first["with_list"], first["not_removed"], first["warnings"]) == (0, [], [])
    assert first["test"][0]["protocol"] == "retrain"

    nothing_new = run("retrain", *where)
    assert f"Not published, {first['version']} continues to serve: 0 users have" in nothing_new.stdout
    assert run_json("retrain", *where)["comparison"] is None

    store.publish(record_of(model))
    good = run("retrain", *where)
    assert f"{USERS} purchases that are new to the serving model" in good.stderr
    assert "chosen at random" in good.stderr
    assert "learning from 200 of 400 user-bundle pairs; if the new model is published" in good.stderr
    assert "warning" not in good.stderr
    assert "serving" in good.stdout
    assert f"over {USERS} cases it differs by +0." in " ".join(good.stdout.split())
    assert f"Published {store.state().model} as " in good.stdout
    assert "Completing bundles was not compared: 0 bundles are new" in good.stdout


def test_a_worse_model_is_refused_with_exit_code_0_and_published_by_force(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/late.db")
    open_late(store, late_model(tmp_path / "good", shop={"currency": "JPY"}))
    where = ["--db", tmp_path / "late.db"]

    refused = run("retrain", *where, *CRIPPLED)
    assert "Not published" in refused.stdout
    assert "is lower than the serving model's" in refused.stdout
    assert store.state().model == artifact_version(tmp_path / "good")
    assert [path.name for path in tmp_path.glob("good*")] == ["good"]

    forced = run_json("retrain", *where, *CRIPPLED, "--force")
    assert forced["published"]
    assert forced["reason"].startswith("forced: ")
    assert Path(forced["path"]).parent == tmp_path  # beside the one that served
    assert Recommender.load(forced["path"]).shop_settings.currency == "JPY"
    assert store.state().model == forced["version"]
    store.close()


def test_another_model_and_only_so_many_old_ones(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/late.db")
    open_late(store, late_model(tmp_path / "good", epochs=1, shop={"owned": "show"}))
    where = ["--db", tmp_path / "late.db", "--model", "popularity", "--keep", "1"]
    paths = [Path(run_json("retrain", *where, "--force")["path"]) for _ in range(2)]
    assert store.models()[0].name == "popularity"
    assert paths[0].exists()  # the service may not have left it yet
    last = run("retrain", *where, "--force")
    assert f"Removed the old model {paths[0]}." in last.stdout.replace("\n", "")
    assert not paths[0].exists()
    assert paths[1].exists()
    assert Recommender.load(paths[1]).shop_settings.owned == "show"
    assert (tmp_path / "good").exists()
    store.close()


def test_purchases_without_any_list_are_warned_about(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/late.db")
    store.import_dataset(early_shop())
    model = Recommender("popularity", device="cpu").fit(early_shop(), SplitPlan("none"), progress=False)
    store.publish(record_of(model.save(tmp_path / "shop")))
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    days = [
        InteractionRecord(f"u{user}", "bundle", f"b{user % 40}", noon + timedelta(days=user))
        for user in range(USERS)
    ]
    store.add_interactions(days)
    said = run("retrain", "--db", tmp_path / "late.db", "--places", "5").stderr
    assert "warning: the store has a list shown to the user before the purchase for 0 of the 5" in said
    store.close()


def test_whoever_comes_second_gets_one_message(store: Store, tmp_path: Path) -> None:
    with store.alone("retrain"):
        refused = run("retrain", "--db", tmp_path / "shop.db", code=2)
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert "retrain is under way there already" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name a database with --db"),
        (["--db", "nowhere.db"], "there is no database nowhere.db: check --db"),
        (["--db", "empty.db"], "has no model"),
        (["--db", "shop.db", "--set", "epoch=3"], "unknown setting 'epoch'"),
        (["--db", "shop.db", "--tolerance", "-1"], "tolerance"),
        (["--db", "shop.db", "--keep", "0"], "the number of models to keep is 0; it must be 1 or more"),
        (["--db", "shop.db", "--places", "0"], "the number of places of a list is 0; it must be 1 or more"),
        (["--db", "shop.db", "--model", "bpr", "--force"], "the service cannot serve it"),
        (["--db", "shop.db", "--model", "bundlemagic"], "bundlemagic"),
        (["--db", "shop.db", "--device", "abacus"], "unknown device 'abacus'"),
        (["--db", "oracle://shop"], "SQLite or PostgreSQL"),
    ],
)
@pytest.mark.usefixtures("store")
def test_bad_input_is_one_message_and_exit_code_2(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Store.open("sqlite:///empty.db").close()
    refused = run("retrain", *options, code=2)
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
