"""Impossible requests with many rules are refused with few checks, and rightly."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bundlemage import Recommender
from bundlemage.designer import conflict, solver
from bundlemage.errors import OutOfTimeError
from bundlemage.wire.design import Change, ImpossibleDesignError
from tests.designing import Request, goods_of, owned_by, rules_of, small_sample, wrongly_refused
from tests.impossible import USER, ImpossibleMaker

FEW = 40
"""As many solver calls per rule are enough, for the conflict and one change."""


@pytest.fixture(scope="module")
def model() -> Recommender:
    return small_sample()[0]


def refused(model: Recommender, request: Request) -> ImpossibleDesignError:
    with pytest.raises(ImpossibleDesignError) as caught:
        model.design(USER, **request, time_limit=60)  # more than a busy machine needs
    return caught.value


def judge_many(model: Recommender, count: int, seed: int) -> None:
    goods, owned = goods_of(model), owned_by(model, USER)
    for reason, request in ImpossibleMaker(model, seed).requests(count):
        wrong = wrongly_refused(goods, owned, request, refused(model, request))
        assert not wrong, f"{reason}: {request}"


def test_the_conflict_is_true_and_no_rule_in_it_can_be_left_out(model: Recommender) -> None:
    judge_many(model, 19, seed=1)


@pytest.mark.slow
def test_the_same_of_two_hundred(model: Recommender) -> None:
    judge_many(model, 200, seed=0)


def test_few_checks_are_enough_if_there_is_no_time_for_more(
    model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is counted: each solver call takes about a millisecond."""
    calls, solve = 0, solver.solve

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return solve(*args)

    monkeypatch.setattr(conflict, "solve", counted)
    monkeypatch.setattr(conflict, "MORE_SECONDS", 0)
    goods, owned = goods_of(model), owned_by(model, USER)
    for reason, request in ImpossibleMaker(model, seed=2).requests(24):
        calls = 0
        error = refused(model, request)
        assert calls <= FEW * len(rules_of(goods, request)), reason
        assert error.changes, reason
        assert not wrongly_refused(goods, owned, request, error), reason
        assert not error.smallest or len(error.conflict) <= 2
        assert ("(there may be a smaller set):" in str(error)) == (not error.smallest)


def test_refusals_that_only_the_linear_relaxation_decides_come_at_once(model: Recommender) -> None:
    """Before, each ended in "did not finish in time", or without a change."""
    goods, tags = goods_of(model), sorted(model.shop.item_shelf.tagged)
    free: Request = {"not_owned": False, "in_stock": False}  # what is left needs the relaxation
    for request in (
        {"size": (3, 5), "tags": {"at least": dict.fromkeys(tags, 1)}},
        {"size": (1, 16), "tags": {"at least": dict.fromkeys(tags, 1)}},
        {"size": (2, 29), "budget": (56.1, 56.58), "tags": {"at most": dict.fromkeys(tags[:30], 2)}},
        {"size": 100, "budget": 100, "tags": {"at least": dict.fromkeys(tags[:40], 2)}},
    ):
        error = refused(model, request | free)
        assert not wrongly_refused(goods, frozenset(), request | free, error)
        assert all(len(change.steps) <= 2 for change in error.changes)


@pytest.mark.parametrize(
    "request_",
    [
        {"size": (30, 60), "budget": (100.01, 100.03), "at_most": 30},
        {"size": (30, 60), "budget": (100.01, 100.03), "at_most": 40},
        {"size": (8, 20), "budget": (50.10, 50.12), "one_per": "*"},
    ],
    ids=str,
)
def test_a_price_that_no_number_of_items_has_is_seen_without_search(
    model: Recommender, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    """Prices end in .99. Before, the solver tried tens of thousands of combinations."""
    tags, branches, solve = sorted(model.shop.item_shelf.tagged), list[int](), solver.solve

    def counted(solver: Any, *args: Any) -> Any:
        status = solve(solver, *args)
        branches.append(solver.num_branches)
        return status

    monkeypatch.setattr(conflict, "solve", counted)
    request = dict(request_, not_owned=False, in_stock=False)
    request["tags"] = {"at most": {tag: n % 3 for n, tag in enumerate(tags[: request.pop("at_most", 0)])}}
    error = refused(model, request)
    assert {rule.kind for rule in error.conflict} >= {"budget_min", "budget_max"}
    assert not wrongly_refused(goods_of(model), frozenset(), request, error)
    assert max(branches) < 5_000


def test_a_conflict_of_many_rules_needs_few_checks(
    model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear programming leaves hardly a rule too many, so each needs one check."""
    tags, calls, solve = sorted(model.shop.item_shelf.tagged), list[object](), solver.solve

    def counted(*args: Any) -> Any:
        calls.append(args)
        return solve(*args)

    request: Request = {"size": (10, 60), "budget": (300.5, 300.6), "not_owned": False, "in_stock": False}
    at_most = dict.fromkeys(tags[30:60], 3)
    request["tags"] = {"at least": dict.fromkeys(tags[:30], 5), "at most": at_most}
    monkeypatch.setattr(conflict, "MORE_SECONDS", 0)
    monkeypatch.setattr(conflict, "solve", counted)
    monkeypatch.setattr(conflict, "_change", lambda *_: (0.0, Change((), "")))
    monkeypatch.setattr(conflict, "_some_drop", lambda *_: frozenset())
    error = refused(model, request)
    assert len(error.conflict) > 10
    assert len(calls) < 1.5 * len(error.conflict) + 5


def test_a_check_that_takes_long_is_left_for_another_order(
    model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the rules were hard to check unless all limits of size and price are among them."""
    checked, check, gave_up = conflict.Possible._solve, conflict.Possible, list[int]()

    def hard(self: conflict.Possible, kinds: Any, active: frozenset[int], *more: Any, **named: Any) -> Any:
        totals = {rule for each in (self.rules.size, *self.rules.sums) for rule in each.rules}
        if math.isfinite(self.check_seconds) and 0 < len(active & totals) < 4 and len(active) > 4:
            gave_up.append(len(active))
            raise OutOfTimeError("too long")
        return checked(self, kinds, active, *more, **named)

    monkeypatch.setattr(check, "_solve", hard)
    tags = dict.fromkeys(sorted(model.shop.item_shelf.tagged)[:20], 2)
    request: Request = {"size": (3, 4), "budget": (20.10, 20.40), "tags": {"at most": tags}}
    request |= {"not_owned": False, "in_stock": False}
    error = refused(model, request)
    assert gave_up
    assert not wrongly_refused(goods_of(model), frozenset(), request, error)


def test_what_is_too_much_in_one_way_only_needs_few_steps(model: Recommender) -> None:
    """Dropping nearly all of fifty tags is no help to anyone: a larger bundle is."""
    tags = sorted(model.shop.item_shelf.tagged)[:50]
    error = refused(model, {"size": 3, "tags": {"at least": dict.fromkeys(tags, 1)}})
    assert min(len(change.steps) for change in error.changes) <= 2, str(error)
    assert "at least 0 items" not in str(error)


def test_plain_cases_are_named_as_they_are(model: Recommender) -> None:
    items = model.dataset.items.ids
    error = refused(model, {"must": items[:12], "size": 6, "not_owned": False, "in_stock": False})
    assert sorted(rule.kind for rule in error.conflict) == [*["must"] * 7, "size_max"]
    assert [change.text for change in error.changes] == ["with at most 12 items instead of 6"]
    assert "This change would make a bundle possible:" in str(error)
    error = refused(model, {"must": items[:1], "forbid": items[:1], "in_stock": False})
    assert {change.text for change in error.changes} == {
        f"without this wish: the item {items[0]!r} in the bundle",
        f"without this wish: no forbidden item ({items[0]!r})",
    }
    assert "Each of these changes would make a bundle possible:" in str(error)
    error = refused(model, {"must": items[:6], "not_owned": False, "in_stock": False})
    assert "at most 5 items (the default 'size')" in [rule.text for rule in error.conflict]
    tags = dict.fromkeys(sorted(model.shop.item_shelf.tagged), 0)
    error = refused(model, {"tags": {"at most": tags}})
    assert {"at_most"} <= {rule.kind for rule in error.conflict} <= {"at_most", "size_min"}
    assert error.changes


def test_rules_of_one_per_are_written_out(model: Recommender) -> None:
    told = {"*": "no two items with the same tag", "Horror": "at most one item with the tag 'Horror'"}
    told |= {"H*": "at most one item for each tag 'H*'"}
    for tag, text in told.items():
        error = refused(model, {"one_per": tag, "tags": {"at least": {"Horror": 2}}})
        assert text in [rule.text for rule in error.conflict]
