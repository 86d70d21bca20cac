"""A generated shop whose user_item has exactly the contents of the users' bundles. The bundles are drawn at
random, so nothing but such a leak tells which bundle a user takes next."""

from __future__ import annotations

import numpy as np

from bundlemage.data.dataset import BundleDataset
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
