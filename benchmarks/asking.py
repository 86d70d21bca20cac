"""Measurements of answers: many users in one pass, and one request after another."""

from __future__ import annotations

import collections
import time

import numpy as np

from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_recommender
from benchmarks.setting import Setting
from benchmarks.training import memory_figures
from bundlemage.core.filters import Filter
from bundlemage.core.history import History
from bundlemage.recommender import Recommender

K = 20
DIM = 200

MANY_USERS: ShopSize = {
    "users": 1_000_000,
    "items": 32_770,
    "bundles": 4_771,
    "items_per_user": 17,
    "bundles_per_user": 6,
    "items_per_bundle": 37,
}
"""Youshu's items and bundles, and as much for a user as there, for a million users."""
MANY_BUNDLES: ShopSize = {
    "users": 20_000,
    "items": 50_000,
    "bundles": 100_000,
    "items_per_user": 20,
    "bundles_per_user": 5,
    "items_per_bundle": 10,
}
TINY_SHOP: ShopSize = {
    "users": 2_000,
    "items": 300,
    "bundles": 100,
    "items_per_user": 8,
    "bundles_per_user": 4,
    "items_per_bundle": 6,
}


def bulk(setting: Setting) -> list[Figure]:
    """The best bundles for every user of a shop, in one pass."""
    recommender = generated_recommender(TINY_SHOP if setting.tiny else MANY_USERS, DIM, setting)
    users, seconds = ask_everyone(setting, recommender)
    note = f"top-{K} of {len(recommender.dataset.bundles):,} bundles for {users:,} users"
    return [
        Figure("all users", seconds, "s", setting.wanted(cpu="< 90", cuda="< 90"), note),
        Figure("throughput", users / seconds, "users/s"),
        *memory_figures(setting),
    ]


def ask_everyone(setting: Setting, recommender: Recommender) -> tuple[int, float]:
    """How many users were answered, and in how many seconds."""
    users = recommender.dataset.users
    collections.deque(recommender.recommend_all(K, users=users.ids[:10]), maxlen=0)  # tables are made here
    began = time.perf_counter()
    rows = sum(batch.num_rows for batch in recommender.recommend_all(K))
    setting.synchronise()
    seconds = time.perf_counter() - began
    if not len(users) <= rows <= len(users) * K:
        raise RuntimeError(f"{len(users):,} users got {rows:,} answers where up to {K} each were asked for")
    return len(users), seconds


def request(setting: Setting) -> list[Figure]:
    """One person's history, filtered, against every bundle of a large shop."""
    recommender = generated_recommender(TINY_SHOP if setting.tiny else MANY_BUNDLES, DIM, setting)
    milliseconds = request_milliseconds(recommender, 20 if setting.tiny else 1000)
    note = f"{len(recommender.dataset.bundles):,} bundles; {len(milliseconds):,} requests, one thread, warm"
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return [
        Figure("p50", float(p50), "ms", note=note),
        Figure("p99", float(p99), "ms", setting.wanted(cpu="< 15", cuda="< 15")),
        Figure("slowest", float(milliseconds.max()), "ms"),
        *memory_figures(setting),
    ]


def request_milliseconds(
    recommender: Recommender, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How long each of `count` requests took, each with another history, after some that warm up."""
    random = np.random.default_rng(0)
    dataset = recommender.dataset
    items, bundles = dataset.items.ids, dataset.bundles.ids
    assert dataset.catalogue is not None
    prices = dataset.catalogue.bundles["price"].to_numpy()
    where = Filter(exclude=bundles[:3], max_price=float(np.nanquantile(prices, 0.9)))
    warm_up = max(5, count // 20)
    seconds = np.zeros(warm_up + count)
    for number in range(warm_up + count):
        history = History(
            [items[place] for place in random.integers(len(items), size=20)],
            [bundles[place] for place in random.integers(len(bundles), size=5)],
        )
        began = time.perf_counter()
        answer = recommender.recommend(history, K, where=where)
        seconds[number] = time.perf_counter() - began
        if len(answer) != K:
            raise RuntimeError(f"a request got {len(answer)} answers where {K} were asked for")
    return seconds[warm_up:] * 1000
