"""The measurement of changes: how long a live service waits for a change of the catalogue."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.asking import DIM, TINY_SHOP
from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_recommender
from benchmarks.setting import Setting
from bundlemage.core.filters import Filter
from bundlemage.data.dataset import row_of
from bundlemage.live import EMPTY, Live, Question
from bundlemage.recommender import Recommender
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned

LARGE_SHOP: ShopSize = {
    "users": 2_000,
    "items": 20_000,
    "bundles": 100_000,
    "items_per_user": 20,
    "bundles_per_user": 5,
    "items_per_bundle": 10,
}
CHANGES = 50
Clocks: TypeAlias = npt.NDArray[np.float64]


def change(setting: Setting) -> list[Figure]:
    """A change of the catalogue and the next recommendation, beside one without a change."""
    recommender = generated_recommender(TINY_SHOP if setting.tiny else LARGE_SHOP, DIM, setting)
    live = _opened(recommender)
    named = list(live.stock.bundles.values())[:: max(1, len(live.stock.bundles) // CHANGES)]
    some = [named[number % len(named)] for number in range(CHANGES)]
    news = [Bundle(f"new {number}", bundle.items[:4], price=9.0) for number, bundle in enumerate(some)]
    kinds: dict[str, list[tuple[list[Item], list[Bundle]]]] = {
        "a new bundle": [([], [bundle]) for bundle in news],
        "other items in a bundle": [([], [replace(bundle, items=bundle.items[1:])]) for bundle in news],
        "another price": [([], [replace(bundle, items=bundle.items[1:], price=1.0)]) for bundle in news],
        "an item is withdrawn": [
            ([replace(live.stock.items[bundle.items[0]], withdrawn=True)], []) for bundle in some
        ],
    }
    figures: list[Figure] = []
    size = len(live.stock.bundles)
    for kind, changes in kinds.items():
        after, plain = [], []
        for items, bundles in changes:
            began = _now()
            live = live.after(CatalogueChange(live.stock.version + 1, items, bundles))
            _ask(live)
            after.append(_now() - began)
            began = _now()
            _ask(live)
            plain.append(_now() - began)
        costs = np.array(after) - plain  # [changes, 2]
        middle, slow = np.percentile(costs[:, 0], [50, 99])
        note = (
            f"with the next recommendation {_of(after)}, without a change {_of(plain)} ms (p50 / p99); "
            f"processor time {np.median(costs[:, 1]):.1f} ms"
        )
        wanted = setting.wanted(cpu="< 20", cuda="< 20")
        figures.append(Figure(f"{kind}, p50", max(1e-3, float(middle)), "ms", wanted, note))
        figures.append(Figure(f"{kind}, p99", max(1e-3, float(slow)), "ms"))
    note = f"{CHANGES} changes of each kind; a figure is the difference to a recommendation without a change"
    return [*figures, Figure("bundles", size, note=note)]


def _ask(live: Live) -> None:
    """A question with a filter, as pages of a shop ask it."""
    first = live.dataset.items[0]
    (answer,) = live.answer([Question(Owned((first,)), 10, Filter(max_price=1e6, in_stock=True))])
    if isinstance(answer, Exception):
        raise answer


def _now() -> Clocks:
    """Milliseconds of the clock, and of the processor in this thread."""
    return 1000 * np.array([time.perf_counter(), time.thread_time()])


def _of(clocks: list[Clocks]) -> str:
    return " / ".join(f"{of:.1f}" for of in np.percentile([clock[0] for clock in clocks], [50, 99]))


def _opened(recommender: Recommender) -> Live:
    """A live shop with the records that a store would have. All questions of `_ask` are warm."""
    dataset = recommender.dataset
    items = [Item(name, f"item {name}", 1.0, ("some",), 3) for name in dataset.items]
    bundles = [
        Bundle(name, tuple(dataset.items[item] for item in row_of(dataset.bundle_item, row)), price=9.0)
        for row, name in enumerate(dataset.bundles)
    ]
    live = Live(recommender, EMPTY.after(CatalogueChange(1, items, bundles))).warm()
    _ask(live)
    return live
