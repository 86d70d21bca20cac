"""Ids in blocks give what ids all at once do: the same texts, the same order, every one in one range."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage.data.vocabulary import canonical_order
from bundlemage.engines.ray import ingest_ids as ids
from bundlemage.readers.values import encode, read_ids

texts = st.one_of(
    st.lists(st.integers(-(10**18) + 1, 10**18 - 1).map(str), min_size=1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    st.lists(
        st.sampled_from(["0", "-0", "00", "7", "-7", "a", "A", "é", "\U0001f600", "\uff41"]), min_size=1
    ),
)


@given(texts)
@settings(deadline=None)
def test_the_order_is_the_canonical_one(names: list[str]) -> None:
    column = pa.array(sorted(set(names), key=hash), pa.string())
    integers = ids.all_integers(column)
    assert column.take(pa.array(ids.order(column, integers))).to_pylist() == canonical_order(names)


@given(texts, st.integers(1, 6))
@settings(deadline=None)
def test_ranges_are_the_whole_in_order(names: list[str], ranges: int) -> None:
    column = pa.array(canonical_order(names), pa.string())
    integers = ids.all_integers(column)
    bounds = ids.boundaries(ids.sample(column, 20), ranges, integers)
    assert len(bounds) < ranges
    cuts = ids.cuts(column, bounds, integers)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(column)
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    for (_, stop), bound in zip(cuts[:-1], bounds, strict=True):  # where a range begins, all agree
        assert stop == len(column) or column[stop].as_py() == bound


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@given(
    st.lists(
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["a", "b "]))
    )
)
@settings(deadline=None)
def test_ids_are_read_as_the_local_reader_does(kind: Any, values: list[str | None]) -> None:
    half = len(values) // 2
    chunks = [pa.array(part, pa.string()).cast(kind) for part in (values[:half], values[half:])]
    column = pa.chunked_array(chunks, kind)
    found, problems = ids.read(column, "user_id", "user_item/", 5)
    expected, faults = read_ids(encode(column), "user_id", "user_item/", lambda row: row + 6)
    assert problems == faults
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.texts.take(pa.array(found.codes)).to_pylist() == values
        assert sorted(found.texts.to_pylist()) == sorted(expected.values)
        assert [values[row] for row in found.first_rows()] == found.texts.to_pylist()
        assert all(values[row] not in values[:row] for row in found.first_rows())


def test_ids_are_looked_up_part_by_part() -> None:
    parts = [(0, pa.array(["a", "b"])), (2, pa.array(["c"])), (3, pa.array([], pa.string()))]
    assert ids.look_up(pa.array(["c", "a", "b"]), parts, "x").tolist() == [2, 0, 1]
    with pytest.raises(Exception, match="changed while it was read"):
        ids.look_up(pa.array(["d"]), parts, "x")


def test_parts_of_a_column_become_one() -> None:
    one = ids.Ids(pa.array(["a", "b"]), np.array([0, 1, 0], np.int32))
    other = ids.Ids(pa.array(["c", "a"]), np.array([1, 0], np.int32))
    whole = ids.joined([one, other])
    assert whole.texts.take(pa.array(whole.codes)).to_pylist() == ["a", "b", "a", "a", "c"]
    assert len(whole.texts) == 3
