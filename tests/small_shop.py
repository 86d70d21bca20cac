"""Shops small enough that a test divides them, or trains on them, in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, Vocabulary, binary_matrix
from bundlemage.sample.generate import sample_shop

Rows = Sequence[Iterable[int]]

QUICK: dict[str, Any] = {
    "embedding_dim": 16,
    "batch_size": 64,
    "min_steps": 1,
    "small_shop_steps": 1,
    "epochs": 3,
    "device": "cpu",
}
"""Settings with which training on `small_shop` takes a moment."""

PLAIN: dict[str, Any] = {
    **{"scores": "dot", "residual": False, "initial_spread": 0.0, "item_dropout": 0.0},
    **{"fit_popularity": False, "learning_rate": 0.004, "dropout": 0.3, "mask_bundles": 0.5},
}
"""A model like the paper's, with sales as a part of its scores: for tests of what is done with scores."""


def small_shop(**settings: Any) -> BundleDataset:
    size = {"items_per_user": 8.0, "bundles_per_user": 4.0, "items_per_bundle": 5.0}
    return sample_shop(**({"users": 80, "items": 90, "bundles": 40} | size | settings)).dataset


def shop_with_details() -> BundleDataset:
    """The small shop, in which every third item has no cost, and which has images."""
    data = small_shop()
    assert data.catalogue is not None
    items, bundles = data.catalogue.items.to_pylist(), data.catalogue.bundles.to_pylist()
    for place, item in enumerate(items):
        item["cost"] = None if place % 3 == 0 else round(0.1 * (place % 10) * item["price"], 2)
        item["image_url"] = f"https://pictures.example/{item['item_id']}.jpg"
    for bundle in bundles:
        bundle["image_url"] = f"/pictures/{bundle['bundle_id']}.jpg"
    catalogue = replace(
        data.catalogue,
        items=pa.Table.from_pylist(items, schema=ITEM_SCHEMA),
        bundles=pa.Table.from_pylist(bundles, schema=BUNDLE_SCHEMA),
    )
    return replace(data, catalogue=catalogue)


def matrix_of(rows: Rows, columns: int) -> Any:
    pairs = [(number, column) for number, row in enumerate(rows) for column in row]
    return binary_matrix([row for row, _ in pairs], [column for _, column in pairs], (len(rows), columns))


def dataset_of(
    user_item: Rows, user_bundle: Rows, bundle_item: Rows, item_count: int, **others: Any
) -> BundleDataset:
    """A dataset from lists of positions, with the ids u0, u1, …, i0, … and b0, …"""
    users, bundles = len(user_item), len(bundle_item)
    return BundleDataset(
        user_item=matrix_of(user_item, item_count),
        user_bundle=matrix_of(user_bundle, bundles),
        bundle_item=matrix_of(bundle_item, item_count),
        **(
            {
                "users": Vocabulary("user", [f"u{number}" for number in range(users)]),
                "items": Vocabulary("item", [f"i{number}" for number in range(item_count)]),
                "bundles": Vocabulary("bundle", [f"b{number}" for number in range(bundles)]),
            }
            | others
        ),
    )


def pairs_of(matrix: Any) -> set[tuple[int, int]]:
    coo = matrix.tocoo()
    return set(zip(coo.row.tolist(), coo.col.tolist(), strict=True))


def row_of(matrix: Any, row: int) -> set[int]:
    return set(np.flatnonzero(matrix[row].toarray()[0]).tolist())


def rows_of(matrix: Any) -> list[set[int]]:
    return [row_of(matrix, row) for row in range(matrix.shape[0])]


@st.composite
def datasets(draw: st.DrawFn, most: int = 12) -> BundleDataset:
    """Any small dataset: users without bundles or items, bundles without items or users, and so on."""
    users, items, bundles = (draw(st.integers(1, most)) for _ in range(3))

    def rows(count: int, columns: int) -> list[set[int]]:
        row = st.sets(st.integers(0, columns - 1), max_size=min(columns, 8))
        return draw(st.lists(row, min_size=count, max_size=count))

    return dataset_of(rows(users, items), rows(users, bundles), rows(bundles, items), items)


def shop_of_unequal_tastes(seed: int = 0) -> BundleDataset:
    """Each user has one of eight tastes, and few bundles of other tastes. Some tastes have many users and
    some few, so the items of a new bundle tell how well it sells. Bundle n has the taste n % 8."""
    random = np.random.default_rng(seed)
    tastes, items, bundles, users = 8, 20, 200, 400
    share = np.array([8, 6, 4, 3, 2, 1, 1, 0.5])
    taste = random.choice(tastes, users, p=share / share.sum())
    taste_of = np.arange(bundles) % tastes
    contents = [(own * items + random.choice(items, 4, replace=False)).tolist() for own in taste_of]
    weights = np.where(taste_of == taste[:, None], 20.0, 1.0)
    bought = [random.choice(bundles, 4, replace=False, p=each / each.sum()).tolist() for each in weights]
    single = [(own * items + random.choice(items, 5, replace=False)).tolist() for own in taste]
    return dataset_of(single, bought, contents, tastes * items)
