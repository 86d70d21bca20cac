"""What is known about pairs: it follows them through splits, and nothing known changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset, binary_matrix, pairs_of
from bundlemage.data.events import DAY, UNDATED, Events, Whole

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=30)


def matrix_of(pairs: Pairs) -> Any:
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    return binary_matrix(rows, columns, (6, 8))


def facts_of(matrix: Any) -> Events:
    """Facts from which the pair can be read."""
    rows, columns = pairs_of(matrix)
    code = rows.astype(np.int64) * 8 + columns
    return Events((code + 100) * DAY, (code + 2).astype(np.float32))


@given(PAIRS, PAIRS)
def test_facts_follow_their_pairs_into_another_matrix(before: Pairs, after: Pairs) -> None:
    old, new = matrix_of(before), matrix_of(after)
    moved = facts_of(old).of(old, new)
    for place, (row, column) in enumerate(zip(*(each.tolist() for each in pairs_of(new)), strict=True)):
        known = (row, column) in before
        assert (moved.at[place] if moved.at is not None else UNDATED) == (
            (row * 8 + column + 100) * DAY if known else UNDATED
        )
        assert (moved.weight[place] if moved.weight is not None else 1) == (
            row * 8 + column + 2 if known else 1
        )
    moved.check(new, "user_item")


@given(PAIRS, st.permutations(range(8)), st.integers(0, 8))
def test_facts_follow_chosen_columns(pairs: Pairs, order: list[int], count: int) -> None:
    matrix, kept = matrix_of(pairs), np.array(order[:count], int)
    facts = facts_of(matrix).columns(matrix, kept)
    chosen = BundleDataset.numbered(matrix, matrix[:, kept], np.zeros((count, 8)))
    rows, columns = pairs_of(chosen.user_bundle)
    facts.check(chosen.user_bundle, "user_bundle")
    if len(rows) and facts.at is not None:
        assert (facts.at == (rows * 8 + kept[columns] + 100) * DAY).all()


def test_facts_that_say_nothing_are_none() -> None:
    facts = Events(np.full(3, UNDATED), np.ones(3, np.float32), binary_matrix([], [], (2, 2)))
    assert not facts
    assert (facts.at, facts.weight, facts.rejected) == (None, None, None)


def test_purchases_are_the_pairs_with_a_weight_of_one_or_more() -> None:
    strong = Events(weight=np.array([0.2, 1.0, 3.0], np.float32)).purchases
    assert strong is not None
    assert strong.tolist() == [False, True, True]
    assert Events(weight=np.array([0.2, 0.5], np.float32)).purchases is None
    assert Events(weight=np.array([1.5, 3.0], np.float32)).purchases is None
    assert Events().purchases is None


def test_newer_pairs_weigh_more() -> None:
    facts = Events(np.array([10 * DAY, 20 * DAY, UNDATED]), np.array([1, 3, 2], np.float32))
    assert facts.recent(10).tolist() == [0.5, 3, 1]
    part = replace(facts, whole=Whole(oldest=0, now=30 * DAY))
    assert part.recent(10).tolist() == [0.25, 1.5, 0.25]
    long_ago = replace(facts, whole=Whole(oldest=0, now=10_000 * DAY)).strengths(0.5)
    assert long_ago is not None
    assert long_ago.tolist() == [1, 3, 2]
    with pytest.raises(ValueError, match="no times"):
        Events().recent(10)


def test_a_data_set_checks_its_facts_and_counts_them_in_its_fingerprint() -> None:
    user_item, other = matrix_of([(0, 1), (2, 3)]), matrix_of([(0, 1)])
    plain = BundleDataset.numbered(user_item, user_item, np.zeros((8, 8)))
    weighted = replace(plain, item_events=Events(weight=np.array([1, 2], np.float32)))
    assert weighted.fingerprint() != plain.fingerprint()
    assert (
        replace(plain, item_events=Events(weight=np.ones(2, np.float32))).fingerprint() == plain.fingerprint()
    )
    assert weighted.with_interactions(user_item=other).item_events.weight is None
    with pytest.raises(ValueError, match="user_item has 2 pairs, but 3 weights"):
        replace(plain, item_events=Events(weight=np.array([1, 2, 3], np.float32)))
    with pytest.raises(ValueError, match="not a number above 0"):
        replace(plain, item_events=Events(weight=np.array([1, np.nan], np.float32)))
