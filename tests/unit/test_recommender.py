"""Asking a fitted model: ids in, ids out, nothing the user has already, and the source of every answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import Filter, History, Recommendation, Recommender, SplitPlan
from bundlemage.artifact.files import load_artifact, save_artifact
from bundlemage.core.history import User
from bundlemage.data.dataset import BundleDataset, Vocabulary
from bundlemage.data.splits import Source
from bundlemage.errors import ArtifactError, BundleMageError, ConfigError, UnknownIdError, UnsupportedError
from bundlemage.models.base import Completer, Histories, Interactions, Matcher, require
from bundlemage.models.ragged import Ragged
from tests.small_shop import QUICK, dataset_of, row_of, small_shop

ALL = 10_000


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop()


@pytest.fixture(scope="module")
def model(shop: BundleDataset) -> Recommender:
    return Recommender(**(QUICK | {"epochs": 8, "learning_rate": 0.01})).fit(shop)


@pytest.fixture(scope="module")
def by_items(shop: BundleDataset) -> Recommender:
    """A model for which sales do not count: what is new has none."""
    return Recommender(**QUICK, popularity_weight=0.0, scores="dot").fit(shop)


@pytest.fixture(scope="module")
def numbers() -> Recommender:
    """A shop whose ids are whole numbers."""
    shop = dataset_of(
        [[0, 1], [1, 2], [0]],
        [[0], [1], [0, 1]],
        [[0, 1], [1, 2], [2]],
        3,
        users=Vocabulary.numbered("user", 3),
        items=Vocabulary.numbered("item", 3),
        bundles=Vocabulary.numbered("bundle", 3),
    )
    return Recommender(**QUICK).fit(shop, SplitPlan("none"))


def ids(answers: Sequence[Recommendation]) -> list[str]:
    return [answer.id for answer in answers]


def items_of_user(shop: BundleDataset, user: str) -> list[str]:
    return [shop.items[item] for item in row_of(shop.user_item, shop.users.position(user))]


def bundles_of_user(shop: BundleDataset, user: str) -> list[str]:
    return [shop.bundles[bundle] for bundle in row_of(shop.user_bundle, shop.users.position(user))]


def items_in(shop: BundleDataset, bundle: str) -> list[str]:
    return [shop.items[item] for item in row_of(shop.bundle_item, shop.bundles.position(bundle))]


def someone(shop: BundleDataset, bundles: int = 3) -> str:
    """A user with at least so many bundles."""
    return shop.users[int(np.flatnonzero(np.diff(shop.user_bundle.indptr) >= bundles)[0])]


def scores_by_id(answers: Sequence[Recommendation]) -> dict[str, float]:
    return {answer.id: answer.score for answer in answers}


class TestRecommend:
    def test_owned_bundles_are_left_out(self, model: Recommender, shop: BundleDataset) -> None:
        user = someone(shop)
        owned = bundles_of_user(shop, user)
        items = {*items_of_user(shop, user)}.union(*(items_in(shop, bundle) for bundle in owned))
        whole = {bundle for bundle in shop.bundles if items.issuperset(items_in(shop, bundle))}
        assert whole.issuperset(owned)
        answers = model.recommend(user, ALL)
        assert sorted(ids(answers)) == sorted(set(shop.bundles) - whole)

    def test_owned_bundles_come_on_request(self, model: Recommender, shop: BundleDataset) -> None:
        answers = model.recommend(someone(shop), ALL, owned="show")
        assert sorted(ids(answers)) == sorted(shop.bundles)

    def test_held_out_bundles_are_owned_as_well(self, model: Recommender, shop: BundleDataset) -> None:
        split = SplitPlan().divide(shop)
        assert split.test is not None
        user = int(split.test.users[0])
        (held_out,) = row_of(split.test.positives, 0)
        assert shop.bundles[held_out] not in ids(model.recommend(shop.users[user], ALL))

    @pytest.mark.parametrize("k", [1, 3, 10])
    def test_k_answers_ranked_from_one_by_falling_probability(
        self, model: Recommender, shop: BundleDataset, k: int
    ) -> None:
        answers = model.recommend(someone(shop), k, owned="show", stock="show")
        assert [answer.rank for answer in answers] == list(range(1, k + 1))
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score < 1 for score in scores)
        assert answers == model.recommend(someone(shop), ALL, owned="show", stock="show")[:k]

    def test_scores_are_the_models_probabilities(self, model: Recommender, shop: BundleDataset) -> None:
        user = shop.users.position(someone(shop))
        data = Interactions.of(shop, torch.device("cpu"))
        with torch.inference_mode():
            logits = require(model.model, Matcher).score_bundles(
                data.histories(torch.tensor([user])), data.bundle_item
            )[0]
        expected = dict(zip(shop.bundles, logits.softmax(0).tolist(), strict=True))
        answers = model.recommend(shop.users[user], ALL, owned="show")
        assert scores_by_id(answers) == pytest.approx(expected)
        assert sum(answer.score for answer in answers) == pytest.approx(1)

    def test_a_user_is_their_history(self, model: Recommender, shop: BundleDataset) -> None:
        user = someone(shop)
        history = History(items=items_of_user(shop, user), bundles=bundles_of_user(shop, user))
        known, given = model.recommend(user, ALL), model.recommend(history, ALL)
        assert scores_by_id(given) == pytest.approx(scores_by_id(known))

    def test_titles_come_along(self, model: Recommender, shop: BundleDataset) -> None:
        for answer in model.recommend(someone(shop), 5):
            assert answer.title == shop.bundle_title(shop.bundles.position(answer.id))
            assert answer.title

    def test_without_a_catalogue_there_are_no_titles(self) -> None:
        bare = dataset_of([[0], [1]], [[0], [1]], [[0], [1], [0, 1]], 2)
        answers = Recommender(**QUICK).fit(bare, SplitPlan("none")).recommend("u0", 2)
        assert [answer.title for answer in answers] == [None, None]

    @pytest.mark.parametrize("k", [0, -1, True, 2.5, None])
    def test_fewer_than_one_answer_is_refused(self, model: Recommender, shop: BundleDataset, k: int) -> None:
        with pytest.raises(ConfigError, match=f"k is {k}"):
            model.recommend(shop.users[0], k)
        with pytest.raises(ConfigError, match=f"k is {k}"):
            model.complete(shop.users[0], [], k)

    def test_whoever_has_everything_gets_nothing(self, model: Recommender, shop: BundleDataset) -> None:
        assert model.recommend(History(bundles=list(shop.bundles)), 5) == []


class TestMany:
    def test_many_at_a_time_equal_one_at_a_time(
        self, model: Recommender, shop: BundleDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bundlemage.core.answering.ROWS_AT_A_TIME", 4)
        users: list[User] = [
            *shop.users.ids[:9],
            History(items=["g0001"]),
            History(bundles=[["g0002", "g0003"]]),
            History(),
        ]
        many = model.recommend_many(users, 6)
        assert len(many) == len(users)
        for user, answers in zip(users, many, strict=True):
            alone = model.recommend(user, 6)
            assert ids(answers) == ids(alone)
            assert [answer.source for answer in answers] == [answer.source for answer in alone]
            assert scores_by_id(answers) == pytest.approx(scores_by_id(alone), rel=1e-5)

    def test_completing_many_equals_completing_one(
        self, model: Recommender, shop: BundleDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bundlemage.core.answering.ROWS_AT_A_TIME", 4)
        users: list[User] = [*shop.users.ids[:6], History(items=["g0001"]), History()]
        cases = [(user, list(shop.items.ids[number : 2 * number])) for number, user in enumerate(users)]
        for case, answers in zip(cases, model.complete_many(cases, 6), strict=True):
            alone = model.complete(*case, 6)
            assert ids(answers) == ids(alone)
            assert scores_by_id(answers) == pytest.approx(scores_by_id(alone), rel=1e-5)

    def test_nobody_asked_nothing_answered(self, model: Recommender) -> None:
        assert model.recommend_many([]) == []
        assert model.complete_many([]) == []

    def test_a_generator_of_users_is_taken(self, model: Recommender, shop: BundleDataset) -> None:
        assert len(model.recommend_many((user for user in shop.users), 1)) == len(shop.users)


class TestComplete:
    def test_partial_items_never_return_and_owned_ones_only_on_request(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        user = someone(shop)
        inside = {item for bundle in bundles_of_user(shop, user) for item in items_in(shop, bundle)}
        owned = [*items_of_user(shop, user), *inside]
        assert inside - {*items_of_user(shop, user)}
        partial = [owned[0], next(item for item in shop.items if item not in owned)]
        assert sorted(ids(model.complete(user, partial, ALL))) == sorted(
            set(shop.items) - set(owned) - set(partial)
        )
        assert sorted(ids(model.complete(user, partial, ALL, owned="show"))) == sorted(
            set(shop.items) - set(partial)
        )

    def test_a_visitor_who_has_a_bundle_has_its_items(self, model: Recommender, shop: BundleDataset) -> None:
        bundle = bundles_of_user(shop, someone(shop))[0]
        unnamed = [shop.items[0], shop.items[1]]
        cases: list[tuple[str | History, list[str]]] = [
            (History(), ["g0002"]),
            (History(bundles=[bundle, unnamed]), ["g0002"]),
            (someone(shop), []),
        ]
        nobody, visitor, _ = model.complete_many(cases, ALL)
        assert {*ids(nobody)} - {*ids(visitor)} == {*items_in(shop, bundle), *unnamed} - {"g0002"}

    def test_the_partial_bundle_matters(self, model: Recommender, shop: BundleDataset) -> None:
        user = someone(shop)
        one, other = (model.complete(user, [item], ALL, owned="show") for item in ("g0001", "g0050"))
        assert scores_by_id(one) != pytest.approx(scores_by_id(other))

    def test_order_and_repetition_of_the_partial_items_do_not_matter(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        user = someone(shop)
        one = model.complete(user, ["g0001", "g0002"], ALL)
        other = model.complete(user, ["g0002", "g0001", "g0002"], ALL)
        assert scores_by_id(one) == pytest.approx(scores_by_id(other))

    def test_a_bundle_may_begin_from_nothing(self, model: Recommender, shop: BundleDataset) -> None:
        answers = model.complete(someone(shop), k=4)
        assert len(answers) == 4
        assert {answer.source for answer in answers} == {"model"}

    def test_titles_ranks_and_probabilities(self, model: Recommender, shop: BundleDataset) -> None:
        answers = model.complete(someone(shop), ["g0001"], 7)
        assert [answer.rank for answer in answers] == list(range(1, 8))
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) < 1
        assert [answer.title for answer in answers] == [
            shop.item_title(shop.items.position(answer.id)) for answer in answers
        ]

    def test_one_text_instead_of_a_list_of_items_is_a_clear_error(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match=r"write \['g0001'\]"):
            model.complete("u0001", "g0001")
        with pytest.raises(ConfigError, match=r"write \['g0001'\]"):
            model.recommend(History(items="g0001"))

    def test_one_text_instead_of_a_list_of_bundles_is_a_clear_error(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match=r"\['b0001'\]"):
            model.recommend(History(bundles="b0001"))

    def test_one_text_instead_of_a_list_of_users_is_a_clear_error(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match=r"\['u0001'\]"):
            model.recommend_many("u0001")


class TestSimilarAndGate:
    def test_the_most_similar_bundles_come_first_without_the_bundle_itself(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        answers = model.similar("b0003", ALL)
        assert sorted(ids(answers)) == sorted(set(shop.bundles) - {"b0003"})
        order = [(bool(answer.sold_out), -answer.score) for answer in answers]
        assert order == sorted(order)  # sold-out bundles come last
        assert all(-1.0001 <= answer.score <= 1.0001 for answer in answers)
        assert model.similar("b0003", 2) == answers[:2]
        first = answers[0].id
        assert first not in ids(model.similar("b0003", ALL, where=Filter(exclude=[first])))

    def test_a_filter_is_no_dict(self, model: Recommender, shop: BundleDataset) -> None:
        for ask in (model.recommend, model.complete):
            with pytest.raises(ConfigError, match=r"'where' is \{'tags': \['x'\]\}; give a Filter"):
                ask(shop.users[0], where={"tags": ["x"]})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'where' is 'new'"):
            model.similar("b0001", where="new")  # type: ignore[arg-type]

    def test_what_cannot_be_compared_is_refused(self, model: Recommender) -> None:
        with pytest.raises(UnknownIdError, match="bundle id 'b00012'"):
            model.similar("b00012")
        with pytest.raises(ConfigError, match="k is 0"):
            model.similar("b0001", 0)
        shop = dataset_of([[0], [1]], [[0], [1]], [[0], [1], []], 2)
        with pytest.raises(ConfigError, match="'b2' has no items"):
            Recommender(**QUICK).fit(shop, SplitPlan("none")).similar("b2")
        popular = Recommender("popularity", device="cpu").fit(shop, SplitPlan("none"))
        with pytest.raises(UnsupportedError, match="no vectors"):
            popular.similar("b0")
        with pytest.raises(UnsupportedError, match="no gate"):
            popular.gate("u0")

    def test_the_gate_of_a_user_is_that_of_their_history(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        user = someone(shop)
        history = History(items=items_of_user(shop, user), bundles=bundles_of_user(shop, user))
        assert 0 < model.gate(user) < 1
        assert model.gate(history) == pytest.approx(model.gate(user))


class TestPopular:
    def test_an_empty_history_gets_what_sells_most_and_says_so(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        sales = dict(zip(shop.bundles, np.asarray(shop.user_bundle.sum(0))[0].tolist(), strict=True))
        answers = model.recommend(History(), ALL, stock="show")
        assert {answer.source for answer in answers} == {"popular"}
        assert [sales[answer.id] for answer in answers] == sorted(sales.values(), reverse=True)
        total = sum(sales.values())
        assert scores_by_id(answers) == pytest.approx({name: count / total for name, count in sales.items()})

    def test_a_bundle_from_nothing_for_nobody_has_popular_items(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        (best,) = model.complete(History(), [], 1)
        assert best.source == "popular"
        assert shop.items.position(best.id) in np.flatnonzero(
            np.asarray(shop.user_item.sum(0))[0] == shop.user_item.sum(0).max()
        )

    @pytest.mark.parametrize(
        "history",
        [History(items=["g0001"]), History(bundles=["b0001"]), History(bundles=[["g0001"]])],
        ids=["items", "bundles", "nameless"],
    )
    def test_anything_at_all_is_enough_for_the_model(self, model: Recommender, history: History) -> None:
        assert {answer.source for answer in model.recommend(history, 3)} == {"model"}
        assert {answer.source for answer in model.complete(history, [], 3)} == {"model"}

    def test_a_partial_bundle_is_enough_to_complete_it(self, model: Recommender) -> None:
        assert {answer.source for answer in model.complete(History(), ["g0001"], 3)} == {"model"}

    def test_a_known_user_who_has_nothing_gets_popular_answers(self) -> None:
        bare = dataset_of([[0], []], [[0], []], [[0], [1]], 2)
        answers = Recommender(**QUICK).fit(bare, SplitPlan("none")).recommend("u1", 2)
        assert [(answer.id, answer.source) for answer in answers] == [("b0", "popular"), ("b1", "popular")]


class TestNewBundles:
    def test_a_new_bundle_is_a_candidate_and_can_win(
        self, by_items: Recommender, shop: BundleDataset
    ) -> None:
        # A bundle is the mean of its items, so the best single item beats every bundle.
        new = {f"only-{item}": [item] for item in shop.items}
        answers = by_items.recommend(someone(shop), ALL, new_bundles=new, owned="show")
        assert sorted(ids(answers)) == sorted([*shop.bundles, *new])
        assert answers[0].id.startswith("only-")
        assert (answers[0].title, answers[0].source) == (None, "model")
        assert sum(answer.score for answer in answers) == pytest.approx(1)

    def test_a_new_bundle_is_known_by_its_items(self, by_items: Recommender, shop: BundleDataset) -> None:
        twin = items_in(shop, "b0007")
        scores = scores_by_id(by_items.recommend(History(items=["g0001"]), ALL, new_bundles={"twin": twin}))
        assert scores["twin"] == pytest.approx(scores["b0007"])

    def test_a_new_bundle_may_be_owned_already(self, model: Recommender) -> None:
        new = {"fresh": ["g0001", "g0002"], "fresher": ["g0003"]}
        answers = model.recommend(History(bundles=["fresh"]), ALL, new_bundles=new)
        assert "fresh" not in ids(answers)
        assert "fresher" in ids(answers)

    def test_new_bundles_beside_nameless_ones(self, model: Recommender, shop: BundleDataset) -> None:
        user = History(items=["g0004"], bundles=[items_in(shop, "b0003")])
        same = History(items=["g0004"], bundles=["b0003"])
        new = {"fresh": ["g0001", "g0002"]}
        one, other = (model.recommend(who, ALL, new_bundles=new, owned="show") for who in (user, same))
        assert len(one) == len(shop.bundles) + 1, "a nameless bundle of the history is no candidate"
        assert scores_by_id(one) == pytest.approx(scores_by_id(other))

    def test_the_id_of_a_known_bundle_is_refused(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match="'b0001' has the id of a bundle"):
            model.recommend("u0001", new_bundles={"b0001": ["g0001"]})

    def test_an_unknown_item_in_a_new_bundle_is_refused(self, model: Recommender) -> None:
        with pytest.raises(UnknownIdError, match="item id 'g9999'"):
            model.recommend("u0001", new_bundles={"fresh": ["g9999"]})

    def test_a_new_bundle_does_not_stay(self, model: Recommender) -> None:
        model.recommend("u0001", new_bundles={"fresh": ["g0001"]})
        assert "fresh" not in ids(model.recommend("u0001", ALL))

    def test_new_bundles_for_an_empty_history_have_sold_nothing(self, model: Recommender) -> None:
        answers = model.recommend(History(), ALL, new_bundles={"fresh": ["g0001"]}, stock="show")
        assert (answers[-1].score, scores_by_id(answers)["fresh"]) == (0, 0)


class TestNamelessBundles:
    def test_a_bundle_by_its_items_equals_the_bundle_by_its_id(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        named = History(items=["g0001"], bundles=["b0003", "b0005"])
        nameless = History(items=["g0001"], bundles=[items_in(shop, "b0005"), "b0003"])
        one, other = (model.recommend(history, ALL, owned="show") for history in (named, nameless))
        assert scores_by_id(one) == pytest.approx(scores_by_id(other))
        items, same = (model.complete(history, ["g0002"], ALL) for history in (named, nameless))
        assert scores_by_id(items) == pytest.approx(scores_by_id(same))

    def test_nameless_bundles_of_one_user_leave_another_alone(
        self, model: Recommender, shop: BundleDataset
    ) -> None:
        plain, strange = History(items=["g0001"]), History(bundles=[["g0002"], ["g0003", "g0004"]])
        many = model.recommend_many([strange, plain, strange], 8)
        assert scores_by_id(many[1]) == pytest.approx(scores_by_id(model.recommend(plain, 8)))
        assert many[0] == many[2]

    def test_an_empty_bundle_in_a_history_is_no_trouble(self, model: Recommender) -> None:
        answers = model.recommend(History(bundles=[[]]), 3)
        assert all(np.isfinite(answer.score) for answer in answers)


class TestIds:
    NAMES = ('naïve, "quoted"', "01", "1", " spaces ", "a\tb\nc", "🎮", "", "x/y", "é", "e\u0301")

    def test_ids_come_back_as_they_were_written(self) -> None:
        count = len(self.NAMES)
        strange = dataset_of(
            [[number, (number + 1) % count] for number in range(count)],
            [[number] for number in range(count)],
            [[number, (number + 2) % count] for number in range(count)],
            count,
            users=Vocabulary("user", self.NAMES),
            items=Vocabulary("item", self.NAMES),
            bundles=Vocabulary("bundle", self.NAMES),
        )
        model = Recommender(**QUICK).fit(strange, SplitPlan("none"))
        for name in self.NAMES:
            assert set(ids(model.recommend(name, ALL))) == set(self.NAMES) - {name}
            assert name not in ids(model.complete(History(), [name], ALL))
            assert len(model.recommend(History(items=[name], bundles=[name]), ALL)) == count - 1

    def test_whole_numbers_are_taken_as_ids(self, numbers: Recommender) -> None:
        assert numbers.recommend(2, ALL) == numbers.recommend("2", ALL)
        assert numbers.complete(2, [1], ALL) == numbers.complete("2", ["1"], ALL)
        history = History(items=[0], bundles=[1, [0, 2]])
        assert numbers.recommend(history, 1) == numbers.recommend(
            History(items=["0"], bundles=["1", ["0", "2"]]), 1
        )

    def test_numpy_numbers_are_taken_as_users_and_items(self, numbers: Recommender) -> None:
        assert numbers.recommend(np.int64(2), ALL) == numbers.recommend("2", ALL)  # type: ignore[arg-type]
        assert numbers.complete("2", np.array([1]), ALL) == numbers.complete("2", ["1"], ALL)  # type: ignore[arg-type]

    def test_numpy_numbers_are_taken_as_bundles(self, numbers: Recommender) -> None:
        given: Any = np.array([1])
        assert numbers.recommend(History(bundles=given), 1) == numbers.recommend(History(bundles=["1"]), 1)

    def test_numbers_are_taken_as_ids_of_new_bundles(self, numbers: Recommender) -> None:
        new: Any = {77: [0]}
        assert "77" in ids(numbers.recommend("0", ALL, new_bundles=new, owned="show"))

    def test_the_number_of_a_known_bundle_is_refused_as_a_new_one(self, numbers: Recommender) -> None:
        new: Any = {1: [0]}
        with pytest.raises(ConfigError, match="has the id of a bundle"):
            numbers.recommend("0", ALL, new_bundles=new)

    @pytest.mark.parametrize(
        ("kind", "ask"),
        [
            ("user", lambda model: model.recommend("u00012")),
            ("item", lambda model: model.complete("u0001", ["g00012"])),
            ("item", lambda model: model.recommend(History(items=["g00012"]))),
            ("bundle", lambda model: model.recommend(History(bundles=["b00012"]))),
            ("item", lambda model: model.recommend(History(bundles=[["g00012"]]))),
        ],
    )
    def test_an_unknown_id_comes_with_a_suggestion(self, model: Recommender, kind: str, ask: Any) -> None:
        with pytest.raises(UnknownIdError, match=rf"unknown {kind} id '\w00012'.*Did you mean '\w0012'"):
            ask(model)


class TestOrder:
    def test_candidates_far_behind_keep_their_order(self) -> None:
        # Bundle n is taken by 25 n of 400 users: the scores of Popularity lie up to 400 apart.
        taken = [[bundle for bundle in range(16) if user < 25 * bundle] for user in range(400)]
        shop = dataset_of([[]] * 400, taken, [[0]] * 16, 1)
        model = Recommender("popularity", device="cpu").fit(shop, SplitPlan("none"))
        answers = model.recommend(History(items=["i0"]), ALL, owned="show")
        assert ids(answers) == [f"b{number}" for number in reversed(range(16))]


class Scripted(Matcher, Completer):
    """Gives the scores it is told to, whatever it is asked."""

    name = "scripted"
    title = "Scripted"
    scores: torch.Tensor

    def score_bundles(self, histories: Histories, contents: Ragged) -> torch.Tensor:
        return self.scores

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> torch.Tensor:
        return self.scores


def scripted(scores: Any) -> Recommender:
    """A shop of three bundles and three items whose model gives these scores."""
    recommender = Recommender("popularity", device="cpu")
    recommender.fit(dataset_of([[0]], [[0]], [[0], [1], [2]], 3), SplitPlan("none"))
    model = Scripted(recommender.config, recommender.model.sizes)
    model.scores = scores
    recommender._fitted = (model, recommender.shop)
    return recommender


ASK = [lambda model: model.recommend("u0"), lambda model: model.complete("u0", [])]


@pytest.mark.parametrize("ask", ASK, ids=["recommend", "complete"])
class TestWhatAModelGives:
    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_a_score_that_is_no_number_is_refused(self, ask: Any, bad: float) -> None:
        with pytest.raises(
            UnsupportedError, match=r"Scripted\.score_\w+ returned a score that is not a finite"
        ):
            ask(scripted(torch.tensor([[0.0, bad, 1.0]])))

    def test_two_infinities_do_not_hide_each_other(self, ask: Any) -> None:
        with pytest.raises(UnsupportedError, match="not a finite"):
            ask(scripted(torch.tensor([[torch.inf, 0.0, -torch.inf]])))

    @pytest.mark.parametrize("wrong", [torch.zeros(1, 4), torch.zeros(3), [[0.0, 0.0, 0.0]]])
    def test_another_shape_is_refused(self, ask: Any, wrong: Any) -> None:
        with pytest.raises(UnsupportedError, match=r"expected a tensor of shape \[1, 3\]"):
            ask(scripted(wrong))

    def test_large_scores_are_taken_though_their_sum_is_beyond_all_numbers(self, ask: Any) -> None:
        answers = ask(scripted(torch.tensor([[1e38, 3e38, 3.1e38]])))
        assert [answer.id[1:] for answer in answers] == ["2", "1"]
        assert [answer.score for answer in answers] == [1.0, 0.0]

    def test_equal_scores_come_in_the_order_of_the_data(self, ask: Any) -> None:
        assert [answer.id[1:] for answer in ask(scripted(torch.zeros(1, 3)))] == ["1", "2"]


class TestContents:
    def test_the_same_further_bundles_are_the_same_table(self, model: Recommender) -> None:
        """A model embeds a table of contents once, and knows it by its identity."""
        new = {"fresh": ["g0001", "g0002"]}
        one, other = (model.shop.encode(["u0001"], dict(new))[1] for _ in range(2))
        assert one is other
        assert model.shop.encode(["u0001"])[1] is model.shop.interactions.bundle_item
        assert model.shop.encode(["u0001"], {"fresh": ["g0003"]})[1] is not one


class TestTasksAndState:
    def test_a_model_of_matching_alone_does_not_complete(self, shop: BundleDataset) -> None:
        model = Recommender(**(QUICK | {"tasks": "matching", "epochs": 1})).fit(shop)
        assert len(model.recommend("u0001", 3)) == 3
        with pytest.raises(UnsupportedError, match="does not complete"):
            model.complete("u0001", ["g0001"])

    def test_a_model_of_generation_alone_does_not_recommend(self, shop: BundleDataset) -> None:
        model = Recommender(**(QUICK | {"tasks": "generation", "epochs": 1})).fit(shop)
        assert len(model.complete("u0001", ["g0001"], 3)) == 3
        with pytest.raises(UnsupportedError, match="does not recommend"):
            model.recommend("u0001")

    @pytest.mark.parametrize(
        ("tasks", "measured"), [("matching", (True, False)), ("generation", (False, True))]
    )
    def test_only_what_was_learned_is_measured(
        self, shop: BundleDataset, tasks: str, measured: tuple[bool, bool]
    ) -> None:
        split = SplitPlan().divide(shop)
        found = Recommender(**(QUICK | {"tasks": tasks, "epochs": 1})).fit(split).evaluate(split)
        assert (found.matching is not None, found.generation is not None) == measured

    @pytest.mark.parametrize(
        "ask",
        [
            lambda model: model.recommend("u0001"),
            lambda model: model.complete("u0001", []),
            lambda model: model.save("never-written"),
            lambda model: model.dataset,
            lambda model: model.evaluate(SplitPlan().divide(small_shop())),
        ],
        ids=["recommend", "complete", "save", "dataset", "evaluate"],
    )
    def test_before_fitting_there_is_a_clear_error(self, ask: Any) -> None:
        with pytest.raises(BundleMageError, match="not fitted yet: call fit"):
            ask(Recommender())

    def test_evaluating_on_the_data_of_another_shop_is_refused(self, model: Recommender) -> None:
        other = SplitPlan().divide(small_shop(bundles=41))
        with pytest.raises(
            ConfigError, match=r"other bundles than the model was trained on \(41 against 40\)"
        ):
            model.evaluate(other)

    def test_fit_again_forgets_the_first_shop(self, shop: BundleDataset) -> None:
        model = Recommender(**(QUICK | {"epochs": 1})).fit(shop)
        model.fit(small_shop(bundles=41), SplitPlan("none"))
        assert len(model.recommend(History(items=["g0001"]), ALL)) == 41

    def test_fitting_a_plan_keeps_the_plan(self, shop: BundleDataset) -> None:
        plan = SplitPlan("full", seed=7)
        assert Recommender(**(QUICK | {"epochs": 1})).fit(shop, plan).plan == plan

    def test_fitting_a_ready_split_keeps_how_it_was_made(self, shop: BundleDataset) -> None:
        split = SplitPlan("full", seed=7).divide(shop)
        plan = Recommender(**(QUICK | {"epochs": 1})).fit(split).plan
        assert (plan.protocol, plan.seed) == ("full", 7)


class TestLoading:
    def test_weights_of_another_version_are_a_clear_error(self, model: Recommender, tmp_path: Path) -> None:
        saved = load_artifact(model.save(tmp_path / "model"))
        weights = {name: value for name, value in saved.weights.items() if name != "item_shared"}
        save_artifact(replace(saved, weights=weights), tmp_path / "older", overwrite=False)
        with pytest.raises(ArtifactError, match=r"older does not fit .*item_shared.* Train the model again"):
            Recommender.load(tmp_path / "older")


class TestWhatFitTakes:
    def test_what_a_reader_gave_is_taken_as_it_is(self) -> None:
        shop = small_shop()
        by_source = Recommender(**QUICK).fit(Source(shop))
        by_dataset = Recommender(**QUICK).fit(shop)
        assert by_source.recommend(shop.users[0], 3) == by_dataset.recommend(shop.users[0], 3)

    def test_anything_else_is_refused_with_a_hint(self) -> None:
        with pytest.raises(ConfigError, match=r"not str: read it with bundlemage\.read"):
            Recommender(**QUICK).fit("shop")  # type: ignore[arg-type]
