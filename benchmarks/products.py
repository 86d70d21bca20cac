"""The floor of an epoch's arithmetic: the matrix products of its two softmax losses, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["batch × catalogue", "catalogue × batch"]
LAYOUTS: tuple[Layout, ...] = ("batch × catalogue", "catalogue × batch")
"""How the logits lie in memory. The same arithmetic, and on some CPUs twice the time."""


@dataclass(frozen=True)
class Softmax:
    """One task of an epoch: so many rows, each scored against a whole catalogue."""

    rows: int
    catalogue: int
    batch_size: int
    dim: int

    @property
    def operations(self) -> float:
        """Two for each multiplication with its addition, in each of three products."""
        return 6.0 * self.rows * self.catalogue * self.dim

    @property
    def batches(self) -> list[int]:
        whole, rest = divmod(self.rows, self.batch_size)
        return [self.batch_size] * whole + [rest] * bool(rest)


def products_seconds(
    tasks: list[Softmax], layout: Layout, device: torch.device, dtype: torch.dtype = torch.float32
) -> float:
    """Seconds for logits, gradient of the rows and gradient of the catalogue, in every batch of an epoch.

    On CUDA, float32 means TF32. The CPU's float32 is left as it is.
    """
    precision = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    total = 0.0
    for task in tasks:
        step = Step(task, layout, device, dtype)
        step(task.batches[0])  # touches every page, and lets a library choose its kernel
        with _clock(device) as seconds:
            for rows in task.batches:
                step(rows)
        total += seconds()
    if device.type == "cuda":
        torch.set_float32_matmul_precision(precision)
    return total


class Step:
    """The three products of one batch, into memory that is reused."""

    def __init__(self, task: Softmax, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        self.task, self.layout = task, layout
        rows, catalogue, dim = task.batches[0], task.catalogue, task.dim

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=dtype)

        self.z, self.table = normal(rows, dim), normal(catalogue, dim)
        self.z_gradient, self.table_gradient = normal(rows, dim), normal(catalogue, dim)
        self.difference, self.logits = normal(rows * catalogue), normal(rows * catalogue)

    def __call__(self, rows: int) -> None:
        catalogue, size = self.task.catalogue, rows * self.task.catalogue
        z, z_gradient = self.z[:rows], self.z_gradient[:rows]
        if self.layout == "batch × catalogue":
            difference, logits = (part[:size].view(rows, catalogue) for part in self._wide)
            torch.mm(z, self.table.T, out=logits)
            torch.mm(difference, self.table, out=z_gradient)
            torch.mm(difference.T, z, out=self.table_gradient)
        else:
            difference, logits = (part[:size].view(catalogue, rows) for part in self._wide)
            torch.mm(self.table, z.T, out=logits)
            torch.mm(difference.T, self.table, out=z_gradient)
            torch.mm(difference, z, out=self.table_gradient)

    @property
    def _wide(self) -> tuple[Tensor, Tensor]:
        return self.difference, self.logits


@contextmanager
def _clock(device: torch.device) -> Iterator[Callable[[], float]]:
    """Seconds between entering and leaving, by the device's own clock where it has one."""
    if device.type != "cuda":
        started = time.perf_counter()
        ended: list[float] = []
        yield lambda: ended[0] - started
        ended.append(time.perf_counter())
        return
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    yield lambda: begin.elapsed_time(end) / 1000
    end.record()
    end.synchronize()
