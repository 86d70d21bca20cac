"""What cannot be designed: the smallest set of rules that conflict, and the least change, by every bundle."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, get_args

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bundlemage import Recommender
from bundlemage.errors import BundleMageError
from bundlemage.wire.design import ImpossibleDesignError, Method
from tests.designing import (
    DOWN,
    UP,
    Goods,
    Name,
    Request,
    Rules,
    broken,
    eased,
    every_bundle,
    goods_of,
    name_of,
    owned_by,
    rules_of,
    tiny_recommender,
)

ITEMS = 8
USER = "u1"
EIGHT = [f"i{number}" for number in range(ITEMS)]
TAGS = ["brand:a", "brand:b", "brand:c", "colour:r", "colour:g", "gift"]


class Everything:
    """Every bundle of the small shop, and the rules that each one breaks."""

    def __init__(self, goods: Goods, owned: frozenset[str], request: Request) -> None:
        self.goods, self.owned, self.request = goods, owned, request
        self.rules = rules_of(goods, request)
        self.bundles = list(every_bundle(goods, request))
        self.breaks = self.broken_by(self.rules)

    def broken_by(self, rules: Rules) -> set[frozenset[Name]]:
        return {broken(self.goods, self.owned, self.request, rules, bundle) for bundle in self.bundles}

    def can_hold(self, names: Iterable[Name]) -> bool:
        """Whether some bundle keeps all of these."""
        together = frozenset(names)
        return any(not together & breaks for breaks in self.breaks)

    def possible_with(self, rules: Rules) -> bool:
        return frozenset() in self.broken_by(rules)

    def fewest_steps(self) -> int:
        return min(map(len, self.breaks))


def one_step_back(step: Any) -> float:
    """The number of a step, less changed by one unit."""
    unit = 0.01 if step.kind.startswith("budget") else 1
    if step.kind in UP:
        return round(float(step.value) - unit, 2)
    assert step.kind in DOWN, f"{step.kind} has no number, yet is changed to {step.value}"
    return round(float(step.value) + unit, 2)


def judge(everything: Everything, error: ImpossibleDesignError) -> None:
    """The refusal is right in every point."""
    rules = everything.rules
    conflict = [name_of(rule) for rule in error.conflict]
    assert len(set(conflict)) == len(conflict)
    assert set(conflict) <= set(rules), "a conflict is between rules of the request"
    assert not everything.can_hold(conflict), "these can hold together"
    for fewer in combinations(conflict, len(conflict) - 1):
        assert everything.can_hold(fewer), f"{fewer} conflict already, not only {conflict}"
    for size in range(len(conflict) if error.smallest else 0):
        for fewer in combinations(rules, size):
            assert everything.can_hold(fewer), f"{fewer} are a smaller conflict than {conflict}"
    assert error.changes, "there is always some change that helps"
    steps = [tuple((name_of(step), step.value) for step in change.steps) for change in error.changes]
    assert len(set(steps)) == len(steps), "the same change twice"
    for change in error.changes:
        judge_change(everything, change)
    assert all(rule.text and rule.text in str(error) for rule in error.conflict), str(error)
    assert any(change.text in str(error) for change in error.changes), str(error)


def judge_change(everything: Everything, change: Any) -> None:
    rules = everything.rules
    assert len(change.steps) == everything.fewest_steps(), f"{change} has too many steps"
    assert everything.possible_with(eased(rules, change.steps)), f"{change} does not help"
    for place, step in enumerate(change.steps):
        others = [other for number, other in enumerate(change.steps) if number != place]
        rest = eased(rules, others)
        name = name_of(step)
        if step.value is not None:
            less = rest | {name: one_step_back(step)}
            assert not everything.possible_with(less), f"{step} is more than needed"
        elif step.kind in (*UP, *DOWN):
            # Without the rule only where no number would do, such as for an item without a price.
            extreme = rest | {name: 10**6 if step.kind in UP else 0}
            assert not everything.possible_with(extreme), f"a number would do for {step}"
        assert not everything.possible_with(rest), f"{step} is not needed"
    assert change.text


@pytest.fixture(scope="module")
def eight() -> Recommender:
    return tiny_recommender(ITEMS)


def lists_of(things: list[str], most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(things), max_size=most, unique=True)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests that ask for much: about half of them are impossible."""
    least = draw(st.integers(1, 5))
    made: Request = {"size": (least, least + draw(st.integers(0, 2)))}
    start = draw(lists_of(EIGHT, 2))
    free = [item for item in EIGHT if item not in start]
    cents = st.integers(100, 6000).map(lambda number: number / 100)
    low, high = sorted([draw(cents), draw(cents)])
    optional: dict[str, st.SearchStrategy[Any]] = {
        "budget": st.sampled_from([high, (low, high), (low, None), (None, low)]),
        "must": lists_of(EIGHT, 2),
        "forbid": lists_of(free, 4),
        "tags": st.fixed_dictionaries(
            {},
            optional={
                "at least": st.dictionaries(st.sampled_from(TAGS), st.integers(1, 3), max_size=2),
                "at most": st.dictionaries(st.sampled_from(TAGS), st.integers(0, 2), max_size=2),
            },
        ),
        "one_per": lists_of([*TAGS, "brand:*", "colour:*", "*"], 2),
        "in_stock": st.booleans(),
        "not_owned": st.booleans(),
        "discount": st.sampled_from([0.0, 0.2, 0.4]),
    }
    return made | {"start": start} | draw(st.fixed_dictionaries({}, optional=optional))


class TestEveryBundleLookedAt:
    @settings(max_examples=50, deadline=None)
    @given(request_=requests(), method=st.sampled_from(get_args(Method)))
    def test_refused_exactly_where_nothing_is_possible_and_rightly(
        self, eight: Recommender, request_: Request, method: Method
    ) -> None:
        self.compare(eight, request_, method)

    @pytest.mark.slow
    @settings(max_examples=1500, deadline=None)
    @given(request_=requests(), method=st.sampled_from(get_args(Method)))
    def test_the_same_many_times(self, eight: Recommender, request_: Request, method: Method) -> None:
        self.compare(eight, request_, method)

    def compare(self, eight: Recommender, request: Request, method: Method) -> None:
        everything = Everything(goods_of(eight), owned_by(eight, USER), request)
        event("possible" if everything.can_hold(everything.rules) else "impossible")
        try:
            answer = eight.design(USER, **request, method=method, n=1, reasons=False)
        except ImpossibleDesignError as error:
            refusal = error
        else:
            assert everything.can_hold(everything.rules), "a bundle where none is possible"
            found = [item.id for item in answer[0].items if not item.given]
            assert not broken(everything.goods, everything.owned, request, everything.rules, found)
            return
        assert not everything.can_hold(everything.rules), f"refused, though it is possible: {refusal}"
        judge(everything, refusal)


def refused(recommender: Recommender, **request: Any) -> ImpossibleDesignError:
    with pytest.raises(ImpossibleDesignError) as caught:
        recommender.design(USER, **request)
    judge(Everything(goods_of(recommender), owned_by(recommender, USER), request), caught.value)
    return caught.value


class TestConflicts:
    """Such that the answer is plain to see."""

    FREE: Request = {"not_owned": False, "in_stock": False}  # noqa: RUF012, nobody writes to it

    def kinds(self, error: ImpossibleDesignError) -> set[Name]:
        return {name_of(rule) for rule in error.conflict}

    def test_it_is_one_of_the_family(self) -> None:
        assert issubclass(ImpossibleDesignError, BundleMageError)

    def test_what_must_be_in_and_must_not(self, eight: Recommender) -> None:
        error = refused(eight, must=["i1"], forbid=["i1", "i2"], **self.FREE)
        assert self.kinds(error) == {("must", "i1"), ("forbid", "")}

    def test_sold_out_yet_wanted(self, eight: Recommender) -> None:
        error = refused(eight, must=["i3"], not_owned=False)
        assert self.kinds(error) == {("must", "i3"), ("in_stock", "")}
        assert {name_of(change.steps[0]) for change in error.changes} == {("must", "i3"), ("in_stock", "")}

    def test_owned_already_yet_wanted(self, eight: Recommender) -> None:
        mine = sorted(owned_by(eight, USER))[0]
        error = refused(eight, must=[mine], in_stock=False)
        assert self.kinds(error) == {("must", mine), ("not_owned", "")}

    def test_more_of_a_tag_than_there_is(self, eight: Recommender) -> None:
        error = refused(eight, tags={"at least": {"gift": 3}}, **self.FREE)
        assert self.kinds(error) == {("at_least", "gift")}
        (change,) = error.changes
        assert [(name_of(step), step.value) for step in change.steps] == [(("at_least", "gift"), 2)]

    def test_more_of_a_tag_than_the_size_allows(self, eight: Recommender) -> None:
        error = refused(eight, size=(1, 2), tags={"at least": {"colour:r": 3}}, **self.FREE)
        assert self.kinds(error) == {("size_max", ""), ("at_least", "colour:r")}

    def test_too_small_a_budget_says_by_how_much(self, eight: Recommender) -> None:
        goods = goods_of(eight)
        cheapest = round(sum(sorted(price for price in goods.price.values() if price)[:3]) * 0.8, 2)
        error = refused(eight, size=3, budget=cheapest - 1, discount=0.2, **self.FREE)
        assert self.kinds(error) == {("budget_max", ""), ("size_min", "")}
        steps = {name_of(change.steps[0]): change.steps[0].value for change in error.changes}
        assert steps[("budget_max", "")] == pytest.approx(cheapest)
        assert f"{cheapest:.2f}" in str(error)

    def test_two_of_a_kind_where_one_is_allowed(self, eight: Recommender) -> None:
        error = refused(eight, must=["i0", "i3"], one_per=["brand:*", "gift"], **self.FREE)
        assert self.kinds(error) == {("must", "i0"), ("must", "i3"), ("one_per", "brand:*")}

    def test_a_start_that_is_full(self, eight: Recommender) -> None:
        error = refused(eight, start=["i0", "i1"], size=2, **self.FREE)
        assert self.kinds(error) == {("size_max", "")}
        assert [(step.kind, step.value) for step in error.changes[0].steps] == [("size_max", 3)]

    def test_a_larger_bundle_than_there_are_items(self, eight: Recommender) -> None:
        error = refused(eight, size=20, **self.FREE)
        assert self.kinds(error) == {("size_min", "")}
        assert error.changes[0].steps[0].value == ITEMS

    def test_two_troubles_at_once_need_two_steps(self, eight: Recommender) -> None:
        error = refused(eight, size=20, tags={"at least": {"gift": 3}}, **self.FREE)
        assert len(error.conflict) == 1, "either is a conflict by itself"
        assert {len(change.steps) for change in error.changes} == {2}

    def test_what_is_there_already_is_forbidden(self, eight: Recommender) -> None:
        error = refused(eight, start=["i1"], forbid=["i1"], **self.FREE)
        assert self.kinds(error) == {("forbid", "")}

    def test_nothing_is_left_to_add(self, eight: Recommender) -> None:
        with pytest.raises(BundleMageError, match=r"[.\w]$"):  # the sentence does not break off
            eight.design(USER, start=EIGHT, size=(8, 10), **self.FREE)

    def test_the_words_name_what_and_how(self, eight: Recommender) -> None:
        text = str(refused(eight, must=["i1"], forbid=["i1"], **self.FREE))
        assert "i1" in text or "Item 1" in text
