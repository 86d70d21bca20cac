"""The best of many candidates: as a plain stable sort finds them, whatever the shape and the layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.core.ranking import Ranker, Ranking, top
from bundlemage.models.ragged import Ragged

FEW = st.sampled_from([-torch.inf, -2.5, 0.0, 1.0, 1e-30, 7.0])
"""So few values that there are ties everywhere."""
MANY = st.one_of(st.floats(-1e3, 1e3, width=32), st.just(-torch.inf))


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 150))
    value = draw(st.sampled_from([FEW, MANY]))
    values = draw(st.lists(value, min_size=rows * columns, max_size=rows * columns))
    table = torch.tensor(values, dtype=draw(st.sampled_from([torch.float32, torch.float64])))
    return table.view(columns, rows).T if draw(st.booleans()) else table.view(rows, columns)


@settings(deadline=None, max_examples=300)
@given(tables(), st.integers(1, 160))
def test_the_highest_are_those_of_a_stable_sort(table: Tensor, k: int) -> None:
    k = min(k, table.shape[1])
    values, positions = top(table, k)
    expected, order = table.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :k])
    shown = torch.isfinite(values)  # which of the hidden ones come last does not matter
    assert torch.equal(positions[shown], order[:, :k][shown])
    assert all(len(set(row)) == k for row in positions.tolist()), "no position comes twice"


def test_wide_rows_are_searched_by_groups_with_the_same_result() -> None:
    torch.manual_seed(0)
    table = torch.randn(7, 10_007)
    table[:, -3:] += 9  # what is left over when columns are put in groups is looked at as well
    table[1, ::2] = 4.5
    values, positions = top(table, 20)
    expected, order = table.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :20])
    assert torch.equal(positions, order[:, :20])


def rank(scores: Tensor, k: int = 3, **others: Any) -> Ranking:
    columns = scores.shape[1]
    asked: dict[str, Any] = {"shares": torch.zeros(columns), "hidden": torch.zeros(columns)} | others
    popular = torch.tensor(asked.get("popular", [False] * len(scores)))
    return Ranker(asked["shares"], asked["hidden"]).rank(scores, popular, asked.get("hide", []), k)


class TestRanker:
    def test_chances_are_over_all_candidates_the_hidden_ones_too(self) -> None:
        scores = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
        found = rank(scores, 4, hide=[Ragged.from_lists([[2]])], hidden=torch.tensor([0, 0, 0, -torch.inf]))
        assert found.counts.tolist() == [2]
        assert found.positions[0, :2].tolist() == [1, 0]
        assert torch.equal(found.chances[0, :2], scores.softmax(1)[0, [1, 0]])

    def test_popular_rows_are_ranked_by_sales(self) -> None:
        scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
        shares = torch.tensor([0.25, 0.25, 0.5])
        found = rank(scores, shares=shares, popular=[True, False])
        assert found.positions.tolist() == [[2, 0, 1], [0, 1, 2]]
        assert found.chances[0].tolist() == [0.5, 0.25, 0.25]

    def test_hidden_holds_for_popular_rows(self) -> None:
        hidden = torch.tensor([0, -torch.inf, 0])
        found = rank(torch.zeros(1, 3), shares=torch.tensor([0.2, 0.8, 0.0]), hidden=hidden, popular=[True])
        assert found.positions[0, :2].tolist() == [0, 2]
        assert found.counts.tolist() == [2]

    def test_what_is_no_candidate_can_be_hidden_as_well(self) -> None:
        found = rank(torch.tensor([[1.0, 2.0]]), hide=[Ragged.from_lists([[5, 1]])])
        assert (found.counts.tolist(), found.positions[0, 0].item()) == ([1], 0)

    @pytest.mark.parametrize(
        "scores",
        [
            torch.arange(12.0).view(3, 4),
            torch.arange(12.0).view(4, 3).T,
            torch.arange(4.0).expand(3, 4),
            torch.arange(30.0).view(3, 10)[:, 2:6],
            torch.arange(12.0, dtype=torch.float64).view(3, 4),
        ],
        ids=["rows", "columns", "one row for all", "a part", "double"],
    )
    def test_scores_are_only_read_whatever_their_layout(self, scores: Tensor) -> None:
        before = scores.clone()
        found = rank(scores, 2, hide=[Ragged.from_lists([[0, 3], [1], []])], popular=[False, False, True])
        assert torch.equal(scores, before)
        assert found.positions[:2].tolist() == [[2, 1], [3, 2]]
        assert torch.equal(found.chances[1], before.softmax(1)[1, [3, 2]])

    def test_batches_of_other_sizes_do_not_disturb_each_other(self) -> None:
        torch.manual_seed(1)
        ranker = Ranker(torch.zeros(50), torch.zeros(50))
        found = []
        batches = [torch.randn(rows, 50) for rows in (8, 3, 1, 9)]
        for scores in batches:
            owned = Ragged.from_lists([[row] for row in range(len(scores))])
            found.append(ranker.rank(scores, torch.zeros(len(scores), dtype=torch.bool), [owned], 5))
        for scores, ranking in zip(batches, found, strict=True):
            order = scores.clone().fill_diagonal_(-torch.inf)
            assert torch.equal(ranking.positions, order.topk(5).indices)
            assert torch.equal(ranking.chances, scores.softmax(1).gather(1, ranking.positions))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_what_ranks_last_has_the_same_order_as_without_the_rule(data: st.DataObject) -> None:
    """Also if some scores are -∞, as those of the items that are in the bundle already, and if scores differ
    by very little or very much."""
    columns = data.draw(st.integers(1, 12))
    value = st.sampled_from([-torch.inf, -800.0, -3.0, 0.0, 0.001, 0.002, 0.003, 60.0])
    flags = st.lists(st.booleans(), min_size=columns, max_size=columns)
    scores = torch.tensor([data.draw(st.lists(value, min_size=columns, max_size=columns))])
    shares = torch.arange(float(columns)).flip(0)
    hidden = torch.tensor([-torch.inf if each else 0.0 for each in data.draw(flags)])
    last = torch.tensor(data.draw(flags))
    popular = torch.tensor([data.draw(st.booleans())])
    k = data.draw(st.integers(1, 13))
    usual = Ranker(shares, hidden).rank(scores, popular, [], columns)
    available = hidden.masked_fill(last, -torch.inf)
    found = Ranker(shares, hidden, None, available).rank(scores, popular, [], k)
    everything = usual.positions[0, : usual.counts[0]].tolist()
    expected = sorted(everything, key=lambda place: bool(last[place]))[:k]
    assert found.positions[0, : found.counts[0]].tolist() == expected
