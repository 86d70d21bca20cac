"""What a bundle that came after training is credited with: found from the data, or said by whoever knows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import Recommender, SplitPlan
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.models.base import Matcher, SalesScorer, can, require
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.ragged import Contents
from bundlemage.training.assumed_sales import MOST_LOST, AssumedSales, best_sales, find_assumed_sales
from bundlemage.training.probes import Probes
from tests.small_shop import QUICK, dataset_of, small_shop

TASTES, ITEMS, USERS = 10, 8, 24
GOOD, HITS, ODD = 8, 25, 130
SETTINGS: dict[str, Any] = QUICK | {"epochs": 8, "learning_rate": 0.02, "tasks": "matching"}


def shop_with_good_new_bundles(seed: int = 0) -> BundleDataset:
    """Each user has a taste. Some bundles keep to one taste and sell well to those who have it, some are of
    everything and sell to everyone, and most are thrown together and sell once. So the median sale is one,
    also for a new bundle that keeps to a taste."""
    random = np.random.default_rng(seed)
    items = TASTES * ITEMS

    def drawn(first: int, among: int) -> set[int]:
        return {first + int(item) for item in random.choice(among, 4, replace=False)}

    bundle_item = [drawn(taste * ITEMS, ITEMS) for taste in range(TASTES) for _ in range(GOOD)]
    bundle_item += [drawn(0, items) for _ in range(HITS + ODD)]
    user_item, user_bundle = [], []
    for user in range(TASTES * USERS):
        taste = user % TASTES
        user_item.append(drawn(taste * ITEMS, ITEMS))
        liked = taste * GOOD + np.flatnonzero(random.random(GOOD) < 0.5)
        hits = TASTES * GOOD + np.flatnonzero(random.random(HITS) < 0.15)
        user_bundle.append({*liked.tolist(), *hits.tolist()})
    for odd in range(ODD):
        user_bundle[int(random.integers(TASTES * USERS))].add(TASTES * GOOD + HITS + odd)
    return dataset_of(user_item, user_bundle, bundle_item, items)


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return shop_with_good_new_bundles()


@pytest.fixture(scope="module")
def split(shop: BundleDataset) -> Split:
    return SplitPlan("new-bundles").divide(shop)


@pytest.fixture(scope="module")
def model(split: Split) -> Recommender:
    return Recommender(**SETTINGS).fit(split)


def credit_of(model: Recommender) -> AssumedSales:
    found = model.new_bundle_credit
    assert found is not None
    return found


class TestFitting:
    def test_new_bundles_are_found_and_known_ones_are_not_lost(
        self, shop: BundleDataset, split: Split, model: Recommender
    ) -> None:
        known = SplitPlan("new-bundles-known").divide(shop)
        fitted = [_ndcg(model, split), _ndcg(model, known)]
        credit = credit_of(model)
        require(model.model, SalesScorer).assume_sales(credit.median)
        plain = [_ndcg(model, split), _ndcg(model, known)]
        require(model.model, SalesScorer).assume_sales(credit.sales)
        assert credit.sales > credit.median
        assert fitted[0] > 1.1 * plain[0]
        assert fitted[1] > 0.97 * plain[1]

    def test_it_says_what_it_found(self, model: Recommender) -> None:
        credit = credit_of(model)
        assert credit.at_credit is not None
        assert credit.at_median is not None
        assert credit.at_credit["new_ndcg"] > credit.at_median["new_ndcg"]
        assert credit.at_credit["known_ndcg"] >= (1 - MOST_LOST) * credit.at_median["known_ndcg"]
        assert f"as if it had sold {round(credit.sales):,} time" in str(credit)
        assert f"{credit.at_credit['new_ndcg']:.4f}" in str(credit)

    def test_it_follows_from_the_seed_and_the_training_data(self, shop: BundleDataset, split: Split) -> None:
        def find(split: Split, **settings: Any) -> AssumedSales:
            config = Recommender(**SETTINGS, **settings).config
            return find_assumed_sales(config, Probes("bundlemage", config, split, _CPU, epochs=3))

        before = torch.random.get_rng_state()
        first, again = find(split), find(split)
        assert first == again
        assert torch.equal(before, torch.random.get_rng_state())
        assert find(split, seed=5) != first
        # The test's purchases are not looked at.
        blind = Split(split.train, split.train, None, None, None, "x", split.plan, split.new_bundles)
        assert find(blind) == first

    def test_a_model_of_both_tasks_is_credited_too(self, shop: BundleDataset) -> None:
        both = Recommender(**SETTINGS | {"tasks": "both", "epochs": 2}).fit(shop)
        credit = credit_of(both)
        assert isinstance(both.model, BundleMage)
        assert both.model.new_bundle_credit == pytest.approx(credit.sales)

    def test_only_fit_and_calibrate_look_for_it(
        self, shop: BundleDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        def find(*arguments: Any, **more: Any) -> AssumedSales:
            calls.append(arguments[0].new_bundle_credit)
            return AssumedSales(7.0, 1.0, "a test says so")

        monkeypatch.setattr("bundlemage.recommender.find_assumed_sales", find)
        split = SplitPlan("paper").divide(shop)
        model = Recommender(**SETTINGS | {"epochs": 1}).fit(split, calibrate=False)
        model.recommend("u0", new_bundles={"box": ["i0"]})
        model.evaluate(split)
        model.save(tmp_path / "plain")
        assert (calls, model.calibration, model.new_bundle_credit) == ([], None, None)
        for _ in range(2):
            model.calibrate(split)
        assert calls == ["fit"]
        assert isinstance(model.model, BundleMage)
        assert float(model.model.new_bundle_credit) == 7
        fitted = Recommender(**SETTINGS | {"epochs": 1}).fit(split)
        assert calls == ["fit"] * 2
        assert fitted.calibration is not None
        assert fitted.new_bundle_credit == model.new_bundle_credit

    def test_saving_does_not_run_the_model(
        self, shop: BundleDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = Recommender(**SETTINGS | {"epochs": 1}).fit(shop)
        plain = Recommender(**SETTINGS | {"epochs": 1}).fit(shop, calibrate=False)
        monkeypatch.setattr(BundleMage, "score_bundles", None)
        monkeypatch.setattr("bundlemage.recommender.find_assumed_sales", None)
        loaded = Recommender.load(model.save(tmp_path / "model"), device="cpu")
        assert loaded.calibration == model.calibration is not None
        assert loaded.new_bundle_credit == model.new_bundle_credit is not None
        assert Recommender.load(plain.save(tmp_path / "plain"), device="cpu").new_bundle_credit is None

    def test_a_split_of_new_bundles_always_finds_it(self, split: Split, model: Recommender) -> None:
        compared = Recommender(**SETTINGS).fit(split, calibrate=False)
        assert compared.new_bundle_credit == model.new_bundle_credit
        assert compared.calibration is None

    @pytest.mark.parametrize(
        ("credit", "sales", "words"), [("median", 1.0, "the median"), (12.5, 12.5, "as the settings say")]
    )
    def test_a_setting_takes_its_place(
        self, shop: BundleDataset, credit: Any, sales: float, words: str
    ) -> None:
        model = Recommender(**SETTINGS | {"epochs": 1, "new_bundle_credit": credit}).fit(
            shop, SplitPlan("none")
        )
        found = credit_of(model)
        assert (found.sales, found.at_credit) == (sales, None)
        assert words in found.reason
        assert isinstance(model.model, BundleMage)
        assert float(model.model.new_bundle_credit) == sales

    @pytest.mark.parametrize("credit", [-1, math.nan, "mean"])
    def test_nonsense_is_refused(self, credit: Any) -> None:
        with pytest.raises(ConfigError, match="new_bundle_credit"):
            Recommender(new_bundle_credit=credit)

    def test_a_small_shop_keeps_the_median_and_says_why(self) -> None:
        model = Recommender(**SETTINGS).fit(small_shop(bundles=30))
        credit = credit_of(model)
        assert credit.sales == credit.median
        assert "fewer than 40 bundles with items have a buyer" in str(credit)

    def test_so_does_a_shop_where_everyone_has_one_bundle(self) -> None:
        shop = dataset_of(
            [[n % 5] for n in range(60)], [[n] for n in range(60)], [[n % 5] for n in range(60)], 5
        )
        credit = credit_of(Recommender(**SETTINGS | {"epochs": 1}).fit(shop, SplitPlan("none")))
        assert (credit.sales, credit.median) == (1, 1)
        assert "too few users have bought two bundles" in str(credit)

    def test_so_does_a_shop_where_the_held_out_bundles_have_no_buyer(
        self, shop: BundleDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probes = Probes("popularity", Recommender("popularity").config, _none_sold(shop), _CPU, epochs=1)
        probes.parts = [np.arange(len(shop.bundles) - 20, len(shop.bundles), dtype=np.int32)]
        found = find_assumed_sales(Recommender(**SETTINGS).config, probes)
        assert found.sales == found.median
        assert "none of the 20 bundles held out of training has a buyer" in str(found)

    def test_models_without_a_term_for_sales_have_none(self, shop: BundleDataset) -> None:
        plain = Recommender(**SETTINGS | {"epochs": 1, "popularity_weight": 0.0}).fit(shop)
        generating = Recommender(**SETTINGS | {"epochs": 1, "tasks": "generation"}).fit(shop)
        for model in (Recommender("ease", device="cpu").fit(shop), plain, generating):
            assert model.new_bundle_credit is None
            assert not can(model.model, SalesScorer)
        with pytest.raises(UnsupportedError, match="no term for sales"):
            plain.recommend("u0", new_bundles={"box": ["i0"]}, expected_sales={"box": 3})

    def test_it_is_saved_loaded_and_in_the_card(self, model: Recommender, tmp_path: Path) -> None:
        loaded = Recommender.load(model.save(tmp_path / "model"), device="cpu")
        assert loaded.new_bundle_credit == model.new_bundle_credit
        card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
        assert str(credit_of(model)) in card
        asked: dict[str, Any] = {"new_bundles": {"box": ["i0", "i1", "i2"]}}
        assert loaded.recommend("u0", 500, **asked) == model.recommend("u0", 500, **asked)


class TestChoosing:
    def test_the_best_of_both_within_the_limit(self) -> None:
        new, known = np.array([0.0, 0.1, 0.2, 0.4]), np.array([1.0, 0.995, 0.985, 0.9])
        assert best_sales(new, known) == 2

    def test_nothing_found_is_the_lowest(self) -> None:
        assert best_sales(np.zeros(3), np.ones(3)) == 0
        assert best_sales(np.zeros(3), np.zeros(3)) == 0

    def test_a_cost_within_the_limit_counts(self) -> None:
        assert best_sales(np.array([0.999, 1.0]), np.array([1.0, 0.985])) == 0


class TestSaying:
    NEW: dict[str, Any] = {"new_bundles": {"box": ["i0", "i1", "i2"]}}  # noqa: RUF012

    def score(self, model: Recommender, **said: Any) -> float:
        answers = model.recommend("u0", 500, **self.NEW, **said, owned="show")
        return next(answer.score for answer in answers if answer.id == "box")

    def test_more_expected_sales_rank_higher(self, model: Recommender) -> None:
        scores = [self.score(model, expected_sales={"box": count}) for count in (0, 5, 50, 5000)]
        assert scores == sorted(set(scores))
        credit = credit_of(model)
        assert self.score(model, expected_sales={"box": credit.sales}) == pytest.approx(
            self.score(model), rel=1e-4
        )

    def test_a_twin_of_the_best_seller_that_sells_like_it_ranks_like_it(
        self, shop: BundleDataset, model: Recommender
    ) -> None:
        best = shop.bundles[int(require(model.model, SalesScorer).known_sales().argmax())]
        row = shop.bundle_item[shop.bundles.position(best)].indices
        new = {"twin": [shop.items[place] for place in row], "other": ["i1"]}
        answers = model.recommend("u0", 500, new_bundles=new, sells_like={"twin": best}, owned="show")
        scores = {answer.id: answer.score for answer in answers}
        assert scores["twin"] == pytest.approx(scores[best], rel=1e-4)
        by_number = {"twin": float(require(model.model, SalesScorer).known_sales().max())}
        assert model.recommend_many(["u0"], 500, new_bundles=new, expected_sales=by_number, owned="show") == [
            answers
        ]

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            (
                {"expected_sales": {"box": -1}},
                "expected sales of 'box' are -1; expected a number of 0 or more",
            ),
            ({"expected_sales": {"box": math.nan}}, "expected a number of 0 or more"),
            ({"expected_sales": {"box": "many"}}, "expected a number of 0 or more"),
            ({"expected_sales": {"bax": 1}}, "given for 'bax', which is not among the new bundles"),
            ({"sells_like": {"bax": "b0"}}, "expected sales are given for 'bax'"),
            ({"expected_sales": {"box": 1}, "sells_like": {"box": "b0"}}, "give either the expected sales"),
        ],
    )
    def test_nonsense_is_refused(self, model: Recommender, said: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            model.recommend("u0", **self.NEW, **said)

    def test_an_unknown_bundle_is_refused(self, model: Recommender) -> None:
        with pytest.raises(UnknownIdError, match="'nowhere'"):
            model.recommend("u0", **self.NEW, sells_like={"box": "nowhere"})

    def test_what_is_said_of_one_question_is_not_kept_for_the_next(self, model: Recommender) -> None:
        before = self.score(model)
        assert self.score(model, expected_sales={"box": 500}) > before
        assert self.score(model) == before

    def test_a_forecast_takes_a_new_bundle_for_one_like_the_median(self, model: Recommender) -> None:
        from bundlemage.campaigns.chances import new_log_probabilities

        data, credit = model.shop.interactions, credit_of(model)
        new, people = data.bundle_item.rows(torch.tensor([3])), data.histories(torch.tensor([0]))
        with torch.inference_mode():
            foretold = new_log_probabilities(model.model, people, data.bundle_item, new)
            scores = require(model.model, Matcher).score_bundles(people, data.bundle_item)
            said = Contents.of(new, torch.tensor([credit.median]))
            median = require(model.model, Matcher).score_new_bundles(people, data.bundle_item, said)
        assert float(foretold) == pytest.approx(float(median - scores.logsumexp(1)), rel=1e-4)


_CPU = torch.device("cpu")


def _none_sold(shop: BundleDataset) -> Split:
    """The last twenty bundles have no buyer."""
    matrix = shop.user_bundle.tolil()
    matrix[:, -20:] = 0
    return SplitPlan("none").divide(shop.with_interactions(user_bundle=matrix.tocsr()))


def _ndcg(model: Recommender, split: Split) -> float:
    found = model.evaluate(split).matching
    assert found is not None
    return found["ndcg@20"]
