"""The dataset figures against slow, obvious loops on small data, and against the paper on real data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundlemage.data import statistics
from bundlemage.data.dataset import BundleDataset, Vocabulary, binary_matrix
from bundlemage.sample.generate import sample_shop
from tests.real_data import real_data

Matrix = NDArray[np.float64]


def dataset(user_item: Any, user_bundle: Any, bundle_item: Any) -> BundleDataset:
    users, items = user_item.shape
    return BundleDataset(
        user_item=user_item,
        user_bundle=user_bundle,
        bundle_item=bundle_item,
        users=Vocabulary.numbered("user", users),
        items=Vocabulary.numbered("item", items),
        bundles=Vocabulary.numbered("bundle", bundle_item.shape[0]),
    )


def random_matrices(seed: int) -> tuple[Matrix, Matrix, Matrix]:
    random = np.random.default_rng(seed)
    users, items, bundles = random.integers(2, 14, size=3)
    # Sparse enough that users without items, bundles without items and unbought items all occur.
    sizes = ((users, items), (users, bundles), (bundles, items))
    user_item, user_bundle, bundle_item = ((random.random(size) < 0.25).astype(float) for size in sizes)
    return user_item, user_bundle, bundle_item


def slow_popularity_bias(user_item: Matrix, bundle_item: Matrix) -> float:
    popularity = [user_item[:, item].sum() for item in range(user_item.shape[1])]
    ranks = []
    for own in popularity:
        better = sum(other > own for other in popularity)
        equal = sum(other == own for other in popularity)
        ranks.append(np.mean([better + place for place in range(1, equal + 1)]))
    scores = [np.mean([ranks[i] for i in bundle.nonzero()[0]]) for bundle in bundle_item if bundle.any()]
    return float(np.mean(scores)) / len(ranks) if scores else float("nan")


def slow_dissimilarity(user_item: Matrix, user_bundle: Matrix, bundle_item: Matrix) -> list[float]:
    """The paper's procedure, word by word."""
    users_of_item = user_item.T  # row i is c_i
    similarities = []
    for user in range(len(user_item)):
        own = {int(i) for i in user_item[user].nonzero()[0]}
        bundled = {int(i) for b in user_bundle[user].nonzero()[0] for i in bundle_item[b].nonzero()[0]}
        if not own or not bundled:
            similarities.append(float("nan"))
            continue
        by_items = sum(users_of_item[i] for i in own) / len(own)
        by_bundles = sum(users_of_item[i] for i in bundled) / len(bundled)
        lengths = np.linalg.norm(by_items) * np.linalg.norm(by_bundles)
        similarities.append(float(by_items @ by_bundles / lengths) if lengths else float("nan"))
    return similarities


def test_table_has_the_columns_of_the_paper() -> None:
    user_item = np.array([[1, 1, 0, 0], [0, 1, 1, 0]], dtype=float)
    user_bundle = np.array([[1, 0, 0], [1, 1, 0]], dtype=float)
    bundle_item = np.array([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0]], dtype=float)
    assert statistics.dataset_table(dataset(user_item, user_bundle, bundle_item)) == {
        "users": 2,
        "bundles": 3,
        "items": 4,
        "user_bundle_pairs": 3,
        "user_bundle_density": 3 / 6,
        "user_item_pairs": 4,
        "user_item_density": 4 / 8,
        "bundle_item_pairs": 6,
        "bundle_item_density": 6 / 12,
        "items_per_bundle": 2.0,
    }


def test_popularity_bias_by_hand() -> None:
    user_item = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=float)  # ranks 1, 2, 3
    user_bundle = np.zeros((4, 2))
    bundle_item = np.array([[1, 1, 0], [0, 0, 1]], dtype=float)  # mean ranks 1.5 and 3
    assert statistics.popularity_bias(dataset(user_item, user_bundle, bundle_item)) == pytest.approx(2.25 / 3)


@pytest.mark.parametrize("seed", range(40))
def test_popularity_bias_equals_slow_loops(seed: int) -> None:
    user_item, user_bundle, bundle_item = random_matrices(seed)
    fast = statistics.popularity_bias(dataset(user_item, user_bundle, bundle_item))
    assert fast == pytest.approx(slow_popularity_bias(user_item, bundle_item), nan_ok=True)


def test_popularity_bias_does_not_depend_on_the_order_of_items() -> None:
    user_item, user_bundle, bundle_item = random_matrices(5)
    mixed = np.random.default_rng(0).permutation(user_item.shape[1])
    plain = statistics.popularity_bias(dataset(user_item, user_bundle, bundle_item))
    assert statistics.popularity_bias(
        dataset(user_item[:, mixed], user_bundle, bundle_item[:, mixed])
    ) == pytest.approx(plain)


@pytest.mark.parametrize("seed", range(40))
def test_dissimilarity_equals_slow_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = random_matrices(seed)
    monkeypatch.setattr(statistics, "_CELLS", 30)  # several blocks, the last one short
    np.testing.assert_allclose(
        statistics.preference_similarity(dataset(*matrices)), slow_dissimilarity(*matrices), rtol=1e-12
    )


def test_dissimilarity_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = sample_shop(120, 100, 40, items_per_user=8, bundles_per_user=3).dataset
    whole = statistics.preference_similarity(shop)
    monkeypatch.setattr(statistics, "_CELLS", 1)  # one user at a time
    np.testing.assert_allclose(statistics.preference_similarity(shop), whole, rtol=1e-12)


def youshu() -> BundleDataset:
    """Read with NumPy alone: the readers have tests of their own."""
    folder = real_data("youshu/bgcn")
    users, bundles, items = (int(size) for size in (folder / "Youshu_data_size.txt").read_text().split())

    def read(shape: tuple[int, int], *names: str) -> Any:
        pairs = np.concatenate([np.loadtxt(folder / f"{name}.txt", dtype=np.int64) for name in names])
        return binary_matrix(pairs[:, 0], pairs[:, 1], shape)

    return dataset(
        read((users, items), "user_item"),
        read((users, bundles), "user_bundle_train", "user_bundle_tune", "user_bundle_test"),
        read((bundles, items), "bundle_item"),
    )


def test_youshu_has_the_figures_of_the_paper() -> None:
    data = youshu()
    table = statistics.dataset_table(data)
    assert [table["users"], table["bundles"], table["items"]] == [8_039, 4_771, 32_770]
    # The paper counts 51,377; this published split holds fewer pairs, of fewer users.
    assert table["user_bundle_pairs"] == 49_351
    assert table["user_item_pairs"] == 138_515
    assert table["bundle_item_pairs"] == 176_667
    assert round(table["items_per_bundle"], 2) == 37.03
    densities = [
        round(100 * table[f"{name}_density"], 2) for name in ("user_bundle", "user_item", "bundle_item")
    ]
    assert densities == [0.13, 0.05, 0.11]
    # The paper says 14.8%. Mean ranks for ties give 16.3%, and the best and the worst rank 13.2% and 19.4%.
    assert statistics.popularity_bias(data) == pytest.approx(0.163, abs=0.0005)


def test_many_users_of_youshu_have_dissimilar_tastes() -> None:
    data = youshu()
    similarity = statistics.preference_similarity(data)
    known = similarity[~np.isnan(similarity)]
    assert len(known) > 1_000
    assert known.min() >= 0
    assert known.max() <= 1 + 1e-9
    assert (known < 0.5).mean() > 0.5
