"""How the work of a training step is divided among processes. The equations stand in the model, once; what
they look up and add up over items and bundles goes through here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bundlemage.models.divided_loss import divided_multinomial_loss
from bundlemage.models.group import Group
from bundlemage.models.losses import Prior, multinomial_loss
from bundlemage.models.ragged import Ragged
from bundlemage.models.rows import NOTHING, Hidden, mean_and_counts, mean_of_rows

if TYPE_CHECKING:
    from bundlemage.models.base import Histories, Interactions, Model

ItemTables = Literal["replicated", "sharded"]


class Division:
    """One process, which does it all."""

    group: Group | None = None

    def __deepcopy__(self, memo: object) -> Division:
        return self  # nothing in it follows a model's weights, so a model's copy shares it

    def rows_of(self, items: int) -> range:
        """Which rows of a table of items are here."""
        return range(items)

    def part_of(self, data: Interactions) -> Interactions:
        """What of the training data is needed here. Users, bundles and items keep their numbers."""
        return data

    def cases_of(self, users: Tensor) -> Tensor | None:
        """Which of these users are asked about here; None: all of them."""
        return None

    def own_contents(self, contents: Ragged) -> Ragged:
        """Bundles by those of their items whose rows are here, numbered as these are."""
        return contents

    def item_sales(self, data: Interactions) -> Tensor:
        """How many users have each item, whoever holds their items."""  # [items]
        return data.user_item.counts(data.items)

    def mean_of_histories(self, people: Histories, table: Tensor) -> Tensor:
        """The mean of each person's items."""  # [people, d]
        return people.items.mean_of(table)

    def mean_of_items(
        self, data: Interactions, users: Tensor, table: Tensor, hidden: Hidden = NOTHING
    ) -> Tensor:
        """As `mean_of_histories`, for users of the training data, with some items hidden."""  # [users, d]
        return mean_of_rows(data.user_item, users, table, hidden)

    def mean_of_contents(
        self, data: Interactions, bundles: Tensor, table: Tensor, hidden: Hidden = NOTHING
    ) -> Tensor:
        """The mean of each bundle's items, some of them hidden."""  # [bundles, d]
        return mean_of_rows(data.bundle_item, bundles, table, hidden)

    def mean_of_partial(self, partial: Ragged, table: Tensor) -> Tensor:
        """The mean of each incomplete bundle's items."""  # [rows, d]
        return partial.mean_of(table)

    def total(self, part: Tensor) -> Tensor:
        """The sum of what each process has added up over its own rows."""
        return part

    def own_items(self, of_items: Tensor) -> Tensor:
        """Those numbers of all items whose rows are here."""
        return of_items

    def scores_of(self, candidates: Tensor, scores: Tensor) -> Tensor:
        """Scores of some items in each row, where `scores` has those of the items that are here."""
        return scores.gather(1, candidates)  # [rows, candidates]

    def loss_over_bundles(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        """−log of the softmax over all bundles, at those that each user has."""
        return multinomial_loss(z, table, data.user_bundle, weights, users, prior)

    def loss_over_items(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        bundles: Tensor,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        """−log of the softmax over all items, at those of each bundle."""
        return multinomial_loss(z, table, data.bundle_item, weights, bundles, prior)

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Bring together what the processes' parts of a loss have taught."""

    def keep_alike(self, *models: Model) -> None:
        """Weights that every process has are the first one's, whatever processors have rounded."""

    def add_losses(self, losses: Tensor) -> Tensor:
        """The losses of an epoch's parts as one."""
        return losses


ALONE = Division()


class DividedUsers(Division):
    """Tables are replicated. A process holds the items of its share of the users, and of each batch does the
    rows of these users; gradients are added up."""

    def __init__(self, group: Group, users: int) -> None:
        self.group = self._group = group
        self.users = group.share(users)
        # The last process also does the rows of nobody, who is counted after all users.
        self._stop = users + 1 if group.rank == group.size - 1 else self.users.stop

    def _mine(self, users: Tensor) -> Tensor:
        return ((users >= self.users.start) & (users < self._stop)).nonzero()[:, 0]

    def part_of(self, data: Interactions) -> Interactions:
        row = data.user_item.row_of_entry()
        mine = (row >= self.users.start) & (row < self.users.stop)
        return replace(data, user_item=data.user_item.keep(mine))

    def cases_of(self, users: Tensor) -> Tensor:
        return self._mine(users)

    def item_sales(self, data: Interactions) -> Tensor:
        return self._group.add_(super().item_sales(data))

    # Vectors are worked out for the whole batch, which is cheap, so that masks and dropout are drawn as one
    # process would draw them. The rows of other users are wrong then, and not looked at.

    def loss_over_bundles(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        mine = self._mine(users)
        part = multinomial_loss(z[mine], table, data.user_bundle, weights[mine], users[mine], prior)
        return part * (len(mine) / len(z))

    def loss_over_items(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        bundles: Tensor,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        mine = self._mine(users)
        part = multinomial_loss(z[mine], table, data.bundle_item, weights[mine], bundles[mine], prior)
        return part * (len(mine) / len(z))

    def add_gradients(self, model: torch.nn.Module) -> None:
        self._group.add_gradients(model.parameters())

    def keep_alike(self, *models: Model) -> None:
        for model in models:
            for parameter in model.parameters():
                self._group.take_over_(parameter.data)

    def add_losses(self, losses: Tensor) -> Tensor:
        return self._group.add_(losses)


class DividedItems(Division):
    """Tables of items are sharded by rows. A process holds, of every user, the items whose rows it has, and
    works on every batch whole, over its share of the catalogue; the softmax's sums are added up over all."""

    def __init__(self, group: Group, items: int, bundles: int, item_counts: Tensor | None = None) -> None:
        """`item_counts`: how many items each user has, where the data has only those whose rows are here."""
        self.group = self._group = group
        self.items, self.bundles = group.share(items), group.share(bundles)
        self.item_counts = item_counts
        self.history_shares: Tensor | None = None
        self._contents: tuple[Ragged, Ragged] | None = None
        self._item_keys: tuple[Tensor, Tensor] | None = None

    def rows_of(self, items: int) -> range:
        return self.items

    def part_of(self, data: Interactions) -> Interactions:
        own = _within(data.user_item, self.items)
        # A mean over what is here, times this, is its part of the mean over all. Nobody comes last.
        counts = data.user_item.lengths if self.item_counts is None else self.item_counts
        shares = own.lengths.double() / counts.clamp(min=1)
        self.history_shares = torch.cat([shares, shares.new_zeros(1)])
        return replace(data, user_item=own)

    def own_contents(self, contents: Ragged) -> Ragged:
        return _within(contents, self.items)

    def item_sales(self, data: Interactions) -> Tensor:
        sales = data.user_item.offsets.new_zeros(data.items)
        sales[self.items.start : self.items.stop] = data.user_item.counts(len(self.items))
        return self._group.add_(sales)

    def mean_of_histories(self, people: Histories, table: Tensor) -> Tensor:
        assert people.users is not None
        return self._of_all(people.items.mean_of(table), people.users)

    def mean_of_items(
        self, data: Interactions, users: Tensor, table: Tensor, hidden: Hidden = NOTHING
    ) -> Tensor:
        if not hidden.ratio:
            return self._of_all(mean_of_rows(data.user_item, users, table), users)
        # Hidden items are drawn by their numbers among all items, not by those that they have here.
        if self._item_keys is None or self._item_keys[0] is not data.user_item.values:
            values = data.user_item.values
            self._item_keys = (values, values + self.items.start)
        means, counts = mean_and_counts(data.user_item, users, table, hidden, keys=self._item_keys[1])
        seen = counts.to(means)
        of_all = self._group.add_(seen.clone()).clamp(min=1)
        return self.total(means * (seen / of_all)[:, None])

    def mean_of_partial(self, partial: Ragged, table: Tensor) -> Tensor:
        own = _within(partial, self.items)
        shares = own.lengths.to(table) / partial.lengths.clamp(min=1)
        return self.total(own.mean_of(table) * shares[:, None])

    def own_items(self, of_items: Tensor) -> Tensor:
        return of_items[self.items.start : self.items.stop]

    def scores_of(self, candidates: Tensor, scores: Tensor) -> Tensor:
        places = candidates - self.items.start
        here = (places >= 0) & (places < len(self.items))
        found = scores.gather(1, places.clamp(0, max(0, len(self.items) - 1)))
        return self.total(found.masked_fill(~here, 0.0))

    def _of_all(self, means: Tensor, users: Tensor) -> Tensor:
        assert self.history_shares is not None
        self.history_shares = self.history_shares.to(means)  # where the weights are, once
        return self.total(means * self.history_shares[users][:, None])

    def mean_of_contents(
        self, data: Interactions, bundles: Tensor, table: Tensor, hidden: Hidden = NOTHING
    ) -> Tensor:
        # Items of others are there as one row of zeros: what is hidden is drawn, and counted, over all items.
        if self._contents is None or self._contents[0] is not data.bundle_item:
            values = data.bundle_item.values - self.items.start
            foreign = (values < 0) | (values >= len(self.items))
            placed = Ragged(values.masked_fill(foreign, len(self.items)), data.bundle_item.offsets)
            self._contents = (data.bundle_item, placed)
        with_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])
        keys = data.bundle_item.values
        return self.total(mean_of_rows(self._contents[1], bundles, with_zeros, hidden, keys=keys))

    def total(self, part: Tensor) -> Tensor:
        return self._group.total(part)

    def loss_over_bundles(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        here = slice(self.bundles.start, self.bundles.stop)
        own = self._group.read_in_parts(table)[here]
        own_prior = None if prior is None else prior.part(here)
        return self._loss(z, own, data.user_bundle.rows(users), self.bundles, weights, own_prior)

    def loss_over_items(
        self,
        z: Tensor,
        table: Tensor,
        data: Interactions,
        bundles: Tensor,
        users: Tensor,
        weights: Tensor,
        prior: Prior | None,
    ) -> Tensor:
        return self._loss(z, table, data.bundle_item.rows(bundles), self.items, weights, prior)

    def _loss(
        self, z: Tensor, table: Tensor, rows: Ragged, here: range, weights: Tensor, prior: Prior | None
    ) -> Tensor:
        own = _within(rows, here)
        return divided_multinomial_loss(z, table, own, rows.lengths, weights, prior, self._group)

    def keep_alike(self, *models: Model) -> None:
        for model in models:
            for name, parameter in model.named_parameters():
                if name not in model.divided_tables:
                    self._group.take_over_(parameter.data)

    def add_losses(self, losses: Tensor) -> Tensor:
        return self._group.add_(losses) / self._group.size


def _within(rows: Ragged, here: range) -> Ragged:
    """The entries that lie in a range, counted from its start."""
    own = rows.keep((rows.values >= here.start) & (rows.values < here.stop))
    return Ragged(own.values - here.start, own.offsets)
