"""Closed forms that take seconds: candidates of `auto`, and the other rows in the table of every model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bundlemage.models.base import Interactions, Model, Sizes
from bundlemage.models.registry import build, make_config

CLOSED_FORMS: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "matching": (
        ("popularity", {}),
        ("owned-share", {}),
        *(("item-knn", {"item_weight": weight, "shrinkage": 5.0}) for weight in (0.0, 0.5)),
        *(("ease", {"beside": "contents", "regularisation": value}) for value in (10.0, 100.0, 1000.0)),
        *(("ease", {"beside": "items", "regularisation": value}) for value in (100.0, 1000.0)),
    ),
    "generation": (
        ("popularity", {}),
        *(("co-occurrence", {"user_weight": weight}) for weight in (0.0, 0.05)),
        *(("ease-items", {"regularisation": value}) for value in (1.0, 30.0, 300.0)),
    ),
}
"""The closed forms of each task, with the settings that are tried. Each takes seconds."""
LARGEST_SYSTEM, LARGE_SYSTEM = 6_000, 2_500
"""EASE inverts a matrix of this size at most: a larger one would take minutes. If it is larger than
the second number, only the default settings are tried."""
MOST_PAIRED = 30_000
"""ItemKNN compares at most this many bundles with each other."""


def affordable(model: str, settings: Mapping[str, Any], sizes: Sizes) -> bool:
    """Whether a closed form takes seconds in a shop of this size, rather than minutes."""
    if model == "ease":
        wide = bool(settings["beside"] == "items")
        rows, columns = sizes.users + sizes.items * (not wide), sizes.bundles + sizes.items * wide
        system = min(rows, columns)
    elif model == "ease-items":
        system = min(sizes.bundles, sizes.items)
    else:
        return model != "item-knn" or sizes.bundles <= MOST_PAIRED
    is_default = make_config(model, settings) == make_config(model, {})
    return system <= (LARGEST_SYSTEM if is_default else LARGE_SYSTEM)


def fit_closed_form(model: str, settings: Mapping[str, Any], sizes: Sizes, data: Interactions) -> Model:
    """Fits a closed form. One that completes bundles does not learn the contents of `data.held_out`."""
    fitted = build(model, make_config(model, settings), sizes).to(data.user_item.device)
    fitted.observe(data)
    return fitted.eval()
