"""From a request to whole bundles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from bundlemage.core.shop import Shop
from bundlemage.designer.conflict import refuse_impossible
from bundlemage.designer.constraints import Items, Rules, to_pay, units_of
from bundlemage.designer.explain import explain_added
from bundlemage.designer.growing import WIDTH, grow
from bundlemage.designer.objective import Objective, Worth
from bundlemage.designer.pairs import Fits, neighbours, shortlist
from bundlemage.designer.solver import any_bundle, cp, every_bundle
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import OutOfTimeError
from bundlemage.models.base import Histories, Model
from bundlemage.models.ragged import Ragged
from bundlemage.wire.design import DesignRequest
from bundlemage.wire.design_answers import Design, DesignedItem, Designs, Explanation, Terms

REASONS = 1.0
"""The least time for reasons, in seconds."""
LOOKED_AT = 4
"""How many of the grown bundles are valued as a whole."""
AROUND = 60
"""How many neighbours of the best bundle the exact search values in each round."""


def design(
    model: Model, shop: Shop, histories: Histories, contents: Ragged, request: DesignRequest
) -> Designs:
    """Designs bundles for one user. `histories` has one row; `contents` are those of its bundles."""
    cp()  # say at once if it is missing
    deadline = Deadline(request.time_limit)
    # A user who has a bundle has its items.
    owned = torch.cat([histories.items.values, contents.rows(histories.bundles.values).values])
    rules = Rules(request, shop.item_shelf, shop.trade.items_gone, np.unique(owned.cpu().numpy()))
    objective = Objective(model, histories, contents, shop.item_shelf, rules.start, request)
    search = _Search(objective, rules, deadline)
    worths = search.bundles()
    complete = search.complete
    why: list[list[Explanation | None]] = [[None for _ in worth.added] for worth in worths]
    if request.reasons:
        added, until = [worth.added for worth in worths], Deadline(max(REASONS, deadline.left))
        why = explain_added(model, shop, histories, contents, rules.start, added, until)
        complete &= all(reason is not None for reasons in why for reason in reasons)
    bundles = tuple(
        _named(rank, worth, reasons, rules, shop)
        for rank, (worth, reasons) in enumerate(zip(worths, why, strict=True), start=1)
    )
    return Designs(
        bundles=bundles,
        method=request.method,
        seconds=deadline.taken,
        complete=complete,
        proven=search.proven,
    )


class _Search:
    """Searches one bundle after another, each the best that differs enough from those before."""

    def __init__(self, objective: Objective, rules: Rules, deadline: Deadline) -> None:
        self.objective, self.rules, self.deadline = objective, rules, deadline
        self.complete, self.proven = True, False

    def bundles(self) -> list[Worth]:
        request, chosen = self.rules.request, list[Worth]()
        while len(chosen) < request.n and not (chosen and self._out_of_time()):
            earlier = [self.rules.chosen(worth.added) for worth in chosen]
            if not all(earlier):
                break  # nothing was left to choose
            best = self._next(earlier, Deadline(self.deadline.share(request.n - len(chosen))))
            if best is None:
                break
            chosen.append(best)
        return sorted(chosen, key=lambda worth: -worth.value)

    def _out_of_time(self) -> bool:
        self.complete &= not self.deadline.passed
        return self.deadline.passed

    def _next(self, earlier: Sequence[Items], share: Deadline) -> Worth | None:
        """`share` is the time of the exact search for this bundle."""
        grown = self._grown(earlier)
        if not grown:
            return None
        best = max(self.objective.worth(grown), key=_order)
        if self.rules.request.method != "exact":
            return best
        return self._exact(best, earlier, grown, share)

    def _grown(self, earlier: Sequence[Items]) -> list[Items]:
        """Bundles that grow item by item; if there are none, any bundle that keeps the rules."""
        method, bundles = self.rules.request.method, dict[Items, Items]()
        for width in (1,) if method == "greedy" else (1, WIDTH):  # a wide beam may lose what one path finds
            grown = grow(self.objective, self.rules, earlier, self.deadline, width)
            self.complete &= not self.deadline.passed
            bundles |= {tuple(sorted(added)): added for added in grown[:LOOKED_AT]}
        return list(bundles.values()) or self._anything(earlier, self.deadline)

    def _anything(self, earlier: Sequence[Items], deadline: Deadline) -> list[Items]:
        if not earlier:
            refuse_impossible(self.rules, deadline)
        scores = self.objective.chances_after([self.rules.fixed])[0]
        try:
            some = any_bundle(self.rules, scores, earlier, self.rules.request.seed, deadline)
        except OutOfTimeError:
            if not earlier:
                raise
            self.complete, some = False, None
        return [some] if some else []

    def _exact(
        self, best: Worth, earlier: Sequence[Items], known: Sequence[Items], deadline: Deadline
    ) -> Worth:
        """The best bundle by pairs of items, improved as long as the model prefers a neighbour."""
        seed = self.rules.request.seed
        few = every_bundle(self.rules, earlier, seed, deadline)
        if few is not None:
            self.proven = self.proven or not earlier
            return max([best, *self.objective.worth(few)], key=_order)
        fits = Fits.of(self.objective, self.rules, earlier, known)
        until = Deadline(deadline.left * 0.8)
        bundles, finished = shortlist(fits, self.rules, earlier, known, seed, until)
        self.complete &= finished
        kept = [added for added in bundles if self.rules.hold(added, earlier)]
        best = max([best, *self.objective.worth(kept)], key=_order)
        while not deadline.passed:
            around = neighbours(fits, self.rules, earlier, best.added, AROUND)
            better = max([best, *self.objective.worth(around)], key=_order)
            if better.value <= best.value + 1e-9:
                return best
            best = better
        self.complete = False
        return best


def _order(worth: Worth) -> tuple[float, Items]:
    """Orders by value, and equal values always in the same way."""
    return (worth.value, tuple(-item for item in sorted(worth.added)))


def _named(rank: int, worth: Worth, why: Sequence[Explanation | None], rules: Rules, shop: Shop) -> Design:
    shelf, names = shop.item_shelf, shop.items().ids
    reasons = dict(zip(worth.added, why, strict=True))
    scores = {item: math.exp(log) for item, log in zip(worth.added, worth.logs, strict=True)}
    items = tuple(
        DesignedItem(
            id=names[item],
            **shelf.facts(item)._asdict(),
            given=item not in scores,
            score=scores.get(item),
            why=reasons.get(item),
        )
        for item in rules.start + worth.added
    )
    prices = [item.price for item in items]
    known = [price for price in prices if price is not None]
    units = units_of(known) if len(known) == len(prices) else None
    discount = rules.request.discount
    return Design(
        rank=rank,
        items=items,
        price=None if units is None else to_pay(units, discount),
        list_price=None if units is None else to_pay(units, 0.0),
        discount=discount,
        score=math.exp(worth.likelihood),
        value=worth.value,
        terms=Terms(likelihood=worth.likelihood, margin=worth.margin, diversity=worth.diversity),
        same_as=_same_as(rules.start + worth.added, shop),
    )


def _same_as(items: Items, shop: Shop) -> str | None:
    """The bundle of the shop that has these items and no other."""
    contents = shop.dataset.bundle_item
    inside = np.concatenate([[0], np.cumsum(np.isin(contents.indices, items))])
    sizes, shared = np.diff(contents.indptr), np.diff(inside[contents.indptr])
    same = np.flatnonzero((sizes == len(items)) & (shared == len(items)) & ~shop.trade.bundles_gone)
    return shop.dataset.bundles[int(same[0])] if len(same) else None
