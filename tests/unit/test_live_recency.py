"""A model with a half-life in a live shop: the older something in a history, the less it counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from bundlemage import Recommender
from bundlemage.core.history import History
from bundlemage.data.dataset import row_of
from bundlemage.data.events import DAY, UNDATED
from bundlemage.live import EMPTY, Live
from bundlemage.store.records import InteractionRecord, Owned
from bundlemage.store.repository import Store
from tests.dated_shop import at_random
from tests.small_shop import QUICK, small_shop


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    model = Recommender("bundlemage", half_life=30.0, **QUICK)
    return model.fit(at_random(small_shop()), progress=False)


def test_a_user_gets_the_same_answer_from_the_store_as_from_the_model(
    recommender: Recommender, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/shop.db")
    dataset = recommender.dataset
    store.import_dataset(dataset)
    live = Live(recommender, EMPTY.after(store.catalogue()), store.sales())
    assert live.recency is not None
    users = dataset.users.ids[:20]
    owned = store.histories(users, times=True)
    for user in users:
        row = dataset.users.position(user)
        has = dataset.user_bundle[row].nnz and dataset.user_item[row].nnz
        expected = recommender.recommend(user, 5)
        found = live.recommend(owned[user], 5)
        if has:
            assert [each.id for each in found] == [each.id for each in expected]
            assert [each.score for each in found] == pytest.approx(
                [each.score for each in expected], rel=1e-4
            )
    user = next(user for user in users if len(row_of(dataset.user_item, dataset.users.position(user))) > 1)
    without = replace(owned[user], times=None)
    assert live.recommend(without, 5) == live.recommend(History(without.items, without.bundles), 5)
    assert live.recommend(without, 5) != live.recommend(owned[user], 5)
    store.add_interactions(
        [InteractionRecord(user, "item", dataset.items[0], datetime(1970, 7, 20, tzinfo=UTC))]
    )
    assert dataset.items[0] in store.histories([user], times=True)[user].items
    store.close()


def test_weights_halve_with_each_half_life(recommender: Recommender) -> None:
    store_less = Live(recommender, EMPTY)
    items, bundles = recommender.dataset.items.ids[:4], recommender.dataset.bundles.ids[:1]
    history = Owned(
        items, bundles, (1.0, 1.0, 0.2, 1.0), times=((300 * DAY, 270 * DAY, 300 * DAY, UNDATED), (5 * DAY,))
    )
    encoded, _ = store_less.shop.encode([history, Owned(items[:1])])
    oldest = recommender.dataset.item_events.at
    assert oldest is not None
    age = 300 - int(oldest[oldest != UNDATED].min()) // DAY
    assert encoded.items.weights is not None
    assert encoded.items.weights.tolist() == pytest.approx([1, 0.5, 0.2, 0.5 ** (age / 30), 1], rel=1e-5)
    assert encoded.items.weak is not None  # an old purchase is still a purchase
    assert np.flatnonzero(encoded.items.weak.numpy()).tolist() == [2]
