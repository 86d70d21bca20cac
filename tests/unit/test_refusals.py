"""Impossible requests with many rules are refused with few checks, and rightly."""

from __future__ import annotations

from typing import Any

import pytest

from bundlemage import Recommender
from bundlemage.designer import conflict, solver
from bundlemage.wire.design import ImpossibleDesignError
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
    judge_many(model, 16, seed=1)


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
        assert len(error.changes) == 1, reason
        assert not wrongly_refused(goods, owned, request, error), reason
        assert error.smallest == (len(error.conflict) == 1)
        assert ("(there may be a smaller set):" in str(error)) == (not error.smallest)


def test_plain_cases_are_named_as_they_are(model: Recommender) -> None:
    items = model.dataset.items.ids
    error = refused(model, {"must": items[:12], "size": 6, "not_owned": False, "in_stock": False})
    assert sorted(rule.kind for rule in error.conflict) == [*["must"] * 7, "size_max"]
    assert [change.text for change in error.changes] == ["with at most 12 items instead of 6"]
    tags = dict.fromkeys(sorted(model.shop.item_shelf.tagged), 0)
    error = refused(model, {"tags": {"at most": tags}})
    assert {"at_most"} <= {rule.kind for rule in error.conflict} <= {"at_most", "size_min"}
    assert error.changes
