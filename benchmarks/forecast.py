"""The measurements of a forecast for a bundle that does not exist yet, as the service computes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.asking import TINY_SHOP
from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_recommender
from benchmarks.setting import Setting
from benchmarks.training import memory_figures

if TYPE_CHECKING:
    from bundlemage.campaigns.new_bundles import NewBundleCalibration
    from bundlemage.wire.design_answers import BundleForecast

LARGE_SHOP: ShopSize = {
    "users": 100_000,
    "items": 30_000,
    "bundles": 20_000,
    "items_per_user": 20,
    "bundles_per_user": 5,
    "items_per_bundle": 8,
}
DIM = 400


SAMPLE = 2000
"""The number of users of the first figure."""


def forecast(setting: Setting) -> list[Figure]:
    """Read users from the store, score them, and look for a better item: a sample first, and then all."""
    from bundlemage.live import EMPTY, Live
    from bundlemage.service.routes.forecasts import everyone, some_of
    from bundlemage.store.repository import Store

    recommender = generated_recommender(TINY_SHOP if setting.tiny else LARGE_SHOP, DIM, setting)
    recommender.new_bundle_calibration = calibration()
    file = Path(setting.scratch) / f"{time.time_ns()}.db"
    store = Store.open(f"sqlite:///{file}")
    store.import_dataset(recommender.dataset)
    live = Live(recommender, EMPTY.after(store.catalogue()), store.sales()).warm()
    items = recommender.dataset.items.ids[:5]

    def estimate() -> BundleForecast:
        names, of = store.sample_of_users(SAMPLE)
        return live.score_bundle(items, users=partial(some_of, live, store, names), of=of)

    sampled, first, first_cpu = timed(estimate)
    exact, seconds, cpu = timed(lambda: live.score_bundle(items, users=partial(everyone, live, store)))
    store.close()
    file.unlink()
    note = f"{len(recommender.dataset.bundles):,} bundles, {exact.asked:,} users of a SQLite store"
    return [
        Figure("estimate", first, "s", setting.wanted(cpu="< 2", cuda="< 2"), f"{sampled.asked:,} users"),
        Figure("estimate, CPU time", first_cpu, "s"),
        Figure("forecast", seconds, "s", setting.wanted(cpu="< 20", cuda="< 20"), note),
        Figure("forecast, CPU time", cpu, "s"),
        *memory_figures(setting),
    ]


def calibration() -> NewBundleCalibration:
    """Some calibration, because the generated model has none. The work does not depend on its numbers."""
    from bundlemage.campaigns.new_bundles import RESAMPLES, NewBundleCalibration

    return NewBundleCalibration(
        held_out=200,
        purchases=8000,
        fit=0.8,
        activity=0.3,
        intercept=-9.0,
        level=0.4,
        threshold=0.01,
        levels=(-1.0, 1.0),
        resampled=((-9.0, 0.4),) * RESAMPLES,
        dispersion=1.0,
    )


def timed(work: Callable[[], BundleForecast]) -> tuple[BundleForecast, float, float]:
    """The result of some work, its seconds, and the CPU time of all threads."""
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - began, time.process_time() - cpu
