"""What answers say about what users own, computed a second time from the tables, for every way to ask.

The second computation reads the CSV files with the standard library and computes with fractions. The tables
are awkward on purpose: rows are there twice, items are in no catalogue, bundles have one item or none, and
prices, discounts and stocks are missing or 0.
"""

from __future__ import annotations

import csv
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bundlemage import History, Recommender
from bundlemage.client import Client
from tests.cli.run import run, run_json
from tests.service.running import inside

USERS, ITEMS, BUNDLES = 200, 90, 70
ALL = 100
RULES = ("whole", "missing", "discount")


def write_tables(folder: Path) -> None:
    draw = random.Random(19)
    folder.mkdir()

    def write(name: str, columns: str, rows: Iterable[tuple[object, ...]]) -> None:
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns.split(","), *rows])

    inside = [
        (f"b{bundle}", f"i{item}")
        for bundle in range(BUNDLES)
        for item in draw.sample(range(ITEMS + 6), draw.choice([1, 1, 2, 2, 3, 4, 5]))  # 6 are in no catalogue
    ]
    alone = [
        (f"u{user}", f"i{draw.randrange(ITEMS + 3)}")
        for user in range(USERS)
        for _ in range(draw.randrange(0, 25))
    ]
    bought = [
        (f"u{user}", f"b{draw.randrange(BUNDLES)}") for user in range(USERS) for _ in range(draw.randrange(5))
    ]
    write("bundle_item", "bundle_id,item_id", [*inside, *inside[:9]])
    write("user_item", "user_id,item_id", [*alone, *alone[:9]])
    write("user_bundle", "user_id,bundle_id", [*bought, *bought[:9]])
    prices, stocks = ["", "0", "4.99", "10", "3.33", "7.49", "12.5"], ["", "0", "1", "9", "9", "9", "9"]
    write(
        "items",
        "item_id,price,stock",
        [(f"i{item}", draw.choice(prices), draw.choice(stocks)) for item in range(ITEMS)],
    )
    write(
        "bundles",
        "bundle_id,price,discount",
        [
            *(
                (
                    f"b{bundle}",
                    draw.choice(["", "", "0", "9.99", "20"]),
                    draw.choice(["", "", "0", "0.2", "0.15"]),
                )
                for bundle in range(BUNDLES)
            ),
            ("nothing inside", "5", ""),
        ],
    )


def cents(amount: Fraction | None) -> float | None:
    """Rounds half up to two decimals."""
    if amount is None:
        return None
    exact = Decimal(amount.numerator) / Decimal(amount.denominator)
    return float(exact.quantize(Decimal("0.01"), ROUND_HALF_UP))


class Tables:
    """The facts from the CSV files."""

    def __init__(self, folder: Path) -> None:
        def rows(name: str) -> list[dict[str, str]]:
            with (folder / f"{name}.csv").open(newline="") as file:
                return list(csv.DictReader(file))

        def number(row: Mapping[str, str], name: str) -> Fraction | None:
            return Fraction(row[name]) if row.get(name) else None

        self.contents: dict[str, set[str]] = defaultdict(set)
        for row in rows("bundle_item"):
            self.contents[row["bundle_id"]].add(row["item_id"])
        self.alone: dict[str, set[str]] = defaultdict(set)
        self.bundles: dict[str, set[str]] = defaultdict(set)
        for row in rows("user_item"):
            self.alone[row["user_id"]].add(row["item_id"])
        for row in rows("user_bundle"):
            self.bundles[row["user_id"]].add(row["bundle_id"])
        self.users = sorted(self.alone.keys() | self.bundles.keys())
        self.item_price = {row["item_id"]: number(row, "price") for row in rows("items")}
        self.gone = {row["item_id"] for row in rows("items") if row["stock"] == "0"}
        self.own_price = {row["bundle_id"]: number(row, "price") for row in rows("bundles")}
        self.discount = {row["bundle_id"]: number(row, "discount") for row in rows("bundles")}

    def owned_by(self, items: Iterable[str], bundles: Iterable[str]) -> set[str]:
        return set(items).union(*(self.contents[bundle] for bundle in bundles))

    def owned(self, user: str) -> set[str]:
        return self.owned_by(self.alone[user], self.bundles[user])

    def sum_of(self, items: Iterable[str]) -> Fraction | None:
        prices = [self.item_price.get(item) for item in items]
        known = [price for price in prices if price is not None]
        return sum(known, Fraction(0)) if len(known) == len(prices) else None

    def price(self, bundle: str) -> Fraction | None:
        own, whole = self.own_price[bundle], self.sum_of(self.contents[bundle])
        if own is not None or whole is None:
            return own
        return Fraction(str(cents(whole * (1 - (self.discount[bundle] or 0)))))

    def to_pay(self, pays: str, bundle: str, owned: set[str]) -> float | None:
        items, price = self.contents[bundle], self.price(bundle)
        missing, has = items - owned, items & owned
        if pays == "whole" or not has:
            return cents(price)
        if not missing:
            return 0.0
        whole, rest = self.sum_of(items), self.sum_of(missing)
        if pays == "missing":
            if price == 0:
                return 0.0
            return None if price is None or rest is None or not whole else cents(price * rest / whole)
        off = self.discount[bundle]
        if off is None:
            if price is None or whole is None:
                return None
            off = max(Fraction(0), 1 - price / whole) if whole else Fraction(0)
        return None if rest is None else cents(rest * (1 - off))


@dataclass(frozen=True)
class Answer:
    """What one way to ask says about one bundle."""

    bundle: str
    owned: set[str]
    missing: set[str]
    sold_out: set[str]
    price: float | None
    to_pay: float | None

    @classmethod
    def of(cls, facts: Any) -> Answer:
        get: Any = facts.get if isinstance(facts, dict) else lambda name: getattr(facts, name)
        owned, missing, sold_out = (get(name) for name in ("owned", "missing", "sold_out"))
        assert all(len(each) == len(set(each)) for each in (owned, missing, sold_out))
        return cls(get("id"), set(owned), set(missing), set(sold_out), get("price"), get("to_pay"))


def check(tables: Tables, pays: str, owned: set[str], answers: list[Answer], *, show: bool) -> int:
    """Checks all answers for one user. All bundles of the shop were asked for."""
    for answer in answers:
        items = tables.contents[answer.bundle]
        assert answer.owned == items & owned
        assert answer.missing == items - owned
        assert answer.missing or show
        assert answer.sold_out == items & tables.gone
        assert answer.price == cents(tables.price(answer.bundle))
        assert answer.to_pay == tables.to_pay(pays, answer.bundle, owned), (answer, owned)
    names = [answer.bundle for answer in answers]
    assert sorted(names) == sorted(name for name, items in tables.contents.items() if show or items - owned)
    last = [bool(answer.sold_out) for answer in answers]
    assert last == sorted(last)
    return len(answers)


def histories(tables: Tables) -> Iterator[tuple[list[str], list[str]]]:
    """Visitors, who are in no table."""
    draw = random.Random(7)
    for _ in range(50):
        yield (
            [f"i{item}" for item in draw.sample(range(ITEMS), draw.randrange(12))],
            draw.sample(sorted(tables.contents), draw.randrange(4)),
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables, and for each rule of `pays` a model of them."""
    folder = tmp_path_factory.mktemp("awkward")
    write_tables(folder / "tables")
    run("train", folder / "tables", "-o", folder / "whole", "--model", "ease", "--device", "cpu")
    for pays in RULES[1:]:
        Recommender.load(folder / "whole", device="cpu", shop={"pays": pays}).save(folder / pays)
    return folder


@pytest.fixture(scope="module")
def tables(shop: Path) -> Tables:
    return Tables(shop / "tables")


@pytest.mark.parametrize("pays", RULES)
def test_python(shop: Path, tables: Tables, pays: str) -> None:
    model = Recommender.load(shop / pays, device="cpu")
    count = 0
    for rule in (None, "show"):
        found = model.recommend_many(tables.users, ALL, owned=rule)
        for user, answers in zip(tables.users, found, strict=True):
            facts = [Answer.of(answer) for answer in answers]
            count += check(tables, pays, tables.owned(user), facts, show=rule == "show")
        for items, bundles in histories(tables):
            facts = [Answer.of(each) for each in model.recommend(History(items, bundles), ALL, owned=rule)]
            count += check(tables, pays, tables.owned_by(items, bundles), facts, show=rule == "show")
    assert count > 20_000


@pytest.mark.parametrize("pays", RULES)
def test_the_command_line(shop: Path, tables: Tables, pays: str, tmp_path: Path) -> None:
    for user in tables.users[::60]:
        found = run_json("recommend", shop / pays, "--user", user, "-k", ALL)["bundles"]
        check(tables, pays, tables.owned(user), list(map(Answer.of, found)), show=False)
    for rule in ("demote", "show"):
        asked = () if rule == "demote" else ("--owned", rule)
        run("recommend-all", shop / pays, "-o", tmp_path / f"{rule}.parquet", "-k", ALL, *asked)
        of_user = defaultdict(list)
        for row in pq.read_table(tmp_path / f"{rule}.parquet").to_pylist():
            of_user[row["user_id"]].append(row)
        for user in tables.users:
            owned = tables.owned(user)
            for row in of_user[user]:
                items = tables.contents[row["bundle_id"]]
                assert (row["owned_items"], row["missing_items"]) == (len(items & owned), len(items - owned))
                assert row["missing_items"] or rule == "show"
                assert row["to_pay"] == tables.to_pay(pays, row["bundle_id"], owned)
                assert row["sold_out"] == bool(items & tables.gone)
            assert sorted(row["bundle_id"] for row in of_user[user]) == sorted(
                name for name, items in tables.contents.items() if rule == "show" or items - owned
            )
        assert sum(map(len, of_user.values())) > 10_000


@pytest.mark.parametrize("pays", RULES)
def test_http(shop: Path, tables: Tables, pays: str, tmp_path: Path) -> None:
    """By the client, which reads every field of the JSON. At last some users buy, and own more at once."""
    draw, count = random.Random(3), 0
    with inside(shop / pays, f"sqlite:///{tmp_path / 'shop.db'}") as service, Client(service.url) as client:
        for user in tables.users:
            for rule in (None, "show") if user in tables.users[::10] else (None,):
                facts = [Answer.of(each) for each in client.recommend(user, ALL, owned=rule)]
                count += check(tables, pays, tables.owned(user), facts, show=rule == "show")
        for items, bundles in histories(tables):
            visitor = {"items": items, "bundles": bundles}
            facts = [Answer.of(each) for each in client.recommend(visitor, ALL)]
            count += check(tables, pays, tables.owned_by(items, bundles), facts, show=False)
        for user in draw.sample(tables.users, 20):
            item, bundle = f"i{draw.randrange(ITEMS)}", draw.choice(sorted(tables.contents))
            client.record_many([{"user": user, "item": item}, {"user": user, "bundle": bundle}])
            owned = tables.owned_by({*tables.alone[user], item}, {*tables.bundles[user], bundle})
            facts = [Answer.of(each) for each in client.recommend(user, ALL)]
            count += check(tables, pays, owned, facts, show=False)
    assert count > 10_000


def test_the_tables_are_awkward(tables: Tables) -> None:
    """Each case is there, or the tests above say nothing about it."""
    sizes = [len(items) for items in tables.contents.values()]
    assert min(sizes) == 1
    pairs = [(bundle, user) for bundle in tables.contents for user in tables.users]
    for pays in RULES[1:]:
        paid = {tables.to_pay(pays, bundle, tables.owned(user)) for bundle, user in pairs}
        assert {None, 0.0} < paid
        assert any(each is not None and not math.isclose(each * 10, round(each * 10)) for each in paid)
    assert any(tables.price(bundle) is None for bundle in tables.contents)
    assert any(tables.price(bundle) == 0 for bundle in tables.contents)
    wholly = [user for bundle, user in pairs if tables.contents[bundle] <= tables.owned(user)]
    assert len(wholly) > 500
