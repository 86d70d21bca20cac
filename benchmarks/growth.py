"""How time and memory grow with the catalogue and with the users. Each size is a process of its own."""

from __future__ import annotations

import numpy as np

from benchmarks.asking import ask_everyone, request_milliseconds
from benchmarks.figures import Figure
from benchmarks.generated import ShopSize, generated_data
from benchmarks.setting import Setting
from benchmarks.training import memory_figures, train_on


def items(setting: Setting, count: int) -> list[Figure]:
    """So many items, and everything else the same: one step of each task on the CPU, more on a GPU."""
    users = 200 if setting.tiny else 20_000 if setting.on_cuda else 2_000
    shop: ShopSize = {
        "users": users,
        "items": count,
        "bundles": 50 if setting.tiny else 1_000,
        "items_per_user": 10,
        "bundles_per_user": 2 if setting.on_cuda else 1,
        "items_per_bundle": 10,
    }
    return _figures(setting, shop)


def users(setting: Setting, count: int) -> list[Figure]:
    """So many users, and everything else the same."""
    shop: ShopSize = {
        "users": count,
        "items": 200 if setting.tiny else 5_000,
        "bundles": 50 if setting.tiny else 500,
        "items_per_user": 5,
        "bundles_per_user": 1,
        "items_per_bundle": 10,
    }
    return _figures(setting, shop)


def _figures(setting: Setting, shop: ShopSize) -> list[Figure]:
    training, recommender = train_on(setting, generated_data(shop, setting))
    memory = memory_figures(setting)
    answered, seconds = ask_everyone(setting, recommender)
    milliseconds = request_milliseconds(recommender, 10 if setting.tiny else 200)
    return [
        training,
        *memory,
        Figure("bulk", answered / seconds, "users/s"),
        Figure("one request, p50", float(np.median(milliseconds)), "ms"),
    ]
