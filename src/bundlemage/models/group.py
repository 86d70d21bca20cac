"""Several processes that train one model: what they tell each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """One of `size` processes. They do the same things in the same order, or wait for each other for ever."""

    rank: int
    size: int

    @classmethod
    def current(cls) -> Group:
        """The processes that PyTorch has been told of."""
        return cls(dist.get_rank(), dist.get_world_size())

    def __deepcopy__(self, memo: object) -> Group:
        return self

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, count: int, rank: int | None = None) -> range:
        """Which of so many rows are this process's: as many for each, in order."""
        rank = self.rank if rank is None else rank
        return range(count * rank // self.size, count * (rank + 1) // self.size)

    def add_(self, tensor: Tensor) -> Tensor:
        """The sum over all, in place. Every process gets the very same bits."""
        dist.all_reduce(tensor)
        return tensor

    def highest_(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def take_over_(self, tensor: Tensor) -> None:
        """The first process's, in place."""
        dist.broadcast(tensor, 0)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self.add_(parameter.grad)

    def agreed(self, value: Any) -> Any:
        """What the first process says."""
        said = [value]
        dist.broadcast_object_list(said, src=0)
        return said[0]

    def gathered(self, rows: Tensor, count: int) -> Tensor | None:
        """All `count` rows in order, of which each process has its share: for the first one, on the CPU."""
        most = max(len(self.share(count, rank)) for rank in range(self.size))
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in range(self.size)] if self.leads else None
        dist.gather(padded, found)
        if found is None:
            return None
        return torch.cat([part[: len(self.share(count, rank))].cpu() for rank, part in enumerate(found)])

    def total(self, part: Tensor) -> Tensor:
        """The sum over all of each one's part. Whoever reads it reads the same in every process."""
        found: Tensor = _Total.apply(part, self)  # type: ignore[no-untyped-call]
        return found

    def read_in_parts(self, whole: Tensor) -> Tensor:
        """The same, of which each process goes on with a part: its gradient is the sum of all of theirs."""
        found: Tensor = _ReadInParts.apply(whole, self)  # type: ignore[no-untyped-call]
        return found


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, part: Tensor, group: Group) -> Tensor:
        return group.add_(part.clone())

    @staticmethod
    def backward(_: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream, None


class _ReadInParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.group.add_(upstream.contiguous().clone()), None
