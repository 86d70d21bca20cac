"""The value of a bundle for a user: its likelihood under the model, plus weighted margin and variety."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.core.answering import rows_at_a_time
from bundlemage.core.filters import Shelf
from bundlemage.core.ranking import top
from bundlemage.designer.constraints import Integers, Items, Rules
from bundlemage.models.base import Completer, Embedder, Histories, Model, require
from bundlemage.models.ragged import Ragged

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_NOTHING = (np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class Worth:
    """A bundle with its added items in the order in which the model would add them."""

    added: Items
    logs: tuple[float, ...]
    """The logarithm of each item's probability, given the user and the items before it."""
    likelihood: float
    margin: float
    diversity: float

    @property
    def value(self) -> float:
        return self.likelihood + self.margin + self.diversity


class Objective:
    """The values of bundles for one user and one request.

    Items are added one at a time, the most likely first. The value of a bundle is the mean log-probability of
    the added items, each given the items before it. The margin of the items and their variety are added with
    the weights of the request.
    """

    def __init__(
        self,
        model: Model,
        histories: Histories,
        contents: Ragged,
        shelf: Shelf,
        rules: Rules,
        tick: Callable[[], None] | None = None,
        *,
        own_costs: bool = True,
    ) -> None:
        """`tick` is called before each batch of bundles is scored. It may raise an error to stop the work.
        `own_costs` is as in `design`."""
        request = rules.request
        self.model, self.contents, self.start = require(model, Completer), contents, rules.start
        self._one, self._tick = histories, tick
        self._weight = request.diversity
        self.asks_for_variety = self._weight > 0
        self._seen: dict[Items, tuple[Integers, Floats]] = {}
        self.earns: Floats = np.zeros(len(shelf.ids))
        """The weighted margin of each item (price after discount minus cost), in units of the mean price."""
        if request.margin:
            mean = float(np.nanmean(shelf.prices)) or 1.0
            costs = shelf.costs if own_costs and not request.costs else np.zeros(len(shelf.ids))
            costs[shelf.ids.positions(request.costs)] = list(request.costs.values())
            margins = (np.nan_to_num(shelf.prices) * (1 - request.discount) - costs) / mean
            self.earns = np.asarray(request.margin * margins)
        hidden = np.where(rules.allowed, self.earns, -np.inf).astype(np.float32)
        self._hidden = torch.from_numpy(hidden).to(contents.device)

    def log_chances(self, bundles: Sequence[Items]) -> Iterator[tuple[slice, Tensor]]:
        """For each bundle, the log-probability of every item as the next item; -∞ for items already in it.

        Yields batches, to bound memory: the slice of `bundles`, and a tensor with one row for each of them.
        """
        items, device = self.model.sizes.items, self.contents.device
        rows = rows_at_a_time(items, device)
        for first in range(0, len(bundles), rows):
            if self._tick is not None:
                self._tick()
            some = bundles[first : first + rows]
            partial = Ragged.from_lists(some, device)
            with torch.inference_mode():
                users = self._one.rows(torch.zeros(len(some), dtype=torch.int64, device=device))
                scores = self.model.item_scores(users, partial, self.contents).clone()
                scores[partial.row_of_entry(), partial.values] = -torch.inf
                logs = torch.log_softmax(scores, 1)  # [some, items]
            yield slice(first, first + len(some)), logs

    def chances_after(self, bundles: Sequence[Items]) -> Floats:
        """Returns all rows of `log_chances` in one array. Use it only for a few bundles."""
        return np.concatenate([rows.cpu().numpy() for _, rows in self.log_chances(bundles)])

    def likeliest(self, bundles: Sequence[Items], most: int) -> list[tuple[Integers, Floats]]:
        """Returns for each bundle the allowed items that raise its value most, and their log-probabilities.
        Variety is ignored. Results are cached."""
        keys = [tuple(sorted(bundle)) for bundle in bundles]
        new = [key for key in dict.fromkeys(keys) if key not in self._seen]
        for where, rows in self.log_chances(new):
            with torch.inference_mode():
                _, places = top(rows + self._hidden, min(most, rows.shape[1]))
                likeliest = zip(places.cpu().numpy(), rows.gather(1, places).cpu().numpy(), strict=True)
            self._seen.update(zip(new[where], likeliest, strict=True))
        return [self._seen[key] for key in keys]

    # ── Whole bundles ────────────────────────────────────────────────────────────────────────────

    def worth(self, bundles: Sequence[Items]) -> list[Worth]:
        """Returns the value of each set of items when it is added to `start`."""
        orders: list[list[int]] = [[] for _ in bundles]
        logs: list[list[float]] = [[] for _ in bundles]

        def add(left: dict[int, list[int]], log_chances: Any) -> None:
            """Adds to each bundle the most likely of the items that are left."""
            for number, items in left.items():
                best = max(items, key=lambda item: (log_chances[item], -item))
                orders[number].append(best)
                logs[number].append(float(log_chances[best]))

        while growing := [number for number, added in enumerate(bundles) if len(orders[number]) < len(added)]:
            # Each distinct context is scored once, unless the search has already scored it.
            contexts: dict[Items, list[int]] = {}
            for number in growing:
                contexts.setdefault(tuple(sorted((*self.start, *orders[number]))), []).append(number)
            unseen = []
            for context, numbers in contexts.items():
                left = {number: [i for i in bundles[number] if i not in orders[number]] for number in numbers}
                seen = dict(zip(*(each.tolist() for each in self._seen.get(context, _NOTHING)), strict=True))
                if all(item in seen for items in left.values() for item in items):
                    add(left, seen)
                else:
                    unseen.append((context, left))
            for where, rows in self.log_chances([context for context, _ in unseen]):
                for (_, left), row in zip(unseen[where], rows.cpu().numpy(), strict=True):
                    add(left, row)
        worths = []
        for order, log_chances in zip(orders, logs, strict=True):
            count = max(1, len(order))
            likelihood, margin = sum(log_chances) / count, float(self.earns[order].sum()) / count
            diversity = self.variety((*self.start, *order))
            worths.append(Worth(tuple(order), tuple(log_chances), likelihood, margin, diversity))
        return worths

    # ── Margin and variety ───────────────────────────────────────────────────────────────────────

    def variety(self, items: Items) -> float:
        """Returns the weighted mean distance between the items of a bundle."""
        if not self._weight or len(items) < 2:
            return 0.0
        between = self.apart(items, items)
        return float(between[np.triu_indices(len(items), 1)].mean())

    def apart(self, some: Sequence[int] | Integers, others: Sequence[int] | Integers) -> Floats:
        """Returns the weighted distances (1 - cosine) of some items from others."""  # [some, others]
        with torch.inference_mode():
            vectors = require(self.model, Embedder).vectors_of_items()
            first, second = (
                F.normalize(vectors[torch.as_tensor(np.asarray(each, np.int64), device=vectors.device)])
                for each in (some, others)
            )
            distances: Floats = self._weight * (1 - (first @ second.T).cpu().numpy())
        return distances
