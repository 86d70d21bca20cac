"""How the work of a training step is divided among processes. A model calls a `Division` for every look-up
and sum over items and bundles, so its equations are the same for one process and for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bundlemage.models.losses import Prior, multinomial_loss
from bundlemage.models.ragged import Hidden, Ragged, Unchanging, at_least, mean_of_rows

if TYPE_CHECKING:
    from bundlemage.models.base import Divisible, Histories, Interactions

Catalogue = Literal["bundles", "items"]


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
        """Whether this is the first process."""
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

    def agreed(self, value: Any) -> Any:
        """Returns the first process's value in every process."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Adds up each number over all processes. Every process gets the same bits."""
        every: list[Sequence[float]] = [()] * self.size
        dist.all_gather_object(every, numbers)
        return [sum(each) for each in zip(*every, strict=True)]

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


class _AddUp(torch.autograd.Function):
    """Adds up a tensor over all processes. Every process must use the sum in the same way. With `back`, the
    tensor stays as it is and its gradient is added up, because each process uses a part of the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, processes: Processes, back: bool) -> Tensor:
        ctx.processes = processes if back else None
        return tensor.view_as(tensor) if back else processes.add_(tensor.clone())

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        if ctx.processes is not None:
            upstream = ctx.processes.add_(upstream.contiguous().clone())
        return upstream, None, None


class LossRows(NamedTuple):
    """The rows of a batch for which a loss is computed."""

    z: Tensor  # [rows, d]; products with the table are the logits
    users: Tensor
    weights: Tensor
    positives: Ragged
    places: Tensor
    """For each row of the batch, the number of its row in `positives`."""


class Division(Unchanging):
    """One process does all the work. Subclasses override the parts that they divide."""

    group: Processes | None = None
    divides_tables: bool = False
    """Whether each process holds only a part of the rows of item tables."""

    def rows_of(self, items: int) -> range:
        """The rows of an item table that this process holds."""
        return range(items)

    def part_of(self, data: Interactions) -> Interactions:
        """The training data that this process needs. Users, bundles and items keep their numbers."""
        return data

    def cases_of(self, users: Tensor) -> Tensor | None:
        """The positions in `users` of the users that this process evaluates. None means all of them."""
        return None

    def own_contents(self, contents: Ragged) -> Ragged:
        """The bundles with only this process's items. Items get the numbers of their rows in this process."""
        return contents

    def item_sales(self, data: Interactions) -> Tensor:
        """The number of users, over all processes, who have each item, by weight."""  # [items]
        return data.user_item.column_sums(data.items)

    def mean_of_histories(self, histories: Histories, table: Tensor) -> Tensor:
        """The mean of each user's items."""  # [rows, d]
        return histories.items.mean_of(table)

    def mean_of_items(self, data: Interactions, users: Tensor, table: Tensor, hidden: Hidden) -> Tensor:
        """As `mean_of_histories`, for users of the training data, with some items hidden."""  # [users, d]
        return mean_of_rows(data.user_item, users, table, hidden)[0]

    def mean_of_contents(self, data: Interactions, bundles: Tensor, table: Tensor, hidden: Hidden) -> Tensor:
        """The mean of each bundle's items, with some items hidden."""  # [bundles, d]
        return mean_of_rows(data.bundle_item, bundles, table, hidden)[0]

    def mean_of_partial(self, partial: Ragged, table: Tensor) -> Tensor:
        """The mean of each incomplete bundle's items."""  # [rows, d]
        return partial.mean_of(table)

    def total(self, part: Tensor) -> Tensor:
        """Adds up the partial sums of all processes. `part` is this process's sum over its own rows."""
        return part

    def own_items(self, of_items: Tensor) -> Tensor:
        """`of_items` has a number for each item. Returns the numbers of this process's items."""
        return of_items

    def scores_of(self, candidates: Tensor, scores: Tensor) -> Tensor:
        """The scores of the candidates in each row. `scores` has the scores of this process's items."""
        return scores.gather(1, candidates)  # [rows, candidates]

    def loss_over(self, catalogue: Catalogue, rows: LossRows, table: Tensor, prior: Prior | None) -> Tensor:
        """The multinomial loss of the positives of each row, over all bundles or all items."""
        return multinomial_loss(rows.z, table, rows.positives, rows.weights, rows.places, prior)

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Adds up the gradients of all processes, each of which computed a part of the loss."""

    def keep_alike(self, *models: Divisible) -> None:
        """Copies the first process's replicated weights to all processes, which may round differently."""
        if self.group is None:
            return
        for model in models:
            for name, parameter in model.named_parameters():
                if not (self.divides_tables and name in model.divided_tables):
                    dist.broadcast(parameter.data, 0)

    def add_losses(self, losses: Tensor) -> Tensor:
        """Adds up the losses of an epoch over all processes."""
        return losses


ALONE = Division()


class DividedUsers(Division):
    """Divides users; tables are replicated. A process holds the items of its own users. In each batch it
    computes the loss of its users' rows. Gradients are added up."""

    def __init__(self, group: Processes, users: int) -> None:
        self.group = self._group = group
        self.users = group.share(users)
        # The user without a history ("nobody") has the number after the last user. The last process has it.
        self._stop = users + 1 if group.rank == group.size - 1 else self.users.stop

    def _own(self, users: Tensor) -> Tensor:
        """Returns the positions in `users` of this process's users."""
        return ((users >= self.users.start) & (users < self._stop)).nonzero()[:, 0]

    def part_of(self, data: Interactions) -> Interactions:
        row = data.user_item.row_of_entry()
        own = (row >= self.users.start) & (row < self.users.stop)
        return replace(data, user_item=data.user_item.keep(own))

    def cases_of(self, users: Tensor) -> Tensor:
        return self._own(users)

    def item_sales(self, data: Interactions) -> Tensor:
        return self._group.add_(super().item_sales(data))

    # Each process computes vectors for the whole batch. This is cheap, and masks and dropout are drawn as by
    # a single process. The vectors of other processes' users are wrong. The loss leaves them out.

    def loss_over(self, catalogue: Catalogue, rows: LossRows, table: Tensor, prior: Prior | None) -> Tensor:
        own = self._own(rows.users)
        z, weights, places = rows.z[own], rows.weights[own], rows.places[own]
        return multinomial_loss(z, table, rows.positives, weights, places, prior) * (len(own) / len(rows.z))

    def add_gradients(self, model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                self._group.add_(parameter.grad)

    def add_losses(self, losses: Tensor) -> Tensor:
        return self._group.add_(losses)


class DividedItems(Division):
    """Divides the rows of item tables. A process holds a part of the items, and only these items of each
    user. It computes all rows of a batch, over its part of the catalogue. The softmax's sums are added up."""

    divides_tables = True

    def __init__(self, group: Processes, items: int, bundles: int) -> None:
        self.group = self._group = group
        self.items, self.bundles = group.share(items), group.share(bundles)
        self._contents: tuple[Ragged, Ragged] | None = None
        self._item_keys: tuple[Tensor, Tensor] | None = None

    def rows_of(self, items: int) -> range:
        return self.items

    def part_of(self, data: Interactions) -> Interactions:
        return replace(data, user_item=_within(data.user_item, self.items))

    def own_contents(self, contents: Ragged) -> Ragged:
        return _within(contents, self.items)

    def item_sales(self, data: Interactions) -> Tensor:
        own = data.user_item.column_sums(len(self.items))
        sales = own.new_zeros(data.items)
        sales[self.items.start : self.items.stop] = own
        return self._group.add_(sales)

    def mean_of_histories(self, histories: Histories, table: Tensor) -> Tensor:
        return self._of_all(histories.items.mean_of(table), histories.items.row_sums())

    def mean_of_items(self, data: Interactions, users: Tensor, table: Tensor, hidden: Hidden) -> Tensor:
        # Hidden items are drawn by their global numbers, not by their row numbers in this process.
        if self._item_keys is None or self._item_keys[0] is not data.user_item.values:
            values = data.user_item.values
            self._item_keys = (values, values + self.items.start)
        means, counts = mean_of_rows(data.user_item, users, table, hidden, keys=self._item_keys[1])
        return self._of_all(means, counts)

    def mean_of_partial(self, partial: Ragged, table: Tensor) -> Tensor:
        own = _within(partial, self.items)
        shares = own.lengths.to(table) / partial.lengths.clamp(min=1)
        return self.total(own.mean_of(table) * shares[:, None])

    def own_items(self, of_items: Tensor) -> Tensor:
        return of_items[self.items.start : self.items.stop]

    def scores_of(self, candidates: Tensor, scores: Tensor) -> Tensor:
        places = candidates - self.items.start
        here = (places >= 0) & (places < len(self.items))
        own = scores.gather(1, places.clamp(0, max(0, len(self.items) - 1)))
        return self.total(own.masked_fill(~here, 0.0))

    def _of_all(self, means: Tensor, counts: Tensor) -> Tensor:
        """The means over the items of all processes. `means` and `counts` are of this process's items."""
        seen = counts.to(means)
        of_all = at_least(self._group.add_(seen.clone()))
        return self.total(means * (seen / of_all)[:, None])

    def mean_of_contents(self, data: Interactions, bundles: Tensor, table: Tensor, hidden: Hidden) -> Tensor:
        # Items of other processes point to a row of zeros. So masks are drawn and counted over all items.
        if self._contents is None or self._contents[0] is not data.bundle_item:
            values = data.bundle_item.values - self.items.start
            foreign = (values < 0) | (values >= len(self.items))
            placed = Ragged(values.masked_fill(foreign, len(self.items)), data.bundle_item.offsets)
            self._contents = (data.bundle_item, placed)
        with_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])
        keys = data.bundle_item.values
        return self.total(mean_of_rows(self._contents[1], bundles, with_zeros, hidden, keys=keys)[0])

    def total(self, part: Tensor) -> Tensor:
        total: Tensor = _AddUp.apply(part, self._group, False)  # type: ignore[no-untyped-call]
        return total

    def loss_over(self, catalogue: Catalogue, rows: LossRows, table: Tensor, prior: Prior | None) -> Tensor:
        here = self.items
        if catalogue == "bundles":  # every process has all bundles' vectors
            here, own = self.bundles, slice(self.bundles.start, self.bundles.stop)
            table = _AddUp.apply(table, self._group, True)[own]  # type: ignore[no-untyped-call]
            prior = None if prior is None else prior.part(own)
        positives = rows.positives.rows(rows.places)
        own_positives, counts = _within(positives, here), positives.row_sums()
        return multinomial_loss(
            rows.z, table, own_positives, rows.weights, prior=prior, group=self._group, counts=counts
        )

    def add_losses(self, losses: Tensor) -> Tensor:
        return self._group.add_(losses) / self._group.size


def _within(rows: Ragged, here: range) -> Ragged:
    """Keeps the entries within the range `here`, and subtracts its start from them."""
    own = rows.keep((rows.values >= here.start) & (rows.values < here.stop))
    return own.with_values(own.values - here.start)
