"""Finds conflicting rules by linear programming: as if parts of items could be in a bundle.

This takes milliseconds. If not even such a bundle satisfies some rules, no bundle does. The opposite is not
true, so a conflict that is found is checked and made smaller by the solver.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from bundlemage.designer.constraints import Floats, Integers, Limit, Rules
from bundlemage.wire.requests import MOST_ITEMS

ZERO = 1e-7
"""Smaller numbers are taken as 0."""


class Relaxation:
    """The rules as linear inequalities over the numbers of items of each kind."""

    def __init__(self, rules: Rules, kinds: Integers, counts: Integers) -> None:
        """`kinds` has one item of each kind, and `counts` the number of items."""
        self._rows: list[Floats] = []
        self._most: list[float] = []
        self._rules: list[int | None] = []
        """The rule of each row; None for a row that always holds."""
        self._counts, start = counts, list(rules.start)
        ones = np.ones(len(kinds))
        self._add(-ones, -1, None)
        self._add(ones, MOST_ITEMS - len(start), None)
        for each in (rules.size, *rules.sums):
            self._limit(each.weights[kinds].astype(np.float64), each.of(start), each)
        members, so_far = rules.inside(kinds), rules.counts(start)
        for number, group in enumerate(rules.groups):
            inside = np.zeros(len(kinds))
            inside[members[number]] = 1
            self._limit(inside, int(so_far[number]), group)
        for rule, mask in rules.bans.items():
            self._add(mask[kinds].astype(np.float64), -int(mask[start].sum()), rule)
        for item, rule in rules.must_rules.items():
            self._add(-(kinds == item).astype(np.float64), -1, rule)

    def _limit(self, weights: Floats, so_far: int, limit: Limit) -> None:
        lower, upper = limit.rules
        if lower is not None:
            self._add(-weights, so_far - limit.least, lower)
        if upper is not None:
            self._add(weights, limit.most - so_far, upper)

    def _add(self, weights: Floats, most: float, rule: int | None) -> None:
        scale = max(1.0, float(np.abs(weights).max(initial=0)))
        self._rows.append(weights / scale)
        self._most.append(most / scale)
        self._rules.append(rule)

    def conflict(self, active: Collection[int]) -> frozenset[int] | None:
        """Returns rules among `active` that exclude each other; None if none are found.

        Each row may be exceeded, and the sum of all excesses is minimised. If it is not 0, the rows with a
        price (the dual variables) exclude each other, by Farkas' lemma.
        """
        used = [row for row, rule in enumerate(self._rules) if rule is None or rule in active]
        rows = sparse.csr_matrix(np.stack([self._rows[row] for row in used]))
        excess = sparse.diags([-float(self._rules[row] is not None) for row in used])
        kinds = len(self._counts)
        costs = np.concatenate([np.zeros(kinds), np.ones(len(used))])
        highest = np.concatenate([self._counts, np.full(len(used), np.inf)])
        bounds = np.column_stack([np.zeros(len(highest)), highest])
        matrix, most = sparse.hstack([rows, excess], "csr"), [self._most[row] for row in used]
        found = linprog(costs, matrix, most, bounds=bounds, method="highs-ds")
        if found.status != 0 or found.fun < ZERO:
            return None
        priced = (row for row, price in zip(used, found.ineqlin.marginals, strict=True) if abs(price) > ZERO)
        rules = (self._rules[row] for row in priced)
        return frozenset(rule for rule in rules if rule is not None)

    def irreducible(self, active: Collection[int]) -> frozenset[int] | None:
        """Returns a conflict among `active` in which each rule is needed, as far as linear programming can
        tell; None if none is found. Rules that come first in `active` are left out first."""
        found = self.conflict(active)
        for rule in active if found else ():
            if found is not None and rule in found:
                found = self.conflict(found - {rule}) or found
        return found
