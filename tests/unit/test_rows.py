"""Means over chosen rows, and the softmax loss over a catalogue, against slow versions of both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.models import losses
from bundlemage.models.losses import BLOCK_ENTRIES, Prior, multinomial_loss
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import Hidden, Ragged, mean_of_rows

COLUMNS, DIM = 7, 3
Lists = list[list[int]]
LISTS = st.lists(st.lists(st.integers(0, COLUMNS - 1), max_size=6, unique=True), min_size=1, max_size=8)
RATIOS = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
SEEDS = st.integers(0, 10_000)
quickly = settings(max_examples=60, deadline=None)


def table_of(seed: int, rows: int = COLUMNS, dim: int = DIM) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def drawn_index(data: st.DataObject, lists: Lists) -> Tensor:
    """Any rows, some of them several times."""
    chosen = st.lists(st.integers(0, len(lists) - 1), max_size=10)
    return torch.tensor(data.draw(chosen), dtype=torch.int64)


def drawn_without(data: st.DataObject, index: Tensor) -> Tensor | None:
    if data.draw(st.booleans()):
        return None
    column = st.integers(0, COLUMNS - 1)
    left_out = data.draw(st.lists(column, min_size=len(index), max_size=len(index)))
    return torch.tensor(left_out, dtype=torch.int64)


def left_in(lists: Lists, index: Tensor, without: Tensor | None) -> Lists:
    return [
        [value for value in lists[row] if without is None or value != int(without[place])]
        for place, row in enumerate(index.tolist())
    ]


def slow_mean(rows: Lists, table: Tensor) -> np.ndarray:
    vectors = table.numpy()
    means = [vectors[row].mean(0) if row else np.zeros(vectors.shape[1]) for row in rows]
    return np.stack(means) if means else np.zeros((0, vectors.shape[1]))


def shown(lists: Lists, index: Tensor, hidden: Hidden, without: Tensor | None, seed: int) -> Lists:
    """Which entries a look with this seed leaves: the mean over the rows of an identity matrix says it."""
    torch.manual_seed(seed)
    shares = mean_of_rows(Ragged.from_lists(lists), index, torch.eye(COLUMNS).double(), hidden, without)[0]
    return [np.flatnonzero(share).tolist() for share in shares.numpy()]


class TestMeans:
    @given(LISTS, st.data(), SEEDS)
    @quickly
    def test_as_a_slow_mean(self, lists: Lists, data: st.DataObject, seed: int) -> None:
        index = drawn_index(data, lists)
        without, table = drawn_without(data, index), table_of(seed)
        found = mean_of_rows(Ragged.from_lists(lists), index, table, without=without)[0]
        expected = slow_mean(left_in(lists, index, without), table)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)

    @given(LISTS, st.data(), RATIOS, st.booleans(), SEEDS)
    @quickly
    def test_with_entries_hidden_it_is_the_mean_of_the_others(
        self, lists: Lists, data: st.DataObject, ratio: float, each_row: bool, seed: int
    ) -> None:
        index, table, hidden = drawn_index(data, lists), table_of(seed), Hidden(ratio, each_row)
        without = drawn_without(data, index)
        kept, before = shown(lists, index, hidden, without, seed), left_in(lists, index, without)
        torch.manual_seed(seed)
        found = mean_of_rows(Ragged.from_lists(lists), index, table, hidden, without)[0]
        np.testing.assert_allclose(found.numpy(), slow_mean(kept, table), atol=1e-12)
        for some, everything in zip(kept, before, strict=True):
            assert set(some) <= set(everything)
            gone = len(everything) - len(some)
            if each_row:
                share = ratio * len(everything)
                assert math.floor(share + 1e-6) <= gone <= math.ceil(share - 1e-6)
            elif ratio in (0.0, 1.0):
                assert gone == ratio * len(everything)

    @given(LISTS, st.data(), RATIOS, st.booleans(), SEEDS)
    @quickly
    def test_the_gradient_hides_what_the_value_hid(
        self, lists: Lists, data: st.DataObject, ratio: float, each_row: bool, seed: int
    ) -> None:
        """The mean is A·table with an A that the seed fixes: ⟨up, A·t⟩ = ⟨Aᵀ·up, t⟩, for any other t too."""
        index, table = drawn_index(data, lists), table_of(seed).requires_grad_()
        without, hidden = drawn_without(data, index), Hidden(ratio, each_row)
        torch.manual_seed(seed)
        found = mean_of_rows(Ragged.from_lists(lists), index, table, hidden, without)[0]
        upstream = table_of(seed + 1, len(index))
        torch.rand(3)  # what is drawn between the value and its gradient does not matter
        (back,) = torch.autograd.grad(found, table, upstream)
        operator = np.zeros((len(index), COLUMNS))
        for place, kept in enumerate(shown(lists, index, hidden, without, seed)):
            operator[place, kept] = 1 / max(1, len(kept))
        np.testing.assert_allclose(back.numpy(), operator.T @ upstream.numpy(), atol=1e-12)
        one, other = (found.detach() * upstream).sum(), (back * table.detach()).sum()
        torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("each_row", [True, False])
    @pytest.mark.parametrize("ratio", [0.2, 0.5])
    def test_the_expected_share_is_hidden_anew_each_time(self, ratio: float, each_row: bool) -> None:
        rows, times = Ragged.from_lists([[0, 1, 2]]), 20_000
        torch.manual_seed(1)
        index = torch.zeros(times, dtype=torch.int64)
        shares = mean_of_rows(rows, index, torch.eye(3).double(), Hidden(ratio, each_row))[0]
        left = (shares > 0).double().mean(0)  # of each entry: one may not be luckier than another
        allowed = 5 * math.sqrt(0.25 / times)
        torch.testing.assert_close(left, torch.full((3,), 1 - ratio).double(), atol=allowed, rtol=0)
        again = mean_of_rows(rows, index, torch.eye(3).double(), Hidden(ratio, each_row))[0]
        assert not torch.equal(shares, again)

    def test_nothing_is_drawn_where_nothing_is_hidden(self) -> None:
        state = torch.get_rng_state()
        mean_of_rows(Ragged.from_lists([[0]]), torch.tensor([0]), table_of(0))[0]
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("lists", [[[]], [[], [], []]])
    @pytest.mark.parametrize("hidden", [Hidden(), Hidden(0.5), Hidden(0.5, each_row=True)])
    def test_empty_rows_are_zeros_and_pass_nothing_on(self, lists: Lists, hidden: Hidden) -> None:
        table, index = table_of(0).requires_grad_(), torch.arange(len(lists))
        for without in (None, torch.zeros_like(index)):
            found = mean_of_rows(Ragged.from_lists(lists), index, table, hidden, without)[0]
            assert found.tolist() == [[0.0] * DIM] * len(lists)
            (back,) = torch.autograd.grad(found.sum(), table)
            assert not back.any()

    def test_a_row_of_nothing_but_what_is_left_out_is_zeros(self) -> None:
        rows, index = Ragged.from_lists([[4]]), torch.tensor([0, 0])
        found = mean_of_rows(rows, index, table_of(0), without=torch.tensor([4, 3]))[0]
        assert found[0].tolist() == [0.0] * DIM
        torch.testing.assert_close(found[1], table_of(0)[4])


class TestSums:
    @given(LISTS, SEEDS)
    @quickly
    def test_both_ways_and_back(self, lists: Lists, seed: int) -> None:
        graph = Bipartite.of(Ragged.from_lists(lists), COLUMNS)
        dense = np.zeros((len(lists), COLUMNS))
        for number, row in enumerate(lists):
            dense[number, row] = 1
        for matrix, turn in ((dense, graph.sum_to_left), (dense.T, graph.sum_to_right)):
            table = table_of(seed, matrix.shape[1]).requires_grad_()
            found = turn(table)
            np.testing.assert_allclose(found.detach().numpy(), matrix @ table.detach().numpy(), atol=1e-12)
            upstream = table_of(seed + 1, matrix.shape[0])
            (back,) = torch.autograd.grad(found, table, upstream)
            np.testing.assert_allclose(back.numpy(), matrix.T @ upstream.numpy(), atol=1e-12)


def plain_loss(
    z: Tensor, table: Tensor, positives: Lists, weights: Tensor, prior: Prior | None = None
) -> Tensor:
    """The docstring's formula, a positive at a time, in whatever precision the arguments have."""
    logits = z @ table.T
    if prior is not None:
        logits = logits + prior.bias
        for row, chosen in enumerate(positives):
            logits[row, chosen] = logits[row, chosen] + prior.shift[chosen]
    shares = logits.log_softmax(1)
    total = shares.new_zeros(())
    for row, chosen in enumerate(positives):
        for value in chosen:
            total = total - weights[row] * shares[row, value]
    return total / max(1, len(z))


class Problem:
    """Some rows against a catalogue."""

    def __init__(self, seed: int, lists: Lists, index: Tensor | None, scale: float, biased: bool) -> None:
        random = np.random.default_rng(seed)
        rows = len(lists) if index is None else len(index)
        self.ragged, self.index = Ragged.from_lists(lists), index
        self.positives = lists if index is None else [lists[number] for number in index.tolist()]
        self.z = torch.from_numpy(random.normal(size=(rows, DIM)) * scale)
        self.table = torch.from_numpy(random.normal(size=(COLUMNS, DIM)) * scale)
        self.weights = torch.from_numpy(random.random(rows) + 0.1)
        self.bias = torch.from_numpy(random.normal(size=COLUMNS) * 2) if biased else None
        self.shift = torch.from_numpy(-random.random(COLUMNS))

    def solve(self, fast: bool, kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and its gradients by both sides."""
        z, table = (side.to(kind).requires_grad_() for side in (self.z, self.table))
        weights = self.weights.to(kind)
        prior = None if self.bias is None else Prior(self.bias.to(kind), self.shift.to(kind))
        if fast:
            loss = multinomial_loss(z, table, self.ragged, weights, self.index, prior)
        else:
            loss = plain_loss(z, table, self.positives, weights, prior)
        if not loss.requires_grad:
            return loss, torch.zeros_like(z), torch.zeros_like(table)
        by_z, by_table = torch.autograd.grad(loss, (z, table), torch.tensor(1.7, dtype=kind))
        return loss.detach(), by_z, by_table


def assert_close(
    found: tuple[Tensor, ...], expected: tuple[Tensor, ...], *, rtol: float, atol: float
) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol)


class TestMultinomial:
    @given(
        LISTS, st.data(), st.booleans(), st.sampled_from([0.3, 1.0, 4.0]), st.sampled_from([1, 7, 20, 2**24])
    )
    @settings(max_examples=100, deadline=None)
    def test_value_and_gradients_are_those_of_the_formula(
        self, lists: Lists, data: st.DataObject, biased: bool, scale: float, entries: int
    ) -> None:
        index = drawn_index(data, lists) if data.draw(st.booleans()) else None
        problem = Problem(data.draw(SEEDS), lists, index, scale, biased)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(BLOCK_ENTRIES, "cpu", entries)
            patch.setattr("bundlemage.models.losses.FEWEST_ROWS", 1)
            found = problem.solve(fast=True)
        assert_close(found, problem.solve(fast=False), rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("biased", [False, True])
    @pytest.mark.parametrize("length", [30.0, 59.0, 61.0, 300.0, 5000.0])
    def test_logits_of_any_size_in_float32(self, length: float, biased: bool) -> None:
        lists = [[0, 1], [2], [], [3, 4, 5, 6]]
        problem = Problem(5, lists, None, 1.0, biased)
        longest = float(problem.z.norm(dim=1).amax() * problem.table.norm(dim=1).amax())
        problem.z = (problem.z * (length / longest)).float().double()
        problem.table = problem.table.float().double()
        problem.bias = None if problem.bias is None else problem.bias.float().double()
        found = problem.solve(fast=True, kind=torch.float32)
        assert_close(found, problem.solve(fast=False), rtol=1e-4, atol=length * 1e-5)

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_a_bias_alone_may_be_large(self, sign: float) -> None:
        problem = Problem(6, [[0], [1, 2]], None, 0.1, True)
        assert problem.bias is not None
        problem.bias = (problem.bias + sign * 300).float().double()
        found = problem.solve(fast=True, kind=torch.float32)
        assert_close(found, problem.solve(fast=False), rtol=1e-4, atol=1e-3)

    def test_the_safe_path_is_taken_where_it_is_safe_and_nowhere_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the bound at infinity large logits overflow, so the shifted path is what saved them."""
        problem = Problem(5, [[0, 1], [2]], None, 20.0, False)
        assert all(part.isfinite().all() for part in problem.solve(fast=True, kind=torch.float32))
        monkeypatch.setattr(losses, "SAFE_EXPONENT", math.inf)
        assert not all(part.isfinite().all() for part in problem.solve(fast=True, kind=torch.float32))

    @pytest.mark.parametrize("index", [None, torch.tensor([0, 1, 1])])
    def test_rows_without_positives_add_nothing(self, index: Tensor | None) -> None:
        lists: Lists = [[], [], []]
        loss, by_z, by_table = Problem(1, lists, index, 1.0, True).solve(fast=True)
        assert loss.item() == 0
        assert not by_z.any()
        assert not by_table.any()

    def test_the_mean_counts_rows_without_positives(self) -> None:
        with_empty = Problem(1, [[2], []], None, 1.0, False)
        alone = Problem(1, [[2]], None, 1.0, False)
        alone.z, alone.table, alone.weights = with_empty.z[:1], with_empty.table, with_empty.weights[:1]
        assert with_empty.solve(fast=True)[0].item() == pytest.approx(alone.solve(fast=True)[0].item() / 2)

    def test_an_empty_catalogue_and_an_empty_batch(self) -> None:
        for rows, members in ((2, 0), (0, 4), (0, 0)):
            z = torch.randn(rows, DIM, requires_grad=True)
            table = torch.randn(members, DIM, requires_grad=True)
            positives = Ragged.from_lists([[] for _ in range(rows)])
            loss = multinomial_loss(z, table, positives, torch.ones(rows))
            by_z, by_table = torch.autograd.grad(loss, (z, table))
            assert loss.item() == 0
            assert (by_z.shape, by_table.shape) == (z.shape, table.shape)
            assert not by_z.any()
            assert not by_table.any()

    @pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
    @pytest.mark.parametrize("entries", [1, COLUMNS * 60, COLUMNS * 65, COLUMNS * 128])
    def test_blocks_of_any_size_change_nothing(
        self, rows: int, entries: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        random = np.random.default_rng(rows)
        lists = [random.choice(COLUMNS, random.integers(0, 5), replace=False).tolist() for _ in range(rows)]
        problem = Problem(2, lists, None, 1.0, True)
        expected = problem.solve(fast=True)
        monkeypatch.setitem(BLOCK_ENTRIES, "cpu", entries)
        monkeypatch.setattr("bundlemage.models.losses.FEWEST_ROWS", 1)
        assert_close(problem.solve(fast=True), expected, rtol=1e-11, atol=1e-12)
