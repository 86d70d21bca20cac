"""A generated shop of a kind unlike the sample: every bundle was put together for one user, who alone bought
it. Nothing can be learned from what sells well, only from which items stand together and who likes them."""

from __future__ import annotations

import numpy as np

from bundlemage.data.dataset import BundleDataset
from tests.small_shop import dataset_of


def one_buyer_shop(
    users: int = 400, themes: int = 40, items_per_theme: int = 12, seed: int = 0
) -> BundleDataset:
    """Users like one or two themes, have a few items of them, and two to four bundles of 4 to 6 items.

    A bundle keeps to one theme but for one item in ten. A user's items are drawn apart from the user's
    bundles, so that no item gives away a bundle that is held out.
    """
    random = np.random.default_rng(seed)
    user_item: list[set[int]] = []
    user_bundle: list[list[int]] = []
    bundle_item: list[set[int]] = []
    for _ in range(users):
        liked = random.choice(themes, random.integers(1, 3), replace=False)
        theme_of = random.choice(liked, 4)
        user_item.append(
            {int(theme) * items_per_theme + int(random.integers(items_per_theme)) for theme in theme_of}
        )
        mine = []
        for _ in range(random.integers(2, 5)):
            theme = int(random.choice(liked))
            inside = random.choice(items_per_theme, random.integers(4, 7), replace=False)
            strange = random.random(len(inside)) < 0.1
            elsewhere = random.integers(themes * items_per_theme, size=len(inside))
            mine.append(len(bundle_item))
            bundle_item.append({*np.where(strange, elsewhere, theme * items_per_theme + inside).tolist()})
        user_bundle.append(mine)
    return dataset_of(user_item, user_bundle, bundle_item, themes * items_per_theme)
