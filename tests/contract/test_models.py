"""What every registered model keeps to, found by itself: a new one is tested by being registered."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.evaluation import Evaluation
from bundlemage.models.base import Completer, Indexable, Interactions, Learner, Matcher, can, require
from bundlemage.models.config import parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import MODELS, make_config
from bundlemage.sample.generate import SampleShop, sample_shop
from tests.small_shop import QUICK, dataset_of, small_shop

ENOUGH = {"embedding_dim": 64, "batch_size": 256, "learning_rate": 0.003, "epochs": 40, "device": "cpu"}
"""Settings with which a model learns the sample shop in a few seconds."""
SOONER = {"dam": {"epochs": 15}}
"""Models whose epochs take long and that need few of them."""

IMPERSONAL = {"popularity", "item-popularity", "random"}
"""Models that the planted answer is not asked of: they know nothing of anyone's taste."""

MARGINS = {"bundlemage": (2.2, 3.0), "br": (1.5, 0.5), "gram-smot": (1.5, 0.5)}
"""How many times popularity's nDCG@5 a model must reach in matching and in generation. BR and GRAM-SMOT add
what the user likes to any bundle, which the paper, too, finds below popularity."""
USUAL_MARGIN = (1.5, 1.5)

BY_THE_USER_ALONE = {"br", "gram-smot"}
"""Models that complete a bundle with what the user likes, whatever is in it."""

SEARCHED = {"bundlemage", "br"}
"""Models whose scores are a product of two vectors, also for bundles that come after training."""

every_model = pytest.mark.parametrize("name", sorted(MODELS))


def settings_for(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that the model has."""
    return {key: value for key, value in wanted.items() if key in MODELS[name].config_class.model_fields}


def fitted(name: str, data: BundleDataset | Split, **settings: Any) -> Recommender:
    return Recommender(name, **settings_for(name, QUICK | settings)).fit(data)


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop()


@cache
def ready(name: str) -> Recommender:
    """One fit for all tests that only ask."""
    return fitted(name, small_shop())


def all_scores(model: Recommender) -> list[torch.Tensor]:
    """Scores of everyone, for every bundle and as additions to a bundle of two items."""
    data = Interactions.of(model.dataset, torch.device("cpu"))
    histories = data.histories(torch.arange(len(model.dataset.users)))
    partial = Ragged.from_lists([[0, 1]] * len(histories))
    scores = []
    with torch.inference_mode():
        if can(model.model, Matcher):
            scores.append(require(model.model, Matcher).score_bundles(histories, data.bundle_item))
        if can(model.model, Completer):
            scores.append(require(model.model, Completer).score_items(histories, partial, data.bundle_item))
    return scores


class TestConfig:
    @every_model
    def test_a_config_goes_out_and_comes_back(self, name: str) -> None:
        config = make_config(name, {"seed": 7, "device": "cpu"})
        assert make_config(name, config.model_dump(mode="json")) == config
        assert parse_config(MODELS[name].config_class, config.model_dump()) == config

    @every_model
    def test_an_unknown_setting_is_refused_and_the_known_ones_named(self, name: str) -> None:
        with pytest.raises(ConfigError, match="unknown setting 'sped'") as error:
            Recommender(name, sped=3)
        for known in MODELS[name].config_class.model_fields:
            assert known in str(error.value)

    @every_model
    def test_it_is_registered_under_its_own_name_and_says_who_published_it(self, name: str) -> None:
        assert MODELS[name].name == name
        assert MODELS[name].title
        learns = can(ready(name).model, Learner)
        assert MODELS[name].publication or not learns, "whatever learns was published somewhere"


class TestScores:
    @every_model
    def test_scores_have_a_row_for_everyone_and_a_column_for_everything(
        self, name: str, shop: BundleDataset
    ) -> None:
        model = ready(name)
        widths = [len(shop.bundles)] * can(model.model, Matcher) + [len(shop.items)] * can(
            model.model, Completer
        )
        assert [tuple(scores.shape) for scores in all_scores(model)] == [
            (len(shop.users), width) for width in widths
        ]
        assert widths, "a model does at least one of the two"

    @every_model
    def test_saved_and_loaded_it_scores_the_same(
        self, name: str, shop: BundleDataset, tmp_path: Path
    ) -> None:
        model = ready(name)
        loaded = Recommender.load(model.save(tmp_path / "model"), device="cpu")
        for before, after in zip(all_scores(model), all_scores(loaded), strict=True):
            assert torch.equal(before, after)

    @every_model
    def test_the_same_seed_gives_the_same_scores(self, name: str, shop: BundleDataset) -> None:
        one, other = (all_scores(fitted(name, shop, seed=5)) for _ in range(2))
        assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))

    @every_model
    def test_scoring_does_not_change_with_the_batch(self, name: str, shop: BundleDataset) -> None:
        model = ready(name)
        data = Interactions.of(shop, torch.device("cpu"))
        many, one = data.histories(torch.arange(9)), data.histories(torch.tensor([4]))
        with torch.inference_mode():
            if can(model.model, Matcher):
                whole = require(model.model, Matcher).score_bundles(many, data.bundle_item)
                torch.testing.assert_close(
                    whole[4:5], require(model.model, Matcher).score_bundles(one, data.bundle_item)
                )
            if can(model.model, Completer):
                partials = Ragged.from_lists([[number, 20] for number in range(9)])
                whole = require(model.model, Completer).score_items(many, partials, data.bundle_item)
                row = require(model.model, Completer).score_items(
                    one, Ragged.from_lists([[4, 20]]), data.bundle_item
                )
                torch.testing.assert_close(whole[4:5], row)

    @every_model
    def test_some_bundles_score_as_they_do_among_all(self, name: str, shop: BundleDataset) -> None:
        model = ready(name).model
        if not can(model, Matcher):
            pytest.skip("this model does not recommend bundles")
        data = Interactions.of(shop, torch.device("cpu"))
        histories = data.histories(torch.arange(9))
        some = torch.tensor([[3, 0, 17]] * 5 + [[8, 39, 1]] * 4)
        with torch.inference_mode():
            whole = require(model, Matcher).score_bundles(histories, data.bundle_item)
            found = require(model, Matcher).score_candidates(histories, some, data.bundle_item)
        torch.testing.assert_close(found, whole.gather(1, some))

    @every_model
    @pytest.mark.parametrize("later", [[], [[0, 1], [5, 7, 9]]])
    def test_what_an_index_searches_are_the_scores(
        self, name: str, shop: BundleDataset, later: list[list[int]]
    ) -> None:
        """Also those of bundles that came after training, by themselves."""
        model = ready(name).model
        data = Interactions.of(shop, torch.device("cpu"))
        contents = data.bundle_item.append(Ragged.from_lists(later)) if later else data.bundle_item
        histories = data.histories(torch.arange(9))
        start = len(data.bundle_item) if later else 0
        if name not in SEARCHED:
            with pytest.raises(UnsupportedError, match="without an index"):
                require(model, Indexable).factors_of_bundles(contents, start)
            return
        with torch.inference_mode():
            factors = require(model, Indexable).factors_of_bundles(contents, start)
            people = require(model, Indexable).factors_of_users(histories, contents)
            scores = require(model, Matcher).score_bundles(histories, contents)[:, -len(factors.vectors) :]
        torch.testing.assert_close(people @ factors.vectors.T + factors.bias, scores)

    @every_model
    def test_training_leaves_it_ready_to_answer(self, name: str, shop: BundleDataset) -> None:
        model = ready(name)
        assert not model.model.training
        if can(model.model, Matcher):
            assert model.recommend(shop.users[0], 5) == model.recommend(shop.users[0], 5)
        else:
            with pytest.raises(UnsupportedError, match="does not recommend bundles"):
                model.recommend(shop.users[0], 5)


class TestUnusualPeople:
    @every_model
    @pytest.mark.parametrize(
        "history",
        [
            History(),
            History(items=["g0001"]),
            History(items=["g0001", "g0002", "g0003"]),
            History(bundles=["b0001"]),
            History(bundles=[["g0001", "g0002"]]),
            History(bundles=[[]]),
        ],
        ids=["nothing", "one-item", "items-alone", "bundles-alone", "a-nameless-bundle", "an-empty-bundle"],
    )
    def test_anyone_gets_finite_scores_or_a_clear_refusal(
        self, name: str, shop: BundleDataset, history: History
    ) -> None:
        model = ready(name)
        if not model.model.knows_new_users:
            with pytest.raises(UnsupportedError, match="knows only the users"):
                model.recommend(history) if can(model.model, Matcher) else model.complete(history)
            return
        if can(model.model, Matcher):
            answers = model.recommend(history, 5)
            assert len(answers) == 5
            assert all(np.isfinite(answer.score) for answer in answers)
            by_sales = history == History() or require(model.model, Matcher).ranks_by_sales
            assert {answer.source for answer in answers} == {"popular" if by_sales else "model"}
        if can(model.model, Completer):
            for partial in ([], ["g0004"]):
                assert all(np.isfinite(answer.score) for answer in model.complete(history, partial, 5))

    @every_model
    def test_users_without_items_or_bundles_and_empty_bundles_are_no_trouble(self, name: str) -> None:
        strange = dataset_of([[0], [], [1, 2], []], [[0], [1], [], []], [[0, 1], [], [2], [0]], 3)
        model = Recommender(name, **settings_for(name, QUICK)).fit(strange, SplitPlan("none"))
        for scores in all_scores(model):
            assert bool(torch.isfinite(scores).all())

    @every_model
    def test_a_bundle_that_came_after_training_can_be_recommended(
        self, name: str, shop: BundleDataset
    ) -> None:
        if not can(ready(name).model, Matcher):
            pytest.skip("this model does not recommend bundles")
        answers = ready(name).recommend(shop.users[0], 1000, new_bundles={"fresh": ["g0001"]})
        assert "fresh" in [answer.id for answer in answers]

    @every_model
    def test_an_unknown_id_is_an_error_with_a_suggestion(self, name: str, shop: BundleDataset) -> None:
        model = ready(name)
        if can(model.model, Matcher):
            with pytest.raises(UnknownIdError, match=r"unknown user id 'u00001'.*Did you mean.*'u0001'"):
                model.recommend("u00001")
        if can(model.model, Completer):
            with pytest.raises(UnknownIdError, match=r"unknown item id 'g00001'.*Did you mean.*'g0001'"):
                model.complete(shop.users[0], ["g00001"])


@pytest.fixture(scope="module")
def sample() -> SampleShop:
    return sample_shop()


@pytest.fixture(scope="module")
def split(sample: SampleShop) -> Split:
    return SplitPlan("paper").divide(sample.dataset)


@pytest.fixture(scope="module", params=sorted(MODELS.keys() - IMPERSONAL))
def learned(request: pytest.FixtureRequest, split: Split) -> Recommender:
    wanted = ENOUGH | SOONER.get(request.param, {})
    return Recommender(request.param, **settings_for(request.param, wanted)).fit(split)


@pytest.fixture(scope="module")
def popularity(split: Split) -> Evaluation:
    return Recommender("popularity", device="cpu").fit(split).evaluate(split)


class TestThePlantedAnswer:
    """The sample shop has tastes planted in it; whoever learns finds them."""

    def test_popularity_beats_chance(self, popularity: Evaluation) -> None:
        chance = sum(1 / np.log2(rank + 1) for rank in range(1, 6)) / 100
        assert popularity.matching is not None
        assert popularity.generation is not None
        assert popularity.matching["ndcg@5"] > 1.5 * chance
        assert popularity.generation["ndcg@5"] > 3 * chance

    def test_it_beats_popularity_in_both_tasks_by_a_wide_margin(
        self, learned: Recommender, popularity: Evaluation, split: Split
    ) -> None:
        found = learned.evaluate(split)
        matching, generation = MARGINS.get(learned.model_name, USUAL_MARGIN)
        assert popularity.matching is not None
        assert popularity.generation is not None
        if can(learned.model, Matcher):
            assert found.matching is not None
            assert found.matching["ndcg@5"] > matching * popularity.matching["ndcg@5"]
        if can(learned.model, Completer):
            assert found.generation is not None
            assert found.generation["ndcg@5"] > generation * popularity.generation["ndcg@5"]

    def test_recommended_bundles_are_to_the_users_taste(
        self, learned: Recommender, sample: SampleShop
    ) -> None:
        if not can(learned.model, Matcher):
            pytest.skip("this model does not recommend bundles")
        users, bundles, tastes = sample.dataset.users, sample.dataset.bundles, sample.tastes
        first = learned.recommend_many(users, 1)
        genre = tastes.bundle_genre[[bundles.position(answers[0].id) for answers in first]]
        liked = tastes.user_bundle_taste[np.arange(len(users)), genre].mean()
        at_random = tastes.user_bundle_taste[:, tastes.bundle_genre].mean()
        assert liked > 2 * at_random

    def test_a_series_is_completed_with_the_same_series(
        self, learned: Recommender, sample: SampleShop
    ) -> None:
        if not can(learned.model, Completer) or learned.model_name in BY_THE_USER_ALONE:
            pytest.skip("this model does not look at what is in the bundle already")
        items, line = sample.dataset.items, sample.tastes.item_line
        lines = [np.flatnonzero(line == number) for number in np.unique(line)]
        cases = [(History(), [items[int(item)] for item in line_items[:3]]) for line_items in lines]
        found = learned.complete_many(cases, 3)
        same = [
            line[items.position(answer.id)] == line[line_items[0]]
            for line_items, answers in zip(lines, found, strict=True)
            for answer in answers
        ]
        assert np.mean(same) > 0.5, "by chance it would be one in thirty"
