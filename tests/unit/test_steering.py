"""Lists that are varied, and as popular as what users have: the choice, what it keeps, and what it costs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage import BundleDataset, History, Recommender, SplitPlan
from bundlemage.core.answering import Batch
from bundlemage.core.filters import Filter
from bundlemage.core.ownership import Goods
from bundlemage.core.ranking import Ranker, Ranking
from bundlemage.core.steering import GROUPS, POOL, Steering, pool_size, popularity_groups
from bundlemage.errors import ConfigError
from bundlemage.live import EMPTY, Live, Question
from bundlemage.models.base import Embedder, Histories, Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.retrieval import BundleIndex
from bundlemage.scorecard import steering_of
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import PLAIN, QUICK, dataset_of, small_shop

Array = npt.NDArray[Any]
VARIED: Any = {"diversity": 0.5}
BOTH: Any = {"diversity": 0.3, "match_popularity": 0.4}


class Vectors(Embedder):
    """A model that has nothing but vectors: those of the bundles whose numbers are the items inside."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(ModelConfig(seed=0), Sizes(1, len(table), len(table)))
        self.table = table

    def vectors_of_items(self) -> Tensor:
        return self.table

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        return contents.mean_of(self.table)


class Nothing(Model):
    """A model without vectors."""


# ── The choice, against one that is slow and obvious ─────────────────────────────────────────────


def naive_groups(sales: list[float]) -> list[int]:
    total = sum(sales)
    before = [sum(other for other in sales if other > own) for own in sales]
    return [min(GROUPS - 1, int(GROUPS * each / total + 1e-6)) if total else 0 for each in before]


def naive_values(
    fits: list[float],
    alike: Array,
    groups: list[int],
    wanted: list[float] | None,
    chosen: list[int],
    weights: tuple[float, float],
) -> list[float]:
    """The value of each candidate as the next one of a list, as the docstring of the module has it."""
    values = []
    for place, fit in enumerate(fits):
        closest = max((float(alike[place, other]) for other in chosen), default=0.0)
        counts = Counter(groups[other] for other in [*chosen, place])
        length, misplaced = len(chosen) + 1, 0.0
        if wanted is not None:
            misplaced = sum(abs(counts[group] - length * wanted[group]) for group in range(GROUPS)) / 2
        diversity, popularity = weights
        values.append(max(0, 1 - diversity - popularity) * fit - diversity * closest - popularity * misplaced)
    return values


WEIGHTS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_choice_is_that_of_a_slow_and_obvious_one(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    bundles, rows = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    k = data.draw(st.integers(1, bundles))
    weights = data.draw(WEIGHTS), data.draw(WEIGHTS)
    by_vectors = data.draw(st.booleans())
    sales = random.integers(0, 4, bundles).astype(float)
    contents = [sorted(random.choice(bundles, random.integers(1, 4)).tolist()) for _ in range(bundles)]
    contents = [sorted({*inside}) for inside in contents]
    table = random.normal(size=(bundles, 3)).astype(np.float32)
    owned = [
        sorted({*random.choice(bundles, random.integers(0, 4)).tolist()}) if row else []
        for row in range(rows)
    ]
    held = [[0] if row and random.random() < 0.7 else [] for row in range(rows)]
    orders = np.sort(random.normal(size=(rows, bundles)).astype(np.float32), axis=1)[:, ::-1].copy()
    positions = np.stack([random.permutation(bundles) for _ in range(rows)])
    counts = random.integers(0, bundles + 1, rows)
    last = random.random(bundles) < 0.3  # these rank after all others

    shares = torch.tensor(sales / max(1.0, sales.sum()), dtype=torch.float32)
    by_sales = [not (mine or items) for mine, items in zip(owned, held, strict=True)]
    for row in range(rows):
        if by_sales[row]:
            order = np.argsort(-shares.numpy(), kind="stable")
            positions[row], orders[row] = order, shares.numpy()[order]
        behind = last[positions[row]].argsort(kind="stable")
        positions[row], orders[row] = positions[row][behind], orders[row][behind]
    inside = Ragged.from_lists(contents)
    histories = Histories(Ragged.from_lists(held), Ragged.from_lists(owned))
    goods = Goods(inside, bundles)
    batch = Batch(histories, inside, goods.owned(histories, inside), goods)
    hidden = torch.zeros(bundles)
    ranker = Ranker(shares, hidden, available=hidden.masked_fill(torch.from_numpy(last), -torch.inf))
    chances = torch.rand(rows, bundles)
    pool = Ranking(
        torch.from_numpy(positions),
        chances,
        torch.from_numpy(counts),
        torch.tensor(by_sales),
        torch.from_numpy(orders),
    )
    model = Vectors(torch.from_numpy(table)) if by_vectors else Nothing(ModelConfig(seed=0), Sizes(1, 1, 1))
    chosen = Steering(*weights).choose(model, batch, ranker, pool, k)

    rows_of = np.zeros((bundles, bundles))
    for bundle, items in enumerate(contents):
        rows_of[bundle, items] = 1
    vectors = rows_of @ table / rows_of.sum(1, keepdims=True) if by_vectors else rows_of
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    groups = naive_groups(shares.double().tolist())
    assert popularity_groups(shares).tolist() == groups
    for row in range(rows):
        candidates, count = positions[row].tolist(), int(counts[row])
        assert int(chosen.counts[row]) == min(k, count)
        logs = orders[row, :count].astype(float)
        if by_sales[row]:
            sold = shares[shares > 0]
            logs = np.log(np.maximum(logs, float(sold.min()) if len(sold) else 1.0))
        span = logs.max() - logs.min() if count else 0.0
        fits = ((logs - logs.min()) / span if span else logs * 0).tolist()
        mine = Counter(groups[bundle] for bundle in owned[row])
        wanted = [mine[group] / len(owned[row]) for group in range(GROUPS)] if owned[row] else None
        alike = unit[candidates[:count]] @ unit[candidates[:count]].T
        in_list: list[int] = []
        for bundle, chance in zip(
            chosen.positions[row, : min(k, count)].tolist(), chosen.chances[row].tolist(), strict=False
        ):
            place = candidates.index(bundle)
            assert place not in in_list
            assert chance == float(chances[row, place])  # a score does not change
            own = [groups[each] for each in candidates]
            values = naive_values(fits, alike, own, wanted, in_list, weights)
            left = [other for other in range(count) if other not in in_list]
            first = [other for other in left if not last[candidates[other]]] or left
            assert place in first
            best = max(values[other] for other in first)
            assert values[place] == pytest.approx(best, abs=1e-4)
            # Of equal ones the first: nothing before it is better by more than the rounding.
            exact = [other for other in first if values[other] == values[place]]
            assert exact[0] == place or values[place] != best
            in_list.append(place)


def test_equal_bundles_are_chosen_in_their_order() -> None:
    """Ten equal bundles, and scores that are equal: the list is the beginning of the ranking."""
    contents = Ragged.from_lists([[0]] * 10)
    histories = Histories(Ragged.from_lists([[0]]), Ragged.from_lists([[0]]))
    batch = Batch(histories, contents, Ragged.from_lists([[0]]), Goods(contents, 1))
    pool = Ranking(
        torch.arange(10)[None],
        torch.full((1, 10), 0.1),
        torch.tensor([10]),
        torch.tensor([False]),
        torch.zeros(1, 10),
    )
    ranker = Ranker(torch.full((10,), 0.1), torch.zeros(10))
    for weights in ((0.5, 0.0), (0.0, 0.5), (1.0, 1.0)):
        chosen = Steering(*weights).choose(Vectors(torch.ones(1, 2)), batch, ranker, pool, 7)
        assert chosen.positions[0].tolist() == list(range(7))


def test_groups_are_thirds_of_the_sales() -> None:
    assert popularity_groups(torch.tensor([0.1, 0.5, 0.2, 0.1, 0.1, 0.0])).tolist() == [2, 0, 1, 2, 2, 2]
    assert popularity_groups(torch.tensor([1.0, 1.0, 1.0])).tolist() == [0, 0, 0]  # all sold equally often
    assert popularity_groups(torch.zeros(3)).tolist() == [0, 0, 0]


# ── A shop whose bundles come in kinds ───────────────────────────────────────────────────────────

KINDS, PER_KIND = 8, 12


def shop_of_kinds() -> BundleDataset:
    """Bundle n is of the kind n // 12, and all bundles of a kind share items. The users have one or two
    bundles of a kind or two."""
    random = np.random.default_rng(0)
    contents = [
        [kind * 6 + item for item in random.choice(6, 4, replace=False)]
        for kind in range(KINDS)
        for _ in range(PER_KIND)
    ]
    bought, alone = [], []
    for user in range(200):
        kind, other = user % KINDS, random.integers(KINDS)
        mine = kind * PER_KIND + random.choice(PER_KIND, 2, replace=False)
        bought.append([*mine.tolist(), int(other * PER_KIND + random.integers(PER_KIND))])
        alone.append([int(kind * 6 + random.integers(6))])
    return dataset_of(alone, [sorted({*each}) for each in bought], contents, KINDS * 6)


@pytest.fixture(scope="module")
def kinds() -> Recommender:
    recommender = Recommender(**QUICK | {"epochs": 8})
    return recommender.fit(shop_of_kinds(), SplitPlan("none"), calibrate=False, progress=False)


def lists_of(recommender: Recommender, k: int = 8, **rules: Any) -> list[list[int]]:
    return [
        [recommender.dataset.bundles.position(each.id) for each in answer]
        for answer in recommender.recommend_many(recommender.dataset.users, k, **rules)
    ]


def test_more_diversity_shows_more_kinds(kinds: Recommender) -> None:
    def shown(weight: float) -> float:
        lists = lists_of(kinds, diversity=weight)
        return float(np.mean([len({bundle // PER_KIND for bundle in each}) for each in lists]))

    counts = [shown(weight) for weight in (0.0, 0.2, 0.4, 0.6, 0.8)]
    assert all(later >= earlier - 0.05 for earlier, later in pairwise(counts)), counts
    assert counts[-1] > counts[0] + 1, counts
    assert [each[0] for each in lists_of(kinds, diversity=0.8)] == [each[0] for each in lists_of(kinds)]


def test_a_model_without_vectors_is_varied_by_items() -> None:
    model = Recommender("popularity")
    model.fit(shop_of_kinds(), SplitPlan("none"), calibrate=False, progress=False)
    plain, varied = lists_of(model), lists_of(model, diversity=0.7)
    kinds_in = [
        float(np.mean([len({b // PER_KIND for b in each}) for each in some])) for some in (plain, varied)
    ]
    assert kinds_in[1] > kinds_in[0]


# ── Popularity like the user's own ───────────────────────────────────────────────────────────────


def shop_of_two_tastes() -> BundleDataset:
    """Ten best sellers and 90 bundles that few have. A third of the users have only best sellers, the others
    have none, and items tell nothing. So the ten are the first group of popularity."""
    random = np.random.default_rng(1)
    contents = [random.choice(60, 4, replace=False).tolist() for _ in range(100)]
    bought = [random.choice(10, 3, replace=False).tolist() for _ in range(100)]
    bought += [(10 + random.choice(90, 3, replace=False)).tolist() for _ in range(200)]
    return dataset_of([[] for _ in bought], bought, contents, 60)


def test_lists_are_as_popular_as_what_users_have() -> None:
    model = Recommender("popularity").fit(
        shop_of_two_tastes(), SplitPlan("none"), calibrate=False, progress=False
    )
    sales = np.bincount(model.dataset.user_bundle.indices, minlength=100)
    groups = popularity_groups(torch.from_numpy(sales / sales.sum())).numpy()

    def gap(weight: float) -> float:
        """The share of the lists that is of another group than what users have."""
        gaps = []
        for user, each in enumerate(lists_of(model, 6, match_popularity=weight, owned="show")):
            mine = groups[model.dataset.user_bundle[user].indices]
            mixes = [np.bincount(groups[each], minlength=3) / len(each), np.bincount(mine, minlength=3) / 3]
            gaps.append(np.abs(mixes[0] - mixes[1]).sum() / 2)
        return float(np.mean(gaps))

    gaps = [gap(weight) for weight in (0.0, 0.3, 0.6, 1.0)]
    assert gaps == sorted(gaps, reverse=True), gaps
    assert gaps[0] > 0.4, gaps
    assert gaps[-1] < 0.1, gaps
    # Those who have rarely sold bundles get such ones; the others still get best sellers.
    lists = lists_of(model, 6, match_popularity=0.8, owned="show")
    assert np.mean([bundle < 10 for each in lists[:100] for bundle in each]) > 0.9
    assert np.mean([bundle >= 10 for each in lists[100:] for bundle in each]) > 0.9


def test_who_has_no_bundle_gets_the_same_list(kinds: Recommender) -> None:
    for user in (History(), History(items=["i3", "i4"])):
        assert kinds.recommend(user, 9, match_popularity=1.0) == kinds.recommend(user, 9)


# ── What stays as it is ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def sample() -> Recommender:
    recommender = Recommender(**QUICK)
    return recommender.fit(small_shop(), SplitPlan("none"), calibrate=False, progress=False)


def table_of(recommender: Recommender, k: int = 8, **rules: Any) -> pa.Table:
    return pa.Table.from_batches(recommender.recommend_all(k, **rules))


def test_off_is_the_ranking(sample: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Steering.of(ShopSettings()) is None
    assert pool_size(None, 8) == 8
    plain = table_of(sample)
    monkeypatch.setattr(Steering, "choose", None)  # it is not even called
    assert table_of(sample, diversity=0.0, match_popularity=0.0).equals(plain)


def test_a_weight_that_decides_nothing_leaves_the_ranking(sample: Recommender) -> None:
    """With a tiny weight only relevance decides, so the whole list is the ranking."""
    assert lists_of(sample, diversity=1e-9, match_popularity=1e-9) == lists_of(sample)


def test_scores_stay_those_of_the_model(sample: Recommender) -> None:
    for user in sample.dataset.users.ids[:20]:
        scores = {each.id: each.score for each in sample.recommend(user, 1000)}
        varied = sample.recommend(user, 10, **BOTH)
        assert [each.rank for each in varied] == list(range(1, 11))
        assert all(each.score == pytest.approx(scores[each.id]) for each in varied)


def test_a_shorter_list_is_the_beginning_of_a_longer_one(sample: Recommender) -> None:
    assert POOL >= 2 * 100 == pool_size(Steering(0.1, 0.0), 100)
    longest = lists_of(sample, 30, **BOTH)
    for k in (1, 5, 17):
        assert lists_of(sample, k, **BOTH) == [each[:k] for each in longest]


def test_one_user_and_all_users_get_the_same_list(sample: Recommender) -> None:
    everyone = {user: [] for user in sample.dataset.users.ids}  # type: dict[str, list[str]]
    for row in table_of(sample, **BOTH).to_pylist():
        everyone[row["user_id"]].append(row["bundle_id"])
    for user, found in everyone.items():
        assert [each.id for each in sample.recommend(user, 8, **BOTH)] == found


def test_rules_about_what_users_own_still_hold(sample: Recommender) -> None:
    for rules in (VARIED, BOTH, {"diversity": 1.0, "match_popularity": 1.0}):
        for answer in sample.recommend_many(sample.dataset.users, 1000, **rules):
            assert all(each.missing for each in answer)
    for user in sample.dataset.users.ids[:30]:
        allowed = {each.id for each in sample.recommend(user, 1000, owned="hide")}
        assert {each.id for each in sample.recommend(user, 1000, owned="hide", **BOTH)} == allowed


def test_a_mostly_owned_bundle_is_less_relevant(kinds: Recommender) -> None:
    """With more diversity, a demoted bundle still comes later than it would without the rule."""
    kinds.shop_settings = ShopSettings(owned="demote", mostly_owned=0.5)
    places: dict[str, list[int]] = {"demote": [], "show": []}
    try:
        for user in kinds.dataset.users.ids[:40]:
            found = {
                rule: [each.id for each in kinds.recommend(user, 96, owned=rule, diversity=0.2)]  # type: ignore[arg-type]
                for rule in places
            }
            for each in kinds.recommend(user, 96, owned="show"):
                if each.id in found["demote"] and 0 < len(each.missing) <= len(each.owned):
                    for rule, names in found.items():
                        places[rule].append(names.index(each.id))
    finally:
        kinds.shop_settings = ShopSettings()
    assert len(places["demote"]) > 50
    assert np.mean(places["demote"]) > np.mean(places["show"]) + 1


def test_filters_and_sold_out_bundles_keep_their_rules(sample: Recommender) -> None:
    sold_out = {each.id for each in sample.recommend(History(), 1000, stock="show") if each.sold_out}
    assert sold_out
    for user in sample.dataset.users.ids[:20]:
        answer = sample.recommend(user, 1000, stock="last", **BOTH)
        gone = [each.id in sold_out for each in answer]
        assert gone == sorted(gone)
        assert any(gone)
        few = sorted(each.id for each in answer)[:7]
        assert {each.id for each in sample.recommend(user, 7, where=Filter(among=few), **BOTH)} == {*few}


def test_items_are_not_steered(sample: Recommender) -> None:
    user = sample.dataset.users.ids[3]
    plain = sample.complete(user, [], 9)
    sample.shop_settings = sample.shop_settings.changed(BOTH)
    try:
        assert sample.complete(user, [], 9) == plain
        assert sample.recommend(user, 9) == sample.recommend(user, 9, **BOTH)
    finally:
        sample.shop_settings = ShopSettings()
    with pytest.raises(
        TypeError, match="there is no rule 'diversity' for this question; its rules are owned"
    ):
        sample.complete(user, [], 9, diversity=0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"diversity": 1.5}, r"'diversity' is 1\.5; it must be at most 1"),
        ({"diversity": -0.1}, r"'diversity' is -0\.1; it must be at least 0"),
        ({"match_popularity": float("nan")}, r"'match_popularity' is nan"),
        ({"match_popularity": "much"}, r"'match_popularity' is 'much', which is not a number"),
    ],
)
def test_a_wrong_weight_is_one_clear_message(
    sample: Recommender, rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sample.recommend(sample.dataset.users.ids[0], 3, **rules)


def test_weights_are_saved_with_the_model(tmp_path: Path) -> None:
    model = Recommender("popularity", shop={"diversity": "0.3"})
    model.fit(small_shop(), SplitPlan("none"), calibrate=False, progress=False).save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.shop_settings.diversity == 0.3
    user = loaded.dataset.users.ids[0]
    assert loaded.recommend(user) == model.recommend(user, diversity=0.3)
    assert loaded.recommend(user, diversity=0.0) == model.recommend(user, diversity=0.0)


# ── Live, and with an index ──────────────────────────────────────────────────────────────────────


def test_a_live_shop_answers_alike(kinds: Recommender) -> None:
    data = kinds.dataset
    items = [Item(name) for name in data.items]
    bundles = [
        Bundle(name, tuple(data.items[item] for item in data.bundle_item[place].indices))
        for place, name in enumerate(data.bundles)
    ]
    live = Live(kinds, EMPTY.after(CatalogueChange(1, items, bundles)))
    owned = Owned(("i1",), ("b3", "b20"))
    questions = [
        Question(owned, 5),
        Question(owned, 5, diversity=0.5),
        Question(owned, 9, diversity=0.5),
        Question(owned, 5, match_popularity=0.5),
        Question(owned, 5, partial=("i2",)),
    ]
    answers = live.answer(questions)
    lists = [[each.id for each in answer] for answer in answers if not isinstance(answer, Exception)]
    history = History(["i1"], ["b3", "b20"])
    assert len(lists) == 5
    assert lists[0] == [each.id for each in kinds.recommend(history, 5)]
    assert lists[1] == [each.id for each in kinds.recommend(history, 5, diversity=0.5)] != lists[0]
    assert lists[2][:5] == lists[1]


def test_lists_of_an_index_are_those_of_an_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    data = small_shop(users=120, items=300, bundles=1500)
    model = Recommender(**QUICK | PLAIN | {"epochs": 1})
    model.fit(data, SplitPlan("none"), calibrate=False, progress=False)
    exact = [set(each) for each in lists_of(model, 10, **BOTH)]
    asked: list[tuple[int, int | None]] = []
    rank = BundleIndex.rank

    def seen(self: Any, batch: Any, ranker: Any, k: int, rules: Any, depth: int | None = None) -> Ranking:
        asked.append((k, depth))
        return rank(self, batch, ranker, k, rules, depth)

    monkeypatch.setattr(BundleIndex, "rank", seen)
    model.use_index(0.9, least_bundles=1)
    found = [set(each) for each in lists_of(model, 10, **BOTH)]
    assert set(asked) == {(POOL, 10)}
    assert all(len(each) == 10 for each in found)
    assert np.mean([len(one & other) / 10 for one, other in zip(exact, found, strict=True)]) > 0.8


# ── What it costs ────────────────────────────────────────────────────────────────────────────────


def test_the_curve_says_what_weights_change() -> None:
    split = SplitPlan("paper").divide(small_shop(users=200))
    model = Recommender(**QUICK).fit(split, calibrate=False, progress=False)
    points = steering_of(model, split)
    assert len(points) == 21
    varied = [point.metrics for point in points if not point.match_popularity]
    matched = [point.metrics for point in points if not point.diversity]
    assert varied[0] == matched[0]
    cosines = [float(each["cosine@10"] or 0) for each in varied]
    assert cosines[5] < cosines[2] < cosines[0]
    misplaced = [float(each["misplaced@10"] or 0) for each in matched]
    assert misplaced[5] < misplaced[2] < misplaced[0]
    first = points[0].metrics
    assert 0 < float(first["ndcg@5"] or 0) <= float(first["recall@10"] or 0) <= 1
    with pytest.raises(ConfigError, match="there are no test cases of matching"):
        steering_of(model, SplitPlan("none").divide(small_shop(users=200)))


def test_the_first_figures_are_those_of_all_bundles() -> None:
    """Without weights and rules, nDCG and recall are those of the evaluator that ranks all bundles."""
    split = SplitPlan("full").divide(small_shop(users=200))
    model = Recommender(**QUICK, shop={"owned": "show"}).fit(split, calibrate=False, progress=False)
    figures = model.evaluate(split).matching
    assert figures is not None
    first = steering_of(model, split)[0].metrics
    for metric in ("ndcg@5", "ndcg@10", "recall@5", "recall@10"):
        assert first[metric] == pytest.approx(figures[metric], abs=1e-6)
