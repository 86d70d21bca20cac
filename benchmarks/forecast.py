"""The measurement of a forecast for a bundle that does not exist yet, as the service computes it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from benchmarks.asking import TINY_SHOP
from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_recommender
from benchmarks.setting import Setting
from benchmarks.training import memory_figures

LARGE_SHOP: ShopSize = {
    "users": 100_000,
    "items": 30_000,
    "bundles": 20_000,
    "items_per_user": 20,
    "bundles_per_user": 5,
    "items_per_bundle": 8,
}
DIM = 400


def forecast(setting: Setting) -> list[Figure]:
    """Read all users from the store, score them, and look for a better item."""
    from bundlemage.live import EMPTY, Live
    from bundlemage.service.routes.forecasts import everyone
    from bundlemage.store.repository import Store

    recommender = generated_recommender(TINY_SHOP if setting.tiny else LARGE_SHOP, DIM, setting)
    file = Path(setting.scratch) / f"{time.time_ns()}.db"
    store = Store.open(f"sqlite:///{file}")
    store.import_dataset(recommender.dataset)
    live = Live(recommender, EMPTY.after(store.catalogue()), store.sales()).warm()
    items = recommender.dataset.items.ids[:5]
    began, cpu = time.perf_counter(), time.thread_time()
    outcome = live.score_bundle(items, users=partial(everyone, store))
    seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu
    store.close()
    file.unlink()
    note = f"{len(recommender.dataset.bundles):,} bundles, {outcome.asked:,} users of a SQLite store"
    return [
        Figure("forecast", seconds, "s", setting.wanted(cpu="< 120", cuda="< 120"), note),
        Figure("CPU time", cpu, "s"),
        *memory_figures(setting),
    ]
