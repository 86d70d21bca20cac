"""The half-life that training chooses: where it helps, where it does not, and who uses it afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bundlemage import Recommender, SplitPlan
from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.events import DAY, Events
from bundlemage.data.splits import Split
from bundlemage.models.config import RecencyConfig
from bundlemage.training import recency
from bundlemage.training.recency import FEWEST_CASES, Recency
from tests.dated_shop import at_random, with_times
from tests.small_shop import QUICK, dataset_of, small_shop

SETTINGS = {**QUICK, "small_shop_steps": 12, "epochs": 8}


def moving_shop(users: int = 240, seed: int = 0) -> BundleDataset:
    """Each user likes one of four kinds of bundles in the first year, and another one in the second year. Of
    each kind there are six bundles; bundle n is of kind n // 6. Pairs are in order, as in the matrix."""
    random = np.random.default_rng(seed)
    bought, days = [], []
    for _ in range(users):
        first, second = random.choice(4, 2, replace=False)
        early, late = (
            random.choice(6, 4, replace=False) + 6 * first,
            random.choice(6, 4, replace=False) + 6 * second,
        )
        at = {**dict.fromkeys(early.tolist(), 0), **dict.fromkeys(late.tolist(), 365)}
        for bundle in at:
            at[bundle] += int(random.integers(365))
        bought.append(sorted(at))
        days += [at[bundle] for bundle in sorted(at)]
    contents = [[3 * number, 3 * number + 1, 3 * number + 2] for number in range(24)]
    return with_times(dataset_of([[]] * users, bought, contents, 72), days)


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan("paper").divide(moving_shop())


@pytest.fixture(scope="module")
def fitted(split: Split) -> Recommender:
    return Recommender("bundlemage", **SETTINGS).fit(split, progress=False, calibrate=False)


class TestWhereTastesMove:
    def test_a_half_life_is_chosen(self, fitted: Recommender) -> None:
        found = fitted.recency
        assert found is not None
        assert found.half_life is not None
        assert found.tried[0].half_life is None
        best = max(found.tried, key=lambda each: each.likelihood)
        assert best.half_life == found.half_life
        assert best.ndcg > found.tried[0].ndcg
        assert f"Events count half after {found.half_life:g} days" in fitted.choice_in_words()[0]

    def test_it_is_the_setting_of_the_model_and_of_what_is_trained_later(
        self, fitted: Recommender, split: Split
    ) -> None:
        assert isinstance(fitted.config, RecencyConfig)
        assert fitted.recency is not None
        chosen = fitted.recency.half_life
        assert fitted.config.half_life == fitted.model.half_life == chosen
        assert fitted.final_settings()["half_life"] == chosen
        final = fitted.refit(split, progress=False)
        assert final.model.half_life == chosen
        assert final.recency == fitted.recency
        probes = fitted._probes(split)
        assert probes._config.half_life == chosen  # type: ignore[attr-defined]

    def test_it_is_saved(self, fitted: Recommender, tmp_path: Path) -> None:
        fitted.save(tmp_path / "model")
        loaded = Recommender.load(tmp_path / "model", device="cpu")
        assert loaded.recency == fitted.recency
        assert loaded.model.half_life == fitted.model.half_life
        assert loaded.recommend("u0") == fitted.recommend("u0")
        card = (tmp_path / "model" / "README.md").read_text()
        assert "Events count half after" in card
        assert json.loads((tmp_path / "model" / "config.json").read_text())["recency"]["tried"]

    def test_auto_chooses_it_too(self, split: Split) -> None:
        auto = Recommender("auto", **SETTINGS).fit(split, progress=False, calibrate=False)
        assert auto.recency is not None
        assert auto.model.half_life == auto.recency.half_life

    def test_a_setting_is_not_changed(self, split: Split) -> None:
        for half_life in (None, 50.0):
            model = Recommender("bundlemage", **SETTINGS, half_life=half_life)
            model.fit(split, progress=False, calibrate=False)
            assert model.recency is None
            assert model.model.half_life == half_life

    def test_of_many_users_some_are_used(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recency, "MOST_USERS", 100)
        some = recency._of_some_users(split, 0)
        assert len(some.train.users) == 100
        assert some.validation is not None
        assert len(some.validation) == 100  # each user has a case

        def histories(shop: BundleDataset) -> set[tuple[tuple[int, ...], ...]]:
            times, matrix = shop.bundle_events.at, shop.user_bundle
            assert times is not None
            rows = [slice(start, end) for start, end in pairwise(matrix.indptr.tolist())]
            return {(tuple(matrix.indices[row].tolist()), tuple(times[row].tolist())) for row in rows}

        assert histories(some.train) <= histories(split.train)


class TestWhereItDoesNotHelp:
    def test_times_without_a_trend_leave_it_off(self) -> None:
        shop = at_random(moving_shop(), 700)
        model = Recommender("bundlemage", **SETTINGS).fit(
            shop, SplitPlan("paper"), progress=False, calibrate=False
        )
        assert isinstance(model.recency, Recency)
        assert model.recency.half_life is None
        assert model.model.half_life is None
        assert "Recent events do not count more: no half-life is clearly better" in model.choice_in_words()[0]

    @pytest.mark.parametrize("days", ["none", "one"])
    def test_without_different_times_nothing_is_trained_for_it(self, days: str) -> None:
        shop = small_shop()
        times = None if days == "none" else [3] * shop.user_bundle.nnz
        model = Recommender("bundlemage", **QUICK)
        model.fit(with_times(shop, times), SplitPlan("paper"), progress=False, calibrate=False)
        assert model.recency is None
        assert model.model.half_life is None
        assert model.choice_in_words() == []

    def test_with_few_cases_nothing_is_trained_for_it(self) -> None:
        shop = moving_shop(FEWEST_CASES - 5)
        model = Recommender("bundlemage", **QUICK).fit(
            shop, SplitPlan("paper"), progress=False, calibrate=False
        )
        assert model.recency is None

    def test_models_without_the_setting_are_trained_as_before(self, split: Split) -> None:
        model = Recommender("owned-share", device="cpu").fit(split, progress=False)
        assert model.recency is None


def test_weights_and_rejections_follow_the_chosen_users() -> None:
    shop = moving_shop(60)
    at = shop.bundle_events.at
    weights = np.linspace(1, 2, shop.user_bundle.nnz, dtype=np.float32)
    rejected = binary_matrix([5], [0], shop.user_bundle.shape)
    shop = replace(shop, bundle_events=Events(at, weights, rejected))
    users = np.array([5, 40], np.int32)
    some = recency._only_users(shop, users)
    start, end = shop.user_bundle.indptr[40:42]
    assert some.bundle_events.weight is not None
    np.testing.assert_array_equal(some.bundle_events.weight[-(end - start) :], weights[start:end])
    assert some.bundle_events.rejected is not None
    assert some.bundle_events.rejected[0, 0] == 1
    assert some.bundle_events.at is not None
    assert some.bundle_events.at.max() < 800 * DAY
