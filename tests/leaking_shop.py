"""A generated shop whose user_item has exactly the contents of the users' bundles. The bundles are drawn at
random, so nothing but such a leak tells which bundle a user takes next."""

from __future__ import annotations

import numpy as np

from bundlemage.data.dataset import BundleDataset
from tests.small_shop import dataset_of


def leaking_shop(
    users: int = 120, bundles: int = 150, items: int = 100, per_user: int = 6, size: int = 4, seed: int = 0
) -> BundleDataset:
    """Every bundle has `size` items, and every user `per_user` bundles."""
    random = np.random.default_rng(seed)
    contents = [set(random.choice(items, size, replace=False).tolist()) for _ in range(bundles)]
    owned = [random.choice(bundles, per_user, replace=False).tolist() for _ in range(users)]
    return dataset_of(
        [set().union(*(contents[bundle] for bundle in row)) for row in owned], owned, contents, items
    )
