"""Designing bundles: every rule is kept, the value is the contract's, and exact means exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage.core.history import User
from bundlemage.core.shop import Shop
from bundlemage.data.dataset import Vocabulary
from bundlemage.errors import BundleMageError, ConfigError, UnknownIdError, UnsupportedError
from bundlemage.readers.load import read
from bundlemage.wire.design import ImpossibleDesignError, Method
from tests.counted_clock import CountedClock
from tests.designing import (
    Goods,
    Judge,
    Request,
    RequestMaker,
    broken,
    every_bundle,
    goods_of,
    numbers,
    owned_by,
    possible,
    rules_of,
    small_sample,
    tiny_recommender,
    violations,
    wrongly_refused,
)
from tests.real_data import real_data
from tests.small_shop import QUICK, dataset_of, small_shop

METHODS: tuple[Method, ...] = ("greedy", "beam", "exact")
TWELVE = 12


@pytest.fixture(scope="module")
def sample() -> Recommender:
    return small_sample()[0]


@pytest.fixture(scope="module")
def tiny() -> Recommender:
    return tiny_recommender(TWELVE)


def check(recommender: Recommender, goods: Goods, user: User, request: Request) -> bool:
    """Ask, and have the answer or the refusal judged. Whether it was possible."""
    owned, answer = owned_by(recommender, user), ask(recommender, user, request)
    if isinstance(answer, ImpossibleDesignError):
        assert not wrongly_refused(goods, owned, request, answer), (user, request, str(answer))
        return False
    assert not violations(goods, owned, request, answer, Judge(recommender, goods, user)), (user, request)
    return True


def ask(recommender: Recommender, user: User, request: Request) -> Any:
    """The bundles, or the refusal."""
    try:
        return recommender.design(user, **request)
    except BundleMageError as error:
        return error


@pytest.fixture
def counted_clock(monkeypatch: pytest.MonkeyPatch) -> CountedClock:
    return CountedClock(monkeypatch)


def ids(design: Any) -> list[str]:
    return [item.id for item in design.items]


def added(design: Any) -> list[str]:
    return [item.id for item in design.items if not item.given]


class TestRandomDesigns:
    @pytest.mark.parametrize(("method", "count"), [("greedy", 14), ("beam", 42), ("exact", 4)])
    def test_every_rule_is_kept(self, sample: Recommender, method: str, count: int) -> None:
        maker = RequestMaker(sample, seed=count)
        more = {"method": method, "reasons": False, "time_limit": 0.3 if method == "exact" else 10.0}
        done = [check(sample, maker.goods, maker.user(), maker.request() | more) for _ in range(count)]
        assert sum(done) > count / 2, "most requests are to be possible, or little was tried"

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("shop", ["sample", "steam-partial"])
    def test_a_thousand(self, shop: str, method: str) -> None:
        if shop == "sample":
            recommender = small_sample()[0]
        else:
            model = Recommender(embedding_dim=32, epochs=5, learning_rate=0.01, device="cpu")
            recommender = model.fit(read(real_data("steam/pathak")), progress=False)
        maker = RequestMaker(recommender, seed=1)
        count = 1000 if method == "beam" else 200
        more = {"method": method, "time_limit": 2.0}
        done = [check(recommender, maker.goods, maker.user(), maker.request() | more) for _ in range(count)]
        assert sum(done) > count / 2

    @pytest.mark.parametrize("method", METHODS)
    def test_every_rule_is_kept_where_prices_and_stock_are_missing(
        self, tiny: Recommender, method: str
    ) -> None:
        maker = RequestMaker(tiny, seed=3)
        for _ in range(8):
            request = maker.request() | {"margin": 0.0, "method": method, "reasons": False}
            check(tiny, maker.goods, maker.user(), request)


def altered(design: Any, **fields: Any) -> Any:
    return design.model_copy(update=fields)


class TestTheChecker:
    """A checker that finds nothing proves nothing."""

    @pytest.mark.parametrize(
        ("asked", "finds"),
        [
            ({"size": (1, 2)}, "size_max"),
            ({"size": (4, 5)}, "size_min"),
            ({"budget": 0.5}, "is not within"),
            ({"budget": (500, None)}, "is not within"),
            ({"must": ["g0001"]}, "('must', 'g0001')"),
            ({"start": ["g0001"]}, "is not there"),
            ({"discount": 0.2}, "a price of"),
            ({"n": 1}, "bundles where 1"),
            ({"apart": 1.0}, "share"),
            ({"margin": 1.0}, "margin is"),
            ({"diversity": 1.0}, "diversity is"),
        ],
        ids=str,
    )
    def test_an_answer_to_another_request_is_found_out(
        self, sample: Recommender, asked: Request, finds: str
    ) -> None:
        request = {"size": 3, "n": 8, "apart": 0.3, "reasons": False}
        assert any(finds in text for text in self.wrong(sample, request, asked)), asked

    def wrong(self, sample: Recommender, request: Request, asked: Request, change: Any = None) -> list[str]:
        goods = goods_of(sample)
        answer = list(sample.design("u0007", **request))
        assert not violations(
            goods, owned_by(sample, "u0007"), request, answer, Judge(sample, goods, "u0007")
        )
        answer = change(answer) if change else answer
        owned = owned_by(sample, "u0007")
        return violations(goods, owned, request | asked, answer, Judge(sample, goods, "u0007"))

    @pytest.mark.parametrize(
        ("change", "finds"),
        [
            (lambda designs: designs[::-1], "ranks"),
            (lambda designs: [altered(designs[0], price=designs[0].price + 0.01), *designs[1:]], "a price"),
            (lambda designs: [altered(designs[0], value=designs[0].value + 0.01), *designs[1:]], "add up"),
            (lambda designs: [altered(designs[0], score=designs[0].score * 1.01), *designs[1:]], "exp of"),
            (lambda designs: [altered(designs[0], items=designs[0].items[::-1]), *designs[1:]], "scores"),
            (lambda designs: [designs[0], altered(designs[0], rank=2)], "share 3 of 3"),
        ],
        ids=["order", "price", "value", "score", "items", "twice"],
    )
    def test_an_altered_answer_is_found_out(self, sample: Recommender, change: Any, finds: str) -> None:
        wrong = self.wrong(sample, {"size": 3, "n": 4, "reasons": False}, {}, change)
        assert any(finds in text for text in wrong), wrong

    def test_rules_on_single_items_are_found_out(self, sample: Recommender) -> None:
        goods = goods_of(sample)
        (design,) = sample.design("u0007", size=3, n=1, reasons=False)
        first, tag = ids(design)[0], sorted(goods.tags[ids(design)[0]])[0]
        poor = replace(goods, stock=dict.fromkeys(goods.stock, 0), gone=frozenset([first]))
        for request, shop, owned, finds in (
            ({"forbid": [first]}, goods, frozenset(), "forbid"),
            ({"tags": {"at most": {tag: 0}}}, goods, frozenset(), "at_most"),
            ({"tags": {"at least": {tag: 4}}}, goods, frozenset(), "at_least"),
            ({"in_stock": True}, poor, frozenset(), "in_stock"),
            ({}, poor, frozenset(), "withdrawn"),
            ({}, goods, frozenset([first]), "not_owned"),
        ):
            wrong = violations(shop, owned, request, [design], Judge(sample, shop, "u0007"))
            assert any(finds in text for text in wrong), (request, wrong)

    def test_one_per_with_stars_is_found_out(self, tiny: Recommender) -> None:
        goods = goods_of(tiny)
        for one_per, bundle, holds in (
            (["brand:a"], ["i0", "i3"], False),
            (["brand:a"], ["i1", "i4"], True),
            (["brand:*"], ["i1", "i4"], False),
            (["brand:*"], ["i0", "i1", "i2"], True),
            (["*"], ["i0", "i1", "i2"], False),  # two are of one colour
            (["*"], ["i0", "i1"], True),
        ):
            request: Request = {"one_per": one_per}
            rules = {name: True for name in rules_of(goods, request) if name[0] == "one_per"}
            assert (not broken(goods, frozenset(), request, rules, bundle)) == holds, (one_per, bundle)

    def test_the_solver_agrees_with_looking_at_every_bundle(self) -> None:
        eight = tiny_recommender(8)
        maker = RequestMaker(eight, seed=5)
        outcomes = set()
        for _ in range(40):
            request, owned = maker.request() | {"discount": 0.2}, owned_by(eight, maker.user())
            rules = rules_of(maker.goods, request)
            there = any(
                not broken(maker.goods, owned, request, rules, bundle)
                for bundle in every_bundle(maker.goods, request)
            )
            assert possible(maker.goods, owned, request, rules) == there, request
            outcomes.add(there)
        assert outcomes == {True, False}


class TestWhatIsAsked:
    def test_the_size_alone(self, sample: Recommender) -> None:
        assert [len(design.items) for design in sample.design("u0007", size=4)] == [4] * 5

    def test_the_usual_request_gives_five_bundles_of_three_to_five(self, sample: Recommender) -> None:
        answer = sample.design("u0007")
        assert len(answer) == 5
        assert {len(design.items) for design in answer} <= {3, 4, 5}
        assert (answer.method, answer.complete, answer.proven) == ("beam", True, False)
        assert answer.seconds > 0

    def test_start_counts_but_need_be_neither_in_stock_nor_new(self, sample: Recommender) -> None:
        goods, user = goods_of(sample), "u0007"
        mine = sorted(owned_by(sample, user))[0]
        sold_out = next(item for item, stock in goods.stock.items() if stock == 0)
        (design,) = sample.design(user, start=[mine, sold_out], size=3, n=1)
        assert set(ids(design)[:2]) == {mine, sold_out}
        assert [item.given for item in design.items] == [True, True, False]

    def test_a_must_in_start_is_fine(self, sample: Recommender) -> None:
        answer = sample.design("u0007", start=["g0001"], must=["g0001"], size=3)
        assert len(answer) == 5
        assert all(ids(design).count("g0001") == 1 and len(design.items) == 3 for design in answer)

    def test_what_is_given_twice_counts_once(self, sample: Recommender) -> None:
        once = sample.design("u0007", start=["g0001"], must=["g0002"], size=3, in_stock=False)
        twice = sample.design("u0007", start=["g0001"] * 2, must=["g0002"] * 2, size=3, in_stock=False)
        assert [ids(design) for design in once] == [ids(design) for design in twice]

    def test_nobody_in_particular(self, sample: Recommender) -> None:
        assert check(sample, goods_of(sample), History(), {"size": 3})
        assert check(sample, goods_of(sample), History(), {"size": 3, "start": ["g0001"]})

    def test_ids_may_be_numbers(self) -> None:
        recommender = _numbered()
        text, number = (
            recommender.design(user, start=[start], size=2, n=1, in_stock=False)
            for user, start in (("1", "1"), (1, 1))
        )
        assert [ids(design) for design in text] == [ids(design) for design in number]

    def test_withdrawn_items_are_not_added(self, tiny: Recommender) -> None:
        (before,) = tiny.design("u1", size=3, n=1, not_owned=False)
        gone = np.zeros(TWELVE, bool)
        gone[[tiny.dataset.items.position(item) for item in added(before)]] = True
        later = Recommender(embedding_dim=8, device="cpu")
        trade = replace(tiny.shop.trade, items_gone=gone)
        later._fitted = (tiny.model, Shop(tiny.dataset, torch.device("cpu"), trade))
        for method in METHODS:
            assert check(later, goods_of(later), "u1", {"size": (2, 3), "method": method, "not_owned": False})

    def test_stock_is_asked_for_where_the_catalogue_tells_any(self, tiny: Recommender) -> None:
        goods, seen = goods_of(tiny), set()
        for user in tiny.dataset.users.ids[:3]:
            for design in tiny.design(user, size=3, apart=0, n=10, not_owned=False):
                seen |= set(added(design))
        assert not {item for item in seen if not goods.stock[item]}
        assert any(
            set(added(design)) & {"i3", "i6"}
            for user in tiny.dataset.users.ids[:3]
            for design in tiny.design(user, size=3, apart=0, n=10, not_owned=False, in_stock=False)
        )

    def test_an_item_without_a_price_is_in_no_bundle_with_a_budget(self, tiny: Recommender) -> None:
        without = tiny.design("u1", size=3, must=["i5"], n=1, not_owned=False)[0]
        assert (without.price, without.list_price) == (None, None)
        with pytest.raises(ImpossibleDesignError) as caught:
            tiny.design("u1", size=3, must=["i5"], budget=1000, not_owned=False)
        assert {rule.kind for rule in caught.value.conflict} == {"must", "budget_max"}

    def test_reasons_only_where_wanted(self, sample: Recommender) -> None:
        with_reasons, without = (
            sample.design("u0007", start=["g0001"], n=2, reasons=wanted) for wanted in (True, False)
        )
        assert [ids(design) for design in with_reasons] == [ids(design) for design in without]
        for design in with_reasons:
            assert all((item.why is None) == item.given for item in design.items)
            assert all(item.why and numbers(item.why).reasons for item in design.items if not item.given)
        assert all(item.why is None for design in without for item in design.items)

    def test_none_is_as_if_nothing_was_said(self, sample: Recommender) -> None:
        none: Request = {"budget": None, "tags": None, "in_stock": None, "costs": None}
        said, unsaid = sample.design("u0007", **none, margin=1.0), sample.design("u0007", margin=1.0)
        assert [ids(design) for design in said] == [ids(design) for design in unsaid]

    def test_another_model_designs_as_well(self, sample: Recommender) -> None:
        other = Recommender("co-occurrence", device="cpu").fit(sample.dataset, progress=False)
        assert check(other, goods_of(sample), "u0007", {"start": ["g0022"], "budget": 60, "n": 3})
        assert other.design("u0007", diversity=1.0)  # it has vectors of items
        without = Recommender("ease-items", device="cpu").fit(sample.dataset, progress=False)
        with pytest.raises(UnsupportedError, match="vectors"):
            without.design("u0007", diversity=1.0)

    def test_titles_come_along(self, sample: Recommender) -> None:
        dataset = sample.dataset
        for item in sample.design("u0007", n=1)[0].items:
            assert item.title == dataset.item_title(dataset.items.position(item.id))

    def test_fewer_only_where_there_are_no_more(self, tiny: Recommender) -> None:
        goods, user, short = goods_of(tiny), "u1", 0
        for apart in (0.0, 0.5, 1.0):
            request: Request = {"size": (2, 3), "apart": apart, "n": 8, "method": "exact", "budget": 16}
            answer = tiny.design(user, **request)
            rules, taken = rules_of(goods, request), [set(added(design)) for design in answer]
            if len(answer) == 8:
                continue
            short += 1
            for bundle in every_bundle(goods, request, 3):
                if broken(goods, owned_by(tiny, user), request, rules, bundle):
                    continue
                clash = []
                for other in taken:
                    smaller = min(len(bundle), len(other))
                    clash.append(
                        len(other & set(bundle)) > min(int((1 - apart) * smaller + 1e-9), smaller - 1)
                    )
                assert any(clash), f"{bundle} is apart from all of {taken}, apart {apart}"
        assert short


def _numbered() -> Recommender:
    shop = dataset_of(
        [[0, 1], [1, 2], [0]],
        [[0], [1], [0, 1]],
        [[0, 1], [1, 2], [2]],
        4,
        users=Vocabulary.numbered("user", 3),
        items=Vocabulary.numbered("item", 4),
        bundles=Vocabulary.numbered("bundle", 3),
    )
    return Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False)


SMALL_REQUESTS: list[Request] = [
    {"size": (1, 3)},
    {"size": 4, "not_owned": False, "in_stock": False},
    {"size": (2, 4), "start": ["i0"], "budget": 25.0, "discount": 0.2},
    {"size": (2, 4), "budget": (15.0, 30.0), "diversity": 1.0},
    {"size": 3, "diversity": 3.0, "one_per": ["brand:*"]},
    {"size": (2, 3), "margin": 2.0, "costs": {"i0": 2.5, "i4": 6.0}, "forbid": ["i5"]},
    {"size": (3, 4), "margin": 0.7, "diversity": 0.7, "forbid": ["i5"], "discount": 0.4},
    {"size": (3, 4), "tags": {"at least": {"gift": 2}, "at most": {"colour:r": 3}}, "not_owned": False},
    {"size": (2, 4), "must": ["i7"], "start": ["i3", "i2"], "not_owned": False},
]


class TestExact:
    @pytest.mark.parametrize("request_", SMALL_REQUESTS, ids=str)
    def test_no_bundle_at_all_is_worth_more(self, tiny: Recommender, request_: Request) -> None:
        goods, request_ = goods_of(tiny), dict(request_, not_owned=False)
        for user in ("u1", "u2", History(items=["i1"], bundles=[["i2", "i4"]])):
            judge, owned = Judge(tiny, goods, user), owned_by(tiny, user)
            rules = rules_of(goods, request_)
            values = [
                judge.worth(request_, bundle).value
                for bundle in every_bundle(goods, request_, 4)
                if not broken(goods, owned, request_, rules, bundle)
                and not owned.issuperset([*request_.get("start", ()), *bundle])
            ]
            answer = tiny.design(user, **request_, n=1, method="exact", reasons=False)
            assert answer[0].value == pytest.approx(max(values), abs=1e-5), (user, ids(answer[0]))
            assert answer.proven
            assert (answer.complete, answer.method) == (True, "exact")

    @pytest.mark.parametrize("request_", SMALL_REQUESTS, ids=str)
    def test_it_is_never_below_the_faster_methods(self, tiny: Recommender, request_: Request) -> None:
        request_ = dict(request_, not_owned=False)
        for user in ("u3", "u4"):
            found = {
                method: tiny.design(user, **request_, n=1, method=method, reasons=False) for method in METHODS
            }
            assert found["exact"][0].value >= found["beam"][0].value - 1e-5
            assert found["exact"][0].value >= found["greedy"][0].value - 1e-5
            assert not found["beam"].proven
            assert not found["greedy"].proven

    def test_nor_in_a_larger_shop(self, sample: Recommender, counted_clock: CountedClock) -> None:
        maker, compared = RequestMaker(sample, seed=9), 0
        while compared < 4:
            user, request = maker.user(), maker.request() | {"n": 1, "reasons": False, "time_limit": 0.4}
            if isinstance(ask(sample, user, request), ImpossibleDesignError):
                continue
            compared += 1
            exact, beam, greedy = (
                sample.design(user, **request, method=method) for method in ("exact", "beam", "greedy")
            )
            assert exact[0].value >= max(beam[0].value, greedy[0].value) - 1e-6, (user, request)

    def test_the_second_is_the_best_of_those_apart_from_the_first(self, tiny: Recommender) -> None:
        goods, user = goods_of(tiny), "u1"
        request: Request = {"size": 3, "n": 2, "apart": 0.5, "not_owned": False}
        first, second = tiny.design(user, **request, method="exact")
        judge, owned, rules = Judge(tiny, goods, user), owned_by(tiny, user), rules_of(goods, request)
        values = [
            judge.worth(request, bundle).value
            for bundle in every_bundle(goods, request, 3)
            if not broken(goods, owned, request, rules, bundle)
            and not owned.issuperset(bundle)
            and len(set(bundle) & set(added(first))) <= 1
        ]
        assert second.value == pytest.approx(max(values), abs=1e-5)


class TestMethods:
    @pytest.mark.parametrize("method", METHODS)
    def test_the_same_seed_gives_the_same_answer(
        self, sample: Recommender, tiny: Recommender, method: str
    ) -> None:
        recommender = tiny if method == "exact" else sample  # so that no clock cuts it short
        maker = RequestMaker(recommender, seed=4)
        for _ in range(3):
            user, request = maker.user(), maker.request() | {"method": method, "reasons": False}
            one, other = (ask(recommender, user, request) for _ in range(2))
            if isinstance(one, ImpossibleDesignError):
                assert str(one) == str(other)
                assert (one.conflict, one.changes) == (other.conflict, other.changes)
            else:
                assert list(one) == list(other)

    @pytest.mark.parametrize("seconds", [0, 0.015])
    @pytest.mark.parametrize("method", METHODS)
    def test_too_little_time_is_said(
        self, sample: Recommender, counted_clock: CountedClock, method: str, seconds: float
    ) -> None:
        goods, user = goods_of(sample), "u0007"
        request: Request = {"size": (4, 6), "n": 5, "budget": (40, 90), "method": method}
        request["time_limit"] = seconds
        answer = ask(sample, user, request)
        assert not isinstance(answer, ImpossibleDesignError), "no time is not the request's fault"
        if isinstance(answer, BundleMageError):
            assert "time" in str(answer)
            return
        judge = Judge(sample, goods, user)
        assert not violations(goods, owned_by(sample, user), request, answer, judge)
        assert not answer.proven
        assert not answer.complete

    def test_a_time_limit_is_kept(self, sample: Recommender, counted_clock: CountedClock) -> None:
        request: Request = {"size": (4, 8), "n": 5, "budget": (60, 90), "one_per": ["*"], "diversity": 1.0}
        sample.design("u0007", **request, method="beam")
        answer = sample.design("u0007", **request, method="exact", time_limit=0.3, reasons=False)
        assert answer.seconds < 0.8  # a few readings after the limit has passed
        assert not violations(
            goods_of(sample),
            owned_by(sample, "u0007"),
            request,
            list(answer),
            Judge(sample, goods_of(sample), "u0007"),
        )


class TestMalformed:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"size": 0},
            {"size": -1},
            {"size": (1, 2, 3)},
            {"size": 2.5},
            {"size": "3"},
            {"budget": -1},
            {"budget": "ten"},
            {"budget": float("nan")},
            {"discount": 1.5},
            {"discount": -0.1},
            {"discount": float("nan")},
            {"n": 0},
            {"n": 1.5},
            {"apart": 1.5},
            {"apart": -0.1},
            {"method": "magic"},
            {"time_limit": -1.0},
            {"diversity": float("nan")},
            {"diversity": float("inf")},
            {"margin": float("nan")},
            {"margin": "much"},
            {"tags": {"at leest": {"Action": 1}}},
            {"tags": {"at least": {"no such tag": 1}}},
            {"tags": {"at least": {"Racing": -1}}},
            {"tags": {"at least": {"Racing": 1.5}}},
            {"tags": ["Racing"]},
            {"one_per": ["no such tag"]},
            {"tags": {"at least": ["Racing"]}},
            {"must": 5},
            {"start": None},
            {"costs": ["g0001"]},
            {"must": "g0001"},
            {"start": "g0001"},
            {"forbid": "g0001"},
            {"costs": {"g0001": float("nan")}},
            {"costs": {"g0001": "cheap"}},
        ],
        ids=str,
    )
    def test_it_is_refused_in_words(self, sample: Recommender, wrong: Request) -> None:
        with pytest.raises(ConfigError) as caught:
            sample.design("u0007", **wrong)
        text = str(caught.value)
        assert len(text) > 15
        assert "Traceback" not in text

    @pytest.mark.parametrize("wrong", [{"size": (5, 3)}, {"budget": (20, 10)}], ids=str)
    def test_the_lower_end_above_the_upper_one(self, sample: Recommender, wrong: Request) -> None:
        with pytest.raises(BundleMageError):
            sample.design("u0007", **wrong)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"start": ["g9999"]},
            {"must": ["g9999"]},
            {"margin": 1.0, "costs": {"g9999": 1.0}},
        ],
        ids=str,
    )
    def test_unknown_ids_are_named(self, sample: Recommender, wrong: Request) -> None:
        with pytest.raises(UnknownIdError, match="g9999"):
            sample.design("u0007", **wrong)

    def test_what_is_forbidden_need_not_be_known(self, sample: Recommender) -> None:
        """A block list may be older or newer than the model."""
        usual, with_more = sample.design("u0007"), sample.design("u0007", forbid=["g9999"])
        assert [ids(design) for design in usual] == [ids(design) for design in with_more]

    def test_an_unknown_user_is_named(self, sample: Recommender) -> None:
        with pytest.raises(UnknownIdError, match="nobody"):
            sample.design("nobody")

    def test_a_model_that_does_not_complete_bundles_says_so(self) -> None:
        matching = Recommender(**QUICK, tasks="matching").fit(small_shop(), progress=False)
        with pytest.raises(UnsupportedError):
            matching.design("u0007")

    def test_what_a_catalogue_does_not_tell_cannot_be_asked_for(self) -> None:
        recommender = _numbered()
        assert len(recommender.design("1", size=2, n=1)) == 1
        for request in ({"budget": 5}, {"in_stock": True}, {"tags": {"at least": {"a": 1}}}, {"margin": 1.0}):
            with pytest.raises(BundleMageError, match=r"price|stock|tag"):
                recommender.design("1", size=2, **request)


def test_designs_are_a_sequence(sample: Recommender) -> None:
    answer = sample.design("u0007", n=3)
    assert len(answer) == len(list(answer)) == 3
    assert [design.rank for design in answer[:2]] == [1, 2]
    assert all(one is not other for one, other in combinations(answer, 2))
