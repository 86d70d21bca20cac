"""An index finds what it says it finds, names nothing that it must not, and is not used when it is poor."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage.core.filters import Filter
from bundlemage.core.shop import Shop
from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError, MissingExtraError, RecallError, UnsupportedError
from bundlemage.models.base import Histories
from bundlemage.models.bundlemage import BundleMage
from bundlemage.retrieval import IndexReport
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import PLAIN, QUICK, dataset_of, small_shop

BUNDLES = 2_000
SMALL: dict[str, Any] = {"least_bundles": 1}


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop(users=300, items=400, bundles=BUNDLES)


def fitted(dataset: BundleDataset, **settings: Any) -> Recommender:
    """A model whose vectors tell bundles apart: after an epoch or two, sales alone would rank."""
    recommender = Recommender(**QUICK | PLAIN | {"epochs": 1} | settings)
    recommender.fit(dataset, SplitPlan("none"), progress=False)
    recommender.shop_settings = ShopSettings(mostly_owned=1, stock="show")
    model = recommender.model
    assert isinstance(model, BundleMage)
    with torch.no_grad():
        random = torch.Generator().manual_seed(0)
        for table in (model.item_shared, model.item_matching):
            table.copy_(0.7 * torch.randn(table.shape, generator=random))
    model.train().eval()  # it forgets what it had made of the old ones
    return recommender


@pytest.fixture(scope="module")
def plain(shop: BundleDataset) -> Recommender:
    return fitted(shop)


@pytest.fixture(scope="module")
def indexed(shop: BundleDataset) -> tuple[Recommender, IndexReport]:
    recommender = fitted(shop)
    return recommender, recommender.use_index(0.9, **SMALL)


def true_scores(recommender: Recommender) -> np.ndarray[Any, Any]:
    """By NumPy alone, from the weights."""
    model, data = recommender.model, recommender.dataset
    assert isinstance(model, BundleMage)
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    items = np.hstack([weights["item_shared"], weights["item_matching"]])

    def mean(matrix: Any, table: Any) -> Any:
        return (matrix @ table) / np.maximum(np.diff(matrix.indptr), 1)[:, None]

    bundles = mean(data.bundle_item, items)
    p, q = mean(data.user_item, items), mean(data.user_bundle, bundles)
    linear = weights["premix.weigh.weight"], weights["premix.weigh.bias"]
    gate = 1 / (1 + np.exp(-(np.hstack([p, q]) @ linear[0].T + linear[1])))
    mixed = gate * p + (1 - gate) * q
    inner = np.maximum(mixed @ weights["premix.transform.0.weight"].T + weights["premix.transform.0.bias"], 0)
    z = inner @ weights["premix.transform.2.weight"].T + weights["premix.transform.2.bias"]
    scores: np.ndarray[Any, Any] = z @ bundles.T + np.log1p(weights["sales"])
    return scores


def allowed_scores(recommender: Recommender) -> np.ndarray[Any, Any]:
    """As `true_scores`, -∞ for bundles of which a user owns all items, and for bundles without items."""
    scores, data = true_scores(recommender), recommender.dataset
    inside = data.bundle_item.toarray()
    owned = (data.user_item.toarray() + data.user_bundle.toarray() @ inside) > 0
    scores[owned.astype(np.float32) @ inside.T == inside.sum(1)] = -np.inf
    return scores


def answers(recommender: Recommender, k: int = 10, **options: Any) -> dict[str, dict[str, float]]:
    """For each user, bundles and their scores, best first."""
    found: dict[str, dict[str, float]] = {user: {} for user in recommender.dataset.users}
    for row in pa.Table.from_batches(recommender.recommend_all(k, **options)).to_pylist():
        found[row["user_id"]][row["bundle_id"]] = row["score"]
    return found


class TestRecall:
    def test_it_is_the_true_one(self, indexed: tuple[Recommender, IndexReport]) -> None:
        """All 300 users are asked; what the index misses of a user to whom too few were found counts, too."""
        recommender, report = indexed
        scores = allowed_scores(recommender)
        index = recommender._index
        assert index is not None
        data = recommender.shop.interactions
        questions = Histories(data.user_item, data.user_bundle, torch.arange(len(data.user_item)))
        rankings = list(recommender.rank_bundles(questions))
        found = np.concatenate([ranking.positions.numpy() for ranking in rankings])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        hits = sum(
            len(set(one) & set(other)) for one, other in zip(best.tolist(), found.tolist(), strict=True)
        )
        assert report.asked == len(scores)
        assert (report.looked_further, report.answered_exactly) == (0, 0)
        assert report.recall == pytest.approx(hits / best.size, abs=1e-9)
        assert 0.9 <= report.recall < 1
        assert report.kind == "ivf-flat"

    def test_cosines_are_searched_too(self, shop: BundleDataset) -> None:
        """The defaults: what an index finds is most of what an exact search finds."""
        recommender = Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False)
        exact = answers(recommender)
        report = recommender.use_index(0.9, **SMALL)
        found = answers(recommender)
        hits = sum(len(exact[user].keys() & found[user].keys()) for user in exact)
        assert report.recall >= 0.9
        assert hits >= 0.9 * sum(map(len, exact.values()))

    def test_more_effort_finds_more(self, shop: BundleDataset) -> None:
        recommender = fitted(shop)
        reports = [recommender.use_index(least, **SMALL) for least in (0.5, 0.9, 0.99)]
        assert [report.recall >= least for report, least in zip(reports, (0.5, 0.9, 0.99), strict=True)] == [
            True
        ] * 3
        assert all(one.probed < other.probed for one, other in pairwise(reports))

    def test_too_little_is_refused_and_nothing_is_served_by_it(
        self, shop: BundleDataset, plain: Recommender
    ) -> None:
        recommender = fitted(shop)
        recommender.use_index(0.5, **SMALL)
        with pytest.raises(RecallError, match=r"finds \d+\.\d+% of the 10 best .*least_recall is 99.00%"):
            recommender.use_index(0.99, most_share=1e-9, **SMALL)
        assert answers(recommender) == answers(plain)

    def test_the_same_seed_gives_the_same(self, shop: BundleDataset) -> None:
        def once() -> tuple[Any, ...]:
            recommender = fitted(shop)
            report = recommender.use_index(0.8, seed=3, **SMALL)
            return report.recall, report.probed, report.score_error, answers(recommender)

        assert once() == once()

    def test_it_holds_for_more_answers_and_behind_a_filter(
        self, plain: Recommender, indexed: tuple[Recommender, IndexReport]
    ) -> None:
        for k, where in ((30, None), (10, Filter(exclude=plain.dataset.bundles.ids[::2]))):
            exact, found = answers(plain, k, where=where), answers(indexed[0], k, where=where)
            hits = sum(len(exact[user].keys() & found[user].keys()) for user in exact)
            assert hits / sum(map(len, exact.values())) >= 0.9


class TestAnswers:
    def test_scores_are_the_exact_ones_but_for_one_factor_a_person(
        self, plain: Recommender, indexed: tuple[Recommender, IndexReport]
    ) -> None:
        recommender, report = indexed
        scores = true_scores(recommender)
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        position = recommender.dataset.bundles.position
        factors = []
        for row, found in enumerate(answers(recommender).values()):
            ratios = [score / chances[row, position(name)] for name, score in found.items()]
            assert np.allclose(ratios, ratios[0], rtol=2e-4)
            assert list(found.values()) == sorted(found.values(), reverse=True)
            factors.append(abs(ratios[0] - 1))
        assert np.quantile(factors, 0.95) == pytest.approx(report.score_error, abs=1e-3)
        assert report.score_error < 0.1

    def test_where_too_few_are_found_it_looks_further(self, shop: BundleDataset) -> None:
        """One cell does not hold as many as are asked for: nobody gets fewer."""
        recommender = fitted(shop)
        report = recommender.use_index(0.1, most_share=0.9, **SMALL)
        assert report.probed == 1
        found = answers(recommender, 60)
        assert {len(names) for names in found.values()} == {60}

    @pytest.mark.parametrize("k", [3, 40])
    def test_nothing_owned_or_filtered_is_ever_named(
        self, indexed: tuple[Recommender, IndexReport], shop: BundleDataset, k: int
    ) -> None:
        hidden = set(shop.bundles.ids[::3])
        found = answers(indexed[0], k, where=Filter(exclude=hidden))
        for row, names in enumerate(found.values()):
            owned = {shop.bundles.ids[place] for place in shop.user_bundle[row].indices}
            assert not names.keys() & (owned | hidden)
            assert len(names) == k

    def test_where_few_are_left_all_of_them_are_found(
        self, plain: Recommender, indexed: tuple[Recommender, IndexReport]
    ) -> None:
        """Also where a filter leaves a few, and where more are asked for than there are."""
        few = Filter(among=plain.dataset.bundles.ids[10:17])
        for k, where in ((5, few), (50, few), (3 * BUNDLES, None)):
            exact = plain.recommend_many(["u0001", "u0002"], k, where=where)
            assert indexed[0].recommend_many(["u0001", "u0002"], k, where=where) == exact

    @pytest.mark.parametrize("count", [30, 600])
    def test_a_person_who_owns_the_best_gets_the_next(
        self, plain: Recommender, indexed: tuple[Recommender, IndexReport], count: int
    ) -> None:
        """A few more than others have, and more than a search goes past."""
        most = [each.id for each in plain.recommend("u0003", count)]
        person = History(items=["g0001", "g0002"], bundles=most)
        best = [each.id for each in indexed[0].recommend(person, 10)]
        assert len(best) == 10
        assert not set(best) & set(most)
        exact = [each.id for each in plain.recommend(person, 10)]
        assert len(set(exact) & set(best)) >= 8
        shown = indexed[0].recommend(person, 10, owned="show")
        assert {each.id for each in shown} & set(most)

    def test_what_sells_counts(self, shop: BundleDataset) -> None:
        """A bundle that everybody buys is found, though its vector is like any other."""
        recommender = fitted(shop)
        model = recommender.model
        assert isinstance(model, BundleMage)
        model.sales[77] = 1e12
        recommender.use_index(0.5, **SMALL)
        sold = shop.bundles.ids[77]
        found = answers(recommender, owned="show")
        assert all(next(iter(names)) == sold for names in found.values())

    def test_people_with_nothing_get_what_sells_most(
        self, plain: Recommender, indexed: tuple[Recommender, IndexReport]
    ) -> None:
        asked: list[str | History] = [History(), "u0001", History()]
        found, exact = indexed[0].recommend_many(asked, 4), plain.recommend_many(asked, 4)
        assert found[0] == found[2] == exact[0]
        assert {each.source for each in found[0]} == {"popular"}
        assert {each.source for each in found[1]} == {"model"}

    def test_new_and_nameless_bundles_are_looked_at_exactly(self, shop: BundleDataset) -> None:
        """Sales left out, so that bundles of one item, whose vectors are the longest, are among the best."""
        recommender = fitted(shop, popularity_weight=0.0)
        items = shop.items.ids
        new = {f"box {item}": [item] for item in items}
        best = recommender.recommend(History(items[:3]), 2, new_bundles=new)
        mine, hidden = (each.id for each in best)
        assert {mine, hidden} <= new.keys()
        person = History(items[:3], [items[3:5], shop.bundles.ids[7], mine])

        def ask() -> dict[str, float]:
            where = Filter(exclude=[hidden])
            return {
                each.id: each.score
                for each in recommender.recommend(person, 20, new_bundles=new, where=where)
            }

        exact = ask()
        recommender.use_index(0.8, most_share=0.9, **SMALL)
        found = ask()
        boxes = exact.keys() & new.keys()
        assert boxes
        assert boxes <= found.keys()
        assert not {mine, hidden} & found.keys()
        ratios = np.array([found[name] / exact[name] for name in exact.keys() & found.keys()])
        assert np.allclose(ratios, ratios[0], rtol=1e-4)
        assert abs(ratios[0] - 1) > 1e-6  # not by an exact search, then

    def test_equally_good_ones_come_in_their_own_order(self) -> None:
        inside = [[0, 1]] * 40
        dataset = dataset_of([[0], [1]], [[3], [5]], inside, 2)
        recommender = Recommender(**QUICK).fit(dataset, SplitPlan("none"), progress=False)
        recommender.shop_settings = ShopSettings(owned="show")  # the users own everything
        exact = recommender.recommend("u0", 50, owned="show")
        recommender.use_index(1e-9, most_share=1.0, **SMALL)
        found = recommender.recommend("u0", 50, owned="show")
        assert [each.id for each in found] == [each.id for each in exact]


class TestRefusals:
    def test_few_bundles_are_said_to_be_searched_exactly(
        self, shop: BundleDataset, plain: Recommender
    ) -> None:
        recommender = fitted(shop)
        report = recommender.use_index()
        assert (report.kind, report.recall, report.score_error) == ("exact", 1.0, 0.0)
        assert "the search stays exact" in str(report)
        assert answers(recommender) == answers(plain)

    def test_a_model_without_vectors_says_so(self, shop: BundleDataset) -> None:
        recommender = Recommender("popularity", device="cpu").fit(shop, progress=False)
        with pytest.raises(UnsupportedError, match="not a product of two vectors"):
            recommender.use_index(**SMALL)

    def test_without_faiss_the_extra_is_named(
        self, shop: BundleDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "faiss", None)  # as where it is not installed
        with pytest.raises(MissingExtraError, match=r"pip install 'bundlemage\[index\]'"):
            fitted(shop).use_index(**SMALL)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"least_recall": 0.0},
            {"least_recall": 95},
            {"most_share": -1.0},
            {"least_recall": "0.9"},
            {"least_recall": True},
            {"most_share": None},
            {"most_share": float("nan")},
        ],
    )
    def test_a_share_is_a_share(self, plain: Recommender, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="a share above 0 and up to 1"):
            plain.use_index(**wrong)

    @pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": "3"}, {"least_bundles": 2.5}, {"seed": True}])
    def test_whole_numbers(self, plain: Recommender, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*; it must be a whole number"):
            plain.use_index(**wrong)

    def test_nobody_to_measure_with(self) -> None:
        dataset = dataset_of([[0], []], [[0], []], [[0], [1]] * 20, 2)
        recommender = Recommender(**QUICK).fit(dataset, SplitPlan("none"), progress=False)
        empty = dataset_of([[], []], [[], []], [[0], [1]] * 20, 2)
        recommender._fitted = (recommender.model, Shop(empty, torch.device("cpu")))
        with pytest.raises(RecallError, match="no user of this shop"):
            recommender.use_index(**SMALL)

    def test_another_fit_has_no_index(self, shop: BundleDataset) -> None:
        recommender = fitted(shop)
        recommender.use_index(0.5, **SMALL)
        recommender.fit(shop, SplitPlan("none"), progress=False)
        assert recommender._index is None
