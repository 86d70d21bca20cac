"""Designs are what the person is likely to take: value, rank, buyers, better bundles, and several users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender, Segment, SplitPlan
from bundlemage.campaigns.sample import Sample, expected_buyers
from bundlemage.data.dataset import row_of
from bundlemage.errors import ConfigError, OutOfTimeError
from bundlemage.live import EMPTY, Live
from bundlemage.models.base import Completer, require
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned
from bundlemage.wire.design import DesignRequest, ImpossibleDesignError
from bundlemage.wire.shop import ShopSettings
from tests.designing import (
    Judge,
    broken,
    goods_of,
    list_price,
    owned_by,
    rules_of,
    small_sample,
    tiny_recommender,
)
from tests.small_shop import QUICK, dataset_of, small_shop

USERS = ("u0007", "u0100", "u0333")


@pytest.fixture(scope="module")
def sample() -> Recommender:
    return small_sample()[0]


@pytest.fixture(scope="module")
def tiny() -> Recommender:
    return tiny_recommender(12)


@pytest.fixture(scope="module")
def shop() -> Recommender:
    return two_tastes()


class TestTheWholeBundle:
    def test_rank_and_probability_are_those_of_a_recommendation(self, sample: Recommender) -> None:
        for user in USERS:
            for design in sample.design(user, n=3, reasons=False, buyers=False):
                ranked = sample.recommend(user, k=10_000, new_bundles={"design": design.ids})
                (found,) = (each for each in ranked if each.id == "design")
                assert design.expected_rank == found.rank
                assert design.terms.matching / 8 == pytest.approx(math.log(found.score), abs=1e-4)

    def test_the_same_for_a_history(self, sample: Recommender) -> None:
        visitor = History(items=["g0022", "g0004"], bundles=[["g0001", "g0002"]])
        (design,) = sample.design(visitor, n=1, reasons=False)
        ranked = sample.recommend(visitor, k=10_000, new_bundles={"design": design.ids})
        assert design.expected_rank == next(each.rank for each in ranked if each.id == "design")

    def test_designs_are_taken_more_than_those_that_only_fit_together(self, sample: Recommender) -> None:
        for user in USERS:
            usual, together = (
                sample.design(user, n=1, matching=weight, reasons=False)[0] for weight in (8.0, 0.0)
            )
            assert usual.expected_rank is not None
            assert together.expected_rank is not None
            assert usual.expected_rank <= together.expected_rank
            assert together.terms.matching == 0
            assert together.value == pytest.approx(together.terms.likelihood)

    def test_without_a_history_there_is_no_rank(self, sample: Recommender) -> None:
        assert sample.design(History(), n=1)[0].expected_rank is None

    def test_a_model_that_only_completes_designs_as_before(self) -> None:
        model = Recommender(**QUICK, tasks="generation").fit(small_shop(), progress=False)
        user = model.dataset.users.ids[0]
        answer = model.design(user, size=2, n=1, not_owned=False)
        assert (answer[0].expected_rank, answer[0].expected_buyers) == (None, None)
        assert (answer[0].terms.matching, answer.better_existing) == (0.0, None)
        assert answer.note is not None
        assert "does not recommend bundles" in answer.note

    @pytest.mark.parametrize("name", ["co-occurrence", "ease-items"])
    def test_so_does_another_model(self, sample: Recommender, name: str) -> None:
        other = Recommender(name, device="cpu").fit(sample.dataset, progress=False)
        assert len(other.design("u0007", n=2, reasons=False)) == 2


class TestExisting:
    def test_the_best_of_the_shop_is_named_if_it_is_better(self, tiny: Recommender) -> None:
        bought_again = copy(tiny)
        bought_again.shop_settings = ShopSettings(owned="show")
        named = [
            self.named(model, request)
            for model in (tiny, bought_again)
            for request in (
                {"size": (1, 4)},
                {"size": (2, 4), "in_stock": False},
                {"size": (2, 4), "budget": 14.0, "forbid": ["i5"]},
                {"size": (1, 4), "must": ["i7"], "in_stock": False},
                {"size": (2, 4), "one_per": ["brand:*"], "start": ["i2"]},
            )
        ]
        assert sum(named), "in none of these cases is a bundle of the shop better"

    def test_a_proposal_is_not_better_than_itself(self, sample: Recommender) -> None:
        """A bundle of the shop that sells well has a higher value than the same items as a new bundle."""
        bundles, proposed = sample.dataset.bundle_item, 0
        for place in np.argsort(-sample.dataset.user_bundle.sum(axis=0).A1)[:5].tolist():
            items = [sample.dataset.items[item] for item in row_of(bundles, place)]
            request: dict[str, Any] = {"must": items, "size": len(items), "not_owned": False}
            answer = sample.design("u0007", **request, in_stock=False, reasons=False, buyers=False)
            if (name := answer[0].same_as) is not None:
                proposed += name == sample.dataset.bundles[place]
                assert answer.better_existing is None
        assert proposed

    def test_it_keeps_the_budget_by_its_own_price(self, tiny: Recommender) -> None:
        """The discount of the request is not one of the shop's bundles: they cost the sum of their items."""
        model, goods, kept = copy(tiny), goods_of(tiny), 0
        model.shop_settings = ShopSettings(owned="show")
        for user, budget in product(model.dataset.users.ids, (8, 12, 16, 25)):
            wishes: dict[str, Any] = {"size": (1, 4), "budget": budget, "discount": 0.4, "in_stock": False}
            answer = model.design(user, **wishes, n=1, reasons=False, buyers=False, method="greedy")
            if (better := answer.better_existing) is not None:
                place = tiny.dataset.bundles.position(better.id)
                items = [tiny.dataset.items[item] for item in row_of(tiny.dataset.bundle_item, place)]
                assert better.price == float(list_price(goods, items) or 0)
                assert better.price <= budget
                kept += 1
        assert kept

    def test_bundles_with_items_newer_than_the_model_are_neither_better_nor_the_same(
        self, tiny: Recommender
    ) -> None:
        data = tiny.dataset
        assert data.catalogue is not None
        items = [
            Item(row["item_id"], price=1.0, tags=tuple(row["tags"]), stock=5)
            for row in data.catalogue.items.to_pylist()
        ]
        inside = [[data.items[item] for item in row.indices] for row in data.bundle_item]
        found = []
        for more in ((), ("later",)):
            bundles = [Bundle(name, (*row, *more)) for name, row in zip(data.bundles, inside, strict=True)]
            change = CatalogueChange(1, [*items, Item("later", price=500.0, stock=5)], bundles)
            live, named = Live(tiny, EMPTY.after(change)), set[str | None]()
            for user in range(8):
                owned = Owned(tuple(data.items[item] for item in data.user_item[user].indices))
                for must in (inside[user], []):
                    wishes: dict[str, Any] = {"must": must, "size": len(must)} if must else {"size": (1, 4)}
                    wishes |= {"not_owned": False, "budget": 60, "matching": 100, "n": 1}
                    answer = live.design(owned, reasons=False, buyers=False, method="greedy", **wishes)
                    named.add(answer[0].same_as)
                    named.add(None if answer.better_existing is None else "better")
            found.append(named - {None})
        assert "better" in found[0]
        assert len(found[0]) > 2
        assert not found[1]

    def named(self, tiny: Recommender, request_: dict[str, Any]) -> int:
        """How many users are told a better bundle. It is found once more by a plain loop over the bundles of
        the shop, none of which has a price of its own."""
        goods, request_, named = goods_of(tiny), request_ | {"not_owned": False}, 0
        data, rules = tiny.dataset, rules_of(goods, request_)
        start = set(request_.get("start", ()))
        for user in ("u1", "u2", "u3", "u4", "u5"):
            judge, owned = Judge(tiny, goods, user), owned_by(tiny, user)
            score = {each.id: each for each in tiny.recommend(user, k=1000)}
            likeliest = sorted(score.values(), key=lambda each: -each.score)
            values = {}
            for each in likeliest:
                row = data.bundle_item[data.bundles.position(each.id)].indices
                inside = {data.items.ids[item] for item in row}
                added = sorted(inside - start)
                if not added or not start <= inside or broken(goods, owned, request_, rules, added):
                    continue
                values[each.id] = 8 * math.log(each.score) + judge.worth(request_, added).likelihood
                if len(values) == 16:
                    break
            answer = tiny.design(user, **request_, n=1, reasons=False)
            best = max(values, key=lambda name: values[name], default=None)
            better = answer.better_existing
            if best is None or values[best] < answer[0].value - 1e-4:
                assert better is None
            elif values[best] > answer[0].value + 1e-4:
                assert better is not None
                assert better.id == best
                assert better.value == pytest.approx(values[best], abs=1e-3)
                assert better.expected_rank == score[best].rank
                named += 1
        return named


class TestWhatTheUserOwns:
    @pytest.mark.parametrize(
        "settings",
        [{"owned": owned, "mostly_owned": share} for owned in ("demote", "hide") for share in (0.5, 1.0)]
        + [{"owned": "show"}, {"stock": "hide"}, {"stock": "show"}],
        ids=str,
    )
    def test_the_rank_is_that_of_a_recommendation(
        self, sample: Recommender, settings: dict[str, Any]
    ) -> None:
        model = copy(sample)
        model.shop_settings = ShopSettings(**settings)
        ranks = []
        for user in USERS:
            owned = sorted(owned_by(model, user))
            for wishes in (
                {"not_owned": False, "size": 2, "in_stock": False},
                {"size": (2, 5), "in_stock": False},
                {"start": owned[:2], "size": (3, 4)},
                {"start": owned[:3], "size": 4, "not_owned": False, "matching": 0},
            ):
                for design in model.design(user, n=2, reasons=False, buyers=False, **wishes):
                    listed = model.recommend(user, 10_000, new_bundles={"design": design.ids})
                    rank = next((each.rank for each in listed if each.id == "design"), None)
                    assert design.expected_rank == rank, (user, wishes)
                    ranks.append(rank)
                    wholly = set(design.ids) <= set(owned)
                    assert not wholly or settings.get("owned") == "show", (user, wishes)
        assert any(ranks)

    def test_what_is_owned_whole_is_proposed_only_if_nothing_else_is_possible(
        self, sample: Recommender
    ) -> None:
        owned = sorted(owned_by(sample, "u0007"))
        asked: dict[str, Any] = {"not_owned": False, "in_stock": False, "reasons": False, "buyers": False}
        for wishes in ({"size": 3, "n": 20, "matching": 0}, {"size": (2, 3), "must": owned[:2], "n": 3}):
            for method in ("beam", "greedy", "exact"):
                for design in sample.design("u0007", **asked, **wishes, method=method, time_limit=2):
                    assert not set(design.ids) <= set(owned)
        (only,) = sample.design("u0007", **asked, must=owned[:3], size=3)
        assert [item.owned for item in only.items] == [True] * 3
        assert only.expected_rank is None
        assert only.to_pay == only.price

    @pytest.mark.parametrize("pays", ["whole", "missing", "discount"])
    @pytest.mark.parametrize("discount", [0.0, 0.25])
    def test_items_and_price_are_those_of_a_recommendation(
        self, sample: Recommender, pays: str, discount: float
    ) -> None:
        model = copy(sample)
        model.shop_settings = ShopSettings(pays=pays)  # type: ignore[arg-type]
        goods, less = goods_of(model), 0
        for user in USERS:
            owned = sorted(owned_by(model, user))
            start = owned[:2]
            for design in model.design(user, n=2, start=start, discount=discount, in_stock=False):
                (shown,) = (
                    each
                    for each in model.recommend(user, 10_000, new_bundles={"design": design.ids})
                    if each.id == "design"
                )
                assert {item.id for item in design.items if item.owned} == set(shown.owned)
                assert {item.id for item in design.items if item.sold_out} == set(shown.sold_out)
                assert design.price is not None
                assert design.to_pay is not None
                missing = [item for item in design.ids if item not in owned]
                share = float(list_price(goods, missing) or 0) / float(list_price(goods, design.ids) or 1)
                expected = design.price * (1 if pays == "whole" else share)
                assert design.to_pay == pytest.approx(expected, abs=0.011)
                less += design.to_pay < design.price
        assert bool(less) == (pays != "whole")

    def test_of_several_users_each_owns_something_else(self, sample: Recommender) -> None:
        for design in sample.design_many(USERS, n=2, buyers=False):
            assert [item.owned for item in design.items] == [None] * len(design.items)
            assert design.to_pay == design.price


class TestBuyers:
    def test_they_are_those_of_a_forecast(self, sample: Recommender) -> None:
        answer = sample.design("u0007", n=3, reasons=False)
        for design in answer:
            forecast = sample.score_bundle(design.ids)
            assert design.expected_buyers == pytest.approx(forecast.expected)
            assert (design.low, design.high) == (forecast.low, forecast.high)

    def test_a_sample_of_the_users_is_scaled_and_its_error_counts(self, sample: Recommender) -> None:
        shop, calibration = sample.shop, sample.new_bundle_calibration
        assert calibration is not None
        bundles = [[1, 2, 3], [40, 50, 60]]
        contents, everyone = shop.interactions.bundle_item, shop.everyone()
        whole = Sample.of(sample.model, shop, everyone, contents, 800)
        exact = expected_buyers(sample.model, shop, whole, bundles, calibration)
        some = everyone.rows(torch.from_numpy(np.random.default_rng(0).permutation(800)[:100]))
        part = Sample.of(sample.model, shop, some, contents, 800)
        estimated = expected_buyers(sample.model, shop, part, bundles, calibration)
        for (expected, low, high), (about, lowest, highest) in zip(exact, estimated, strict=True):
            assert about == pytest.approx(expected, rel=0.5)
            assert lowest <= expected <= highest
            assert 0 <= low < high

    def test_they_are_not_estimated_if_not_wanted(self, sample: Recommender) -> None:
        answer = sample.design("u0007", n=1, buyers=False)
        assert (answer[0].expected_buyers, answer[0].low, answer.note) == (None, None, None)

    def test_too_little_data_is_said(self, tiny: Recommender) -> None:
        answer = tiny.design("u1", size=2, n=1)
        assert answer[0].expected_buyers is None
        assert answer.note is not None
        assert "too little data" in answer.note


HALF = 40


def two_tastes() -> Recommender:
    """The users u0 to u19 have bundles of the first 40 items, the users u20 to u39 those of the others."""
    random = np.random.default_rng(0)

    def rows(size: int, of: int) -> list[list[int]]:
        return [(of * half + random.permutation(of)[:size]).tolist() for half in (0, 1) for _ in range(20)]

    shop = dataset_of(rows(2, HALF), rows(4, 20), rows(3, HALF), 2 * HALF)
    settings: dict[str, Any] = {"embedding_dim": 16, "epochs": 60, "learning_rate": 0.02, "device": "cpu"}
    return Recommender(**settings).fit(shop, SplitPlan("none"), progress=False)


class TestSeveralUsers:
    @pytest.mark.parametrize("half", [0, 1])
    @pytest.mark.parametrize("method", ["beam", "exact"])
    def test_a_segment_gets_its_taste(self, shop: Recommender, half: int, method: str) -> None:
        segment = [f"u{number}" for number in range(20 * half, 20 * half + 20)]
        answer = shop.design_many(segment, size=3, n=1, not_owned=False, method=method, time_limit=2.0)
        places = [shop.dataset.items.position(item) for item in answer[0].ids]
        assert {place // HALF for place in places} == {half}
        assert answer[0].expected_rank is None

    def test_one_user_is_the_same_alone(self, shop: Recommender) -> None:
        alone = shop.design("u3", size=3, n=2, reasons=False)
        together = shop.design_many(["u3"], size=3, n=2, reasons=False)
        assert [each.ids for each in alone] == [each.ids for each in together]
        assert [each.value for each in alone] == pytest.approx([each.value for each in together])

    def test_the_value_is_the_mean_of_the_users(self, shop: Recommender) -> None:
        users = ["u1", "u5", "u30"]
        (design,) = shop.design_many(users, size=3, n=1, reasons=False)
        goods = goods_of_items(shop)
        taken, logs = [], []
        for user in users:
            judge = Judge(shop, goods, user)
            barred = owned_by(shop, user) & set(design.ids)
            taken.append(0.0 if barred else math.exp(judge.log_taken(design.ids)))
            logs.append(
                [
                    judge.log_chances(design.ids[:place])[shop.dataset.items.position(item)]
                    for place, item in enumerate(design.ids)
                ]
            )
        assert design.terms.matching == pytest.approx(8 * math.log(np.mean(taken)), abs=1e-3)
        assert design.terms.likelihood == pytest.approx(
            np.log(np.exp(np.array(logs)).mean(0)).mean(), abs=1e-3
        )

    def test_everyone(self, sample: Recommender) -> None:
        (design,) = sample.design_many(n=1, size=3, time_limit=5.0)
        forecast = sample.score_bundle(design.ids)
        assert design.expected_buyers == pytest.approx(forecast.expected)

    def test_the_buyers_of_a_segment_are_those_of_a_forecast(self, sample: Recommender) -> None:
        everyone = sample.dataset.users.ids
        segments: list[Segment | list[str]] = [
            Segment(tag="Horror", least_bundles=5),
            Segment(least_bundles=8),
            Segment(most_bundles=2),
            Segment(users=["u0007", "u0012", "u0031"]),
            [*everyone[::40]],
        ]
        for segment in segments:
            among = segment if isinstance(segment, Segment) else Segment(users=segment)
            for design in sample.design_many(segment, n=2, size=3, reasons=False):
                forecast = sample.score_bundle(design.ids, among=among)
                assert design.expected_buyers == pytest.approx(forecast.expected, rel=1e-4)
                assert (design.low, design.high) == (forecast.low, forecast.high)
        few, others = [*everyone[::3]], [*everyone[1::3], *everyone[2::3]]
        request = DesignRequest.of(must=["g0004", "g0022"], size=2, n=1, reasons=False, not_owned=False)
        parts = [sample.design_many(users, request)[0].expected_buyers or 0 for users in (few, others)]
        whole = sample.design_many(None, request)[0].expected_buyers
        assert sum(parts) == pytest.approx(whole, rel=1e-4)

    def test_samples_of_the_shop_and_of_a_group(self, sample: Recommender) -> None:
        """The interval has the sampling error of both."""
        shop, calibration = sample.shop, sample.new_bundle_calibration
        assert calibration is not None
        contents, everyone, bundles = (
            shop.interactions.bundle_item,
            shop.everyone(),
            [[1, 2, 3], [40, 50, 60]],
        )

        def drawn(size: int, of: int, seed: int) -> Sample:
            places = torch.from_numpy(np.random.default_rng(seed).permutation(of)[:size])
            return Sample.of(sample.model, shop, everyone.rows(places), contents, of)

        exact = expected_buyers(
            sample.model, shop, drawn(800, 800, 0), bundles, calibration, drawn(400, 400, 0)
        )
        held = []
        for seed in range(20):
            group = drawn(100, 400, seed + 100)
            found = expected_buyers(sample.model, shop, drawn(100, 800, seed), bundles, calibration, group)
            held += [
                low <= expected <= high for (expected, _, _), (_, low, high) in zip(exact, found, strict=True)
            ]
        assert np.mean(held) >= 0.9

    def test_who_is_listed_twice_counts_once(self, sample: Recommender) -> None:
        users = ["u0007", "u0012", "u0031"]
        request = DesignRequest.of(size=3, n=1, reasons=False)
        (once,), (often,) = (sample.design_many(each, request) for each in (users, users * 3))
        assert (often.ids, often.expected_buyers) == (once.ids, once.expected_buyers)
        assert sorted(map(str, sample.design_each(["u0007", "u0007"], size=3)[0][1])) == ["u0007"]
        (two,) = sample.design_many([History(), History()], request)
        (one,) = sample.design_many([History()], request)
        assert two.expected_buyers == pytest.approx(2 * (one.expected_buyers or 0))

    def test_a_user_for_whom_time_runs_out_does_not_stop_the_others(
        self, shop: Recommender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Recommender.design

        def hurried(self: Recommender, user: Any, *rest: Any, **more: Any) -> Any:
            if user == "u1":
                raise OutOfTimeError("not in time")
            return real(self, user, *rest, **more)

        monkeypatch.setattr(Recommender, "design", hurried)
        found = shop.design_each(["u1", "u2"], size=2)
        assert [who for _, who in found] == [["u2"]]
        with pytest.raises(OutOfTimeError):
            shop.design_each(["u1"], size=2)

    def test_each_user_has_one(self, shop: Recommender) -> None:
        users = ["u1", "u2", "u25"]
        found = shop.design_each(users, size=2)
        assert sorted(str(user) for _, who in found for user in who) == users
        for bundle, who in found:
            for user in who:
                (own,) = shop.design(user, size=2, n=1, reasons=False)
                assert set(own.ids) == set(bundle.ids)
        assert len({frozenset(bundle.ids) for bundle, _ in found}) == len(found)

    def test_a_segment_is_the_list_of_its_users(self, sample: Recommender) -> None:
        segment = Segment(tag="Horror", least_bundles=8)
        users = sample.users_in(segment)
        histories = [
            row_of(sample.dataset.user_bundle, sample.dataset.users.position(user)) for user in users
        ]
        assert 1 < len(users) < len(sample.dataset.users)
        assert all(len(bundles) >= 8 for bundles in histories)
        request = DesignRequest.of(size=3, n=1, reasons=False, buyers=False)
        of_segment, of_list = sample.design_many(segment, request), sample.design_many(users, request)
        assert of_segment[0].ids == of_list[0].ids
        few = Segment(users=users[:2])
        assert (
            sorted(user for _, who in sample.design_each(few, size=2) for user in map(str, who)) == users[:2]
        )
        with pytest.raises(ConfigError, match="no user is in this segment"):
            sample.design_many(Segment(least_bundles=1000), size=3)

    def test_wrong_users_are_refused(self, shop: Recommender) -> None:
        wrong: tuple[Sequence[str], ...] = ("u1", [])
        for users in wrong:
            with pytest.raises(ConfigError, match="users"):
                shop.design_many(users, size=2)
        with pytest.raises(ImpossibleDesignError):
            shop.design_each(["u1"], size=100)


def goods_of_items(recommender: Recommender) -> Any:
    """Nothing is known of the items."""
    from tests.designing import Goods

    ids = recommender.dataset.items.ids
    return Goods(dict.fromkeys(ids), {name: frozenset() for name in ids}, dict.fromkeys(ids))


class TestOneDefinitionOfAProbability:
    def test_complete_and_design_agree(self, sample: Recommender) -> None:
        inside = ["g0022", "g0004"]
        (design,) = sample.design("u0007", start=inside, size=3, n=1, reasons=False)
        added = design.items[-1]
        answers = sample.complete("u0007", inside, k=600)
        assert added.score == pytest.approx({each.id: each.score for each in answers}[added.id], rel=1e-5)

    def test_it_is_the_probability_of_the_next_item(self, sample: Recommender) -> None:
        histories, contents = sample.shop.encode(["u0007"])
        from bundlemage.models.ragged import Ragged

        places = [sample.dataset.items.position(item) for item in ("g0022", "g0004")]
        with torch.no_grad():
            scores = require(sample.model, Completer).score_items(
                histories, Ragged.from_lists([places]), contents
            )[0]
        others = [place for place in range(len(scores)) if place not in places]
        chances = dict(zip(others, scores[others].softmax(0).tolist(), strict=True))
        for each in sample.complete("u0007", ["g0022", "g0004"], k=20):
            assert each.score == pytest.approx(chances[sample.dataset.items.position(each.id)], rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"one_per": 5},
        {"one_per": [None]},
        {"budget": "40"},
        {"budget": b"40"},
        {"start": b"g1"},
        {"start": [["g0001"]]},
        {"must": [None]},
        {"must": {"g0001": 1}},
        {"forbid": [1.5]},
        {"forbid": [True]},
        {"matching": -1},
        {"matching": "high"},
        {"buyers": "yes"},
    ],
    ids=str,
)
def test_a_wrong_value_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DesignRequest.of(**wrong)


def test_a_request_is_a_request(tiny: Recommender) -> None:
    wrong: Any = 5
    with pytest.raises(ConfigError, match="DesignRequest"):
        tiny.design("u1", wrong)
    with pytest.raises(ConfigError, match="either"):
        tiny.design("u1", DesignRequest(), size=3)


NO_LISTS: tuple[Any, ...] = (5, "u1", b"u1", {"u1": 1}, np.array(3), True)


class TestWrongValuesOfQuestions:
    """Each is an error in words."""

    @pytest.mark.parametrize("wrong", NO_LISTS, ids=repr)
    def test_what_is_no_list(self, tiny: Recommender, wrong: Any) -> None:
        for ask in (
            lambda: tiny.design_many(wrong, size=2),
            lambda: tiny.design_each(wrong, size=2),
            lambda: tiny.recommend_many(wrong),
            lambda: list(tiny.recommend_all(users=wrong)),
            lambda: tiny.complete("u1", wrong),
            lambda: tiny.complete_many(wrong),
            lambda: tiny.explain_bundles("u1", wrong),
            lambda: tiny.explain("u1", item="i1", items=wrong),
            lambda: tiny.score_bundle(wrong),
            lambda: tiny.recommend(History(items=wrong)),
            lambda: tiny.recommend(History(bundles=wrong)),
        ):
            with pytest.raises(ConfigError, match="list"):
                ask()

    @pytest.mark.parametrize("wrong", [0, False, "", [], 5, "x", True], ids=repr)
    def test_what_is_no_dict(self, tiny: Recommender, wrong: Any) -> None:
        for name in ("new_bundles", "expected_sales", "sells_like"):
            with pytest.raises(ConfigError, match=name):
                tiny.recommend("u1", **{name: wrong})
        with pytest.raises(ConfigError, match="costs"):  # 0 is not "no costs": the catalogue has them
            DesignRequest.of(costs=wrong)

    def test_others(self, tiny: Recommender) -> None:
        wrong: Any
        for wrong in (5, None, "Horror", {"tag": "Horror"}):
            with pytest.raises(ConfigError, match="segment"):
                tiny.users_in(wrong)
        for wrong in (5, ["de"], {}, b"de"):
            with pytest.raises(ConfigError, match="language"):
                tiny.explain("u1", item="i1", language=wrong)
        for wrong in ([], np.array([1, 2]), {}):
            with pytest.raises(ConfigError, match="'to'"):
                tiny.explain("u1", item="i1", to=wrong)
        for wrong in (-1, 0.5, None, "1"):
            with pytest.raises(ConfigError, match="seed"):
                tiny.score_bundle(["i1"], seed=wrong)
        wrong = [5]
        with pytest.raises(ConfigError, match="pair"):
            tiny.complete_many(wrong)
        with pytest.raises(ConfigError, match="function"):
            tiny.score_bundle(["i1"], users=wrong)
        for name in ("n", "size", "matching"):
            with pytest.raises(ConfigError, match=name):
                DesignRequest.of(**{name: np.True_})
