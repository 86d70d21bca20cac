"""Ids in blocks: as text, in order, divided into ranges, and looked up. Never all ids in one process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bundlemage.data.vocabulary import INTEGER
from bundlemage.errors import DataError, Problem
from bundlemage.readers.values import Codes, encode, read_ids

Order = npt.NDArray[np.int64]

# Letters, figures and signs, with no space at either end. An id with anything else is looked at singly.
_SURELY_GOOD = r"^[!-~]([ -~]*[!-~])?$"


@dataclass(frozen=True)
class Ids:
    """A column of good ids: row n holds `texts[codes[n]]`."""

    texts: pa.Array
    codes: Codes

    def first_rows(self) -> Order:
        """The first row of each id."""
        first = np.empty(len(self.texts), np.int64)
        first[self.codes[::-1]] = np.arange(len(self.codes))[::-1]
        return first


def read(column: pa.ChunkedArray, name: str, where: str, first: int) -> tuple[Ids | None, list[Problem]]:
    """As the local reader reads them; `first` is the row of the whole table with which the column begins."""
    quick = _quick(column)
    if quick is not None:
        return quick, []
    good, problems = read_ids(encode(column), name, where, lambda row: first + row + 1)
    if good is None:
        return None, problems
    return Ids(pa.array(good.values, pa.string()), good.codes), problems


def _quick(column: pa.ChunkedArray) -> Ids | None:
    """Whole numbers, and texts that are surely good, without a look at each in Python."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.null_count or not len(column) or not (text or pa.types.is_integer(kind)):
        return None
    try:
        encoded = column.unify_dictionaries() if kind != column.type else column.dictionary_encode()
        values = encoded.chunk(0).dictionary.cast(pa.string())
    except pa.ArrowException:
        return None
    if values.null_count or (text and not pc.all(pc.match_substring_regex(values, _SURELY_GOOD)).as_py()):
        return None
    codes = np.concatenate([chunk.indices.cast(pa.int32()).to_numpy() for chunk in encoded.chunks])
    return _distinct(values, codes)


def _distinct(values: pa.Array, codes: Codes) -> Ids:
    """Each text once, and only those that a row holds."""
    unique = values.dictionary_encode()
    codes = unique.indices.to_numpy()[codes]
    used = np.bincount(codes, minlength=len(unique.dictionary)) > 0
    if used.all():
        return Ids(unique.dictionary, codes.astype(np.int32, copy=False))
    renumbered = (np.cumsum(used) - 1).astype(np.int32)
    return Ids(unique.dictionary.filter(pa.array(used)), renumbered[codes])


def joined(parts: Sequence[Ids]) -> Ids:
    """Parts of a column one after another."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.texts) for part in parts)])
    codes = np.concatenate([part.codes + start for part, start in zip(parts, starts[:-1], strict=True)])
    return _distinct(pa.concat_arrays([part.texts for part in parts]), codes)


def all_integers(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, f"^({INTEGER})$")).as_py()) or not len(texts)


def order(texts: pa.Array, integers: bool) -> Order:
    """Where each id of the canonical order stands in `texts`; see `canonical_order`."""
    if integers:
        return np.argsort(texts.cast(pa.int64()).to_numpy(), kind="stable")
    found: Order = pc.sort_indices(texts).to_numpy().astype(np.int64)
    return found


def boundaries(samples: Iterable[str], ranges: int, integers: bool) -> list[str]:
    """Ids at which the ranges after the first begin, so that each gets about as many of the samples."""
    ordered = sorted(samples, key=int) if integers else sorted(samples)
    picked = [ordered[number * len(ordered) // ranges] for number in range(1, ranges)] if ordered else []
    return list(dict.fromkeys(picked))


def cuts(ordered: pa.Array, bounds: Sequence[str], integers: bool) -> list[tuple[int, int]]:
    """From where to where each range goes in ids that are in order."""
    key: Any = (lambda text: int(text.as_py())) if integers else (lambda text: text.as_py())
    wanted = [int(bound) if integers else bound for bound in bounds]
    places = [0, *(bisect_left(ordered, bound, key=key) for bound in wanted), len(ordered)]
    return list(pairwise(places))


def sample(texts: pa.Array, most: int) -> list[str]:
    """Some of the ids, evenly spread over where they were found."""
    places = np.unique(np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(np.int64))
    found: list[str] = texts.take(pa.array(places)).to_pylist() if len(texts) else []
    return found


def look_up(texts: pa.Array, vocabulary: Iterable[tuple[int, pa.Array]], where: str) -> npt.NDArray[np.int32]:
    """The position of each id; the vocabulary comes part by part, each with its first position."""
    found = np.full(len(texts), -1, np.int32)
    for first, part in vocabulary:
        place = pc.index_in(texts, value_set=part)
        found = np.where(place.is_valid(), place.fill_null(0).to_numpy() + first, found).astype(np.int32)
    if (found < 0).any():
        raise changed(where)
    return found


def changed(where: str) -> DataError:
    """For tables that are not what they were when they were checked."""
    message = "the table was changed while it was read"
    return DataError(Problem("changed", where, message, "Begin again when nothing writes to it"))
