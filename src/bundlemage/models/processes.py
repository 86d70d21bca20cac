"""Several processes that train one model, and how they exchange tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bundlemage.models.ragged import Unchanging


@dataclass(frozen=True)
class Processes(Unchanging):
    """One of `size` processes. All processes must make the same calls in the same order, or they hang."""

    rank: int
    size: int

    @classmethod
    def current(cls) -> Processes:
        """The processes of PyTorch's default group."""
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, count: int, rank: int | None = None) -> range:
        """Divides `count` rows evenly and in order among the processes. Returns the rows of one process."""
        rank = self.rank if rank is None else rank
        return range(count * rank // self.size, count * (rank + 1) // self.size)

    def add_(self, tensor: Tensor) -> Tensor:
        """Adds up a tensor over all processes, in place. Every process gets the same bits."""
        dist.all_reduce(tensor)
        return tensor

    def highest_(self, tensor: Tensor) -> Tensor:
        """Takes the elementwise maximum over all processes, in place."""
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def take_over_(self, tensor: Tensor) -> None:
        """Copies the first process's tensor to all processes, in place."""
        dist.broadcast(tensor, 0)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds up the gradients over all processes."""
        for parameter in parameters:
            if parameter.grad is not None:
                self.add_(parameter.grad)

    def agreed(self, value: Any) -> Any:
        """Returns the first process's value in every process."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gathered(self, rows: Tensor, count: int) -> Tensor | None:
        """Collects all `count` rows from the processes on the first process's CPU. Others get None."""
        most = max(len(self.share(count, rank)) for rank in range(self.size))
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.leads else None
        dist.gather(padded, parts)
        if parts is None:
            return None
        return torch.cat([part[: len(self.share(count, rank))].cpu() for rank, part in enumerate(parts)])

    def total(self, part: Tensor) -> Tensor:
        """The sum of all processes' parts, with a gradient. Every process must use it in the same way."""
        total: Tensor = _Total.apply(part, self)  # type: ignore[no-untyped-call]
        return total

    def read_in_parts(self, whole: Tensor) -> Tensor:
        """Returns the same tensor. Each process uses a part of it; the gradients are added up."""
        same: Tensor = _ReadInParts.apply(whole, self)  # type: ignore[no-untyped-call]
        return same


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, part: Tensor, processes: Processes) -> Tensor:
        return processes.add_(part.clone())

    @staticmethod
    def backward(_: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream, None


class _ReadInParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.add_(upstream.contiguous().clone()), None
