"""Weak events, such as views, negative events, and recency: in learning, in answers and in cases."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender
from bundlemage.core.ownership import Goods
from bundlemage.data.dataset import BundleDataset, binary_matrix, pairs_of
from bundlemage.data.events import DAY, UNDATED, Events
from bundlemage.data.shards import write_layout
from bundlemage.data.splits import Split, SplitPlan, completion_cases
from bundlemage.designer.explain import Explainer
from bundlemage.engines.scoring import LayoutUsers, ModelUsers, Users
from bundlemage.errors import ConfigError
from bundlemage.evaluation import MatchingEvaluator
from bundlemage.models.base import Interactions, Matcher, require
from bundlemage.models.registry import model_class
from bundlemage.sample.kinds import EVENTS, shop_of_kind
from tests.dated_shop import at_random
from tests.small_shop import QUICK, dataset_of, small_shop

CPU = torch.device("cpu")


def weighted(shop: BundleDataset, items: Any, bundles: Any, **rejected: Any) -> BundleDataset:
    """The shop with these weights of its pairs, and with rejected pairs."""
    of_items, of_bundles = (
        None if weights is None else np.array(weights, np.float32) for weights in (items, bundles)
    )
    return replace(
        shop,
        item_events=Events(weight=of_items, rejected=rejected.get("rejected_items")),
        bundle_events=Events(weight=of_bundles, rejected=rejected.get("rejected_bundles")),
    )


def with_views(shop: BundleDataset, seed: int = 0) -> BundleDataset:
    """The shop, in which every third pair is a view."""
    random = np.random.default_rng(seed)
    return weighted(shop, *(
        np.where(random.random(each.nnz) < 1 / 3, 0.2, 1) for each in (shop.user_item, shop.user_bundle)
    ))  # fmt: skip


def fitted(shop: BundleDataset, model: str = "bundlemage", **settings: Any) -> Recommender:
    settings = {**(QUICK if model == "bundlemage" else {}), **settings}
    return Recommender(model, **settings).fit(shop, SplitPlan("none"), progress=False)


@cache
def viewing() -> Recommender:
    """A model of a shop with views."""
    return fitted(with_views(small_shop()))


class TestWeightsOfOne:
    def test_they_change_no_bit(self) -> None:
        shop = small_shop()
        ones = weighted(shop, np.ones(shop.user_item.nnz), np.ones(shop.user_bundle.nnz))
        assert ones.fingerprint() == shop.fingerprint()
        one, other = (fitted(each).model.state_dict() for each in (shop, ones))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)

    def test_nothing_is_kept_for_them(self) -> None:
        data = Interactions.of(small_shop(), CPU)
        histories = data.histories(torch.tensor([0, 3]))
        for rows in (data.user_item, data.user_bundle, histories.items, histories.bundles):
            assert rows.weights is None
            assert rows.weak is None
            assert rows.strong is rows
        assert not data.weighted
        assert histories.rejected_items is None
        assert histories.rejected_bundles is None


class TestWeakEventsAreNoOwnership:
    def test_a_user_owns_only_what_was_bought(self) -> None:
        shop = dataset_of([[0, 1], [2]], [[0, 1], []], [[3], [4], [5]], 6)
        shop = weighted(shop, [1, 0.2, 0.2], [0.5, 2])
        data = Interactions.of(shop, CPU)
        goods = Goods(data.bundle_item, 6)
        owned = goods.owned(data.histories(torch.tensor([0, 1])), data.bundle_item)
        assert owned.values.tolist() == [0, 4]
        assert owned.lengths.tolist() == [2, 0]

    def test_what_was_viewed_is_recommended_and_what_was_bought_is_not(self) -> None:
        model = viewing()
        shop = model.dataset
        answers = model.recommend_many(shop.users.ids, 40)
        for user, ranked in enumerate(answers):
            shown = {shop.bundles.position(each.id) for each in ranked}
            bought, taken = (matrix[user].indices for matrix in (shop.bought_bundles, shop.user_bundle))
            assert not shown & set(bought.tolist())
            items = set(shop.bought_items[user].indices) | set(shop.bundle_item[bought].indices)
            viewed = [
                place
                for place in np.setdiff1d(taken, bought).tolist()
                if not set(shop.bundle_item[place].indices) <= items
            ]
            assert shown >= set(viewed)

    def test_all_ways_to_ask_agree(self) -> None:
        model = viewing()
        users = model.dataset.users.ids[:30]
        ranked = [[each.id for each in best] for best in model.recommend_many(users, 5)]
        table = [batch.to_pylist() for batch in model.recommend_all(5, users=users)]
        rows = [(row["user_id"], row["bundle_id"]) for batch in table for row in batch]
        assert rows == [(user, name) for user, best in zip(users, ranked, strict=True) for name in best]
        # With a visitor in the batch, users are encoded one by one.
        mixed = model.recommend_many([*users, History()], 5)[:-1]
        assert [[each.id for each in best] for best in mixed] == ranked
        again = model.recommend_many([history_of(model.dataset, user) for user in range(30)], 5)
        assert [[each.id for each in best] for best in again] == ranked

    def test_sales_are_purchases(self) -> None:
        shop = viewing().shop
        assert shop.trade.bundle_sales.sum() == shop.dataset.bought_bundles.nnz
        assert shop.trade.item_sales.sum() == shop.dataset.bought_items.nnz

    def test_reasons_do_not_say_that_a_user_has_what_was_viewed(self) -> None:
        model = viewing()
        codes: set[str] = set()
        for user in model.dataset.users.ids[:20]:
            history, contents = model.shop.encode([user])
            explainer = Explainer(
                model.model, model.shop, user, history, contents, model._sentences(None, "customer")
            )
            place = model.dataset.users.position(user)
            bought = {model.dataset.items[item] for item in model.dataset.bought_items[place].indices}
            boxes = {model.dataset.bundles[box] for box in model.dataset.bought_bundles[place].indices}
            for why in explainer.bundles(range(12)):
                for fact in why.evidence:
                    codes.add(fact.code)
                    if fact.code in ("has_item", "seen_item"):
                        assert (fact.id in bought) == (fact.code == "has_item")
                    if fact.code in ("has_bundle", "seen_bundle"):
                        assert (fact.id in boxes) == (fact.code == "has_bundle")
                        assert ("interested in" in why.words) or fact.code == "has_bundle"
        assert {"seen_item", "seen_bundle"} & codes
        assert {"has_item", "has_bundle"} & codes

    def test_held_out_cases_are_purchases(self) -> None:
        shop = with_views(small_shop())
        for protocol in ("paper", "some-users", "full", "new-bundles"):
            split = SplitPlan(protocol).divide(shop)
            for cases in (split.validation, split.test):
                assert cases is not None
                case, bundles = cases.positives.nonzero()
                assert np.asarray(shop.bought_bundles[cases.users[case], bundles]).all()
        found = completion_cases(shop, SplitPlan())
        assert found is not None
        held_out, completions = found
        known = completions.users < len(shop.users)
        bundles = np.flatnonzero(held_out)[completions.bundles[known]]
        assert np.asarray(shop.bought_bundles[completions.users[known], bundles]).all()


def history_of(shop: BundleDataset, user: int) -> History:
    parts = []
    for matrix, events, ids in (
        (shop.user_item, shop.item_events, shop.items),
        (shop.user_bundle, shop.bundle_events, shop.bundles),
    ):
        entries = slice(matrix.indptr[user], matrix.indptr[user + 1])
        assert events.weight is not None
        parts.append(([ids[place] for place in matrix.indices[entries]], events.weight[entries].tolist()))
    (items, item_weights), (bundles, bundle_weights) = parts
    return History(items, bundles, item_weights, bundle_weights)


class TestHistories:
    def test_a_weight_is_a_number_above_0_for_each_thing(self) -> None:
        model = viewing()
        names = model.dataset.items.ids[:2]
        for weights, message in (
            ([1.0], "'item_weights' has 1 weights for 2 things"),
            ([1.0, 0.0], "a weight is a number above 0"),
            ([1.0, float("nan")], "a weight is a number above 0"),
            ([1.0, "much"], "a weight is a number above 0"),
        ):
            with pytest.raises(ConfigError, match=message):
                model.recommend(History(names, item_weights=weights))  # type: ignore[arg-type]

    def test_the_strongest_of_equal_things_counts(self) -> None:
        model = viewing()
        name = model.dataset.bundles[3]
        histories, _ = model.shop.encode([History((), [name, name], bundle_weights=[0.2, 1.0])])
        assert histories.bundles.values.tolist() == [3]
        assert histories.bundles.weak is None

    def test_a_weaker_thing_counts_less(self) -> None:
        model = viewing()
        one, other = model.dataset.items.ids[:2]
        alone, both, little = (
            model.model.encoded(*model.shop.encode([history])).detach()
            for history in (
                History([one]),
                History([one, other]),
                History([one, other], item_weights=[1.0, 0.01]),
            )
        )
        assert (little - alone).norm() < 0.1 * (both - alone).norm()


@pytest.fixture(scope="module")
def model() -> Recommender:
    """A model of a shop. Every user without item 7 rejected it, and the same is true of bundle 5."""
    shop = small_shop()
    rejected = []
    for matrix, place in ((shop.user_item, 7), (shop.user_bundle, 5)):
        users = np.flatnonzero(matrix[:, place].toarray().ravel() == 0)
        rejected.append(binary_matrix(users, np.full(len(users), place), matrix.shape))
    return fitted(weighted(shop, None, None, rejected_items=rejected[0], rejected_bundles=rejected[1]))


class TestRejectedThings:
    @pytest.mark.parametrize("rule", ["demote", "show"])
    def test_they_are_in_no_answer(self, rule: Any, model: Recommender) -> None:
        shop = model.dataset
        assert shop.item_events.rejected is not None
        assert shop.bundle_events.rejected is not None
        for user, best in enumerate(model.recommend_many(shop.users.ids, 40, owned=rule)):
            rejects_item = shop.item_events.rejected[user].nnz
            rejects_bundle = shop.bundle_events.rejected[user].nnz
            shown = [shop.bundles.position(each.id) for each in best]
            assert not (rejects_bundle and 5 in shown)
            if rejects_item:
                assert not any(shop.bundle_item[place, 7] for place in shown)
        completed = model.complete_many([(user, ()) for user in shop.users.ids], 90, owned=rule)
        for user, items in enumerate(completed):
            assert not (shop.item_events.rejected[user].nnz and shop.items[7] in [each.id for each in items])

    def test_they_are_no_candidates_of_a_full_ranking(self, model: Recommender) -> None:
        split = SplitPlan("full").divide(model.dataset)
        assert split.test is not None
        data = model.model.interactions(split.train, CPU)
        evaluator = MatchingEvaluator(split.test, data)
        rejected = model.dataset.bundle_events.rejected
        assert rejected is not None
        asked = rejected[split.test.users].toarray() > 0
        with torch.inference_mode():
            scores, _ = evaluator.score(model.model, torch.arange(len(split.test)))
        assert asked.any()
        assert torch.isneginf(scores[torch.from_numpy(asked)]).all()

    def test_they_are_in_no_table_of_answers(self, model: Recommender) -> None:
        shop = model.dataset
        rejected = shop.bundle_events.rejected
        assert rejected is not None
        for batch in model.recommend_all(40):
            for row in batch.to_pylist():
                user, bundle = shop.users.position(row["user_id"]), shop.bundles.position(row["bundle_id"])
                assert not rejected[user, bundle]

    def test_an_index_leaves_them_out_too(self, model: Recommender) -> None:
        pytest.importorskip("faiss")
        shop = model.dataset
        assert shop.item_events.rejected is not None
        exact = [[each.id for each in best] for best in model.recommend_many(shop.users.ids, 10)]
        try:
            model.use_index(0.5, least_bundles=1, most_share=1.0)
            for rule in ("demote", "show"):
                for user, best in enumerate(model.recommend_many(shop.users.ids, 40, owned=rule)):
                    shown = [shop.bundles.position(each.id) for each in best]
                    if shop.item_events.rejected[user].nnz:
                        assert not any(shop.bundle_item[place, 7] for place in shown)
            searched = [[each.id for each in best] for best in model.recommend_many(shop.users.ids, 10)]
        finally:
            model._index = None
        assert sum(map(len, searched)) == sum(map(len, exact))

    def test_a_visitor_may_reject(self, model: Recommender) -> None:
        shop = model.dataset
        visitor = History(shop.items.ids[:3])
        best = [each.id for each in model.recommend(visitor, 40)]
        inside = shop.items[int(shop.bundle_item[shop.bundles.position(best[1])].indices[0])]
        asked = replace(visitor, rejected_bundles=[best[0]], rejected_items=[inside])
        after = [each.id for each in model.recommend(asked, 40)]
        item = shop.items.position(inside)
        holders = {shop.bundles[place] for place in shop.bundle_item[:, item].nonzero()[0].tolist()}
        gone = {best[0], *holders}
        assert after == [name for name in best if name not in gone]
        completed = [each.id for each in model.complete(asked, (), 90)]
        assert inside not in completed
        assert inside in [each.id for each in model.complete(visitor, (), 90)]

    def test_they_are_not_designed(self, model: Recommender) -> None:
        visitor = History(model.dataset.items.ids[:3])
        wish: dict[str, Any] = {"size": 3, "method": "beam", "reasons": False, "buyers": False}
        first = model.design(visitor, **wish).bundles[0]
        chosen = first.items[0].id
        again = model.design(replace(visitor, rejected_items=[chosen]), **wish)
        assert chosen not in {item.id for bundle in again.bundles for item in bundle.items}


class TestUsersFromFiles:
    """Answers for all users read the histories from files: the same as those in memory."""

    @pytest.mark.parametrize("half_life", [None, 25.0])
    @pytest.mark.parametrize("kind", ["model", "layout"])
    def test_histories_are_those_of_the_shop(
        self, kind: str, half_life: float | None, tmp_path: Path
    ) -> None:
        shop = at_random(small_shop())
        viewed, at = with_views(shop), shop.item_events.at
        assert at is not None
        free = np.argwhere(shop.user_item.toarray() == 0)[::40]
        rejected = binary_matrix(free[:, 0], free[:, 1], shop.user_item.shape)
        at = np.where(np.arange(len(at)) % 9, at, UNDATED)  # some times are not known
        shop = replace(
            viewed,
            item_events=replace(viewed.item_events, at=at, rejected=rejected),
            bundle_events=replace(viewed.bundle_events, at=shop.bundle_events.at),
        )
        model = fitted(shop, "popularity", half_life=half_life)
        users: Users
        if kind == "model":
            users = ModelUsers(model.save(tmp_path / "model"), half_life)
            sales = users.sales(len(shop.items), len(shop.bundles))
            for counts, matrix in zip(sales, (shop.bought_items, shop.bought_bundles), strict=True):
                np.testing.assert_array_equal(counts, matrix.toarray().sum(0))
        else:
            users = LayoutUsers(write_layout(shop, tmp_path / "layout", 30), known=True, half_life=half_life)
        _, found = users.read(20, 55)
        expected = model.shop.interactions.histories(torch.arange(20, 55))
        assert found.rejected_bundles is None
        for one, other in (
            (found.items, expected.items),
            (found.bundles, expected.bundles),
            (found.rejected_items, expected.rejected_items),
        ):
            assert one is not None
            assert other is not None
            assert torch.equal(one.values, other.values)
            assert torch.equal(one.offsets, other.offsets)
            if other.weak is not None:
                assert one.weak is not None
                assert torch.equal(one.weak, other.weak)
            table = torch.randn(100, 4)
            torch.testing.assert_close(one.mean_of(table), other.mean_of(table))


class TestRecency:
    def test_new_events_count_more_and_the_mean_weight_stays(self) -> None:
        shop = at_random(small_shop())
        plain, recent = (Interactions.of(shop, CPU, half_life) for half_life in (None, 30.0))
        assert plain.user_item.weights is None
        weights, at = recent.user_item.weights, shop.item_events.at
        assert weights is not None
        assert at is not None
        assert weights.mean().item() == pytest.approx(1, rel=1e-5)
        ages = (at.max() - at) / DAY
        decay = 0.5 ** (ages / 30)
        np.testing.assert_allclose(weights.numpy(), decay / decay.mean(), rtol=1e-4)

    def test_it_is_no_matter_of_ownership(self) -> None:
        data = Interactions.of(at_random(small_shop()), CPU, 5.0)
        assert data.user_bundle.weak is None

    def test_answers_use_it_too(self) -> None:
        model = fitted(at_random(small_shop()), half_life=20.0)
        assert model.shop.interactions.user_item.weights is not None
        again = Interactions.of(model.dataset, CPU, 20.0)
        torch.testing.assert_close(model.shop.interactions.user_item.weights, again.user_item.weights)

    def test_a_saved_model_keeps_it(self, tmp_path: Path) -> None:
        assert fitted(small_shop(), "popularity").model.half_life is None
        dated = Recommender("popularity", half_life=3).fit(
            at_random(small_shop()), SplitPlan("none"), progress=False
        )
        dated.save(tmp_path / "model")
        assert Recommender.load(tmp_path / "model").model.half_life == 3

    def test_it_needs_times(self) -> None:
        with pytest.raises(ConfigError, match="half_life=7 needs to know when"):
            fitted(small_shop(), half_life=7.0)

    def test_it_must_be_above_0(self) -> None:
        with pytest.raises(ConfigError, match="half_life"):
            Recommender("bundlemage", half_life=0)


class TestClosedForms:
    @pytest.mark.parametrize("name", ["popularity", "ease", "ease-items", "item-knn", "co-occurrence"])
    def test_weights_change_what_they_learn(self, name: str) -> None:
        assert model_class(name).reads_weights
        shop = small_shop()
        plain, views = (fitted(each, name).model.state_dict() for each in (shop, with_views(shop)))
        changed = [key for key in plain if not torch.equal(plain[key], views[key])]
        assert changed

    def test_popularity_is_the_sum_of_weights(self) -> None:
        shop = with_views(small_shop())
        model = fitted(shop, "popularity").model
        sums = np.zeros(len(shop.bundles))
        assert shop.bundle_events.weight is not None
        np.add.at(sums, pairs_of(shop.user_bundle)[1], shop.bundle_events.weight)
        np.testing.assert_allclose(model.state_dict()["bundle_counts"].numpy(), sums, rtol=1e-6)

    def test_the_share_of_owned_items_counts_purchases(self) -> None:
        shop = weighted(dataset_of([[0, 1, 2]], [[]], [[0, 1, 3]], 4), [1, 0.2, 5], None)
        model = fitted(shop, "owned-share")
        contents = model.shop.interactions.bundle_item
        score = require(model.model, Matcher).score_bundles(model.shop.everyone(), contents)
        assert float(score[0, 0]) == pytest.approx(1 / 3)


class TestPlantedViews:
    """The shop `views`: four views of random things for each purchase."""

    @staticmethod
    def splits() -> tuple[Split, Split, Split]:
        """The same cases, to learn from events by their weights, from purchases alone, and from all alike."""
        split = SplitPlan("paper").divide(shop_of_kind("views").dataset)
        train = split.train
        alone = train.with_interactions(user_item=train.bought_items, user_bundle=train.bought_bundles)
        alike = replace(train, item_events=Events(), bundle_events=Events())
        assert alone.bundle_events.weight is None
        return split, replace(split, train=alone), replace(split, train=alike)

    @pytest.mark.parametrize(
        ("model", "settings"),
        [
            ("bundlemage", {"embedding_dim": 16, "epochs": 8, "device": "cpu"}),
            ("ease", {}),
            ("item-knn", {}),
        ],
    )
    def test_weights_recover_what_types_of_events_tell(self, model: str, settings: Any) -> None:
        found = []
        for split in self.splits():
            learned = Recommender(model, **settings).fit(split, progress=False, calibrate=False)
            matching = learned.evaluate(split).matching
            assert matching is not None
            found.append(matching["ndcg@5"])
        by_weight, purchases_alone, all_alike = found
        assert by_weight >= 0.9 * purchases_alone
        assert all_alike < 0.6 * purchases_alone

    def test_views_are_four_times_as_many_and_never_both(self) -> None:
        shop = shop_of_kind("views").dataset
        for events in (shop.item_events, shop.bundle_events):
            assert events.weight is not None
            share = float((events.weight == 1).mean())
            assert 0.18 < share < 0.25
            assert set(np.unique(events.weight)) == {np.float32(weight) for weight in EVENTS.values()}
