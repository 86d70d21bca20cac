"""What `train` says of a split before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundlemage import Recommender
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.sample.generate import write_shop
from tests.cli.run import run
from tests.small_shop import dataset_of


def shop_of(owned: list[list[int]], bundles: int) -> BundleDataset:
    """A shop whose users have these bundles. Each bundle has two items of its own."""
    contents = [[2 * number, 2 * number + 1] for number in range(bundles)]
    return dataset_of([[0]] * len(owned), owned, contents, 2 * bundles)


def announced(folder: Path, owned: list[list[int]], bundles: int, *options: object) -> str:
    """What `train` says of this shop."""
    write_shop(shop_of(owned, bundles), folder / "shop", "csv")
    quick = ("--model", "popularity", "--device", "cpu")
    return run("train", folder / "shop", "-o", folder / "model", *quick, *options).stderr


def test_a_split_that_leaves_little_advises_another_protocol(tmp_path: Path) -> None:
    owned = [[(user + step) % 20 for step in range(3)] for user in range(60)]
    told = announced(tmp_path, owned, 20, "--protocol", "paper")
    assert "of 180 purchases of bundles, because paper holds out the others: add --final" in told
    assert "use --protocol some-users, which holds out less" in told
    assert "users are tested" not in told


@pytest.mark.parametrize("protocol", ["some-users", "paper"])
def test_a_held_out_best_seller_is_named(tmp_path: Path, protocol: str) -> None:
    """`paper` may hold out all of its purchases for validation as well. Then the advice is another one."""
    owned = [[0, *((user + step) % 19 + 1 for step in range(3))] if user < 20 else [0] for user in range(200)]
    shop = shop_of(owned, 20)
    held_out = [not SplitPlan(protocol, seed).divide(shop).train.bundle_item[0].nnz for seed in range(40)]
    for named in (True, False):
        folder = tmp_path / str(named)
        folder.mkdir()
        told = announced(folder, owned, 20, "--protocol", protocol, "--split-seed", held_out.index(named))
        assert (f"because {protocol} holds out the bundle b0, which has 200 of them" in told) == named
        assert ("another --split-seed" in told) == named
        assert ("use --protocol some-users" in told) == (protocol == "paper" and not named)


def test_few_tested_users_are_reported(tmp_path: Path) -> None:
    owned = [[user % 40, (user + 1) % 40][: 1 + (user < 140)] for user in range(1500)]
    told = announced(tmp_path, owned, 40)
    assert "protocol some-users" in told
    assert "of 1,500 users are tested, because some-users holds out no bundle of the others" in told


def test_settings_of_the_shop_are_saved_with_the_final_model(tmp_path: Path) -> None:
    shop = ("--shop", "currency=jpy", "--shop", "price_ending=80", "--shop", "owned=show")
    run("train", "--model", "popularity", "-o", tmp_path / "model", "--final", *shop)
    settings = Recommender.load(tmp_path / "model").shop_settings
    assert (settings.currency, settings.price_ending, settings.owned) == ("JPY", 80, "show")


def test_customers_who_buy_again_are_noticed_in_tables_and_in_what_ingest_writes(tmp_path: Path) -> None:
    shop, shards = tmp_path / "shop", tmp_path / "shards"
    write_shop(shop_of([[user % 20] for user in range(60)], 20), shop, "csv")
    bought = shop / "user_bundle.csv"
    bought.write_text(bought.read_text() + "".join(f"u{user},b{user % 20}\n" for user in range(30)))
    said = "user_bundle.csv: 30 of 90 rows repeat an earlier pair of a user and a bundle"
    ingested = run("data", "ingest", shop, "-o", shards, "--json")
    assert f"note: {said}" in " ".join(ingested.stderr.split())
    assert "bought-again" in ingested.stdout
    assert "warning" not in ingested.stderr
    for place in (shop, shards):
        assert f"note: {said}" in " ".join(run("data", "check", place).stderr.split())
        for owned, warned in (("demote", True), ("show", False)):
            train = ("train", place, "-o", tmp_path / f"{place.name}-{owned}", "--shop", f"owned={owned}")
            told = run(*train, "--model", "popularity", "--device", "cpu").stderr
            assert (f"warning: {said}" in " ".join(told.split())) == warned
