"""A shop with a planted answer that has sold little when its model is trained, and much afterwards.

Everyone has a taste, and buys items and bundles of that taste alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bundlemage import Recommender
from bundlemage.artifact.files import artifact_version
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.store.records import InteractionRecord, ModelRecord
from bundlemage.store.repository import Store
from tests.small_shop import dataset_of

TASTES, USERS, ITEMS_OF_A_TASTE, BUNDLES_OF_A_TASTE = 5, 100, 10, 8
QUICK: dict[str, Any] = {"embedding_dim": 16, "batch_size": 64, "epochs": 20, "device": "cpu"}


def _drawn(seed: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    random = np.random.default_rng(seed)

    def some(count: int, of: int, taste: int) -> list[int]:
        found: list[int] = (random.permutation(of)[:count] + of * taste).tolist()
        return found

    user_item = [some(5, ITEMS_OF_A_TASTE, user % TASTES) for user in range(USERS)]
    user_bundle = [some(4, BUNDLES_OF_A_TASTE, user % TASTES) for user in range(USERS)]
    bundle_item = [
        some(4, ITEMS_OF_A_TASTE, bundle // BUNDLES_OF_A_TASTE)
        for bundle in range(TASTES * BUNDLES_OF_A_TASTE)
    ]
    return user_item, user_bundle, bundle_item


def late_shop() -> BundleDataset:
    """With all that was ever bought: four bundles a user."""
    return dataset_of(*_drawn(0), TASTES * ITEMS_OF_A_TASTE)


def early_shop() -> BundleDataset:
    """The same with ten bundles sold."""
    user_item, user_bundle, bundle_item = _drawn(0)
    sold = [row[:1] if user % 10 == 0 else [] for user, row in enumerate(user_bundle)]
    return dataset_of(user_item, sold, bundle_item, TASTES * ITEMS_OF_A_TASTE)


def early_model(path: Path, **settings: Any) -> Path:
    """A model that learned from the early shop, with nothing held out."""
    return Recommender(**(QUICK | settings)).fit(early_shop(), SplitPlan("none"), progress=False).save(path)


def late_model(path: Path, **settings: Any) -> Path:
    """A model that learned from the late shop, and held some of it out."""
    return Recommender(**(QUICK | settings)).fit(late_shop(), SplitPlan("paper"), progress=False).save(path)


def record_of(path: Path) -> ModelRecord:
    return ModelRecord(artifact_version(path), str(path), "bundlemage")


def open_early(store: Store, model: Path) -> None:
    """The early shop in a store, and its model to serve."""
    store.import_dataset(early_shop())
    store.publish(record_of(model))


def open_late(store: Store, model: Path) -> None:
    store.import_dataset(late_shop())
    store.publish(record_of(model))


def sell(store: Store, users: int = USERS) -> None:
    """All that the first users bought later."""
    _, user_bundle, _ = _drawn(0)
    store.add_interactions(
        [
            InteractionRecord(f"u{user}", "bundle", f"b{bundle}")
            for user in range(users)
            for bundle in user_bundle[user]
        ]
    )
