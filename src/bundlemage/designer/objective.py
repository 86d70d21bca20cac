"""The value of a bundle for users: how likely they take it, how well its items fit, margin and variety."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.core.answering import rows_at_a_time
from bundlemage.core.ranking import top
from bundlemage.core.shop import Shop
from bundlemage.designer.constraints import Floats, Integers, Items, Rules
from bundlemage.designer.taking import Taking
from bundlemage.models.base import Completer, Embedder, Histories, Model, require
from bundlemage.models.ragged import Ragged

POOL = 64
"""The number of items that are tried in every bundle because the user would take them alone."""


@dataclass(frozen=True)
class Worth:
    """A bundle with its added items in the order in which the model would add them."""

    added: Items
    logs: tuple[float, ...]
    """The logarithm of each item's probability, given the user and the items before it."""
    matching: float
    likelihood: float
    margin: float
    diversity: float

    @property
    def value(self) -> float:
        return self.matching + self.likelihood + self.margin + self.diversity


@dataclass(frozen=True)
class Options:
    """Items that may be added to a bundle."""

    items: Integers
    logs: Floats
    """The log-probability of each item as the next one."""
    matching: Floats
    """The weighted log-probability of the bundle with the item."""


class Objective:
    """The values of bundles for one request and one user, or several.

    The value of a bundle is the log-probability that the user takes the bundle, times the weight `matching`,
    plus the mean log-probability of the added items. They are added one at a time, the most likely first,
    each given the items before it. The margin of the items and their variety are added with their weights.
    For several users, each probability is the mean of theirs.
    """

    def __init__(
        self,
        model: Model,
        histories: Histories,
        contents: Ragged,
        owned: Ragged,
        shop: Shop,
        rules: Rules,
        tick: Callable[[], None] | None = None,
        *,
        own_costs: bool = True,
    ) -> None:
        """`owned` and `own_costs` are as in `design`. `tick` is called before each batch of bundles is
        scored. It may raise an error to stop the work."""
        request, shelf = rules.request, shop.item_shelf
        self.model, self.contents, self.start = require(model, Completer), contents, rules.start
        self.taking = Taking(model, histories, contents, owned, shop, rules.settings, rules.not_owned, tick)
        self._histories, self._tick, self._rules = histories, tick, rules
        self._matching = request.matching if self.taking.able else 0.0
        self._weight = request.diversity
        self.asks_for_variety = self._weight > 0
        self._seen: dict[Items, Options] = {}
        given = shelf.ids.positions(request.costs)  # raises an error for an unknown item
        self.earns: Floats = np.zeros(len(shelf.ids))
        """The weighted margin of each item (price after discount minus cost), in units of the mean price."""
        if request.margin:
            mean = float(np.nanmean(shelf.prices)) or 1.0
            costs = shelf.costs if own_costs and not request.costs else np.zeros(len(shelf.ids))
            costs[given] = list(request.costs.values())
            margins = (np.nan_to_num(shelf.prices) * (1 - request.discount) - costs) / mean
            self.earns = np.asarray(request.margin * margins)
        hidden = np.where(rules.allowed, self.earns, -np.inf).astype(np.float32)
        self._hidden = torch.from_numpy(hidden).to(contents.device)

    # ── One more item ────────────────────────────────────────────────────────────────────────────

    def log_chances(self, bundles: Sequence[Items]) -> Iterator[tuple[slice, Tensor]]:
        """For each bundle, the log-probability of every item as the next item; -∞ for items already in it.

        Yields batches, to bound memory: the slice of `bundles`, and a tensor with one row for each of them.
        """
        items, device, users = self.model.sizes.items, self.contents.device, len(self._histories)
        rows = max(1, rows_at_a_time(items, device) // users)
        for first in range(0, len(bundles), rows):
            if self._tick is not None:
                self._tick()
            some = bundles[first : first + rows]
            # For each bundle, a row for each user.
            partial = Ragged.from_lists([bundle for bundle in some for _ in range(users)], device)
            with torch.inference_mode():
                histories = self._histories.rows(torch.arange(users, device=device).repeat(len(some)))
                scores = self.model.item_scores(histories, partial, self.contents).clone()
                scores[partial.row_of_entry(), partial.values] = -torch.inf
                logs = torch.log_softmax(scores, 1)
                if users > 1:
                    logs = logs.view(len(some), users, items).logsumexp(1) - math.log(users)
            yield slice(first, first + len(some)), logs  # [some, items]

    def chances_after(self, bundles: Sequence[Items]) -> Floats:
        """Returns all rows of `log_chances` in one array. Use it only for a few bundles."""
        return np.concatenate([rows.cpu().numpy() for _, rows in self.log_chances(bundles)])

    def likeliest(self, bundles: Sequence[Items], most: int) -> list[Options]:
        """Returns for each bundle the allowed items that are tried next: the `most` likeliest ones, with
        their margin, and those that the user would take alone. Results are cached."""
        keys = [tuple(sorted(bundle)) for bundle in bundles]
        new = [key for key in dict.fromkeys(keys) if key not in self._seen]
        places: list[Integers] = []
        logs: list[Floats] = []
        for _, rows in self.log_chances(new):
            with torch.inference_mode():
                found = top(rows + self._hidden, min(most, rows.shape[1]))[1].cpu().numpy()
            for likely, row in zip(found, rows.cpu().numpy(), strict=True):
                places.append(np.unique(np.concatenate([likely, self._pool])))
                logs.append(row[places[-1]])
        for key, items, log, matching in zip(new, places, logs, self.matching_with(new, places), strict=True):
            self._seen[key] = Options(items, log, matching)
        return [self._seen[key] for key in keys]

    def matching_with(self, bundles: Sequence[Items], items: Sequence[Integers]) -> list[Floats]:
        """Returns for each bundle the weighted log-probabilities of it and one of its `items` more."""
        if not self._matching or not bundles:
            return [np.zeros(len(some)) for some in items]
        return [self._matching * logs for logs in self.taking.logs_with(bundles, items)]

    @cached_property
    def alone(self) -> Floats:
        """For each item the weighted log-probability of a bundle of it and the fixed items; 0 for items that
        are not allowed."""  # [items]
        places, values = np.flatnonzero(self._rules.allowed), np.zeros(self._rules.items)
        (values[places],) = self.matching_with([self._rules.fixed], [places])
        return values

    @cached_property
    def _pool(self) -> Integers:
        """The items with the highest values in `alone`."""
        if not self._matching:
            return np.zeros(0, np.int64)
        places = np.flatnonzero(self._rules.allowed)
        return places[np.argsort(-self.alone[places], kind="stable")[:POOL]]

    # ── Whole bundles ────────────────────────────────────────────────────────────────────────────

    def worth(self, bundles: Sequence[Items], taken: Floats | None = None) -> list[Worth]:
        """Returns the value of each set of items when it is added to `start`. `taken` are the
        log-probabilities of the bundles; by default those of new bundles."""
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
                known = self._seen.get(context)
                seen = (
                    {} if known is None else dict(zip(known.items.tolist(), known.logs.tolist(), strict=True))
                )
                if all(item in seen for items in left.values() for item in items):
                    add(left, seen)
                else:
                    unseen.append((context, left))
            for where, rows in self.log_chances([context for context, _ in unseen]):
                for (_, left), row in zip(unseen[where], rows.cpu().numpy(), strict=True):
                    add(left, row)
        worths = []
        matching: Floats = np.zeros(len(bundles))
        if self._matching and bundles:
            whole = [(*self.start, *added) for added in bundles]
            matching = self._matching * (self.taking.logs(whole) if taken is None else taken)
        for order, log_chances, match in zip(orders, logs, matching.tolist(), strict=True):
            count = max(1, len(order))
            likelihood, margin = sum(log_chances) / count, float(self.earns[order].sum()) / count
            diversity = self.variety((*self.start, *order))
            worths.append(Worth(tuple(order), tuple(log_chances), match, likelihood, margin, diversity))
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
