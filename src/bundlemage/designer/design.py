"""Designs whole bundles for a request: searches for them, values them and explains them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from bundlemage.core.shop import Shop
from bundlemage.designer.conflict import refuse_impossible
from bundlemage.designer.constraints import Items, Rules, price_of
from bundlemage.designer.explain import Explainer
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
"""The minimum time for finding reasons, in seconds, even if the time limit has passed."""
LOOKED_AT = 4
"""How many bundles of each greedy or beam search are valued as a whole."""
AROUND = 60
"""How many neighbours of the best bundle the exact search values in each round."""


def design(
    model: Model, shop: Shop, histories: Histories, contents: Ragged, request: DesignRequest
) -> Designs:
    """Designs bundles for one user. `histories` has one row; `contents` are those of its bundles."""
    cp()  # raises at once if OR-Tools is missing
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
        why = Explainer(model, shop, histories, contents).added(rules.start, added, until)
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
            if not all(self.rules.earlier):
                break  # the last bundle had no freely chosen item, so no other can differ from it
            best = self._next(Deadline(self.deadline.share(request.n - len(chosen))))
            if best is None:
                break
            chosen.append(best)
            self.rules.earlier.append(frozenset(self.rules.chosen(best.added)))
        return sorted(chosen, key=lambda worth: -worth.value)

    def _out_of_time(self) -> bool:
        self.complete &= not self.deadline.passed
        return self.deadline.passed

    def _next(self, share: Deadline) -> Worth | None:
        """The next bundle. `share` is the time limit of the exact search."""
        grown = self._grown() or self._anything()
        if not grown:
            return None
        best = self._best(grown)
        return self._exact(best, grown, share) if self.rules.request.method == "exact" else best

    def _best(self, bundles: Sequence[Items], *others: Worth) -> Worth:
        """The best of these; of equal values always the same one."""
        worths = [*others, *self.objective.worth(bundles)]
        return max(worths, key=lambda worth: (worth.value, tuple(-item for item in sorted(worth.added))))

    def _grown(self) -> list[Items]:
        """Bundles that grow item by item."""
        method, bundles = self.rules.request.method, dict[Items, Items]()
        for width in (1,) if method == "greedy" else (1, WIDTH):  # a wide beam may lose what one path finds
            grown = grow(self.objective, self.rules, self.deadline, width)
            self.complete &= not self.deadline.passed
            bundles |= {tuple(sorted(added)): added for added in grown[:LOOKED_AT]}
        return list(bundles.values())

    def _anything(self) -> list[Items]:
        """Any bundle that keeps the rules, if there is one."""
        if not self.rules.earlier:
            refuse_impossible(self.rules, self.deadline)
        try:
            scores = self.objective.chances_after([self.rules.fixed])[0]
            some = any_bundle(self.rules, scores, self.deadline)
        except OutOfTimeError:
            if not self.rules.earlier:
                raise
            self.complete, some = False, None
        return [some] if some else []

    def _exact(self, best: Worth, known: Sequence[Items], deadline: Deadline) -> Worth:
        """The best bundle by pairs of items, improved as long as the model prefers a neighbour."""
        few = every_bundle(self.rules, deadline)
        if few is not None:
            self.proven = self.proven or not self.rules.earlier
            return self._best(few, best)
        fits = Fits.of(self.objective, self.rules, known)
        bundles, finished = shortlist(fits, self.rules, known, Deadline(deadline.left * 0.8))
        self.complete &= finished
        best = self._best([added for added in bundles if self.rules.hold(added)], best)
        while not deadline.passed:
            better = self._best(neighbours(fits, self.rules, best.added, AROUND), best)
            if better.value <= best.value + 1e-9:
                return best
            best = better
        self.complete = False
        return best


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
    prices, discount = [item.price for item in items], rules.request.discount
    return Design(
        rank=rank,
        items=items,
        price=price_of(prices, discount),
        list_price=price_of(prices),
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
