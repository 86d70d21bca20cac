"""Ragged rows against plain Python lists, and masks against what they promise."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bundlemage.models.ragged import Contents, Ragged, mask_each_row, mask_whole_batch

COLUMNS = 7
RATIOS = [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.9, 1.0]

Lists = list[list[int]]


def rows_of(ragged: Ragged) -> Lists:
    offsets = ragged.offsets.tolist()
    return [ragged.values[start:end].tolist() for start, end in pairwise(offsets)]


rows = st.lists(st.lists(st.integers(0, COLUMNS - 1), max_size=6, unique=True), max_size=8)
table = torch.arange(COLUMNS * 3, dtype=torch.float64).reshape(COLUMNS, 3) ** 1.5 + 1


class TestAgainstLists:
    @given(rows)
    @settings(deadline=None)
    def test_lists_in_lists_out(self, lists: Lists) -> None:
        ragged = Ragged.from_lists(lists)
        assert rows_of(ragged) == lists
        assert len(ragged) == len(lists)
        assert ragged.lengths.tolist() == [len(row) for row in lists]
        assert ragged.row_of_entry().tolist() == [number for number, row in enumerate(lists) for _ in row]

    @given(rows)
    @settings(deadline=None)
    def test_a_sparse_matrix_gives_its_rows(self, lists: Lists) -> None:
        dense = Ragged.from_lists(lists).as_mask(COLUMNS).int().numpy()
        assert rows_of(Ragged.from_csr(sparse.csr_matrix(dense))) == [sorted(row) for row in lists]

    @given(rows, st.data())
    @settings(deadline=None)
    def test_rows_come_in_the_order_asked_for(self, lists: Lists, data: st.DataObject) -> None:
        position = st.integers(0, len(lists) - 1)
        chosen = data.draw(st.lists(position, max_size=10) if lists else st.just([]))
        taken = Ragged.from_lists(lists).rows(torch.tensor(chosen, dtype=torch.int64))
        assert rows_of(taken) == [lists[number] for number in chosen]

    @given(rows, st.data())
    @settings(deadline=None)
    def test_keep_keeps_what_is_marked(self, lists: Lists, data: st.DataObject) -> None:
        marks = [[data.draw(st.booleans()) for _ in row] for row in lists]
        flat = torch.tensor([mark for row in marks for mark in row], dtype=torch.bool)
        expected = [
            [value for value, mark in zip(row, kept, strict=True) if mark]
            for row, kept in zip(lists, marks, strict=True)
        ]
        assert rows_of(Ragged.from_lists(lists).keep(flat)) == expected

    @given(rows, rows)
    @settings(deadline=None)
    def test_append_puts_one_after_the_other(self, first: Lists, second: Lists) -> None:
        joined = Ragged.from_lists(first).append(Ragged.from_lists(second))
        assert rows_of(joined) == first + second

    @given(rows)
    @settings(deadline=None)
    def test_mean_and_sum_of_each_row(self, lists: Lists) -> None:
        ragged = Ragged.from_lists(lists)
        sums = torch.stack([table[row].sum(0) for row in lists]) if lists else torch.empty(0, 3).double()
        counts = torch.tensor([[max(1, len(row))] for row in lists]).reshape(-1, 1)
        torch.testing.assert_close(ragged.sum_of(table), sums)
        torch.testing.assert_close(ragged.mean_of(table), sums / counts)

    @given(rows)
    @settings(deadline=None)
    def test_a_mask_marks_the_entries(self, lists: Lists) -> None:
        mask = Ragged.from_lists(lists).as_mask(COLUMNS)
        assert mask.tolist() == [[column in row for column in range(COLUMNS)] for row in lists]


class TestEmpty:
    @pytest.mark.parametrize("lists", [[], [[]], [[], [], []]])
    def test_empty_rows_have_zero_means(self, lists: Lists) -> None:
        ragged = Ragged.from_lists(lists)
        assert ragged.mean_of(table).tolist() == [[0.0] * 3] * len(lists)
        assert ragged.sum_of(table).tolist() == [[0.0] * 3] * len(lists)
        assert ragged.as_mask(0).shape == (len(lists), 0)
        assert ragged.rows(torch.empty(0, dtype=torch.int64)).lengths.tolist() == []

    def test_an_empty_row_passes_no_gradient_on(self) -> None:
        weights = torch.ones(2, 3, requires_grad=True)
        Ragged.from_lists([[], [1]]).mean_of(weights).sum().backward()  # type: ignore[no-untyped-call]
        assert weights.grad is not None
        assert weights.grad.tolist() == [[0.0] * 3, [1.0] * 3]

    @pytest.mark.parametrize("mask", [mask_each_row, mask_whole_batch])
    @pytest.mark.parametrize("lists", [[], [[]], [[], [3], []]])
    def test_masks_take_empty_rows(self, mask: type, lists: Lists) -> None:
        assert rows_of(mask(Ragged.from_lists(lists), 0.0)) == lists
        assert rows_of(mask(Ragged.from_lists(lists), 1.0)) == [[] for _ in lists]


class TestMasks:
    @given(rows, st.sampled_from(RATIOS), st.integers(0, 1000))
    @settings(max_examples=200, deadline=None)
    def test_each_row_loses_its_share_rounded_up_or_down(self, lists: Lists, ratio: float, seed: int) -> None:
        torch.manual_seed(seed)
        for before, after in zip(lists, rows_of(mask_each_row(Ragged.from_lists(lists), ratio)), strict=True):
            share = len(before) * ratio
            hidden = len(before) - len(after)
            assert math.floor(share + 1e-6) <= hidden <= math.ceil(share - 1e-6)

    @pytest.mark.parametrize("mask", [mask_each_row, mask_whole_batch])
    @given(rows, st.sampled_from(RATIOS), st.integers(0, 1000))
    @settings(deadline=None)
    def test_what_is_left_was_there_and_keeps_its_order(
        self, mask: type, lists: Lists, ratio: float, seed: int
    ) -> None:
        torch.manual_seed(seed)
        for before, after in zip(lists, rows_of(mask(Ragged.from_lists(lists), ratio)), strict=True):
            assert [value for value in before if value in after] == after

    @pytest.mark.parametrize("mask", [mask_each_row, mask_whole_batch])
    @pytest.mark.parametrize("length", [1, 2, 3, 7])
    @pytest.mark.parametrize("ratio", [0.1, 0.5, 0.7])
    def test_the_mean_loss_is_exact_for_short_rows_too(self, mask: type, length: int, ratio: float) -> None:
        torch.manual_seed(length)
        many = Ragged.from_lists([list(range(length))] * 20_000)
        left = mask(many, ratio).lengths.double().mean().item()
        assert left == pytest.approx(length * (1 - ratio), abs=5 * math.sqrt(length * 0.25 / 20_000))

    @pytest.mark.parametrize("mask", [mask_each_row, mask_whole_batch])
    def test_every_entry_is_hidden_as_often_as_every_other(self, mask: type) -> None:
        torch.manual_seed(0)
        left = mask(Ragged.from_lists([[0, 1, 2, 3, 4]] * 20_000), 0.5)
        shares = torch.bincount(left.values, minlength=5) / 20_000
        torch.testing.assert_close(shares, torch.full((5,), 0.5), atol=0.02, rtol=0)

    def test_the_batch_mask_may_take_all_or_nothing_of_a_row_and_the_row_mask_not(self) -> None:
        torch.manual_seed(0)
        many = Ragged.from_lists([[0, 1]] * 1000)
        assert set(mask_whole_batch(many, 0.5).lengths.tolist()) == {0, 1, 2}
        assert set(mask_each_row(many, 0.5).lengths.tolist()) == {1}

    def test_the_same_seed_hides_the_same(self) -> None:
        many = Ragged.from_lists([list(range(9))] * 50)
        for mask in (mask_each_row, mask_whole_batch):
            drawn = []
            for seed in (4, 4, 5):
                torch.manual_seed(seed)
                drawn.append(rows_of(mask(many, 0.5)))
            assert drawn[0] == drawn[1] != drawn[2]


sales = st.one_of(st.none(), st.integers(0, 99).map(float))
said = st.lists(st.tuples(st.lists(st.integers(0, COLUMNS - 1), max_size=6, unique=True), sales), max_size=8)
Said = list[tuple[list[int], float | None]]


def contents_of(rows: Said) -> Contents:
    expected = torch.tensor([math.nan if count is None else count for _, count in rows])
    return Contents.of(Ragged.from_lists([row for row, _ in rows]), expected)


def said_of(contents: Ragged) -> Said:
    assert isinstance(contents, Contents)
    counts = [None if math.isnan(count) else count for count in contents.expected_sales.tolist()]
    return list(zip(rows_of(contents), counts, strict=True))


class TestContents:
    """Rows with what is expected of them, against lists of both."""

    @given(said, st.data())
    @settings(deadline=None)
    def test_rows_bring_along_what_is_said_of_them(self, rows: Said, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
        found = contents_of(rows).rows(torch.tensor(chosen, dtype=torch.int64))
        assert said_of(found) == [rows[number] for number in chosen]

    @given(said, said)
    @settings(deadline=None)
    def test_append_keeps_what_is_said_of_both(self, first: Said, second: Said) -> None:
        assert said_of(contents_of(first).append(contents_of(second))) == first + second

    @given(rows, said)
    @settings(deadline=None)
    def test_nothing_is_said_of_plain_rows(self, plain: Lists, rows: Said) -> None:
        silent: Said = [(row, None) for row in plain]
        assert said_of(Ragged.from_lists(plain).append(contents_of(rows))) == silent + rows
        assert said_of(contents_of(rows).append(Ragged.from_lists(plain))) == rows + silent
        assert type(Ragged.from_lists(plain).append(Ragged.from_lists(plain))) is Ragged

    @given(said)
    @settings(deadline=None)
    def test_other_places_and_other_entries_change_nothing_of_it(self, rows: Said) -> None:
        contents = contents_of(rows)
        assert said_of(contents.to(torch.device("cpu"))) == rows
        none = contents.keep(torch.zeros(len(contents.values), dtype=torch.bool))
        assert said_of(none) == [([], count) for _, count in rows]
        assert Contents.of(contents) is contents
