"""Filters: what is let through, what an unknown id or an unknown price means, and that it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bundlemage import History, Recommender, SplitPlan
from bundlemage.core.filters import Filter, Shelf
from bundlemage.core.segments import Segment
from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, Catalogue, catalogue_table
from bundlemage.errors import ConfigError, UnknownIdError
from tests.small_shop import dataset_of

ALL = 1000


def shop() -> BundleDataset:
    """Four items and five bundles of which everything is known, or just not; b4 is empty."""
    contents = [[0, 1], [1, 2], [2], [3], []]
    bare = dataset_of([[0], [1, 2], [3]], [[0], [1], [2, 3]], contents, 4)
    items = {
        "item_id": bare.items.to_arrow(),
        "title": ["tea", "cup", "pot", None],
        "price": [3.0, 8.0, 20.0, None],
        "tags": [["leaf"], ["china", "blue"], ["china"], None],
        "stock": [5, 1, 0, None],
    }
    bundles = {
        "bundle_id": bare.bundles.to_arrow(),
        "title": [None] * 5,
        "price": [10.0, 25.0, 20.0, None, 1.0],
        "tags": [["breakfast", "gift"], ["gift"], [], None, ["gift"]],
        "discount": [None] * 5,
    }
    catalogue = Catalogue(catalogue_table(ITEM_SCHEMA, items), catalogue_table(BUNDLE_SCHEMA, bundles))
    contents_and_all = {"users": bare.users, "items": bare.items, "bundles": bare.bundles}
    return dataset_of(
        [[0], [1, 2], [3]], [[0], [1], [2, 3]], contents, 4, **contents_and_all, catalogue=catalogue
    )


@pytest.fixture(scope="module")
def model() -> Recommender:
    return Recommender(embedding_dim=8, epochs=1, device="cpu").fit(shop(), SplitPlan("none"))


def names(answers: Any) -> set[str]:
    return {answer.id for answer in answers}


BUNDLES = [
    (Filter(), {"b0", "b1", "b2", "b3"}),
    (Filter(exclude=["b1", "b3"]), {"b0", "b2"}),
    (Filter(exclude=["gone", "b1"]), {"b0", "b2", "b3"}),
    (Filter(among=["b1", "b3"]), {"b1", "b3"}),
    (Filter(among=["b1", "newer"]), {"b1"}),
    (Filter(among=["b1", "b2"], exclude=["b2"]), {"b1"}),
    (Filter(among=[]), set()),
    (Filter(tags=["gift"]), {"b0", "b1"}),
    (Filter(tags=["breakfast", "gift"]), {"b0", "b1"}),
    (Filter(tags=["gift", "garden"]), {"b0", "b1"}),
    (Filter(min_price=20), {"b1", "b2"}),
    (Filter(max_price=20), {"b0", "b2"}),
    (Filter(min_price=11, max_price=21), {"b2"}),
    (Filter(in_stock=True), {"b0"}),
    (Filter(tags=["gift"], min_price=20, exclude=["b0"]), {"b1"}),
]
ITEMS = [
    (Filter(), {"i0", "i1", "i2", "i3"}),
    (Filter(exclude=["i0"]), {"i1", "i2", "i3"}),
    (Filter(among=["i0", "i3"]), {"i0", "i3"}),
    (Filter(tags=["blue", "leaf"]), {"i0", "i1"}),
    (Filter(max_price=8), {"i0", "i1"}),
    (Filter(in_stock=True), {"i0", "i1"}),
]


class TestWhatIsLetThrough:
    @pytest.mark.parametrize(("where", "expected"), BUNDLES)
    def test_bundles(self, model: Recommender, where: Filter, expected: set[str]) -> None:
        answers = model.recommend(History(items=["i0"]), ALL, where=where)
        assert names(answers) == expected, "and never b4, which has no items"
        everything = {answer.id: answer.score for answer in model.recommend(History(items=["i0"]), ALL)}
        assert {answer.id: answer.score for answer in answers} == {
            name: everything[name] for name in expected
        }
        assert [answer.rank for answer in answers] == list(range(1, len(expected) + 1))

    @pytest.mark.parametrize(("where", "expected"), BUNDLES)
    def test_popular_bundles(self, model: Recommender, where: Filter, expected: set[str]) -> None:
        answers = model.recommend(History(), ALL, where=where)
        assert names(answers) == expected
        assert {answer.source for answer in answers} <= {"popular"}

    @pytest.mark.parametrize(("where", "expected"), ITEMS)
    def test_items(self, model: Recommender, where: Filter, expected: set[str]) -> None:
        assert names(model.complete(History(), [], ALL, where=where)) == expected
        found = model.complete(History(bundles=["b0"]), ["i0"], ALL, where=where, owned="show")
        assert names(found) == expected - {"i0"}

    def test_many_at_a_time(self, model: Recommender) -> None:
        where = Filter(max_price=20)
        assert [names(found) for found in model.recommend_many(["u0", "u1"], ALL, where=where)] == [
            {"b2"},
            {"b0"},  # u1 owns all of b2
        ]
        cases = [("u0", []), ("u1", ["i0"])]
        found = model.complete_many(cases, ALL, where=Filter(in_stock=True), owned="show")
        assert [names(answers) for answers in found] == [{"i0", "i1"}, {"i1"}]
        found = model.complete_many(cases, ALL, where=Filter(in_stock=True))
        assert [names(answers) for answers in found] == [set(), set()]  # they have them, in bundles

    def test_the_owned_come_only_if_the_filter_lets_them(self, model: Recommender) -> None:
        assert names(model.recommend("u0", ALL, where=Filter(exclude=["b0"]), owned="show")) == {
            "b1",
            "b2",
            "b3",
        }


NEW = {"of cups": ["i1"], "of pots": ["i1", "i2"], "empty": []}


class TestNewBundles:
    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            (Filter(), {"b0", "b1", "b2", "b3", "of cups", "of pots"}),
            (Filter(exclude=["of pots", "b0"]), {"b1", "b2", "b3", "of cups"}),
            (Filter(among=["of pots", "b0"]), {"of pots", "b0"}),
            (Filter(among=["of pots"]), {"of pots"}),
            (Filter(in_stock=True), {"b0", "of cups"}),
            (Filter(max_price=1000), {"b0", "b1", "b2", "of cups", "of pots"}),
            (Filter(min_price=8, max_price=10), {"b0", "of cups"}),
            (Filter(min_price=26), {"of pots"}),
            (Filter(tags=["gift"]), {"b0", "b1"}),
        ],
    )
    def test_they_have_no_tag_and_cost_what_their_items_cost(
        self, model: Recommender, where: Filter, expected: set[str]
    ) -> None:
        answers = model.recommend(History(items=["i0"]), ALL, where=where, new_bundles=NEW)
        assert names(answers) == expected


class TestRefusals:
    @pytest.mark.parametrize("wrong", [{"max_price": True}, {"min_price": [1]}, {"among": 5}, {"tags": 2.5}])
    def test_a_wrong_kind_of_value_is_told(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=rf"a filter's '{next(iter(wrong))}' is .*; expected a"):
            Filter(**wrong)

    def test_ids_of_which_none_is_known_are_an_error(self, model: Recommender) -> None:
        with pytest.raises(UnknownIdError, match=r"unknown bundle id 'b11'.*1 more.*Did you mean 'b1'"):
            model.recommend("u0", where=Filter(among=["b12", "b11"]))

    def test_a_tag_that_nothing_has_is_an_error(self, model: Recommender) -> None:
        where = Filter(tags=["gifts"])
        told = "no {} has the tag 'gifts'.*"
        with pytest.raises(ConfigError, match=told.format("bundle") + r"Did you mean 'gift'\?"):
            model.recommend("u0", where=where)
        with pytest.raises(ConfigError, match=told.format("bundle")):
            model.recommend("u0", where=where, new_bundles=NEW)
        with pytest.raises(ConfigError, match=told.format("item")):
            model.complete("u0", [], where=where)
        with pytest.raises(
            ConfigError, match=r"no user is in the segment: no item has the tag 'chin'.*'china'"
        ):
            model.users_in(Segment(tag="chin"))

    @pytest.mark.parametrize(
        "where", [Filter(min_price=1), Filter(max_price=1), Filter(tags=["x"]), Filter(in_stock=True)]
    )
    def test_a_column_that_the_data_lacks_is_named(self, where: Filter) -> None:
        bare = dataset_of([[0], [1]], [[0], [1]], [[0], [1]], 2)
        model = Recommender("popularity", device="cpu").fit(bare, SplitPlan("none"))
        with pytest.raises(
            ConfigError,
            match=r"cannot filter by (price|tags|stock): no (item|bundle) has a (price|tag|stock)",
        ):
            model.recommend("u0", where=where)
        with pytest.raises(ConfigError, match=r"no item has a.*table of items"):
            model.complete("u0", [], where=where)

    def test_a_column_without_any_value_is_as_good_as_none(self) -> None:
        whole = shop()
        assert whole.catalogue is not None
        prices = whole.catalogue.bundles.schema.get_field_index("price")
        bundles = whole.catalogue.bundles.set_column(prices, "price", pa.nulls(5, pa.float64()))
        with pytest.raises(ConfigError, match="cannot filter by price"):
            Shelf(whole.bundles, bundles).allowed(Filter(max_price=3))

    def test_bundles_without_prices_cost_what_their_items_cost(self) -> None:
        whole = shop()
        assert whole.catalogue is not None
        prices = whole.catalogue.bundles.schema.get_field_index("price")
        bundles = whole.catalogue.bundles.set_column(prices, "price", pa.nulls(5, pa.float64()))
        tables = replace(whole.catalogue, bundles=bundles)
        model = Recommender("popularity", device="cpu").fit(
            replace(whole, catalogue=tables), SplitPlan("none")
        )
        found = model.recommend(History(), ALL, where=Filter(max_price=25))
        assert {answer.id: answer.price for answer in found} == {"b0": 11.0, "b2": 20.0}

    def test_ids_need_no_catalogue(self) -> None:
        bare = dataset_of([[0], [1]], [[0], [1]], [[0], [1], [0, 1]], 2)
        model = Recommender("popularity", device="cpu").fit(bare, SplitPlan("none"))
        assert names(model.recommend("u0", where=Filter(exclude=["b2"], among=["b1", "b2"]))) == {"b1"}

    def test_impossible_filters_are_refused_when_they_are_made(self) -> None:
        with pytest.raises(ConfigError, match="'min_price' 3 is above its 'max_price' 2"):
            Filter(min_price=3, max_price=2)
        with pytest.raises(ConfigError, match="'max_price' is nan"):
            Filter(max_price=float("nan"))
        with pytest.raises(ConfigError, match=r"'exclude' is a list, not a string: write \['b0'\]"):
            Filter(exclude="b0")
        with pytest.raises(ConfigError, match=r"write \['gift'\]"):
            Filter(tags="gift")


class TestKept:
    def test_equal_filters_are_worked_out_once(self) -> None:
        model = Recommender("popularity", device="cpu").fit(shop(), SplitPlan("none"))
        found = [
            model.shop.bundles(Filter(exclude=order, max_price=30)).hidden
            for order in (["b0", "b1"], ["b1", "b0"], ("b0", "b1", "b0"))
        ]
        assert found[1] is found[0]
        assert found[2] is found[0]

    def test_numbers_are_ids_as_well(self) -> None:
        assert Filter(exclude=[1, 2]) == Filter(exclude=["2", "1"])
        assert hash(Filter(among=[7])) == hash(Filter(among=["7"]))
