"""Figures that describe a dataset, as the paper gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.data.dataset import EVENTS_OF, BundleDataset
from bundlemage.data.events import UNDATED, Events
from bundlemage.data.splits import Source

Floats = npt.NDArray[np.float64]

_CELLS = 1 << 22
"""Maximum number of entries in a block of preference vectors: about 50 MB. A few blocks exist at a time."""


def dataset_table(dataset: BundleDataset) -> dict[str, int | float]:
    """Returns a row of the paper's table "Summary of datasets". A density is a fraction: 0.01 is 1%."""
    table: dict[str, int | float] = {
        "users": len(dataset.users),
        "bundles": len(dataset.bundles),
        "items": len(dataset.items),
    }
    for name in ("user_bundle", "user_item", "bundle_item"):
        matrix = getattr(dataset, name)
        table[f"{name}_pairs"] = int(matrix.nnz)
        table[f"{name}_density"] = matrix.nnz / max(matrix.shape[0] * matrix.shape[1], 1)
    table["items_per_bundle"] = dataset.bundle_item.nnz / max(len(dataset.bundles), 1)
    return table


@dataclass(frozen=True)
class EventFacts:
    """What is known about the pairs of a table of events."""

    types: Mapping[str, int] = field(default_factory=dict)
    """The number of rows of each type of event; rows without a type have an empty name."""
    first: str | None = None
    """The earliest time, such as `2026-01-31T12:00:00Z`. None: no time is known."""
    last: str | None = None
    undated: int = 0
    """The number of pairs without a time, if others have one."""
    weights: tuple[float, float, float] | None = None
    """The least, the median and the largest weight of a pair. None: all are 1."""
    rejected: int = 0
    """The number of pairs whose latest event is negative."""

    @classmethod
    def of(cls, events: Events, types: Mapping[str, int]) -> EventFacts:
        at, weight = events.at, events.weight
        times: tuple[int, int, int] | None = None
        if at is not None:
            dated = at[at != UNDATED]
            times = int(dated.min()), int(dated.max()), len(at) - len(dated)
        weights = None
        if weight is not None:
            doubles = weight.astype(np.float64)
            weights = float(doubles.min()), float(np.median(doubles)), float(doubles.max())
        rejected = 0 if events.rejected is None else int(events.rejected.nnz)
        return cls.of_figures(types, times, weights, rejected)

    @classmethod
    def of_figures(
        cls,
        types: Mapping[str, int],
        times: tuple[int, int, int] | None,
        weights: tuple[float, float, float] | None,
        rejected: int,
    ) -> EventFacts:
        """`times` are the earliest and the latest time in microseconds, and the number of undated pairs."""
        first, last, undated = times or (None, None, 0)
        begins, ends = (None if time is None else time_text(time) for time in (first, last))
        return cls(dict(types), begins, ends, undated, weights, rejected)

    def __bool__(self) -> bool:
        return self != EventFacts()


def time_text(time: int) -> str:
    """Returns a time in microseconds since 1970 as text, to the second: `2026-01-31T12:00:00Z`."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
    return moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def event_facts(source: Source) -> dict[str, EventFacts]:
    """Returns what is known about the pairs of each table of events, without tables that say nothing."""
    facts = {
        table: EventFacts.of(getattr(source.dataset, name), source.event_types.get(table, {}))
        for table, name in EVENTS_OF.items()
    }
    return {table: known for table, known in facts.items() if known}


def popularity_bias(dataset: BundleDataset) -> float:
    """Returns how popular the items in bundles are: near 0 for the most popular items, 0.5 for average ones.

    The paper defines it as "the average of every bundle's ranking score which is evaluated as the average of
    rankings of included items". Here it is divided by the number of items. An item's popularity is its
    number of users. Rank 1 is the most popular item; equally popular items share their mean rank, so that the
    order of items does not matter. Bundles without items are left out. If all bundles are empty, the
    result is nan.
    """
    from scipy.stats import rankdata  # slow to import

    rank = rankdata(-np.bincount(dataset.user_item.indices, minlength=len(dataset.items)))
    size = np.diff(dataset.bundle_item.indptr)
    filled = size > 0
    if not filled.any():
        return float("nan")
    mean_rank = (dataset.bundle_item.astype(np.float64) @ rank)[filled] / size[filled]
    return float(mean_rank.mean() / len(dataset.items))


def preference_similarity(dataset: BundleDataset) -> Floats:
    """Returns the cosine similarity of each user's item preference and bundle preference.

    It is the paper's figure "dissimilarity": a low similarity means that the two preferences differ.

    c_i is the multi-hot vector of item i's users. A user's item preference is the mean c_i over the
    user's items; the bundle preference is the mean over all items of the user's bundles, each item once.
    The similarity is nan if a preference is missing (no items, no bundles, or only items that no user has).
    """
    item_users = dataset.user_item.T.tocsr().astype(np.float64)  # [items, users], row i is c_i
    cosines = np.full(len(dataset.users), np.nan)
    step = max(1, _CELLS // max(len(cosines), 1))
    for start in range(0, len(cosines), step):
        block = slice(start, start + step)
        bundle_items = dataset.user_bundle[block] @ dataset.bundle_item  # [block, items]
        bundle_items.data[:] = 1  # a union: an item in two bundles counts once
        # Sums instead of the paper's means: the length of a vector does not change its cosine.
        by_items = dataset.user_item[block].astype(np.float64) @ item_users  # [block, users]
        by_bundles = bundle_items.astype(np.float64) @ item_users  # [block, users]
        lengths = np.sqrt(_row_sums(by_items.power(2)) * _row_sums(by_bundles.power(2)))
        overlap = _row_sums(by_items.multiply(by_bundles))
        np.divide(overlap, lengths, out=cosines[block], where=lengths > 0)
    return cosines


def _row_sums(matrix: Any) -> Floats:
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
