"""The generated shop `seasons`: its truth, and what it shows about times."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundlemage import Recommender, SplitPlan, read
from bundlemage.data.events import DAY
from bundlemage.sample.generate import write_shop
from bundlemage.sample.kinds import ShopOfKind, shop_of_kind
from bundlemage.sample.seasons import MONTHS
from tests.cli.run import run, run_json
from tests.small_shop import small_shop

QUICK: dict[str, Any] = {"embedding_dim": 32, "epochs": 12, "device": "cpu"}

shop_of = cache(shop_of_kind)


def months(shop: ShopOfKind) -> NDArray[np.int64]:
    at = shop.dataset.bundle_events.at
    assert at is not None
    found: NDArray[np.int64] = (at - 19_358 * DAY) * MONTHS // (731 * DAY)
    return found


class TestTheTruth:
    def test_purchases_are_in_two_years(self) -> None:
        shop = shop_of("seasons")
        assert set(months(shop).tolist()) == set(range(MONTHS))
        for events in (shop.dataset.bundle_events, shop.dataset.item_events):
            assert events.at is not None
            assert np.datetime64("2023-01-01") <= events.at.min().astype("datetime64[us]")
            assert events.at.max().astype("datetime64[us]") < np.datetime64("2025-01-01")

    @pytest.mark.parametrize("seed", range(3))
    def test_the_chances_of_the_months_are_those_of_the_purchases(self, seed: int) -> None:
        shop = shop_of("seasons", seed)
        chance = shop.month_chance
        assert chance is not None
        np.testing.assert_allclose(chance.sum(axis=2), shop.bundle_chance, rtol=1e-9)
        bundles = shop.dataset.user_bundle.indices
        found = np.zeros(chance.shape[1:])
        np.add.at(found, (bundles, months(shop)), 1)
        expected = chance.sum(axis=0)
        assert found[expected == 0].sum() == 0
        # The purchases of different users are independent, and a user has a pair in one month at most.
        variance = (chance * (1 - chance)).sum(axis=0)
        big = expected > 3
        z = (found - expected)[big] / np.sqrt(variance[big])
        assert abs(z.mean()) < 0.2
        assert 0.85 < z.std() < 1.15

    def test_tastes_drift(self) -> None:
        """What a user likes in a month tells little about the same user a year later."""
        chance = shop_of("seasons").month_chance
        assert chance is not None

        def alike(apart: int) -> float:
            one, other = chance[:, :, 6], chance[:, :, 6 + apart]
            both = (one > 0) & (other > 0)
            taste = [each / each.sum(axis=0, keepdims=True).clip(min=1e-9) for each in (one, other)]
            return float(np.corrcoef(taste[0][both], taste[1][both])[0, 1])

        assert alike(1) > 0.7 > 0.3 > alike(15)

    def test_bundles_come_and_have_seasons(self) -> None:
        chance = shop_of("seasons").month_chance
        assert chance is not None
        sold = chance.sum(axis=0) > 0
        first = sold.argmax(axis=1)
        assert (first > 0).sum() > len(first) / 2
        assert all(sold[bundle, first[bundle] :].all() for bundle in range(len(first)))


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    """nDCG@10 on the last stretch with the chosen half-life and without, and in a random split."""
    shop, found = shop_of("seasons").dataset, {}
    off: dict[str, Any] = {**QUICK, "half_life": None}
    for name, plan, settings in (
        ("recency", SplitPlan("time"), QUICK),
        ("none", SplitPlan("time"), off),
        ("random", SplitPlan("full", order="random"), off),
    ):
        split = plan.divide(shop)
        model = Recommender("bundlemage", **settings).fit(split, progress=False, calibrate=False)
        matching = model.evaluate(split).matching
        assert matching is not None
        found[name] = matching["ndcg@10"]
        assert (model.model.half_life is not None) == (name == "recency")
    return found


class TestWhatItShows:
    def test_the_chosen_half_life_beats_none_on_the_last_stretch(self, figures: dict[str, float]) -> None:
        assert figures["recency"] > 1.3 * figures["none"]

    def test_a_random_split_is_too_rosy(self, figures: dict[str, float]) -> None:
        assert figures["random"] > 1.5 * figures["recency"]


class TestTheCommands:
    def test_tables_have_times_and_are_divided_by_them(self, tmp_path: Path) -> None:
        run("data", "sample", "--kind", "seasons", "-o", tmp_path / "shop")
        assert read(tmp_path / "shop").dataset.fingerprint() == shop_of("seasons").dataset.fingerprint()
        quick = ("--model", "ease", "--device", "cpu", "-o", tmp_path / "model")
        ran = run("train", tmp_path / "shop", "--protocol", "time", *quick, "--json")
        assert "protocol time: learning from 4,194 of 5,991 user-bundle pairs, all but what" in ran.stderr
        told = json.loads(ran.stdout)
        assert told["recency"]["half_life"] is not None
        assert told["test"][0]["protocol"] == "time"
        assert told["test"][0]["matching_cases"] > 400
        again = run_json("evaluate", tmp_path / "model", tmp_path / "shop")
        assert again["test"] == told["test"]
        assert again["data_changed"] is False
        assert again["recency"] == told["recency"]
        late = (*quick, "--overwrite", "--protocol", "time", "--test-from", "2024-10-01")
        assert "until 2024-10-01 validate" in " ".join(run("train", tmp_path / "shop", *late).stderr.split())

    def test_the_last_bundles_are_announced(self, tmp_path: Path) -> None:
        quick = ("--model", "popularity", "--device", "cpu", "--overwrite", "-o", tmp_path / "model")
        said = run("train", "sample:seasons", "--protocol", "paper", *quick).stderr
        assert "the last ones of each user are held out" in " ".join(said.split())
        said = run("train", "sample:seasons", "--protocol", "paper", "--order", "random", *quick).stderr
        assert "the rest is held out" in " ".join(said.split())

    def test_a_shop_without_times(self, tmp_path: Path) -> None:
        write_shop(small_shop(), tmp_path / "shop")
        ran = run("train", tmp_path / "shop", "--protocol", "time", "-o", tmp_path / "model", code=2)
        said = " ".join(ran.output.split())
        assert "the protocol 'time' needs the times of purchases: add a column 'at'" in said
