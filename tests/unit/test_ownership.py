"""What users own: what is left out and ranked lower, what answers say about it, and what users pay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from bundlemage import History, Recommender, SplitPlan
from bundlemage.cli import show
from bundlemage.core.filters import Filter
from bundlemage.core.ownership import full_price, to_pay
from bundlemage.core.shop import RecommendedBundle
from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, Catalogue, catalogue_table
from bundlemage.live import EMPTY, Live, Question
from bundlemage.models.ragged import Ragged
from bundlemage.retrieval import BundleIndex
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import QUICK, dataset_of, small_shop

ALL = 10_000
UNKNOWN = math.nan

# ── The price rule ───────────────────────────────────────────────────────────────────────────────

# pays, own price, item prices, owned or not, discount → what the user pays. None: unknown.
PRICES = [
    ("whole", 20.0, [10.0, 15.0], [False, False], None, 20.0),
    ("whole", 20.0, [10.0, 15.0], [True, False], None, 20.0),
    ("whole", 20.0, [10.0, 15.0], [True, True], None, 20.0),
    ("whole", None, [10.0, 15.0], [True, False], 0.2, 20.0),
    ("whole", None, [10.0, 15.0], [True, False], None, 25.0),
    ("whole", None, [10.0, None], [True, False], 0.2, None),
    ("missing", 20.0, [10.0, 15.0], [False, False], None, 20.0),
    ("missing", 20.0, [10.0, None], [False, False], None, 20.0),
    ("missing", 20.0, [10.0, 15.0], [True, False], None, 12.0),
    ("missing", None, [10.0, 15.0], [True, False], 0.2, 12.0),
    ("missing", 20.0, [None, 15.0], [True, False], None, None),
    ("missing", 20.0, [10.0, 15.0], [True, True], None, 0.0),
    ("missing", None, [None, None], [True, True], None, 0.0),
    ("missing", 0.0, [0.0, 0.0], [True, False], None, 0.0),
    ("missing", 5.0, [0.0, 0.0], [True, False], None, None),
    ("missing", 10.0, [10.0, 10.0, 10.0], [True, False, True], None, 3.33),
    ("missing", 10.05, [10.0, 10.0], [True, False], None, 5.03),
    ("discount", None, [3.33, 7.49], [True, False], 0.15, 6.37),
    ("whole", None, [3.33, 7.49], [True, False], 0.15, 9.20),
    ("whole", 19.999, [3.33, 7.49], [True, False], 0.15, 19.999),
    ("discount", 20.0, [10.0, 15.0], [False, False], None, 20.0),
    ("discount", 20.0, [10.0, 15.0], [True, False], None, 12.0),
    ("discount", 20.0, [10.0, 15.0], [True, False], 0.5, 7.5),
    ("discount", 20.0, [10.0, 15.0], [False, False], 0.5, 20.0),
    ("discount", 20.0, [10.0, None], [False, False], 0.5, 20.0),
    ("discount", 99.0, [10.0, 15.0], [True, False], None, 15.0),
    ("discount", 20.0, [None, 15.0], [True, False], 0.5, 7.5),
    ("discount", 20.0, [None, 15.0], [True, False], None, None),
    ("discount", 20.0, [10.0, None], [True, False], 0.5, None),
    ("discount", 20.0, [10.0, 15.0], [True, True], None, 0.0),
    ("discount", None, [0.0, 0.0], [True, False], None, 0.0),
]


@pytest.mark.parametrize(("pays", "own", "items", "owned", "discount", "expected"), PRICES)
def test_what_a_user_pays(
    pays: Any,
    own: float | None,
    items: list[float | None],
    owned: list[bool],
    discount: float | None,
    expected: float | None,
) -> None:
    def array(value: float | None) -> Any:
        return np.array([UNKNOWN if value is None else value])

    whole = array(math.fsum(UNKNOWN if price is None else price for price in items))
    lacking = [price for price, has in zip(items, owned, strict=True) if not has]
    rest = array(math.fsum(UNKNOWN if price is None else price for price in lacking))
    price = full_price(array(own), whole, array(discount), 2)
    counts = np.array([float(sum(owned))]), np.array([float(len(lacking))])
    (pay,) = to_pay(pays, price, whole, rest, array(discount), *counts, 2).tolist()
    assert (None if math.isnan(pay) else pay) == expected


# ── A naive second computation ───────────────────────────────────────────────────────────────────


def rounded(amount: float) -> float:
    return math.floor(amount * 100 + 0.5 + 1e-6) / 100


class Naive:
    """The same facts from plain dicts and sets."""

    def __init__(self, dataset: BundleDataset) -> None:
        def rows(matrix: Any, left: Sequence[str], right: Sequence[str]) -> dict[str, set[str]]:
            found: dict[str, set[str]] = {name: set() for name in left}
            for row, column in zip(*matrix.nonzero(), strict=True):
                found[left[row]].add(right[column])
            return found

        users, items, bundles = (list(each) for each in (dataset.users, dataset.items, dataset.bundles))
        self.contents = rows(dataset.bundle_item, bundles, items)
        self.bundles = rows(dataset.user_bundle, users, bundles)
        self.owned = {
            user: alone.union(*(self.contents[bundle] for bundle in self.bundles[user]))
            for user, alone in rows(dataset.user_item, users, items).items()
        }
        tables = dataset.catalogue
        self.of_item = {row["item_id"]: row for row in tables.items.to_pylist()} if tables else {}
        self.of_bundle = {row["bundle_id"]: row for row in tables.bundles.to_pylist()} if tables else {}

    def is_sold_out(self, item: str) -> bool:
        return bool(self.of_item.get(item, {}).get("stock") == 0)

    def list_price(self, items: set[str]) -> float | None:
        prices = [self.of_item.get(item, {}).get("price") for item in items]
        return None if None in prices else math.fsum(prices)

    def price(self, bundle: str) -> float | None:
        row, listed = self.of_bundle.get(bundle, {}), self.list_price(self.contents[bundle])
        if row.get("price") is not None:
            return float(row["price"])
        return None if listed is None else rounded(listed * (1 - (row.get("discount") or 0)))

    def pay(self, pays: str, owned: set[str], bundle: str) -> float | None:
        items, price = self.contents[bundle], self.price(bundle)
        missing, whole, off = items - owned, self.list_price(items), self.of_bundle.get(bundle, {})
        if pays == "whole":
            return price
        if not missing:
            return 0.0
        if missing == items:
            return price
        rest = self.list_price(missing)
        if pays == "missing":
            if price == 0:
                return 0.0
            return None if price is None or rest is None or not whole else rounded(price * rest / whole)
        discount = off.get("discount")
        if discount is None:
            if whole is None or price is None:
                return None
            discount = max(0.0, 1 - price / whole) if whole else 0.0
        return None if rest is None else rounded(rest * (1 - discount))

    def check(self, owned: set[str], answer: RecommendedBundle, pays: str) -> None:
        items = self.contents[answer.id]
        assert set(answer.owned) == items & owned
        assert set(answer.missing) == items - owned
        assert set(answer.sold_out) == {item for item in items if self.is_sold_out(item)}
        assert answer.price == pytest.approx(self.price(answer.id))
        assert answer.to_pay == pytest.approx(self.pay(pays, owned, answer.id))


def with_catalogue(dataset: BundleDataset, seed: int) -> BundleDataset:
    """The same shop with random prices, discounts and stocks. Some of each are unknown."""
    random = np.random.default_rng(seed)

    def some(values: Any, unknown: float) -> list[Any]:
        return [None if random.random() < unknown else value for value in values.tolist()]

    items, bundles = len(dataset.items), len(dataset.bundles)
    of_items = {
        "item_id": dataset.items.to_arrow(),
        "title": [None] * items,
        "price": some(random.integers(0, 40, items) / 2, 0.05),
        "tags": [None] * items,
        "stock": some(random.integers(0, 12, items), 0.3),
    }
    of_bundles = {
        "bundle_id": dataset.bundles.to_arrow(),
        "title": [None] * bundles,
        "price": some(random.integers(0, 80, bundles) / 2, 0.3),
        "tags": [None] * bundles,
        "discount": some(random.integers(0, 5, bundles) / 10, 0.5),
    }
    tables = (catalogue_table(ITEM_SCHEMA, of_items), catalogue_table(BUNDLE_SCHEMA, of_bundles))
    return replace(dataset, catalogue=Catalogue(*tables))


def fitted(dataset: BundleDataset, model: str = "bundlemage") -> Recommender:
    chosen = QUICK if model == "bundlemage" else {"device": "cpu"}
    return Recommender(model, **chosen).fit(dataset, SplitPlan("none"), progress=False, calibrate=False)


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return with_catalogue(small_shop(users=300), 5)


@pytest.fixture(scope="module")
def model(shop: BundleDataset) -> Recommender:
    return fitted(shop)


@pytest.fixture(scope="module")
def naive(shop: BundleDataset) -> Naive:
    return Naive(shop)


@pytest.mark.parametrize("pays", ["whole", "missing", "discount"])
@pytest.mark.parametrize("rule", ["demote", "show"])
def test_facts_are_those_of_the_tables(
    model: Recommender, naive: Naive, shop: BundleDataset, pays: Any, rule: Any
) -> None:
    """10,000 answers and more, of `recommend_many` and of `recommend_all`."""
    model.shop_settings = ShopSettings(pays=pays)
    users, count = list(shop.users), 0
    for user, answers in zip(users, model.recommend_many(users, 40, owned=rule), strict=True):
        for answer in answers:
            naive.check(naive.owned[user], answer, pays)
            count += 1
    assert count > 5_000
    rows = pa.Table.from_batches(list(model.recommend_all(40, owned=rule))).to_pylist()
    assert len(rows) == count
    for row in rows:
        owned, items = naive.owned[row["user_id"]], naive.contents[row["bundle_id"]]
        assert row["owned_items"] == len(items & owned)
        assert row["missing_items"] == len(items - owned)
        assert row["sold_out"] == any(map(naive.is_sold_out, items))
        assert row["to_pay"] == pytest.approx(naive.pay(pays, owned, row["bundle_id"]))
    model.shop_settings = ShopSettings()


@pytest.mark.parametrize("pays", ["whole", "missing", "discount"])
def test_a_campaign_counts_what_users_pay(model: Recommender, naive: Naive, pays: Any, tmp_path: Any) -> None:
    model.shop_settings = ShopSettings(pays=pays)
    summary = model.campaign(tmp_path / "spring", value="takings", per_user=8, sold_out="show")
    model.shop_settings = ShopSettings()
    rows = pq.read_table(tmp_path / "spring" / "parts").to_pylist()
    assert len(rows) == summary.shown > 2_000
    for row in rows:
        owned, items = naive.owned[row["user_id"]], naive.contents[row["bundle_id"]]
        assert (row["owned_items"], row["missing_items"]) == (len(items & owned), len(items - owned))
        assert row["missing_items"]
        assert row["sold_out"] == any(map(naive.is_sold_out, items))
        assert row["price"] == naive.price(row["bundle_id"])
        assert row["to_pay"] == naive.pay(pays, owned, row["bundle_id"])
        assert row["value"] == pytest.approx(row["chance"] * (row["to_pay"] or 0.0))
    unknown = any(row["to_pay"] is None for row in rows)
    assert unknown == (summary.takings is None)


@pytest.mark.parametrize(
    ("price", "to_pay", "said"),
    [
        (20.0, 20.0, "owns 1 of 2 items\n"),
        (20.0, 12.0, "owns 1 of 2 items, pays 12.00\n"),
        (None, 12.0, "owns 1 of 2 items, pays 12.00\n"),
        (20.0, None, "owns 1 of 2 items; the price of what is missing is not known\n"),
        (None, None, "owns 1 of 2 items\n"),
    ],
)
def test_a_card_says_what_the_user_pays(price: float | None, to_pay: float | None, said: str) -> None:
    dataset = dataset_of([[0]], [[0]], [[0, 1]], 2)
    answer = RecommendedBundle("b0", None, 0.5, 1, "model", price, None, ("i0",), ("i1",), to_pay, ())
    card = show._bundle_card(dataset, answer, False, ShopSettings())
    assert said in f"{Text.from_markup(str(card.renderable))}"


def test_items_say_whether_they_are_owned_and_sold_out(model: Recommender, naive: Naive) -> None:
    for user in ("u0001", "u0002", "u0003"):
        answers = model.complete(user, (), ALL, owned="show", stock="show")
        assert {answer.id for answer in answers} == set(model.dataset.items)
        assert {answer.id for answer in answers if answer.owned} == naive.owned[user]
        assert all(answer.sold_out == naive.is_sold_out(answer.id) for answer in answers)
        assert all(answer.price == naive.of_item[answer.id]["price"] for answer in answers)
        left = {answer.id for answer in model.complete(user, (), ALL)}
        assert left == set(model.dataset.items) - naive.owned[user]


# ── The rules ────────────────────────────────────────────────────────────────────────────────────


def expected_order(
    naive: Naive, user: str, shown: Sequence[RecommendedBundle], rule: ShopSettings
) -> list[tuple[float, str]]:
    """The order that the rules give, from the scores of all bundles."""
    owned = naive.owned[user]
    ranked = []
    for answer in shown:
        items = naive.contents[answer.id]
        share = len(items & owned) / len(items)
        score = math.log(answer.score)
        if rule.owned != "show":
            if answer.id in naive.bundles[user] or share == 1:
                continue
            if share >= rule.mostly_owned:
                if rule.owned == "hide":
                    continue
                score += math.log(1 - share)
        sold_out = any(map(naive.is_sold_out, items))
        if sold_out and rule.stock == "hide":
            continue
        ranked.append((-1e6 if sold_out and rule.stock == "last" else 0.0, score, answer.id))
    ranked.sort(reverse=True)
    return [(score, name) for _, score, name in ranked]


@pytest.mark.parametrize("mostly", [0.3, 0.5, 2 / 3, 1.0])
@pytest.mark.parametrize("stock", ["last", "hide", "show"])
@pytest.mark.parametrize("owned", ["demote", "hide", "show"])
def test_the_order_is_that_of_the_rules(
    model: Recommender, naive: Naive, owned: Any, stock: Any, mostly: float
) -> None:
    model.shop_settings = rule = ShopSettings(owned=owned, stock=stock, mostly_owned=mostly)
    for user in ("u0001", "u0002", "u0030", "u0111"):
        everything = model.recommend(user, ALL, owned="show", stock="show")
        expected = expected_order(naive, user, everything, rule)
        found = model.recommend(user, ALL)
        assert [answer.id for answer in found] == [name for _, name in expected]
        scores = {answer.id: answer.score for answer in everything}
        assert all(answer.score == pytest.approx(scores[answer.id], rel=1e-5) for answer in found)
        assert [answer.id for answer in model.recommend(user, 5)] == [name for _, name in expected[:5]]
    model.shop_settings = ShopSettings()


def test_a_parameter_goes_before_the_setting_of_the_shop(model: Recommender) -> None:
    model.shop_settings = ShopSettings(owned="show", stock="show")
    shown = [answer.id for answer in model.recommend("u0001", ALL)]
    hidden = [answer.id for answer in model.recommend("u0001", ALL, owned="hide", stock="hide")]
    model.shop_settings = ShopSettings(owned="hide", stock="hide")
    assert [answer.id for answer in model.recommend("u0001", ALL)] == hidden
    assert [answer.id for answer in model.recommend("u0001", ALL, owned="show", stock="show")] == shown
    assert len(hidden) < len(shown)
    model.shop_settings = ShopSettings()


def test_one_setting_switches_the_rule_off(model: Recommender, naive: Naive, tmp_path: Any) -> None:
    """As a shop needs it whose customers buy the same things again."""
    user, has = "u0001", naive.owned["u0001"]
    usual = model.design(user, n=3, reasons=False)
    allowed = model.design(user, n=3, reasons=False, not_owned=False)
    assert not any(has & set(bundle.ids) for bundle in usual)
    assert any(has & set(bundle.ids) for bundle in allowed)
    model.shop_settings = ShopSettings(owned="show", stock="show")
    try:
        assert {answer.id for answer in model.recommend(user, ALL)} == {
            name for name, items in naive.contents.items() if items
        }
        assert {answer.id for answer in model.complete(user, (), ALL)} == set(model.dataset.items)
        assert [each.ids for each in model.design(user, n=3, reasons=False)] == [each.ids for each in allowed]
        without = model.design(user, n=3, reasons=False, not_owned=True)
        assert not any(has & set(bundle.ids) for bundle in without)
        model.campaign(tmp_path / "spring", per_user=ALL, sold_out="show", users=[user])
        rows = pq.read_table(tmp_path / "spring" / "parts").to_pylist()
        assert {row["bundle_id"] for row in rows} == {name for name, items in naive.contents.items() if items}
        assert {0} < {row["missing_items"] for row in rows}
    finally:
        model.shop_settings = ShopSettings()


def test_a_user_without_a_history_gets_the_best_sellers(model: Recommender) -> None:
    answers = {
        rule: [(answer.id, answer.score) for answer in model.recommend(History(), ALL, owned=rule)]
        for rule in ("hide", "demote", "show")
    }
    assert answers["hide"] == answers["demote"] == answers["show"]


def test_a_bundle_without_an_id_counts(model: Recommender, naive: Naive) -> None:
    bundle = model.recommend("u0001", 1)[0].id
    inside = sorted(naive.contents[bundle])
    for history in (History(inside), History((), [inside]), History(inside[:1], [inside[1:]])):
        assert bundle not in {answer.id for answer in model.recommend(history, ALL)}
        (shown,) = [each for each in model.recommend(history, ALL, owned="show") if each.id == bundle]
        assert sorted(shown.owned) == inside
        assert not shown.missing
    new = model.recommend(History(inside[:1]), ALL, new_bundles={"box": inside})
    (box,) = [answer for answer in new if answer.id == "box"]
    assert list(box.owned) == inside[:1]
    assert sorted(box.missing) == inside[1:]


def test_similar_bundles_follow_the_rule_for_stock(model: Recommender, naive: Naive) -> None:
    found = {}
    for rule in ("show", "last", "hide"):
        model.shop_settings = ShopSettings(stock=rule)
        found[rule] = model.similar("b0001", ALL)
    model.shop_settings = ShopSettings()
    assert [each.score for each in found["show"]] == sorted(
        (each.score for each in found["show"]), reverse=True
    )
    assert any(each.sold_out for each in found["show"][:20])
    in_order = [each.id for each in sorted(found["show"], key=lambda each: bool(each.sold_out))]
    assert [each.id for each in found["last"]] == in_order
    assert [each.id for each in found["hide"]] == [each.id for each in found["show"] if not each.sold_out]
    scores = {each.id: each.score for each in found["show"]}
    assert all(each.score == scores[each.id] for each in found["last"])


def test_a_new_bundle_follows_the_rule_for_stock() -> None:
    """Also if no bundle of the shop is sold out."""
    bare = dataset_of([[0], [1]], [[0], [1]], [[0, 1], [1, 2], [0, 2]], 4)
    items = {"item_id": bare.items.to_arrow(), "stock": [5, 5, 5, 0]}
    nothing = {"title": [None] * 4, "price": [None] * 4, "tags": [None] * 4}
    of_bundles = {"bundle_id": bare.bundles.to_arrow(), "discount": [None] * 3}
    tables = (
        catalogue_table(ITEM_SCHEMA, {**items, **nothing}),
        catalogue_table(BUNDLE_SCHEMA, {**of_bundles, **{name: [None] * 3 for name in nothing}}),
    )
    model = fitted(replace(bare, catalogue=Catalogue(*tables)), "popularity")
    ask: dict[str, Any] = {"new_bundles": {"box": ["i1", "i3"]}, "expected_sales": {"box": 1e9}}
    shown = [answer.id for answer in model.recommend("u0", ALL, stock="show", **ask)]
    assert shown[0] == "box"
    last = model.recommend("u0", ALL, stock="last", **ask)
    assert [answer.id for answer in last] == [*shown[1:], "box"]
    assert last[-1].sold_out == ("i3",)
    assert [answer.id for answer in model.recommend("u0", ALL, stock="hide", **ask)] == shown[1:]


def test_a_shop_without_stock_is_not_changed() -> None:
    bare = fitted(dataset_of([[0], [1]], [[0], [1]], [[0, 1], [1, 2], [0, 2]], 3))
    for stock in ("last", "hide", "show"):
        assert len(bare.recommend("u0", ALL, owned="show", stock=stock)) == 3
        assert not any(answer.sold_out for answer in bare.recommend("u0", ALL, stock=stock))


@st.composite
def shops(draw: st.DrawFn) -> tuple[BundleDataset, int]:
    users, items, bundles = draw(st.integers(2, 12)), draw(st.integers(2, 8)), draw(st.integers(2, 10))

    def rows(count: int, below: int, least: int) -> list[list[int]]:
        row = st.lists(st.integers(0, below - 1), min_size=least, max_size=4, unique=True)
        return draw(st.lists(row, min_size=count, max_size=count))

    contents = rows(bundles, items, 0)
    return dataset_of(rows(users, items, 0), rows(users, bundles, 0), contents, items), draw(
        st.integers(0, 99)
    )


@settings(max_examples=40, deadline=None)
@given(shops(), st.sampled_from(["owned-share", "popularity", "ease"]))
def test_no_answer_is_wholly_owned(made: tuple[BundleDataset, int], name: str) -> None:
    dataset = with_catalogue(*made)
    model, naive = fitted(dataset, name), Naive(dataset)
    model.shop_settings = ShopSettings(pays="missing")
    for rule in ("demote", "hide"):
        for user, answers in zip(
            dataset.users, model.recommend_many(list(dataset.users), ALL, owned=rule), strict=True
        ):
            for answer in answers:
                assert answer.missing
                naive.check(naive.owned[user], answer, "missing")


def test_several_hundred_users_of_the_sample(model: Recommender, naive: Naive) -> None:
    for user, answers in zip(
        model.dataset.users, model.recommend_many(list(model.dataset.users), 20), strict=True
    ):
        assert all(naive.contents[answer.id] - naive.owned[user] for answer in answers)


# ── Filters by price ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("currency", ["EUR", "JPY"])
def test_a_filter_by_price_goes_by_the_price_that_is_shown(
    shop: BundleDataset, model: Recommender, currency: str
) -> None:
    model.shop_settings = ShopSettings(owned="show", stock="show", currency=currency)
    live = live_of(shop, model)
    live.shop_settings = model.shop_settings
    new = {f"new{place}": items for place, items in enumerate((["g0001"], ["g0002", "g0003"], ["g0030"]))}
    try:
        everything = model.recommend("u0001", ALL, new_bundles=new)
        prices = {answer.id: answer.price for answer in everything}
        known = sorted(price for price in prices.values() if price is not None)
        assert len(known) < len(prices)
        computed = [name for name, price in prices.items() if price and name.startswith("new")]
        assert computed
        for low, high in ((known[0], known[5]), (known[5], known[20]), (known[20], known[-1])):
            expected = {name for name, price in prices.items() if price is not None and low <= price <= high}
            where = Filter(min_price=low, max_price=high)
            found = model.recommend("u0001", ALL, new_bundles=new, where=where)
            assert {answer.id for answer in found} == expected
            of_shop = {name for name in expected if name not in new}
            rows = pa.Table.from_batches(list(model.recommend_all(ALL, users=["u0001"], where=where)))
            assert set(rows["bundle_id"].to_pylist()) == of_shop
            assert asked(live, Owned(), where=where).keys() == of_shop
            similar = model.similar("b0001", ALL, where=where)
            assert {answer.id for answer in similar} == of_shop - {"b0001"}
    finally:
        model.shop_settings = ShopSettings()


def test_a_filter_by_price_follows_the_prices_of_the_items(shop: BundleDataset, model: Recommender) -> None:
    """In a live shop, also those of items that are newer than the model."""
    live = live_of(shop, model)
    items = [Item("new1", price=5.0), Item("g0001", price=3.0)]
    live = live.after(CatalogueChange(2, items, [Bundle("pair", ("new1", "g0001"), discount=0.5)]))

    def shown(live: Live) -> float | None:
        (price,) = [each.price for each in asked(live, Owned()).values() if each.id == "pair"]
        for bound in (1.0, 4.0, 6.0, 7.0, 9.0):
            below = "pair" in asked(live, Owned(), where=Filter(max_price=bound))
            assert below == (price is not None and price <= bound)
        return price

    assert shown(live) == 4.0
    for number, (item, expected) in enumerate(
        [
            (Item("new1", price=9.0), 6.0),
            (Item("g0001", price=5.0, stock=3), 7.0),
            (Item("g0001", price=5.0, stock=0), 7.0),
            (Item("new1"), None),
            (Item("new1", price=1.0), 3.0),
        ]
    ):
        live = live.after(CatalogueChange(3 + number, [item], []))
        assert shown(live) == expected
    live = live.after(CatalogueChange(9, [], [Bundle("pair", ("new1", "g0001"), price=6.5)]))
    assert shown(live) == 6.5


# ── The index ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stock", ["last", "hide", "show"])
@pytest.mark.parametrize("owned", ["demote", "hide", "show"])
def test_an_index_that_searches_everything_finds_the_same(
    shop: BundleDataset, model: Recommender, owned: Any, stock: Any
) -> None:
    pytest.importorskip("faiss")
    indexed = fitted(shop)
    indexed.use_index(1e-9, least_bundles=1, most_share=1.0)
    assert isinstance(indexed._index, BundleIndex)
    indexed._index.probed = indexed._index.cells
    users: list[str | History] = [*list(shop.users)[:80], History(), History(["g0001"])]
    for k in (3, 30):
        exact = model.recommend_many(users, k, owned=owned, stock=stock)
        found = indexed.recommend_many(users, k, owned=owned, stock=stock)
        assert [[each.id for each in row] for row in found] == [[each.id for each in row] for row in exact]
        assert [[each.owned for each in row] for row in found] == [
            [each.owned for each in row] for row in exact
        ]


# ── A live shop, with items that are newer than the model ────────────────────────────────────────


def live_of(dataset: BundleDataset, recommender: Recommender) -> Live:
    naive = Naive(dataset)
    items = [
        Item(name, price=row["price"], stock=row["stock"]) for name, row in sorted(naive.of_item.items())
    ]
    bundles = [
        Bundle(name, tuple(sorted(naive.contents[name])), price=row["price"], discount=row["discount"])
        for name, row in sorted(naive.of_bundle.items())
    ]
    return Live(recommender, EMPTY.after(CatalogueChange(1, items, bundles)))


def asked(live: Live, user: Owned, **more: Any) -> dict[str, RecommendedBundle]:
    (answer,) = live.answer([Question(user, ALL, **more)])
    if isinstance(answer, Exception):
        raise answer
    return {each.id: each for each in answer}  # type: ignore[misc]


class TestLive:
    def test_the_answers_are_those_of_the_recommender(
        self, shop: BundleDataset, model: Recommender, naive: Naive
    ) -> None:
        live = live_of(shop, model)
        alone = {name: set() for name in shop.users}  # type: ignore[var-annotated]
        for row, column in zip(*shop.user_item.nonzero(), strict=True):
            alone[shop.users[row]].add(shop.items[column])
        for user in ("u0001", "u0002", "u0120"):
            owned = Owned(tuple(alone[user]), tuple(naive.bundles[user]))
            found = asked(live, owned)
            assert list(found) == [answer.id for answer in model.recommend(user, ALL)]
            for answer in found.values():
                naive.check(naive.owned[user], answer, "whole")

    def test_items_newer_than_the_model_count(self, shop: BundleDataset, model: Recommender) -> None:
        live = live_of(shop, model)
        known = ["g0001", "g0002"]
        items = [Item("new1", price=5.0, stock=0), Item("new2", price=7.0)]
        bundles = [
            Bundle("half", (*known, "new1", "new2")),
            Bundle("one", ("g0001", "new2"), price=9.0),
            Bundle("all new", ("new1",)),
            Bundle("old", tuple(known)),
        ]
        later = live.after(CatalogueChange(2, items, bundles))
        owner = Owned(tuple(known))
        found = asked(later, owner)
        assert "old" not in found  # wholly owned
        assert found["half"].owned == ("g0001", "g0002")
        assert found["half"].missing == ("new1", "new2")
        assert found["half"].sold_out == ("new1",)
        assert found["one"].missing == ("new2",)
        assert "half" not in asked(later, owner, stock="hide")
        assert list(found)[-1] == "half" or found["half"].rank > found["one"].rank
        # Who has the new ones, alone or in a bundle that the model does not know, owns all of it.
        for whole in (Owned((*known, "new1", "new2")), Owned((*known, "new2"), ("all new",))):
            assert not {"half", "one"} & asked(later, whole).keys()
            shown = asked(later, whole, owned="show")["half"]
            assert set(shown.owned) == {*known, "new1", "new2"}
            assert not shown.missing
        # The next change has the same contents, another stock.
        restocked = later.after(CatalogueChange(3, [Item("new1", price=5.0, stock=4)], []))
        assert not asked(restocked, owner)["half"].sold_out
        unknown = later.after(CatalogueChange(3, [Item("new1", price=5.0)], []))
        assert not asked(unknown, owner)["half"].sold_out
        # A bundle that loses its new items is owned.
        smaller = restocked.after(CatalogueChange(4, [], [Bundle("half", tuple(known))]))
        assert "half" not in asked(smaller, owner)

    def test_someone_whose_items_are_all_newer_is_asked_for_what_sells(
        self, shop: BundleDataset, model: Recommender
    ) -> None:
        live = live_of(shop, model)
        change = CatalogueChange(
            2, [Item("new")], [Bundle("pair", ("g0001", "new")), Bundle("b", ("new", "g0002"))]
        )
        later = live.after(change)
        found = asked(later, Owned(("new",)))
        assert found["pair"].owned == ("new",)
        assert found["pair"].source == "popular"


def test_rows_with_repeats_are_owned_once(model: Recommender, naive: Naive) -> None:
    from bundlemage.models.base import Histories

    shop = model.shop
    items = Ragged.from_lists([[3, 3, 1], []])
    bundles = Ragged.from_lists([[2, 2], []])
    owned = shop.owned((), Histories(items, bundles), shop.interactions.bundle_item)
    names: Mapping[int, set[str]] = {
        0: {shop.dataset.items[3], shop.dataset.items[1]} | naive.contents[shop.dataset.bundles[2]],
        1: set(),
    }
    for row, expected in names.items():
        places = owned.values[owned.offsets[row] : owned.offsets[row + 1]].tolist()
        assert [shop.item_name(place) for place in places] == sorted(expected)


# ── The choice of the share, and what the rule costs ─────────────────────────────────────────────


class TestChoice:
    @pytest.fixture(scope="class")
    def split(self) -> Any:
        return SplitPlan().divide(small_shop(users=500, bundles=60, bundles_per_user=6.0))

    def test_training_takes_the_best_share(self, split: Any) -> None:
        from bundlemage.core import owned_rule
        from bundlemage.core.owned_rule import SHARES, best_share, effect
        from bundlemage.models.base import Interactions

        model = Recommender("ease", device="cpu").fit(split, progress=False, calibrate=False)
        data = Interactions.of(split.train, model.shop.device)
        cases = split.validation
        assert len(cases) >= owned_rule.FEWEST_CASES
        figures = {
            share: effect(model.model, cases, data, ShopSettings(mostly_owned=share)).with_rule
            for share in SHARES
        }
        best = best_share(model.model, cases, data)
        assert best is not None
        assert figures[best] == max(figures.values())
        assert best == max(share for share in SHARES if figures[share] == figures[best])
        model._choose_mostly_owned(split)
        assert model.shop_settings.mostly_owned == best
        # What the user has set stays.
        model.shop_settings = ShopSettings(mostly_owned=0.8)
        model._chose_share = False
        model._choose_mostly_owned(split)
        assert model.shop_settings.mostly_owned == 0.8
        assert best_share(model.model, cases.chosen(np.arange(100)), data) is None
        # With so few cases the default stays, under which only wholly owned bundles change their place.
        few = Recommender("ease", device="cpu").fit(split, progress=False, calibrate=False)
        few._choose_mostly_owned(replace(split, validation=cases.chosen(np.arange(100))))
        assert few.shop_settings.mostly_owned == 1

    def test_the_effect_is_that_of_the_answers(self, split: Any) -> None:
        """nDCG@5 computed from the answers for the histories of the training part."""
        from bundlemage.core.owned_rule import effect
        from bundlemage.models.base import Interactions

        model = Recommender("ease", device="cpu").fit(split, progress=False, calibrate=False)
        train, cases = split.train, split.test
        data = Interactions.of(train, model.shop.device)
        rule = ShopSettings(mostly_owned=0.5, stock="show")
        found = effect(model.model, cases, data, rule)
        gains = []
        model.shop_settings = rule
        for row, user in enumerate(cases.users.tolist()):
            items, bundles = (
                [ids[place] for place in matrix[user].indices]
                for matrix, ids in ((train.user_item, train.items), (train.user_bundle, train.bundles))
            )
            answers = [each.id for each in model.recommend(History(items, bundles), 5)]
            wanted = {train.bundles[place] for place in cases.positives[row].indices}
            gain = sum(1 / math.log2(place + 2) for place, name in enumerate(answers) if name in wanted)
            ideal = sum(1 / math.log2(place + 2) for place in range(min(5, len(wanted))))
            gains.append(gain / ideal)
        if cases.candidates is None:
            assert found.with_rule == pytest.approx(float(np.mean(gains)), abs=2e-3)
        assert "owned=demote" in str(found)
        assert "changes nothing: nDCG@5 is 0.1234 with and without it" in str(
            replace(found, without=0.12342, with_rule=0.12338)
        )
        assert found.cases == len(cases)
        often = replace(found, wholly_owned=0.12, cases=50)
        assert "In 12% of the test purchases" in str(often)
        assert "test purchases" not in str(replace(often, cases=49))
        assert "test purchases" not in str(replace(often, wholly_owned=0.04))
        shown = effect(model.model, cases, data, ShopSettings(owned="show"))
        assert "also shown bundles that they have" in str(shown)
        assert shown.with_rule == shown.without == found.without


def test_tables_of_repeat_purchases_are_noticed(tmp_path: Any) -> None:
    """By `train`, and by `data check` and `data ingest`, which read the tables in another way."""
    from bundlemage import read
    from bundlemage.readers.ingest import ingest

    def written(name: str, pairs: list[tuple[int, int]]) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        for table, key in (("user_item", "item"), ("user_bundle", "bundle")):
            rows = pairs if key == "item" else [(user, user % 3) for user in range(60)]
            lines = "".join(f"u{one},{key[0]}{other}\n" for one, other in rows)
            (folder / f"{table}.csv").write_text(f"user_id,{key}_id\n{lines}")
        (folder / "bundle_item.csv").write_text("bundle_id,item_id\nb0,i0\nb1,i1\nb2,i2\n")
        found = [str(problem) for problem in read(folder).warnings]
        assert [str(problem) for problem in ingest(str(folder)).problems] == found
        shards = folder / "shards"
        assert [str(problem) for problem in ingest(str(folder), shards).problems] == found
        again = [str(problem) for problem in read(folder).warnings if problem.kind == "bought-again"]
        # Each pair is once in the layout, which keeps what was noticed. So does a copy of the layout.
        assert [str(problem) for problem in read(shards).warnings] == again
        assert [str(problem) for problem in ingest(str(shards)).problems] == again
        ingest(str(shards), folder / "copy")
        assert [str(problem) for problem in read(folder / "copy").warnings] == again
        return [problem.kind for problem in read(folder).warnings]

    once = [(user, item) for user in range(60) for item in range(3)]
    assert "bought-again" not in written("once", once)
    assert "bought-again" in written("again", once + once[:40])
    assert "bought-again" not in written("twice", once + once)
    assert "bought-again" not in written("a few", once + once[:5])
