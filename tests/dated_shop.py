"""Shops whose purchases have times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import DAY, UNDATED, Events
from tests.small_shop import datasets


def with_times(shop: BundleDataset, bundles: Any, items: Any = None) -> BundleDataset:
    """The shop with these days as times of its user-bundle and user-item pairs; None for no time."""

    def events(days: Any) -> Events:
        if days is None:
            return Events()
        return Events(at=np.array([UNDATED if day is None else day * DAY for day in days], np.int64))

    return replace(shop, bundle_events=events(bundles), item_events=events(items))


def at_random(shop: BundleDataset, days: int = 200, seed: int = 0) -> BundleDataset:
    """The shop with a random day for each pair."""
    random = np.random.default_rng(seed)
    bundles, items = (
        random.integers(days, size=each.nnz).tolist() for each in (shop.user_bundle, shop.user_item)
    )
    return with_times(shop, bundles, items)


@st.composite
def dated_datasets(draw: st.DrawFn) -> BundleDataset:
    """Any small data set with any times and weights: some pairs have no time, many have the same."""
    shop = draw(datasets())
    day = st.one_of(st.none(), st.integers(-3, 6))

    def events(count: int) -> Events:
        days = draw(st.lists(day, min_size=count, max_size=count))
        weights = draw(st.none() | st.lists(st.sampled_from([0.2, 1.0, 3.0]), min_size=count, max_size=count))
        at = np.array([UNDATED if each is None else each * DAY for each in days], np.int64)
        return Events(at, None if weights is None else np.array(weights, np.float32))

    return replace(shop, item_events=events(shop.user_item.nnz), bundle_events=events(shop.user_bundle.nnz))
