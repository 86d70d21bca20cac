"""Measures of answer lists, against slow and obvious code, and slices of test cases."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from bundlemage.artifact.files import model_card
from bundlemage.data.dataset import BUNDLE_SCHEMA, BundleDataset, Catalogue, catalogue_table, row_of
from bundlemage.data.events import Events
from bundlemage.data.splits import GenerationCases, MatchingCases, Split, SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.evaluation import case_metrics, mean_error
from bundlemage.measures import lists as lists_module
from bundlemage.measures.lists import AnswerLists, gini, jaccard_distances, list_measures
from bundlemage.measures.meaning import FEWEST_CASES, LIST_MEASURES, MEANING
from bundlemage.measures.slices import UNKNOWN, case_groups, sliced, slicings
from bundlemage.models.base import Interactions
from bundlemage.recommender import Recommender
from bundlemage.scorecard import scorecard
from tests.small_shop import dataset_of, matrix_of, small_shop

SHOP = small_shop(users=300, bundles=60, items=150)
SPLIT = SplitPlan("paper").divide(SHOP)
CPU = torch.device("cpu")


def data_of(split: Split) -> Interactions:
    return Interactions.of(split.train, CPU)


def fitted(name: str, split: Split) -> Any:
    return Recommender(name).fit(split, progress=False).model


# ── Answer lists ─────────────────────────────────────────────────────────────────────────────────


def slow_measures(
    lists: list[list[int]],
    things: list[int],
    histories: list[list[int]],
    features: list[set[Any]] | None,
) -> dict[str, float | None]:
    """The same measures, by counting. `things` are what can be shown, `histories` what users have."""
    shown = [thing for each in lists for thing in each]
    exposure, sales = Counter(shown), Counter(thing for each in histories for thing in each)
    counts = [exposure[thing] for thing in things]
    unequal = sum(abs(one - other) for one in counts for other in counts)
    users = sum(bool(each) for each in histories)
    owned = [sales[thing] for each in histories for thing in each]
    diversity = []
    for each in lists:
        if features is None:
            break
        known = [thing for thing in each if features[thing]]
        distances = [
            1 - len(features[one] & features[other]) / len(features[one] | features[other])
            for one, other in combinations(known, 2)
        ]
        diversity += [np.mean(distances)] if distances else []
    return {
        "coverage": sum(exposure[thing] > 0 for thing in things) / len(things),
        "novelty": float(np.mean([-math.log2(max(sales[thing], 1) / users) for thing in shown])),
        "gini": unequal / (2 * len(counts) * sum(counts)),
        "diversity": float(np.mean(diversity)) if diversity else None,
        "lift": float(np.mean([sales[thing] for thing in shown]) / np.mean(owned)),
    }


def slow_lists(model: Any, split: Split, k: int) -> list[list[int]]:
    """The first k bundles of each test user: by score, then by sales, then by position."""
    data, sales = data_of(split), Counter(split.train.user_bundle.indices.tolist())
    found = []
    assert split.test is not None
    for user in np.unique(split.test.users).tolist():
        histories = data.histories(torch.tensor([user]))
        scores = model.bundle_scores(histories, data.bundle_item)[0].tolist()
        owned = set(row_of(split.train.user_bundle, user).tolist())
        others = [bundle for bundle in range(len(scores)) if bundle not in owned]
        found.append(sorted(others, key=lambda bundle: (-scores[bundle], -sales[bundle], bundle))[:k])
    return found


def rows_of(matrix: Any) -> list[list[int]]:
    return [row_of(matrix, row).tolist() for row in range(matrix.shape[0])]


@pytest.mark.parametrize("name", ["popularity", "item-knn", "random"])
@pytest.mark.parametrize("tagged", [True, False])
def test_every_measure_equals_slow_code(name: str, tagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_module, "MOST_PAIRS", 10**6)
    split = SPLIT if tagged else replace(SPLIT, train=replace(SPLIT.train, catalogue=None))
    model, train = fitted(name, split), split.train
    assert split.test is not None
    assert len(split.test) >= 200
    found = AnswerLists(split, split.test, data_of(split), (3, 10)).measured(model)
    assert found is not None
    assert (found.users, found.of_users) == (len(split.test), len(split.test))
    contents = rows_of(train.bundle_item)
    item_tags: list[set[Any]] | None = None
    bundle_features: list[set[Any]] = [set(row) for row in contents]
    if tagged:
        assert train.catalogue is not None
        item_tags, own = (
            [set(row or ()) for row in table["tags"].to_pylist()]
            for table in (train.catalogue.items, train.catalogue.bundles)
        )
        bundle_features = [
            tags.union(*(item_tags[item] for item in row)) for tags, row in zip(own, contents, strict=True)
        ]
    assert found.diversity_by == ("tags" if tagged else "items")
    offered = [bundle for bundle, row in enumerate(contents) if row]
    inside = sorted({item for row in contents for item in row})
    for k in (3, 10):
        lists = slow_lists(model, split, k)
        bundles = slow_measures(lists, offered, rows_of(train.user_bundle), bundle_features)
        within = [sorted({item for bundle in each for item in contents[bundle]}) for each in lists]
        items = slow_measures(within, inside, rows_of(train.user_item), item_tags)
        for ours, slow in ((found.bundles, bundles), (found.items, items)):
            assert {measure: ours[f"{measure}@{k}"] for measure in slow} == pytest.approx(slow), k
    assert set(found.bundles) == {f"{name}@{k}" for name in LIST_MEASURES for k in (3, 10)}


def test_diversity_of_long_lists_is_estimated_without_bias() -> None:
    random = np.random.default_rng(0)
    features = matrix_of([random.choice(9, random.integers(1, 5), replace=False) for _ in range(80)], 9)
    lists = matrix_of([random.choice(80, 50, replace=False) for _ in range(100)], 80)
    row, first, second = lists_module._pairs(lists)
    assert (np.bincount(row) == lists_module.MOST_PAIRS).all()
    assert (first != second).all()
    for owner, one, other in list(zip(row, first, second, strict=True))[::97]:
        assert {one, other} <= set(row_of(lists, owner).tolist())
    every = [pair for each in rows_of(lists) for pair in combinations(each, 2)]
    exact = jaccard_distances(features, *map(np.array, zip(*every, strict=True))).mean()
    assert jaccard_distances(features, first, second).mean() == pytest.approx(exact, abs=0.01)


def test_gini_of_known_exposures() -> None:
    assert gini(np.array([5, 5, 5, 5])) == 0
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(3 / 4)
    assert gini(np.zeros(4)) == 0


def test_views_are_no_sales() -> None:
    train = SPLIT.train
    weight = np.where(np.arange(train.user_bundle.nnz) % 3, 1, 0.2).astype(np.float32)
    seen = replace(train, bundle_events=Events(weight=weight))
    bought = seen.bought_bundles
    assert bought.nnz == (weight == 1).sum()
    split = replace(SPLIT, train=seen)
    assert split.test is not None
    lists = AnswerLists(split, split.test, data_of(split))
    assert lists.bundles.sales.tolist() == np.bincount(bought.indices, minlength=60).tolist()
    way = slicings(split)["matching"][0]
    assert SPLIT.test is not None
    cold = np.flatnonzero(np.diff(bought.indptr)[SPLIT.test.users] == 0)
    assert way.slices["cold"].tolist() == cold.tolist()


def test_candidates_of_the_protocol_do_not_matter() -> None:
    assert SPLIT.test is not None
    assert SPLIT.test.candidates is not None
    model = fitted("item-knn", SPLIT)
    others = replace(SPLIT, test=replace(SPLIT.test, candidates=None))
    assert list_measures([model], SPLIT, data_of(SPLIT)) == list_measures([model], others, data_of(others))


def test_a_large_shop_is_measured_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_module, "MOST_USERS", 50)
    model = fitted("popularity", SPLIT)
    one, again = (list_measures([model], SPLIT, data_of(SPLIT))[0] for _ in range(2))
    assert one is not None
    assert one == again
    assert one.users == 50
    assert SPLIT.test is not None
    assert one.of_users == len(SPLIT.test)


def test_without_test_users_or_scores_of_bundles_there_is_nothing_to_measure() -> None:
    model = fitted("popularity", SPLIT)
    assert list_measures([model], replace(SPLIT, test=None), data_of(SPLIT)) == [None]
    assert list_measures([fitted("co-occurrence", SPLIT)], SPLIT, data_of(SPLIT)) == [None]


# ── Slices ───────────────────────────────────────────────────────────────────────────────────────


def test_the_cases_of_all_slices_are_all_cases() -> None:
    found = slicings(SPLIT, ["price"])
    for task, cases in (("matching", SPLIT.test), ("generation", SPLIT.generation)):
        assert cases is not None
        assert len(found[task]) == (5 if task == "matching" else 3)
        for way in found[task]:
            rows = np.concatenate([*way.slices.values()])
            assert sorted(rows.tolist()) == list(range(len(cases))), way.by


def test_each_slice_has_the_cases_that_its_sentence_says() -> None:
    assert SPLIT.test is not None
    ways = {way.by: way for way in slicings(SPLIT)["matching"]}
    train, (rows, bundles) = SPLIT.train, SPLIT.test.positives.nonzero()
    assert rows.tolist() == list(range(len(SPLIT.test)))
    owned = np.diff(train.user_bundle.indptr)[SPLIT.test.users]
    activity = ways["user activity"]
    bounds = {name: (owned[cases].min(), owned[cases].max()) for name, cases in activity.slices.items()}
    assert bounds.get("cold", (0, 0)) == (0, 0)
    assert bounds["warm"][1] < bounds["hot"][0]
    assert f"hot users have {bounds['hot'][0]} or more" in activity.about
    assert 0.2 < len(activity.slices["hot"]) / (owned > 0).sum() < 0.5
    sales = np.bincount(train.user_bundle.indices, minlength=len(train.bundles))
    popularity = ways["bundle popularity"].slices
    order = [sales[bundles[popularity[name]]] for name in ("head", "middle", "tail")]
    assert all(high.min() > low.max() for high, low in pairwise(order))
    head = sales[sales >= order[0].min()].sum() / sales.sum()
    assert 1 / 3 <= head < 0.5
    sizes = np.diff(train.bundle_item.indptr)[bundles]
    for name, cases in ways["bundle size"].slices.items():
        low, _, high = name.removesuffix(" items").partition(" to ")
        assert (sizes[cases].min(), sizes[cases].max()) == (int(low), int(high or low))


def test_planted_hot_users_are_easy() -> None:
    """Users with many bundles take the next one of their own kind, all others any bundle."""
    random = np.random.default_rng(0)
    kinds = [list(range(start, start + 10)) for start in range(0, 40, 10)]
    histories, taken = [], []
    for user in range(400):
        kind = kinds[user % 4]
        if user < 200:
            *known, last = random.choice(kind, 6, replace=False).tolist()
        else:
            *known, last = random.choice(40, 2, replace=False).tolist()
        histories.append(known)
        taken.append([last])
    items = [[bundle] for bundle in range(40)]
    data = dataset_of([[] for _ in range(400)], histories, items, 40)
    cases = MatchingCases(np.arange(400, dtype=np.int32), matrix_of(taken, 40), None)
    split = Split(data, data, None, cases, None, "planted", SplitPlan("none"))
    figures = case_metrics(fitted("ease", split), split, data_of(split))["matching"]
    (way,) = [way for way in slicings(split)["matching"] if way.by == "user activity"]
    values = {name: each.numpy() for name, each in figures.items()}
    found = {each.name: each for each in sliced(values, way).slices}
    assert set(found) == {"warm", "hot"}
    hot, warm = (found[name].metrics["recall@5"] for name in ("hot", "warm"))
    assert hot.mean > 0.9  # five bundles of the kind are left
    assert warm.mean < 0.4
    assert hot.error is not None
    assert warm.error is not None
    assert hot.mean - warm.mean > 10 * (hot.error + warm.error)


def test_the_error_is_the_textbooks_and_grouped_cases_count_as_one() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=40)
    found = mean_error(values)
    assert found.error == pytest.approx(values.std(ddof=1) / 40**0.5)
    assert found.mean == pytest.approx(values.mean())
    assert found.count == 40
    repeated = mean_error(np.repeat(values, 7), np.repeat(np.arange(40), 7))
    assert (repeated.mean, repeated.error) == pytest.approx((found.mean, found.error))
    assert repeated.count == 40
    assert mean_error(np.array([1.0, np.nan])).error is None
    assert math.isnan(mean_error(np.array([np.nan])).mean)


def test_few_cases_say_little() -> None:
    (way, *_) = slicings(SPLIT)["matching"]
    for size, little in ((FEWEST_CASES - 1, True), (FEWEST_CASES, False)):
        small = replace(way, slices={"some": np.arange(size)})
        assert sliced({"ndcg@5": np.ones(100)}, small).slices[0].little is little
    of_one_bundle = replace(way, slices={"some": np.arange(60)})
    assert sliced({"ndcg@5": np.ones(100)}, of_one_bundle, np.zeros(100, int)).slices[0].little


def with_prices(prices: list[float | None], tags: list[list[str] | None]) -> BundleDataset:
    data = dataset_of([[]] * 4, [[0], [1], [2], [3]], [[0, 1], [1], [2], [2, 3]], 4)
    columns = {"bundle_id": data.bundles.to_arrow(), "price": pa.array(prices, pa.float64())}
    columns["tags"] = pa.array(tags, pa.list_(pa.string()))
    items = small_shop().catalogue
    assert items is not None
    details = catalogue_table(items.items.schema, {"item_id": data.items.to_arrow()})
    return replace(data, catalogue=Catalogue(details, catalogue_table(BUNDLE_SCHEMA, columns)))


def test_slices_by_columns_of_the_catalogue() -> None:
    data = with_prices([1.0, None, 5.5, 9.0], [["toys", "new"], ["toys"], None, []])
    cases = MatchingCases(np.arange(4, dtype=np.int32), matrix_of([[0], [1], [2], [3]], 4), None)
    split = Split(data, data, None, cases, None, "planted", SplitPlan("none"))
    *_, price, tags = slicings(split, ["price", "tags"])["matching"]
    assert {name: rows.tolist() for name, rows in price.slices.items()} == {
        "1": [0],
        "5.5": [2],
        "9": [3],
        UNKNOWN: [1],
    }
    assert {name: rows.tolist() for name, rows in tags.slices.items()} == {
        "toys": [0, 1],
        "new": [0],
        UNKNOWN: [2, 3],
    }
    assert tags.about == "The tags of the right bundle. A case with several values is in several slices."
    with pytest.raises(ConfigError, match=r"the column 'colour'; .* with values: price, tags$"):
        slicings(split, ["colour"])
    bare = replace(split, dataset=replace(data, catalogue=None))
    with pytest.raises(ConfigError, match="none, because the data has no catalogue"):
        slicings(bare, ["price"])


def test_bundles_without_values_are_sliced_by_their_items() -> None:
    data = SHOP
    assert data.catalogue is not None
    bundles = catalogue_table(BUNDLE_SCHEMA, {"bundle_id": data.bundles.to_arrow()})
    bare = replace(data, catalogue=replace(data.catalogue, bundles=bundles))
    split = replace(SPLIT, dataset=bare)
    found = slicings(split, ["price"])
    for task in ("matching", "generation"):
        assert found[task][-1].about.startswith("The mean price of the items of the bundle")
    assert split.test is not None
    prices = bare.catalogue.items["price"].to_numpy() if bare.catalogue else np.zeros(0)
    for name, rows in found["matching"][-1].slices.items():
        low, _, high = name.replace(",", "").partition(" to ")
        for case in rows.tolist()[:10]:
            (bundle,) = row_of(split.test.positives, case).tolist()
            mean = prices[row_of(data.bundle_item, bundle)].mean()
            assert float(low) - 0.006 <= mean <= float(high or low) + 0.006


def test_users_without_a_history_are_a_slice_of_generation() -> None:
    assert SPLIT.generation is not None
    cases: GenerationCases = replace(
        SPLIT.generation, users=np.where(np.arange(len(SPLIT.generation)) % 3, SPLIT.generation.users, 300)
    )
    way = slicings(replace(SPLIT, generation=cases))["generation"][1]
    assert way.by == "user history"
    assert way.slices["no history"].tolist() == list(range(0, len(cases), 3))


# ── Where they are shown ─────────────────────────────────────────────────────────────────────────


def test_the_scorecard_and_the_model_card_have_them() -> None:
    model = Recommender("item-knn").fit(SPLIT, progress=False)
    card = scorecard(model, SPLIT, slice_by=["price"])
    content = json.loads(json.dumps(card.to_json()))
    assert content["meaning"] == MEANING
    first = content["test"][0]
    assert first["lists"]["bundles"].keys() == {f"{name}@10" for name in LIST_MEASURES}
    assert {name.partition("@")[0] for name in first["matching"]} <= MEANING.keys()
    price = content["slices"]["matching"][-1]
    assert price["by"] == "price"
    assert sum(each["cases"] for each in price["slices"]) == first["matching_cases"]
    mean = sum(each["cases"] * each["metrics"]["ndcg@5"]["mean"] for each in price["slices"])
    assert mean / first["matching_cases"] == pytest.approx(first["matching"]["ndcg@5"])
    config = {"settings": {}, "protocol": "paper", "split": {"seed": 0}, "shop": {}}
    text = model_card("ItemKNN", config, SHOP, content, ())
    assert "### What its answers show" in text
    assert f"- lift: {MEANING['lift']}" in text
    for each in price["slices"]:
        figure = each["metrics"]["ndcg@5"]
        assert f"| price | {each['name']}" in text
        assert f"| {each['cases']} | {figure['mean']:.3f} ± {figure['error']:.3f} |" in text
    assert case_groups(SPLIT, "matching") is None
