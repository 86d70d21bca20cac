"""The designer's contract a second time, by plain loops: what rules mean, what a bundle is worth.

Nothing here uses `bundlemage.designer`, so that a mistake there does not hide itself here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, sparse

from bundlemage import History, Recommender, SplitPlan, sample_shop
from bundlemage.core.history import User
from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, Catalogue, catalogue_table, empty_catalogue
from bundlemage.models.base import Completer, Embedder, Histories, Matcher, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.sample.generate import Tastes
from bundlemage.wire.design_answers import Details, Explanation
from tests.small_shop import dataset_of

Request: TypeAlias = dict[str, Any]
"""The arguments of `design` but for the user."""
Name: TypeAlias = tuple[str, str]
"""A rule's kind and key; the key is empty where there is one rule of the kind."""
Rules: TypeAlias = dict[Name, Any]

DEFAULTS: Request = {
    "start": (),
    "size": (3, 5),
    "budget": None,
    "must": (),
    "forbid": (),
    "tags": None,
    "one_per": (),
    "in_stock": None,
    "not_owned": True,
    "discount": 0.0,
    "matching": 8.0,
    "diversity": 0.0,
    "margin": 0.0,
    "costs": None,
    "n": 5,
    "apart": 0.5,
}
KEYED = ("must", "at_least", "at_most", "one_per")
UP, DOWN = ("size_max", "budget_max", "at_most"), ("size_min", "budget_min", "at_least")
"""The rules with a number, by where it goes when the rule is eased."""


# ── Shops ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Goods:
    """What a catalogue says of items, by id; and which are sold no more."""

    price: Mapping[str, float | None]
    tags: Mapping[str, frozenset[str]]
    stock: Mapping[str, int | None]
    gone: frozenset[str] = frozenset()

    @classmethod
    def of(cls, catalogue: Catalogue, gone: Iterable[str] = ()) -> Goods:
        known = ("item_id", "price", "tags", "stock")
        ids, prices, tags, stock = (catalogue.items[name].to_pylist() for name in known)
        return cls(
            dict(zip(ids, prices, strict=True)),
            {item: frozenset(each or ()) for item, each in zip(ids, tags, strict=True)},
            dict(zip(ids, stock, strict=True)),
            frozenset(gone),
        )

    @cached_property
    def tagged(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for item, tags in self.tags.items():
            for tag in tags:
                found.setdefault(tag, []).append(item)
        return dict(sorted(found.items()))

    @cached_property
    def mean_price(self) -> float:
        known = [price for price in self.price.values() if price is not None]
        return math.fsum(known) / len(known)

    @cached_property
    def any_stock(self) -> bool:
        return any(stock is not None for stock in self.stock.values())


@cache
def small_sample() -> tuple[Recommender, Tastes]:
    """The whole sample shop with a small model, in two seconds. It is everybody's."""
    shop = sample_shop()
    model = Recommender(embedding_dim=32, epochs=50, learning_rate=0.01, device="cpu")
    return model.fit(shop.dataset, progress=False), shop.tastes


@cache
def tiny_recommender(items: int, seed: int = 0) -> Recommender:
    """A shop so small that every bundle can be looked at: i0, i1, … and the users u0, u1, …

    Prices end in .99, .00 and .49, one is not known; discounts of 20% and 40% leave no half cents to argue
    about. Of ten items one is sold out, and of one nobody knows the stock.
    """
    random = np.random.default_rng(seed)

    def rows(count: int, columns: int, most: int) -> list[list[int]]:
        sizes = random.integers(1, most + 1, count)
        return [random.permutation(columns)[:size].tolist() for size in sizes]

    bundles = 2 * items
    shop = dataset_of(rows(30, items, 4), rows(30, bundles, 4), rows(bundles, items, 4), items)
    prices = [random.integers(1, 12) + (0.99, 0.0, 0.49)[number % 3] for number in range(items)]
    columns = {
        "item_id": shop.items.to_arrow(),
        "title": [f"Item {number}" for number in range(items)],
        "price": [None if number == 5 else round(float(price), 2) for number, price in enumerate(prices)],
        "tags": [
            [
                f"brand:{'abc'[number % 3]}",
                f"colour:{'rg'[number % 2]}",
                *(["gift"] if number % 4 == 0 else []),
            ]
            for number in range(items)
        ],
        "stock": [0 if number == 3 else None if number == 6 else 1 + number for number in range(items)],
    }
    catalogue = Catalogue(catalogue_table(ITEM_SCHEMA, columns), empty_catalogue(BUNDLE_SCHEMA, shop.bundles))
    shop = dataset_of(
        [row.indices.tolist() for row in shop.user_item],
        [row.indices.tolist() for row in shop.user_bundle],
        [row.indices.tolist() for row in shop.bundle_item],
        items,
        catalogue=catalogue,
    )
    model = Recommender(embedding_dim=8, epochs=40, learning_rate=0.02, device="cpu", seed=seed)
    return model.fit(shop, SplitPlan("none"), progress=False)


def goods_of(recommender: Recommender) -> Goods:
    dataset = recommender.dataset
    assert dataset.catalogue is not None
    gone = np.flatnonzero(recommender.shop.trade.items_gone)
    return Goods.of(dataset.catalogue, [dataset.items.ids[position] for position in gone])


def owned_by(recommender: Recommender, user: User) -> frozenset[str]:
    """What someone has by itself, or inside a bundle."""
    dataset = recommender.dataset
    if isinstance(user, History):
        items, bundles = set(map(str, user.items)), list(user.bundles)
    else:
        row = dataset.users.position(str(user))
        items = {dataset.items.ids[position] for position in dataset.user_item[row].indices}
        bundles = [dataset.bundles.ids[position] for position in dataset.user_bundle[row].indices]
    for bundle in bundles:
        if isinstance(bundle, str | int):
            inside = dataset.bundle_item[dataset.bundles.position(str(bundle))].indices
            items |= {dataset.items.ids[position] for position in inside}
        else:
            items |= set(map(str, bundle))
    return frozenset(items)


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────


def rules_of(goods: Goods, request: Request) -> Rules:
    """Every rule that a request has, by name, with its number."""
    asked = DEFAULTS | request
    size, budget, tags = asked["size"], asked["budget"], asked["tags"] or {}
    least, most = (size, size) if isinstance(size, int) else size
    low, high = budget if isinstance(budget, tuple) else (None, budget)
    rules: Rules = {("size_min", ""): least, ("size_max", ""): most}
    rules |= {("budget_min", ""): low} if low is not None else {}
    rules |= {("budget_max", ""): high} if high is not None else {}
    rules |= {("must", str(item)): True for item in asked["must"]}
    rules |= {("forbid", ""): frozenset(map(str, asked["forbid"]))} if asked["forbid"] else {}
    rules |= {("at_least", tag): count for tag, count in tags.get("at least", {}).items()}
    rules |= {("at_most", tag): count for tag, count in tags.get("at most", {}).items()}
    rules |= {("one_per", name): True for name in asked["one_per"]}
    in_stock = goods.any_stock if asked["in_stock"] is None else asked["in_stock"]
    rules |= {("in_stock", ""): True} if in_stock else {}
    rules |= {("not_owned", ""): True} if asked["not_owned"] else {}
    return rules


def name_of(rule: Any) -> Name:
    """The name of a `Rule` or a `Step`."""
    return rule.kind, str(rule.key) if rule.kind in KEYED else ""


def eased(rules: Rules, steps: Iterable[Any]) -> Rules:
    """The rules after a change."""
    after = dict(rules)
    for step in steps:
        if step.value is None:
            del after[name_of(step)]
        else:
            assert name_of(step) in after, f"{step} is of no rule"
            after[name_of(step)] = step.value
    return after


def tags_meant(name: str, goods: Goods) -> list[str]:
    """The tags that an entry of `one_per` stands for."""
    if name.endswith("*"):
        return [tag for tag in goods.tagged if tag.startswith(name[:-1])]
    return [name]


def list_price(goods: Goods, items: Iterable[str]) -> Decimal | None:
    prices = [goods.price[item] for item in items]
    return None if None in prices else sum((Decimal(str(price)) for price in prices), Decimal(0))


def price_of(goods: Goods, items: Iterable[str], discount: float) -> Decimal | None:
    """Before it is rounded."""
    full = list_price(goods, items)
    return None if full is None else full * (1 - Decimal(str(discount)))


def broken(
    goods: Goods, owned: frozenset[str], request: Request, rules: Rules, added: Sequence[str]
) -> frozenset[Name]:
    """The rules that a bundle does not keep."""
    asked = DEFAULTS | request
    bundle = [*map(str, asked["start"]), *added]
    exact = price_of(goods, bundle, asked["discount"])
    price = None if exact is None else float(round(exact, 2))

    def tagged(tag: str) -> int:
        return sum(tag in goods.tags[item] for item in bundle)

    def keeps(kind: str, key: str, value: Any) -> bool:
        match kind:
            case "size_min":
                return len(bundle) >= int(value)
            case "size_max":
                return len(bundle) <= int(value)
            case "budget_min":
                return price is not None and price >= value
            case "budget_max":
                return price is not None and price <= value
            case "must":
                return key in bundle
            case "forbid":
                return not value.intersection(bundle)
            case "at_least":
                return tagged(key) >= int(value)
            case "at_most":
                return tagged(key) <= int(value)
            case "one_per":
                return all(tagged(tag) <= 1 for tag in tags_meant(key, goods))
            case "in_stock":
                return all((goods.stock[item] or 0) > 0 for item in added)
            case "not_owned":
                return not owned.intersection(added)
        raise AssertionError(f"there is no rule {kind!r}")

    return frozenset(name for name, value in rules.items() if not keeps(*name, value))


def every_bundle(goods: Goods, request: Request, most: int | None = None) -> Iterator[tuple[str, ...]]:
    """What can be added at all, whatever the rules say."""
    start = set(map(str, (DEFAULTS | request)["start"]))
    free = [item for item in goods.price if item not in start and item not in goods.gone]
    for size in range(1, (most or len(free)) + 1):
        yield from combinations(free, size)


def possible(
    goods: Goods, owned: frozenset[str], request: Request, rules: Rules, *, surely: bool = False
) -> bool:
    """Whether some bundle keeps these rules, by a solver that the designer does not use.

    Half a cent may be rounded either way: `surely` asks for a bundle that is possible in both cases.
    """
    asked = DEFAULTS | request
    start = list(map(str, asked["start"]))
    free = [item for item in goods.price if item not in set(start) and item not in goods.gone]
    place = {item: number for number, item in enumerate(free)}
    has_budget = ("budget_min", "") in rules or ("budget_max", "") in rules
    lowest, highest = np.zeros(len(free)), np.ones(len(free))
    for item, number in place.items():
        barred = item in rules.get(("forbid", ""), ())
        barred |= ("in_stock", "") in rules and not (goods.stock[item] or 0) > 0
        barred |= ("not_owned", "") in rules and item in owned
        barred |= has_budget and goods.price[item] is None
        highest[number] = not barred
    for kind, key in rules:
        if kind == "must" and key not in start:
            if key not in place:
                return False
            lowest[place[key]] = 1
    if (lowest > highest).any() or set(start) & set(rules.get(("forbid", ""), ())):
        return False
    if has_budget and any(goods.price[item] is None for item in start):
        return False
    lines: list[tuple[dict[int, float], float, float]] = [
        (dict.fromkeys(range(len(free)), 1.0), 1.0, math.inf)
    ]
    sizes = rules.get(("size_min", ""), 0), rules.get(("size_max", ""), math.inf)
    lines.append((lines[0][0], sizes[0] - len(start), sizes[1] - len(start)))
    if has_budget:
        share, slack = 100 * (1 - asked["discount"]), 0.49 if surely else 0.51
        cents = {place[item]: share * (goods.price[item] or 0) for item in free}
        there = share * math.fsum(goods.price[item] or 0 for item in start)
        low, high = rules.get(("budget_min", ""), -math.inf), rules.get(("budget_max", ""), math.inf)
        lines.append((cents, 100 * low - slack - there, 100 * high + slack - there))
    counts: dict[str, tuple[float, float]] = {}
    for (kind, key), value in rules.items():
        for tag in tags_meant(key, goods) if kind == "one_per" else [key]:
            low, high = counts.get(tag, (0, math.inf))
            if kind == "at_least":
                counts[tag] = max(low, value), high
            elif kind in ("at_most", "one_per"):
                counts[tag] = low, min(high, 1 if kind == "one_per" else value)
    for tag, (low, high) in counts.items():
        there = sum(tag in goods.tags[item] for item in start)
        inside = {place[item]: 1.0 for item in goods.tagged.get(tag, ()) if item in place}
        lines.append((inside, low - there, high - there))
    endings = {round(100 * (goods.price[item] or 0)) % 100 for item in [*free, *start]}
    low, high = rules.get(("budget_min", ""), 0), rules.get(("budget_max", ""), math.inf)
    if not has_budget or len(endings) != 1 or asked["discount"] or high - low >= 1:
        return _solvable(lines, lowest, highest)
    # All prices end alike, and less than 1.00 is allowed: the solver needs long to see what each size costs.
    each, (ending,) = lines[0][0], endings
    whole = {place[item]: float(math.floor(goods.price[item] or 0)) for item in free}
    there = sum(math.floor(goods.price[item] or 0) for item in start)
    for added in range(1, min(len(free), 100) + 1):
        ends = (len(start) + added) * ending / 100
        least, most = math.ceil(low - ends - 1e-6) - there, math.floor(high - ends + 1e-6) - there
        of_size = [*lines, (each, float(added), float(added)), (whole, float(least), float(most))]
        if least <= most and _solvable(of_size, lowest, highest):
            return True
    return False


def _solvable(
    lines: list[tuple[dict[int, float], float, float]],
    lowest: npt.NDArray[np.float64],
    highest: npt.NDArray[np.float64],
) -> bool:
    row = np.repeat(np.arange(len(lines)), [len(line[0]) for line in lines])
    column = np.array([number for line in lines for number in line[0]], dtype=np.int64)
    weight = np.array([value for line in lines for value in line[0].values()])
    matrix = sparse.csr_matrix((weight, (row, column)), shape=(len(lines), len(lowest)))
    found = optimize.milp(
        np.zeros(len(lowest)),
        integrality=np.ones(len(lowest)),
        bounds=optimize.Bounds(lowest, highest),
        constraints=optimize.LinearConstraint(
            matrix, [low for _, low, _ in lines], [high for *_, high in lines]
        ),
    )
    assert found.status in (0, 2), found.message
    return bool(found.status == 0)


# ── What a bundle is worth ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Worth:
    order: tuple[str, ...]
    """The added items, the most likely of those left first."""
    chances: tuple[float, ...]
    matching: float
    likelihood: float
    margin: float
    diversity: float

    @property
    def value(self) -> float:
        return self.matching + self.likelihood + self.margin + self.diversity


class Judge:
    """The objective for one user, item by item from `score_items`."""

    def __init__(self, recommender: Recommender, goods: Goods, user: User) -> None:
        self.model, self.ids, self.goods = recommender.model, recommender.dataset.items, goods
        self.histories: Histories
        self.histories, self.contents = recommender.shop.encode([user])
        self._scores: dict[frozenset[str], npt.NDArray[np.float64]] = {}
        self._bundles = len(recommender.dataset.bundles)

    @torch.no_grad()
    def log_taken(self, bundle: Sequence[str]) -> float:
        """The log-probability of a bundle among those of the shop and itself; 0 if the model cannot match."""
        if not can(self.model, Matcher):
            return 0.0
        places = [self.ids.position(item) for item in bundle]
        contents = self.contents.append(Ragged.from_lists([places]))
        scores = self.model.score_bundles(self.histories, contents)[0].double().numpy()
        kept = np.append(scores[: self._bundles], scores[-1])
        return float(kept[-1] - kept.max() - math.log(np.exp(kept - kept.max()).sum()))

    @torch.no_grad()
    def log_chances(self, inside: Sequence[str]) -> npt.NDArray[np.float64]:
        """The log-probability of each item as the next one of a bundle; of those inside, -∞."""
        known = self._scores.get(frozenset(inside))
        if known is not None:
            return known
        positions = [self.ids.position(item) for item in inside]
        scores = require(self.model, Completer).score_items(
            self.histories, Ragged.from_lists([positions]), self.contents
        )[0]
        found = scores.double().numpy().copy()
        found[positions] = -np.inf
        found -= found.max() + math.log(np.exp(found - found.max()).sum())
        self._scores[frozenset(inside)] = found
        return found

    def worth(self, request: Request, added: Iterable[str]) -> Worth:
        asked = DEFAULTS | request
        start = list(map(str, asked["start"]))
        bundle, left, logs = list(start), sorted(added), []
        count = len(left)
        while left:
            chances = self.log_chances(bundle)
            best = max(left, key=lambda item: float(chances[self.ids.position(item)]))
            logs.append(float(chances[self.ids.position(best)]))
            bundle.append(best)
            left.remove(best)
        order = bundle[len(start) :]
        return Worth(
            tuple(order),
            tuple(map(math.exp, logs)),
            asked["matching"] * self.log_taken(bundle) if asked["matching"] else 0.0,
            math.fsum(logs) / count,
            asked["margin"] * self._margin(asked, order) if asked["margin"] else 0.0,
            asked["diversity"] * self._spread(bundle) if asked["diversity"] else 0.0,
        )

    def _margin(self, asked: Request, added: list[str]) -> float:
        costs = {str(item): cost for item, cost in (asked["costs"] or {}).items()}
        gains = [
            (self.goods.price[item] or 0) * (1 - asked["discount"]) - costs.get(item, 0) for item in added
        ]
        return math.fsum(gains) / len(gains) / self.goods.mean_price

    def _spread(self, bundle: list[str]) -> float:
        with torch.no_grad():
            places = [self.ids.position(item) for item in bundle]
            chosen = require(self.model, Embedder).vectors_of_items()[places].double().numpy()
        apart = [
            1 - float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
            for one, other in combinations(chosen, 2)
        ]
        return math.fsum(apart) / len(apart) if apart else 0.0


# ── The checker ──────────────────────────────────────────────────────────────────────────────────


def violations(
    goods: Goods, owned: frozenset[str], request: Request, answer: Sequence[Any], judge: Judge
) -> list[str]:
    """All that is wrong with an answer of `design`."""
    asked = DEFAULTS | request
    wrong = []
    if not 1 <= len(answer) <= asked["n"]:
        wrong.append(f"{len(answer)} bundles where {asked['n']} are asked for")
    if [design.rank for design in answer] != list(range(1, len(answer) + 1)):
        wrong.append(f"ranks {[design.rank for design in answer]}")
    values = [design.value for design in answer]
    if any(after > before + 1e-6 for before, after in pairwise(values)):
        wrong.append(f"the best is not first: {values}")
    for design in answer:
        found = [*_rules_broken(goods, owned, asked, design), *_misstated(goods, owned, asked, design, judge)]
        wrong += [f"bundle {design.rank}: {text}" for text in found]
    # What must be in every bundle cannot set them apart: what counts is what was free to choose.
    fixed = {*map(str, asked["must"]), *map(str, asked["start"])}
    for one, other in combinations(answer, 2):
        chosen = [{item.id for item in design.items} - fixed for design in (one, other)]
        smaller, common = min(map(len, chosen)), len(chosen[0] & chosen[1])
        if common > min(math.floor((1 - asked["apart"]) * smaller + 1e-9), smaller - 1):
            wrong.append(f"bundles {one.rank} and {other.rank} share {common} of {smaller} chosen items")
    return wrong


def _rules_broken(goods: Goods, owned: frozenset[str], asked: Request, design: Any) -> Iterator[str]:
    start = list(dict.fromkeys(map(str, asked["start"])))
    ids = [item.id for item in design.items]
    added = [item.id for item in design.items if not item.given]
    if len(set(ids)) < len(ids):
        yield f"an item twice: {ids}"
    if {item.id for item in design.items[: len(start)] if item.given} != set(start) or set(start) & set(
        added
    ):
        yield f"start {start} is not there, or not first: {ids}"
    if not added:
        yield "nothing is added"
    if goods.gone.intersection(added):
        yield f"withdrawn items: {sorted(goods.gone.intersection(added))}"
    rules = rules_of(goods, asked)
    # The price was checked to be right to half a cent; where exactly half a cent goes is the designer's.
    money = {name: rules.pop(name) for name in (("budget_min", ""), ("budget_max", "")) if name in rules}
    for name in sorted(broken(goods, owned, asked, rules, added)):
        yield f"{name} does not hold: {ids}"
    if money and not (
        design.price is not None
        and money.get(("budget_min", ""), -math.inf)
        <= design.price
        <= money.get(("budget_max", ""), math.inf)
    ):
        yield f"price {design.price} is not within {money}"


def _is_price(stated: float | None, exact: Decimal | None) -> bool:
    if stated is None or exact is None:
        return stated is None and exact is None
    return abs(Decimal(repr(stated)) - exact) <= Decimal("0.005") and round(stated, 2) == stated


def _misstated(
    goods: Goods, owned: frozenset[str], asked: Request, design: Any, judge: Judge
) -> Iterator[str]:
    ids = [item.id for item in design.items]
    for stated, exact in (
        (design.list_price, list_price(goods, ids)),
        (design.price, price_of(goods, ids, asked["discount"])),
    ):
        if not _is_price(stated, exact):
            yield f"a price of {stated} where it is {exact}"
    if design.to_pay != design.price:
        yield f"{design.to_pay} to pay where the price is {design.price}"
    if design.discount != asked["discount"]:
        yield f"a discount of {design.discount}"
    for item in design.items:
        facts = item.owned, item.sold_out
        if facts != (item.id in owned, goods.stock[item.id] == 0):
            yield f"{item.id} has (owned, sold_out) = {facts}"
        if (item.price, frozenset(item.tags)) != (goods.price[item.id], goods.tags[item.id]):
            yield f"{item.id} has price {item.price} and tags {item.tags}"
        if item.given != (item.score is None):
            yield f"{item.id}, given: {item.given}, has the score {item.score}"
    worth = judge.worth(asked, [item.id for item in design.items if not item.given])
    scores = [item.score for item in design.items if not item.given]
    if not np.allclose(scores, worth.chances, rtol=1e-3, atol=0):
        yield f"items {ids} have the scores {scores}, not {worth.chances} in the order {worth.order}"
    terms = dict(design.terms)
    if set(terms) != {"matching", "likelihood", "margin", "diversity"}:
        yield f"terms {terms}"
        return
    for name, term in terms.items():
        if not math.isclose(term, getattr(worth, name), rel_tol=1e-5, abs_tol=1e-4):
            yield f"{name} is {term}, not {getattr(worth, name)}"
    if not math.isclose(math.fsum(terms.values()), design.value, abs_tol=1e-6):
        yield f"the terms {terms} do not add up to {design.value}"
    if not math.isclose(design.score, math.exp(terms["likelihood"]), rel_tol=1e-5):
        yield f"score {design.score} is not exp of {terms['likelihood']}"


def wrongly_refused(goods: Goods, owned: frozenset[str], request: Request, error: Any) -> list[str]:
    """All that is wrong with an `ImpossibleDesignError`, as far as a solver can tell without looking at every
    set of rules: whether the conflict is one, whether each rule in it is needed, whether changes help."""
    rules = rules_of(goods, request)
    conflict = {name_of(rule): rules.get(name_of(rule)) for rule in error.conflict}
    wrong = [f"{name} is no rule of the request" for name in conflict if name not in rules]
    if possible(goods, owned, request, rules, surely=True):
        wrong.append("the request is possible")
    if possible(goods, owned, request, conflict, surely=True):
        wrong.append(f"{list(conflict)} can hold together")
    for name in conflict:
        rest = {other: value for other, value in conflict.items() if other != name}
        if not possible(goods, owned, request, rest):
            wrong.append(f"{name} is not needed for the conflict {list(conflict)}")
    if not error.changes:
        wrong.append("no change is offered")
    wrong += [
        f"{change} does not help"
        for change in error.changes
        if not possible(goods, owned, request, eased(rules, change.steps))
    ]
    return wrong


# ── Reasons ──────────────────────────────────────────────────────────────────────────────────────


def numbers(told: Explanation) -> Details:
    """The numbers of an explanation, which has them."""
    assert told.details is not None
    return told.details


def taste_of_reasons(model: Recommender, tastes: Tastes, kind: str, users: int) -> tuple[float, float, int]:
    """How often the strongest reason has the genre of what is explained, how often any would, and of how
    many. An item is the best completion of half a bundle of the user."""
    dataset, hits, chance, asked = model.dataset, 0, 0.0, 0

    def genre(what: str, name: str) -> int:
        if what == "bundle":
            return int(tastes.bundle_genre[dataset.bundles.position(name)])
        return int(tastes.item_genre[dataset.items.position(name)])

    for user in dataset.users.ids[:users]:
        bundles = dataset.user_bundle[dataset.users.position(user)].indices
        if kind == "item" and not len(bundles):
            continue
        if kind == "item":
            inside = dataset.bundle_item[int(bundles[0])].indices
            partial = [dataset.items.ids[place] for place in inside[: max(1, len(inside) // 2)]]
            name = model.complete(user, partial, 1)[0].id
            told = model.explain(user, item=name, items=partial)
        else:
            name = model.recommend(user, 1)[0].id
            told = model.explain(user, bundle=name)
        same = [genre(reason.kind, reason.id) == genre(kind, name) for reason in numbers(told).reasons]
        hits, chance, asked = hits + same[0], chance + sum(same) / len(same), asked + 1
    return hits / asked, chance / asked, asked


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


class RequestMaker:
    """Requests such as a shop makes, most of them possible, all different."""

    def __init__(self, recommender: Recommender, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.dataset = recommender.dataset
        self.goods = goods_of(recommender)
        self.ids = list(self.dataset.items)
        sales = recommender.shop.trade.item_sales + 1.0
        self.popular = sales / sales.sum()
        counts = np.array([len(items) for items in self.goods.tagged.values()], dtype=float)
        self.tags, self.tag_share = list(self.goods.tagged), counts / counts.sum()
        self.usual_price = float(np.median([price for price in self.goods.price.values() if price]))

    def often(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def items(self, most: int) -> list[str]:
        """Items of a bundle, or of the best sellers."""
        count = int(self.random.integers(1, min(most, len(self.ids) // 2) + 1))
        if self.often(0.5):
            row = self.dataset.bundle_item[int(self.random.integers(len(self.dataset.bundles)))].indices
            if len(row) >= count:
                return [self.ids[place] for place in self.random.permutation(row)[:count]]
        chosen = self.random.choice(len(self.ids), count, replace=False, p=self.popular)
        return [self.ids[place] for place in chosen]

    def some_tags(self, most: int) -> list[str]:
        count = int(self.random.integers(1, most + 1))
        chosen = self.random.choice(len(self.tags), count, replace=False, p=self.tag_share)
        return [self.tags[place] for place in chosen]

    def user(self) -> User:
        if self.often(0.2):
            return History(items=self.items(8), bundles=[self.items(4)])
        return self.dataset.users.ids[int(self.random.integers(len(self.dataset.users)))]

    def request(self) -> Request:
        random, often = self.random, self.often
        start = self.items(2) if often(0.4) else []
        least = int(random.integers(2, 5))
        most = least + int(random.integers(0, 3))
        discount = float(random.choice([0.0, 0.0, 0.1, 0.15, 0.2, 0.25, 0.5]))
        made: Request = {
            "start": start,
            "size": most if often(0.3) else (least, most),
            "must": [item for item in self.items(2) if item not in start] if often(0.2) else [],
            "discount": discount,
            "not_owned": often(0.8),
            "n": int(random.integers(1, 6)),
            "apart": float(random.choice([0.0, 0.3, 0.5, 0.5, 0.5, 1.0])),
            "seed": int(random.integers(100)),
        }
        if often(0.4):
            made["forbid"] = [item for item in self.items(20) if item not in start]
        if often(0.6):
            made["budget"] = self.budget(most, discount)
        if often(0.5):
            made["tags"] = self.tag_rules()
        if often(0.3):
            made["one_per"] = self.one_per()
        if often(0.3):
            made["in_stock"] = self.goods.any_stock and often(0.5)
        if often(0.4):
            made["diversity"] = float(random.uniform(0, 3))
        if often(0.4):
            made["margin"] = float(random.uniform(0, 2))
            made["costs"] = {item: (self.goods.price[item] or 0) / 2 for item in self.items(20)}
        return made

    def budget(self, size: int, discount: float) -> Any:
        usual = size * self.usual_price * (1 - discount)
        most = round(usual * float(self.random.uniform(0.4, 2.5)), 2)
        least = round(most * float(self.random.uniform(0.2, 0.98)), 2)
        choices = (most, most, (least, most), (None, most), (least, None))
        return choices[int(self.random.integers(len(choices)))]

    def tag_rules(self) -> dict[str, dict[str, int]]:
        rules = {}
        if self.often(0.7):
            rules["at least"] = {tag: int(self.random.integers(1, 3)) for tag in self.some_tags(2)}
        if self.often(0.5):
            rules["at most"] = {tag: int(self.random.integers(0, 3)) for tag in self.some_tags(3)}
        return rules

    def one_per(self) -> list[str]:
        if self.often(0.2):
            return ["*"]
        return [tag[:3] + "*" if self.often(0.3) else tag for tag in self.some_tags(3)]
