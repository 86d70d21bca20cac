"""Adam over rows: PyTorch's own where everything is touched, and nothing at all where nothing is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bundlemage.training.steps import Adam

ROWS, DIM = 12, 3


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def sparse(rows: list[int], seed: int) -> Tensor:
    """A gradient of some rows; a row named twice counts twice."""
    values = torch.randn(len(rows), DIM, generator=torch.Generator().manual_seed(seed))
    where = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(where, values, (ROWS, DIM), check_invariants=True)


def assert_equal(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("rate", [0.001, 0.004])
class TestAsAdam:
    def test_dense_gradients(self, rate: float, decay: float) -> None:
        mine, theirs = parameters((4, 3), (5,), ()), parameters((4, 3), (5,), ())
        rows = Adam(mine, rate, decay)
        adam = torch.optim.Adam(theirs, lr=rate, weight_decay=decay)
        random = torch.Generator().manual_seed(1)
        for step in range(200):
            for one, other in zip(mine, theirs, strict=True):
                one.grad = torch.randn(one.shape, generator=random) * (0.1 if step % 3 else 10)
                other.grad = one.grad.clone()
            rows.step()
            adam.step()
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)

    def test_weights_that_have_no_gradient_now_and_then(self, rate: float, decay: float) -> None:
        mine, theirs = parameters((4, 3), (5,)), parameters((4, 3), (5,))
        rows = Adam(mine, rate, decay)
        adam = torch.optim.Adam(theirs, lr=rate, weight_decay=decay)
        for step in range(100):
            rows.forget_gradients()
            adam.zero_grad()
            for place in range(2):
                if (step + place) % 3:
                    mine[place].grad = torch.full_like(mine[place], step % 7 - 2.5)
                    theirs[place].grad = torch.full_like(mine[place], step % 7 - 2.5)
            rows.step()
            adam.step()
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)

    def test_sparse_gradients_that_touch_every_row(self, rate: float, decay: float) -> None:
        (mine,), (theirs,) = parameters((ROWS, DIM)), parameters((ROWS, DIM))
        rows = Adam([mine], rate, decay)
        adam = torch.optim.Adam([theirs], lr=rate, weight_decay=decay)
        for step in range(200):
            order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(step)).tolist()
            mine.grad = sparse([*order, order[0]], step)
            theirs.grad = mine.grad.to_dense()
            rows.step()
            adam.step()
        assert_equal(mine, theirs)

    def test_a_row_that_is_touched_now_and_then_is_adam_on_its_own_steps(
        self, rate: float, decay: float
    ) -> None:
        (mine,), (theirs,) = parameters((ROWS, DIM)), parameters((ROWS, DIM))
        rows = Adam([mine], rate, decay)
        alone = {row: nn.Parameter(theirs[row].detach().clone()) for row in range(ROWS)}
        adams = {row: torch.optim.Adam([alone[row]], lr=rate, weight_decay=decay) for row in alone}
        for step in range(60):
            touched = [row for row in range(ROWS) if (step + row) % (1 + row) == 0]
            mine.grad = sparse(touched, step)
            rows.step()
            for row in touched:
                alone[row].grad = mine.grad.to_dense()[row]
                adams[row].step()
        for row, weights in alone.items():
            assert_equal(mine[row], weights)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_steps_are_as_long_as_adams_from_the_first_on(is_sparse: bool) -> None:
    """1 − 0.999ⁿ keeps five digits of seven in float32 where n is small, unless care is taken."""
    mine, theirs = (nn.Parameter(torch.zeros(ROWS, DIM)) for _ in range(2))
    rows, adam = Adam([mine], 1.0), torch.optim.Adam([theirs], lr=1.0)
    for step in range(5):
        gradient = sparse(list(range(ROWS)), step)
        mine.grad, theirs.grad = gradient if is_sparse else gradient.to_dense(), gradient.to_dense()
        rows.step()
        adam.step()
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_rate_may_change_as_a_number_and_as_a_tensor(is_sparse: bool) -> None:
    (one,), (other,), (theirs,) = (parameters((ROWS, DIM)) for _ in range(3))
    number, tensor = Adam([one], 0.1), Adam([other], 0.1)
    tensor.rate = torch.tensor(0.1)
    adam = torch.optim.Adam([theirs], lr=0.1)
    for step, rate in enumerate((0.1, 0.01, 0.002, 0.0)):
        before = one.detach().clone()
        number.set_rate(rate)
        tensor.set_rate(rate)
        adam.param_groups[0]["lr"] = rate
        gradient = sparse(list(range(ROWS)), step)
        one.grad = other.grad = gradient if is_sparse else gradient.to_dense()
        theirs.grad = gradient.to_dense()
        for optimiser in (number, tensor, adam):
            optimiser.step()
        assert torch.equal(one, before) == (rate == 0)
    assert isinstance(tensor.rate, Tensor)
    assert_equal(one, other)
    torch.testing.assert_close(one, theirs, rtol=1e-5, atol=1e-5)


def touch(optimiser: Adam, parameter: nn.Parameter, rows: list[int], seed: int = 0) -> None:
    parameter.grad = sparse(rows, seed)
    optimiser.step()


def memory(optimiser: Adam, parameter: nn.Parameter) -> dict[str, int]:
    return {key: len(optimiser.state[parameter][key]) for key in ("mean", "square", "steps")}


class TestWhatIsNotTouched:
    def test_it_never_changes_and_is_not_remembered(self) -> None:
        (table,) = parameters((ROWS, DIM))
        before = table.detach().clone()
        optimiser = Adam([table], 0.1, weight_decay=0.1)
        for step in range(5):
            touch(optimiser, table, [2, 7], step)
        untouched = [row for row in range(ROWS) if row not in (2, 7)]
        assert torch.equal(table[untouched], before[untouched])
        assert not torch.isclose(table[[2, 7]], before[[2, 7]]).any()
        assert memory(optimiser, table) == {"mean": 2, "square": 2, "steps": 2}

    def test_memory_grows_with_what_is_touched_and_never_beyond_the_table(self) -> None:
        (table,) = parameters((ROWS, DIM))
        optimiser = Adam([table], 0.1)
        seen: set[int] = set()
        for step, rows in enumerate([[0], [0], [5, 3], [0, 5], [1], [2, 4, 6], list(range(ROWS)), [11]]):
            touch(optimiser, table, rows, step)
            seen |= set(rows)
            for length in memory(optimiser, table).values():
                assert len(seen) <= length <= min(ROWS, 2 * len(seen))

    def test_a_gradient_of_no_rows_changes_nothing(self) -> None:
        (table,) = parameters((ROWS, DIM))
        before = table.detach().clone()
        optimiser = Adam([table], 0.1)
        touch(optimiser, table, [])
        assert torch.equal(table, before)
        assert memory(optimiser, table) == {"mean": 0, "square": 0, "steps": 0}

    def test_no_gradient_no_step(self) -> None:
        (table,) = parameters((ROWS, DIM))
        before = table.detach().clone()
        optimiser = Adam([table], 0.1, weight_decay=0.1)
        optimiser.step()
        assert not optimiser.state
        assert torch.equal(table, before)

    def test_the_rows_of_the_last_step_and_how_often_each_moved(self) -> None:
        (table,) = parameters((ROWS, DIM))
        optimiser = Adam([table], 0.1)
        touch(optimiser, table, [5, 3])
        touch(optimiser, table, [9, 5, 5])
        moved = optimiser.rows_of(table)
        assert moved is not None
        rows, steps = moved
        assert dict(zip(rows.tolist(), steps.tolist(), strict=True)) == {5: 2, 9: 1}
        table.grad = torch.zeros(ROWS, DIM)
        assert optimiser.rows_of(table) is None  # all of them


STEPS = [[0, 4], [4], [9, 1, 4], [2], [0, 9, 11], [4, 3], list(range(ROWS))]


def go(optimiser: Adam, some: range) -> None:
    table, layer = optimiser.parameters
    for step in some:
        layer.grad = torch.randn(4, generator=torch.Generator().manual_seed(step))
        touch(optimiser, table, STEPS[step], step)


class TestSaved:
    def test_it_goes_on_as_if_nothing_had_been(self) -> None:
        optimiser = Adam(parameters((ROWS, DIM), (4,)), 0.1, weight_decay=0.01)
        go(optimiser, range(4))
        weights = [nn.Parameter(side.detach().clone()) for side in optimiser.parameters]
        copy = Adam(weights, 0.1, weight_decay=0.01)
        copy.load(optimiser.tensors())
        go(optimiser, range(4, 7))
        go(copy, range(4, 7))
        for one, other in zip(optimiser.parameters, copy.parameters, strict=True):
            assert torch.equal(one, other)
        first, second = optimiser.tensors(), copy.tensors()
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert all(first[name].dtype == second[name].dtype for name in first)

    def test_what_was_loaded_is_its_own(self) -> None:
        optimiser = Adam(parameters((ROWS, DIM), (4,)), 0.1)
        go(optimiser, range(3))
        kept = optimiser.tensors()
        before = {name: tensor.clone() for name, tensor in kept.items()}
        copy = Adam(parameters((ROWS, DIM), (4,)), 0.1)
        copy.load(kept)
        go(copy, range(7))
        assert all(torch.equal(kept[name], before[name]) for name in kept)

    def test_a_fresh_one_has_nothing_to_keep(self) -> None:
        assert Adam(parameters((ROWS, DIM)), 0.1).tensors() == {}

    def test_the_memory_of_other_weights_is_refused(self) -> None:
        optimiser = Adam(parameters((ROWS, DIM), (4,)), 0.1)
        go(optimiser, range(3))
        with pytest.raises(ValueError, match="shape"):
            Adam(parameters((ROWS, DIM + 1), (4,)), 0.1).load(optimiser.tensors())
        with pytest.raises(IndexError):
            Adam(parameters((ROWS, DIM)), 0.1).load(optimiser.tensors())
