"""A generated shop whose user_item has exactly the contents of the users' bundles. The bundles are drawn at
random, so nothing but such a leak tells which bundle a user takes next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bundlemage.data.dataset import BundleDataset, binary_matrix, pairs_of
from bundlemage.data.events import DAY, UNDATED, Events
from bundlemage.data.leakage import without
from tests.small_shop import dataset_of


def leaking_shop(
    users: int = 120,
    bundles: int = 150,
    items: int = 100,
    per_user: int = 6,
    size: int = 4,
    seed: int = 0,
    recorded: float = 1.0,
) -> BundleDataset:
    """Every bundle has `size` items, and every user `per_user` bundles. With `recorded`, user_item has only
    this part of their items, drawn at random."""
    random = np.random.default_rng(seed)
    contents = [set(random.choice(items, size, replace=False).tolist()) for _ in range(bundles)]
    owned = [random.choice(bundles, per_user, replace=False).tolist() for _ in range(users)]
    had = [sorted(set().union(*(contents[bundle] for bundle in row))) for row in owned]
    had = [[item for item in row if random.random() < recorded] for row in had]
    return dataset_of(had, owned, contents, items)


def uneven_shop() -> BundleDataset:
    """A leaking shop that looks different from its parts: the first users only viewed items, and the last
    items have neither times nor weights."""
    shop, random = leaking_shop(users=110, size=8), np.random.default_rng(0)
    users, items = pairs_of(shop.user_item)
    weight = np.where(users < 60, 0.3, random.choice([0.2, 1, 2], len(users)))
    at = random.integers(300, size=len(users)) * DAY
    last = items >= 50
    item_events = Events(
        np.where(last | (random.random(len(at)) < 0.1), UNDATED, at),
        np.where(last, 1, weight).astype(np.float32),
        without(binary_matrix(np.arange(100), np.arange(100), shop.user_item.shape), shop.user_item),
    )
    bundle_events = Events(
        random.integers(400, size=shop.user_bundle.nnz) * DAY,
        random.choice([0.5, 1, 3], shop.user_bundle.nnz).astype(np.float32),
    )
    return replace(shop, item_events=item_events, bundle_events=bundle_events)
