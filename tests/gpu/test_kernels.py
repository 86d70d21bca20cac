"""Our kernels against the plain PyTorch that says what they compute, which the other tests check on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from bundlemage.models import losses
from bundlemage.models.losses import Prior, multinomial_loss
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import NOTHING, Hidden, Ragged, kernels_for, mean_of_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

ROWS, COLUMNS, ASKED = 300, 700, 150
DIMS = [8, 200, 400, 600]
"""Less than a kernel's width, within it, and beyond it."""
CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Shop:
    lists: list[list[int]]
    index: Tensor
    """Rows, some several times."""
    without: Tensor
    """For each of them a value that it holds, if it holds any."""

    def on(self, device: torch.device | None = None) -> Bipartite:
        return Bipartite.of(Ragged.from_lists(self.lists, device), COLUMNS)


@pytest.fixture(scope="module")
def shop() -> Shop:
    random = np.random.default_rng(0)
    lists = [
        sorted(random.choice(COLUMNS, random.integers(0, 60), replace=False).tolist()) for _ in range(ROWS)
    ]
    lists[7] = []
    index = random.integers(0, ROWS, ASKED)
    index[:3] = 7
    without = [lists[row][len(lists[row]) // 2] if lists[row] else 0 for row in index]
    return Shop(lists, torch.from_numpy(index), torch.tensor(without))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on_both(
    compute: Callable[[Tensor, torch.device | None], Tensor], table: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The value and the gradient by the table: on the CPU, and on the GPU brought back from there."""
    found = []
    for device in (None, CUDA):
        mine = table.to(device or "cpu").clone().requires_grad_()
        value = compute(mine, device)
        upstream = drawn(*value.shape, seed=1)
        (slope,) = torch.autograd.grad(value, mine, upstream.to(value.device))
        found.append((value.detach().cpu(), slope.cpu()))
    return found[0], found[1]


def test_float32_on_a_gpu_has_kernels_and_nothing_else_has() -> None:
    assert kernels_for(torch.zeros(1, device=CUDA)) is not None
    assert kernels_for(torch.zeros(1, device=CUDA, dtype=torch.float64)) is None
    assert kernels_for(torch.zeros(1, device=CUDA, dtype=torch.int32)) is None
    assert kernels_for(torch.zeros(1)) is None


class TestMeans:
    @pytest.mark.parametrize("dim", DIMS)
    @pytest.mark.parametrize("leaves_out", [False, True])
    def test_as_on_the_cpu(self, shop: Shop, dim: int, leaves_out: bool) -> None:
        def compute(table: Tensor, device: torch.device | None) -> Tensor:
            where = table.device
            without = shop.without.to(where) if leaves_out else None
            return mean_of_rows(shop.on(device).left, shop.index.to(where), table, NOTHING, without)[0]

        (value, slope), (gpu_value, gpu_slope) = on_both(compute, drawn(COLUMNS, dim))
        torch.testing.assert_close(gpu_value, value, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gpu_slope, slope, atol=1e-5, rtol=1e-5)
        assert not gpu_value[:3].any()  # a row that holds nothing

    @pytest.mark.parametrize("dim", DIMS)
    @pytest.mark.parametrize("each_row", [False, True])
    def test_the_gradient_hides_what_the_value_hid(self, shop: Shop, dim: int, each_row: bool) -> None:
        """⟨up, A·t⟩ = ⟨Aᵀ·up, t⟩, where A is what the seed left of the mean."""
        table, index = drawn(COLUMNS, dim).to(CUDA).requires_grad_(), shop.index.to(CUDA)
        without = shop.without.to(CUDA)
        found = mean_of_rows(shop.on(CUDA).left, index, table, Hidden(0.5, each_row), without)[0]
        upstream = drawn(ASKED, dim, seed=1).to(CUDA)
        (slope,) = torch.autograd.grad(found, table, upstream)
        one = float((found.detach().double() * upstream).sum())
        other = float((slope.double() * table.detach()).sum())
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)

    def test_the_share_that_is_hidden(self, shop: Shop) -> None:
        rows, index = shop.on(CUDA).left, shop.index.to(CUDA)
        everything = torch.eye(COLUMNS, device=CUDA)  # so that a mean tells which entries it is of
        whole = mean_of_rows(rows, index, everything)[0] > 0
        for ratio in (0.2, 0.5, 0.9):
            torch.manual_seed(3)
            left = mean_of_rows(rows, index, everything, Hidden(ratio))[0] > 0
            assert not (left & ~whole).any()
            entries = int(whole.sum())
            allowed = 5 * (0.25 / entries) ** 0.5
            assert int(left.sum()) / entries == pytest.approx(1 - ratio, abs=allowed)
        assert not mean_of_rows(rows, index, everything, Hidden(1.0))[0].any()

    def test_what_is_hidden_follows_the_seed_and_differs_between_rows(self, shop: Shop) -> None:
        rows, everything = shop.on(CUDA).left, torch.eye(COLUMNS, device=CUDA)
        longest = max(range(ROWS), key=lambda row: len(shop.lists[row]))
        index = torch.full((20,), longest, device=CUDA)
        found = []
        for seed in (4, 4, 5):
            torch.manual_seed(seed)
            found.append(mean_of_rows(rows, index, everything, Hidden(0.5))[0])
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])
        assert len({tuple(row) for row in (found[0] > 0).int().cpu().tolist()}) > 10

    def test_a_gradient_is_the_same_to_the_bit_each_time(self, shop: Shop) -> None:
        """Many rows add to one vector, in whatever order the GPU comes to them."""
        index, rows = torch.arange(ROWS, device=CUDA).repeat(20), shop.on(CUDA).left
        table = drawn(COLUMNS, 200).to(CUDA).requires_grad_()
        upstream = drawn(len(index), 200, seed=1).to(CUDA)
        slopes = [
            torch.autograd.grad(mean_of_rows(rows, index, table)[0], table, upstream)[0] for _ in range(5)
        ]
        assert all(torch.equal(slope, slopes[0]) for slope in slopes)

    def test_a_long_row_and_no_row(self) -> None:
        lists = [list(range(5000)), [3]]
        table = drawn(5000, 40)
        value = mean_of_rows(
            Ragged.from_lists(lists, CUDA), torch.tensor([0, 1, 0], device=CUDA), table.to(CUDA)
        )[0].cpu()
        torch.testing.assert_close(value[0], table.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(value[1], table[3])
        assert torch.equal(value[0], value[2])
        nobody = torch.empty(0, dtype=torch.int64, device=CUDA)
        leaf = table.to(CUDA).requires_grad_()
        nothing = mean_of_rows(Ragged.from_lists(lists, CUDA), nobody, leaf)[0]
        assert nothing.shape == (0, 40)
        assert not torch.autograd.grad(nothing.sum(), leaf)[0].any()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("to_left", [False, True])
def test_sums_over_neighbours(shop: Shop, dim: int, to_left: bool) -> None:
    def compute(table: Tensor, device: torch.device | None) -> Tensor:
        graph = shop.on(device)
        return graph.sum_to_left(table) if to_left else graph.sum_to_right(table)

    (value, slope), (gpu_value, gpu_slope) = on_both(compute, drawn(COLUMNS if to_left else ROWS, dim))
    torch.testing.assert_close(gpu_value, value, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gpu_slope, slope, atol=1e-4, rtol=1e-5)


Found = tuple[Tensor, Tensor, Tensor]


def softmax(
    shop: Shop, device: torch.device | None, catalogue: int = COLUMNS, dim: int = 200, scale: float = 0.3,
    biased: bool = False, kind: torch.dtype = torch.float32,
) -> Found:  # fmt: skip
    """The loss and its gradients, by z and by the table."""
    lists = [[value for value in row if value < catalogue] for row in shop.lists]
    z, table = (drawn(rows, dim, seed=rows) * scale for rows in (ASKED, catalogue))
    weights = torch.rand(ASKED, generator=torch.Generator().manual_seed(2))
    bias, shift = drawn(catalogue, seed=5) * 2, -drawn(catalogue, seed=6).abs()
    where = device or torch.device("cpu")
    z, table = (side.to(where, kind).requires_grad_() for side in (z, table))
    found = multinomial_loss(
        z, table, Ragged.from_lists(lists, device), weights.to(where, kind), shop.index.to(where),
        Prior(bias.to(where, kind), shift.to(where, kind)) if biased else None,
    )  # fmt: skip
    by_z, by_table = torch.autograd.grad(found, (z, table))
    return found.detach().cpu(), by_z.cpu(), by_table.cpu()


def distance(one: Tensor, other: Tensor) -> float:
    """As a share of the length of the other."""
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))


class TestSoftmax:
    """bfloat16 has 8 bits: an input is off by up to 0.4 %, in either direction."""

    @pytest.mark.parametrize("biased", [False, True])
    @pytest.mark.parametrize(
        ("catalogue", "dim"), [(COLUMNS, 8), (COLUMNS, 200), (COLUMNS, 400), (64, 200), (65, 30), (2, 200)]
    )
    def test_as_on_the_cpu(self, shop: Shop, catalogue: int, dim: int, biased: bool) -> None:
        cpu = softmax(shop, None, catalogue, dim, biased=biased)
        gpu = softmax(shop, CUDA, catalogue, dim, biased=biased)
        assert float(gpu[0]) == pytest.approx(float(cpu[0]), rel=5e-3, abs=1e-3)
        for mine, theirs in zip(gpu[1:], cpu[1:], strict=True):
            assert mine.shape == theirs.shape
            assert distance(mine, theirs) < 2e-2
        assert not gpu[1][:3].any()  # a row without positives

    @pytest.mark.parametrize("biased", [False, True])
    def test_blocks_change_nothing(self, shop: Shop, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = softmax(shop, CUDA, biased=biased)
        for rows in (1, 40, 149):
            monkeypatch.setitem(losses.BLOCK_ENTRIES, "cuda", 704 * rows)
            blocked = softmax(shop, CUDA, biased=biased)
            assert all(distance(mine, theirs) < 1e-4 for mine, theirs in zip(blocked, whole, strict=True))

    def test_large_logits_stay_finite(self, shop: Shop) -> None:
        cpu, gpu = (softmax(shop, device, dim=16, scale=6.0) for device in (None, CUDA))
        assert all(bool(part.isfinite().all()) for part in gpu)
        assert float(gpu[0]) == pytest.approx(float(cpu[0]), rel=2e-2)

    def test_it_is_the_same_to_the_bit_each_time(self, shop: Shop) -> None:
        first, second = (softmax(shop, CUDA, biased=True) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))

    def test_float64_is_exact(self, shop: Shop) -> None:
        cpu, gpu = (softmax(shop, device, biased=True, kind=torch.float64) for device in (None, CUDA))
        assert all(distance(mine, theirs) < 1e-10 for mine, theirs in zip(gpu, cpu, strict=True))

    @pytest.mark.parametrize(("rows", "catalogue"), [(0, 5), (3, 0), (0, 0)])
    def test_an_empty_catalogue_and_an_empty_batch(self, rows: int, catalogue: int) -> None:
        z = torch.randn(rows, 8, device=CUDA, requires_grad=True)
        table = torch.randn(catalogue, 8, device=CUDA, requires_grad=True)
        positives = Ragged.from_lists([[] for _ in range(rows)], CUDA)
        found = multinomial_loss(z, table, positives, torch.ones(rows, device=CUDA))
        by_z, by_table = torch.autograd.grad(found, (z, table))
        assert float(found) == 0
        assert (by_z.shape, by_table.shape) == (z.shape, table.shape)
        assert not by_z.any()
        assert not by_table.any()
