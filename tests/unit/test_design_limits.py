"""What a request may cost: time that is kept, answers that say they were cut short, and large numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch

from bundlemage import History, Recommender
from bundlemage.core.answering import rows_at_a_time
from bundlemage.core.shop import Shop
from bundlemage.data.dataset import Catalogue
from bundlemage.designer.conflict import SECONDS
from bundlemage.designer.design import REASONS
from bundlemage.errors import MissingExtraError, UnknownIdError
from bundlemage.models.base import Completer, Histories, require
from bundlemage.wire.design import ImpossibleDesignError, Method
from bundlemage.wire.requests import MOST_ITEMS
from tests.counted_clock import TICK, CountedClock
from tests.designing import small_sample

METHODS: tuple[Method, ...] = ("greedy", "beam", "exact")
USER = "u0007"


@pytest.fixture(scope="module")
def model() -> Recommender:
    return small_sample()[0]


@pytest.fixture
def counted_clock(monkeypatch: pytest.MonkeyPatch) -> CountedClock:
    return CountedClock(monkeypatch)


def with_prices(model: Recommender, factor: float) -> Recommender:
    """The same shop in another currency."""
    dataset = model.dataset
    assert dataset.catalogue is not None
    items = dataset.catalogue.items
    prices = pa.array([price * factor for price in items["price"].to_pylist()])
    catalogue = Catalogue(items.set_column(2, items.schema.field("price"), prices), dataset.catalogue.bundles)
    other = Recommender(model.model_name, **model.config.model_dump())
    other._fitted = (model.model, Shop(replace(dataset, catalogue=catalogue), model.shop.device))
    return other


def test_many_wishes_that_are_each_impossible_are_refused_soon(
    model: Recommender, counted_clock: CountedClock
) -> None:
    """The fewest changes are as many as the wishes: all combinations of them would be thousands."""
    tags = sorted(model.shop.item_shelf.tagged)[:14]
    with pytest.raises(ImpossibleDesignError) as caught:
        model.design(USER, tags={"at least": dict.fromkeys(tags, 100)}, time_limit=1)
    assert counted_clock.readings * TICK < SECONDS + 0.5
    assert len(caught.value.conflict) == 1
    assert all(len(change.steps) == len(tags) for change in caught.value.changes)


@pytest.mark.parametrize("method", METHODS)
def test_one_bundle_that_was_cut_short_says_so(model: Recommender, method: Method) -> None:
    hurried = model.design(USER, size=(2, 30), n=1, method=method, time_limit=0, reasons=False)
    assert len(hurried) == 1
    assert not hurried.complete


@pytest.mark.parametrize("method", ["beam", "exact"])
def test_many_sizes_keep_the_limit(model: Recommender, counted_clock: CountedClock, method: Method) -> None:
    answer = model.design(USER, size=(1, 100), n=20, method=method, time_limit=0.5, reasons=False)
    assert not answer.complete
    assert answer.seconds < 0.7  # once the limit has passed, hardly any reading follows


@pytest.mark.parametrize("wishes", [{}, {"few": 14}], ids=["by pairs", "all bundles"])
def test_several_users_keep_the_limit_of_the_exact_search(
    model: Recommender, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, int]
) -> None:
    """The work is counted: once the limit has passed, at most one batch more is scored than by the beam."""
    completer, scored = require(model.model, Completer), dict.fromkeys(METHODS, 0)
    score, method = completer.item_scores, METHODS[0]

    def counted(histories: Histories, *rest: Any) -> Any:
        scored[method] += len(histories)
        return score(histories, *rest)

    monkeypatch.setattr(completer, "item_scores", counted)
    users, items = model.dataset.users.ids[:100], model.dataset.items.ids
    request: dict[str, Any] = {"size": (2, 3), "n": 1, "time_limit": 0, "buyers": False}
    if "few" in wishes:  # few enough to list all bundles
        request |= {"forbid": items[wishes["few"] :], "not_owned": False, "in_stock": False}
    for method in ("beam", "exact"):
        answer = model.design_many(users, **request, method=method)
        assert len(answer) == 1
        assert not answer.complete
    at_once = rows_at_a_time(len(items), torch.device("cpu"))
    assert scored["exact"] <= scored["beam"] + at_once + 100


def test_exact_is_not_below_the_others_when_time_is_short(
    model: Recommender, counted_clock: CountedClock
) -> None:
    for user in model.dataset.users.ids[:4]:
        found = [
            model.design(user, size=(2, 8), n=4, diversity=2, method=method, time_limit=0.3, reasons=False)
            for method in METHODS
        ]
        greedy, beam, exact = (answer[0].value for answer in found)
        assert exact >= beam - 1e-6
        assert beam >= greedy - 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_prices_in_the_millions_are_kept(model: Recommender, method: Method) -> None:
    rich = with_prices(model, 1_000_000)
    for least, most in ((None, 60_000_000), (40_000_000, 80_000_000)):
        for bundle in rich.design(
            USER, budget=(least, most), n=2, method=method, time_limit=3, reasons=False
        ):
            assert bundle.price is not None
            assert (least or 0) <= bundle.price <= most
            assert bundle.price == pytest.approx(sum(item.price or 0 for item in bundle.items))


def test_a_bundle_costs_the_same_wherever_its_price_is_asked(model: Recommender) -> None:
    for discount in (0.5, 0.15, 0.33):
        for bundle in model.design(USER, size=3, discount=discount, n=5, reasons=False):
            forecast = model.score_bundle(bundle.ids, discount=discount)
            assert (bundle.price, bundle.list_price) == (forecast.price, forecast.list_price)


def test_no_change_asks_for_what_no_request_may_have(model: Recommender) -> None:
    everything = float(sum(price for price in model.shop.item_shelf.prices))
    with pytest.raises(ImpossibleDesignError) as caught:
        model.design(USER, size=(3, 5), budget=(everything / 2, None), in_stock=False, not_owned=False)
    for change in caught.value.changes:
        for step in change.steps:
            assert step.kind != "size_max" or step.value is None or step.value <= MOST_ITEMS


def test_without_the_extra_it_says_what_to_install(
    model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bundlemage\[designer\]'"):
        model.design(USER)


def test_an_unknown_item_among_the_costs_is_told(model: Recommender) -> None:
    with pytest.raises(UnknownIdError, match="nope"):
        model.design(USER, costs={"nope": 3.0})


def test_reasons_of_a_long_history_keep_the_limit(model: Recommender, counted_clock: CountedClock) -> None:
    everyone = History(items=model.dataset.items.ids, bundles=model.dataset.bundles.ids)
    found = model.design(everyone, size=10, n=20, not_owned=False, time_limit=0.5)
    assert found.seconds < 0.5 + REASONS + 0.1
    assert not found.complete
    assert found[0].items[-1].why is not None
