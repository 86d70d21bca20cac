"""Batches: every row once, or no more than so many of each bundle, in an order that is drawn anew."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.errors import ConfigError
from bundlemage.models.base import Interactions, Over, Phase
from bundlemage.models.ragged import Ragged
from bundlemage.training.steps import Rows

OVERS: dict[Over, int] = {
    "users": 4, "items": 6, "bundles": 3, "user_item": 5, "user_bundle": 7, "bundle_item": 6,
}  # fmt: skip


def shop(user_bundle: list[list[int]] | None = None) -> Interactions:
    return Interactions(
        Ragged.from_lists([[0, 1], [2], [], [3, 4]]),
        Ragged.from_lists([[0, 1], [0], [0, 2], [0, 1]] if user_bundle is None else user_bundle),
        Ragged.from_lists([[0, 1, 2], [5], [3, 4]]),
        6,
    )


def epoch(rows: Rows, batch_size: int = 3) -> Tensor:
    batches = rows.shuffled(batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(0 < len(batch) <= batch_size for batch in batches)
    return torch.cat([torch.empty(0, dtype=torch.int64), *batches])


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_row_comes_once(over: Over, batch_size: int) -> None:
    rows = Rows(Phase("any", over), shop())
    assert len(rows) == OVERS[over]
    for _ in range(3):
        assert sorted(epoch(rows, batch_size).tolist()) == list(range(OVERS[over]))


@given(
    st.lists(st.lists(st.integers(0, 5), unique=True, max_size=6), max_size=12),
    st.integers(1, 5),
    st.integers(1, 9),
)
@settings(max_examples=80, deadline=None)
def test_of_each_bundle_as_many_as_there_are_and_no_more_than_asked_for(
    user_bundle: list[list[int]], at_most: int, batch_size: int
) -> None:
    data = shop(user_bundle)
    rows = Rows(Phase("any", "user_bundle", at_most=at_most), data)
    pairs = epoch(rows, batch_size)
    assert len(pairs) == len(rows)
    assert len(set(pairs.tolist())) == len(pairs)
    every = Counter(data.user_bundle.values.tolist())
    drawn = Counter(data.user_bundle.values[pairs].tolist())
    assert drawn == {bundle: min(at_most, times) for bundle, times in every.items()}


@pytest.mark.parametrize("at_most", [1, 2])
def test_every_pair_comes_up_as_often_as_every_other_of_its_bundle(at_most: int) -> None:
    torch.manual_seed(0)
    data = shop([[0], [0, 1], [1, 0], [0], [0]])
    rows, came, times = Rows(Phase("any", "user_bundle", at_most=at_most), data), Counter[int](), 3000
    for _ in range(times):
        came.update(epoch(rows).tolist())
    for pair, bundle in enumerate(data.user_bundle.values.tolist()):
        share = min(1.0, at_most / (5 if bundle == 0 else 2))
        assert came[pair] / times == pytest.approx(share, abs=5 * (0.25 / times) ** 0.5)


@pytest.mark.parametrize("at_most", [None, 2])
def test_the_order_is_drawn_anew_and_follows_the_seed(at_most: int | None) -> None:
    data = shop([[bundle % 7, 7] for bundle in range(60)])
    rows = Rows(Phase("any", "user_bundle", at_most=at_most), data)
    torch.manual_seed(5)
    first, second = epoch(rows), epoch(rows)
    torch.manual_seed(5)
    again = epoch(rows)
    assert first.tolist() == again.tolist() != second.tolist()
    assert first.tolist() != sorted(first.tolist())
    # Nor do the pairs of one bundle come together: as many neighbours are of one bundle as by chance.
    bundles = data.user_bundle.values[first]
    assert int((bundles[1:] == bundles[:-1]).sum()) < len(bundles) * 0.75


def test_where_no_bundle_has_more_at_most_changes_nothing() -> None:
    rows = Rows(Phase("any", "user_bundle", at_most=4), shop())
    assert len(rows) == 7
    assert sorted(epoch(rows).tolist()) == list(range(7))


def test_nothing_to_draw_from_gives_no_batch() -> None:
    for at_most in (None, 2):
        rows = Rows(Phase("any", "user_bundle", at_most=at_most), shop([[], []]))
        assert len(rows) == 0
        assert rows.shuffled(4) == ()


@pytest.mark.parametrize("over", ["users", "items", "bundles"])
def test_at_most_of_what_is_no_pair_is_refused(over: Over) -> None:
    with pytest.raises(ConfigError, match="only phases that run over pairs can have at_most"):
        Rows(Phase("any", over, at_most=2), shop())
