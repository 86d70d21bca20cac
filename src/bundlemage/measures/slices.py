"""Slices of the test cases: where a model is good, and where it is not.

A slice is a set of cases: those of users with few bundles, those whose right bundle sells little, and so on.
A case with several right bundles is in the slice of their mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from bundlemage.data.dataset import as_binary
from bundlemage.data.splits import GenerationCases, MatchingCases, Split
from bundlemage.errors import ConfigError
from bundlemage.evaluation import mean_error
from bundlemage.measures.lists import tag_matrices
from bundlemage.measures.meaning import FEWEST_CASES, FEWEST_GROUPS

MOST_VALUES = 12
"""Of a column with more different values, the others are one slice."""
SIZE = "bundle size"
OTHERS, UNKNOWN = "others", "unknown"
Array = npt.NDArray[Any]
Cases = MatchingCases | GenerationCases


@dataclass(frozen=True)
class Slicing:
    """A way to divide test cases into slices."""

    by: str
    """Such as `user activity`, or the name of a column of the catalogue."""
    about: str
    """What the slices are, as a sentence."""
    slices: Mapping[str, Array]
    """The name of each slice → the positions of its cases."""


@dataclass(frozen=True)
class Figure:
    """The mean of a metric over the cases of a slice, and its standard error."""

    mean: float
    error: float | None
    """None for fewer than two independent cases."""


@dataclass(frozen=True)
class Slice:
    """The figures of one slice."""

    name: str
    cases: int
    little: bool
    """Whether the figures say little: it has too few cases, or cases of too few held-out bundles."""
    metrics: Mapping[str, Figure]
    """By metric, or in a comparison by model."""


@dataclass(frozen=True)
class SlicedFigures:
    """A model's figures in all slices of a slicing."""

    by: str
    about: str
    slices: tuple[Slice, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def case_groups(split: Split, task: str) -> Array | None:
    """Returns the held-out bundle of each generation case. Cases of a bundle have the same right answers."""
    return split.generation.bundles if task == "generation" and split.generation else None


def sliced(values: Mapping[str, Array], slicing: Slicing, groups: Array | None = None) -> SlicedFigures:
    """Returns the figures in each slice. `values` has the value of each case, by metric or by model, and
    `groups` the group of each case (see `mean_error`)."""
    slices = []
    for name, rows in slicing.slices.items():
        inside = None if groups is None else groups[rows]
        found = {metric: mean_error(each[rows], inside) for metric, each in values.items()}
        count = max((each.count for each in found.values()), default=0)
        little = len(rows) < FEWEST_CASES or (groups is not None and count < FEWEST_GROUPS)
        figures = {metric: Figure(each.mean, each.error) for metric, each in found.items() if each.count}
        slices.append(Slice(name, len(rows), little, figures))
    return SlicedFigures(slicing.by, slicing.about, tuple(slices))


def slicings(split: Split, columns: Sequence[str] = ()) -> dict[str, list[Slicing]]:
    """Returns the ways to divide the cases of each task of a split. `columns` are columns of the catalogue.

    Raises ConfigError if the catalogue has no such column.
    """
    check_columns(split, columns)
    found: dict[str, list[Slicing]] = {}
    if split.test:
        found["matching"] = [
            *_of_matching(split, split.test),
            *(_by_column(split, split.test.positives, column) for column in columns),
        ]
    if split.generation:
        cases = split.generation
        whole = as_binary(cases.partial + cases.positives)[cases.bundles]  # [cases, items]
        found["generation"] = [
            *_of_generation(split, cases, whole),
            *(_by_column(split, whole, column) for column in columns),
        ]
    return {task: [each for each in ways if each.slices] for task, ways in found.items()}


def _of_matching(split: Split, cases: MatchingCases) -> Iterable[Slicing]:
    train = split.train
    bought = train.bought_bundles
    yield _by_activity(np.diff(bought.indptr)[cases.users])
    sales = np.bincount(bought.indices, minlength=len(train.bundles))
    yield _by_popularity(_mean_of(cases.positives, sales), sales)
    sizes = np.diff(train.bundle_item.indptr)
    yield _in_thirds(SIZE, _mean_of(cases.positives, sizes), "The size of the right bundle", " items")
    new = _mean_of(cases.positives, sales == 0)
    yield _named(
        "new or known",
        "A bundle is new if nobody has it in training.",
        {"new": new == 1, "known": new == 0, "both": (new > 0) & (new < 1)},
    )


def _of_generation(split: Split, cases: GenerationCases, whole: sparse.csr_matrix) -> Iterable[Slicing]:
    sizes = np.diff(whole.indptr).astype(float)
    yield _in_thirds(SIZE, sizes, "The size of the whole bundle", " items")
    train = split.train
    has = (np.diff(train.user_bundle.indptr) > 0) | (np.diff(train.user_item.indptr) > 0)
    has = np.append(has, False)[np.minimum(cases.users, len(has))]  # the last one is nobody
    yield _named(
        "user history",
        "A user has a history with at least one bundle or item in training.",
        {"no history": ~has, "history": has},
    )


def _by_activity(activity: Array) -> Slicing:
    some = activity[activity > 0]
    hot = _threshold(some, 1 / 3)
    about = "Cold users have no bundle in training"
    if hot is None:
        return _named("user activity", f"{about}.", {"cold": activity == 0, "warm": activity > 0})
    return _named(
        "user activity",
        f"{about}, hot users have {hot:,.0f} or more (about a third of the others), warm users have fewer.",
        {"cold": activity == 0, "warm": (activity > 0) & (activity < hot), "hot": activity >= hot},
    )


def _by_popularity(of_case: Array, sales: Array) -> Slicing:
    by = "bundle popularity"
    ordered = np.sort(sales)[::-1]
    total = np.cumsum(ordered)
    if not len(total) or not total[-1]:
        return _named(by, "Nobody has a bundle in training.", {"tail": np.full(len(of_case), True)})
    head, middle = (int(ordered[np.searchsorted(total, share * total[-1])]) for share in (1 / 3, 2 / 3))
    return _named(
        by,
        f"A third of all sales in training is of bundles with {head:,} users or more (head), a third of "
        f"those with {middle:,} or more (middle), a third of the others (tail).",
        {"head": of_case >= head, "middle": (of_case >= middle) & (of_case < head), "tail": of_case < middle},
    )


def _by_column(split: Split, things: sparse.csr_matrix, column: str) -> Slicing:
    """Slices by a column of the catalogue. `things` are the right bundles of each case, or the items of its
    bundle. If bundles have no values in the column, those of their items are used."""
    data = split.dataset
    assert data.catalogue is not None
    whose, values = "right bundle", None
    if things.shape[1] == len(data.bundles):
        values = _values(data.catalogue.bundles, column)
        things = things if values is not None else as_binary(things @ data.bundle_item)
    if values is None:
        whose, values = "items of the bundle", _values(data.catalogue.items, column)
    if values is None:
        return Slicing(column, "", {})
    if not pa.types.is_list(values.type):
        mean = "" if whose == "right bundle" else "mean "
        return _in_thirds(
            column,
            _mean_of(things, values.to_numpy(zero_copy_only=False)),
            f"The {mean}{column} of the {whose}",
        )
    names, (matrix,) = tag_matrices([values])
    having = as_binary(things @ matrix)  # [cases, values]
    counts = np.bincount(having.indices, minlength=len(names))
    order = [place for place in np.argsort(-counts, kind="stable")[:MOST_VALUES] if counts[place]]
    of_each = having[:, order].toarray().astype(bool)  # [cases, shown values]
    known = np.diff(having.indptr) > 0
    masks = {names[place]: of_each[:, number] for number, place in enumerate(order)}
    masks |= {OTHERS: known & ~of_each.any(1), UNKNOWN: ~known}
    several = (
        " A case with several values is in several slices." if (np.diff(having.indptr) > 1).any() else ""
    )
    return _named(column, f"The {column} of the {whose}.{several}", masks)


def _values(table: pa.Table, column: str) -> pa.Array | None:
    """Returns a column as numbers or as lists of text; None if it does not exist or has no values."""
    if column not in table.column_names or table[column].null_count == len(table):
        return None
    values = table[column].combine_chunks()
    kind = values.type
    if pa.types.is_list(kind):
        return values if pc.any(pc.greater(pc.list_value_length(values), 0)).as_py() else None
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return values.cast(pa.float64())
    filled = values.is_valid().to_numpy(zero_copy_only=False)
    ends = pa.array(np.concatenate([[0], np.cumsum(filled)]).astype(np.int32))
    return pa.ListArray.from_arrays(ends, values.drop_null().cast(pa.string()))


def check_columns(split: Split, columns: Sequence[str]) -> None:
    """Raises ConfigError if the catalogue lacks one of the columns, or if cases cannot be divided by it."""
    catalogue = split.dataset.catalogue
    possible: set[str] = set()
    for table in () if catalogue is None else (catalogue.items, catalogue.bundles):
        for entry in table.schema:
            a_vector = pa.types.is_list(entry.type) and not pa.types.is_string(entry.type.value_type)
            if not (entry.name.endswith("_id") or a_vector) and _values(table, entry.name) is not None:
                possible.add(entry.name)
    for column in columns:
        if column not in possible:
            these = ", ".join(sorted(possible)) or "none, because the data has no catalogue"
            raise ConfigError(
                f"cases cannot be divided by the column {column!r}; columns of the catalogue with values: "
                f"{these}"
            )


def _in_thirds(by: str, of_case: npt.NDArray[np.floating], about: str, unit: str = "") -> Slicing:
    """Slices with about a third of the cases each, named after the numbers in them."""
    known = of_case[np.isfinite(of_case)]
    edges = {edge for share in (1 / 3, 2 / 3) if (edge := _threshold(known, share)) is not None}
    bounds = [-np.inf, *sorted(edges), np.inf]
    slices = {}
    for low, high in pairwise(bounds):
        mask = (of_case >= low) & (of_case < high)
        if mask.any():
            ends = dict.fromkeys(map(_number, (of_case[mask].min(), of_case[mask].max())))
            slices[" to ".join(ends) + unit] = mask
    return _named(
        by, f"{about}, in slices of about a third of the cases.", {**slices, UNKNOWN: np.isnan(of_case)}
    )


def _number(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _threshold(values: Array, share: float) -> float | None:
    """Returns the number that about this share of the values reaches; None if all values are equal."""
    different, counts = np.unique(values, return_counts=True)
    if len(different) < 2:
        return None
    reached = counts[::-1].cumsum()[::-1] / len(values)
    return float(different[1:][np.abs(reached[1:] - share).argmin()])


def _named(by: str, about: str, masks: Mapping[str, Array]) -> Slicing:
    """Returns the slices that have cases."""
    return Slicing(by, about, {name: np.flatnonzero(mask) for name, mask in masks.items() if mask.any()})


def _mean_of(things: sparse.csr_matrix, values: Array) -> npt.NDArray[np.float64]:
    """Returns the mean of the values of each row's things; nan if none is known."""
    row = np.repeat(np.arange(things.shape[0]), np.diff(things.indptr))
    found = values[things.indices].astype(np.float64)
    known = np.isfinite(found)
    sums = np.bincount(row[known], found[known], things.shape[0])
    counts = np.bincount(row[known], minlength=things.shape[0])
    with np.errstate(invalid="ignore"):
        mean: npt.NDArray[np.float64] = sums / counts
    return mean
