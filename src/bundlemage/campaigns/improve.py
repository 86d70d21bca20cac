"""Improves a plan by exchanges of a few showings at a time.

One showing is forced into the plan, those that are now too many are dropped, and what fits is added.
"""

from __future__ import annotations

import numpy as np

from bundlemage.campaigns.limits import Block, Floats, Limits, Mask, Shown, Whole

WORK = 2**26
"""The most numbers that the search reads, about a second of work."""


class Exchanges:
    """Searches for a better plan among some cells, which are pairs of a user and a bundle."""

    def __init__(
        self, block: Block, limits: Limits, per_user: int, most: int | None, cells: Shown, work: int = WORK
    ) -> None:
        self.users, self.bundles = cells
        self.values = block.values[cells]
        self.per_user, self.most, self.work = per_user, most, work
        shares = None if block.shares is None else block.shares[cells]
        which, limit, amount = limits.amounts(self.bundles, shares)
        numbers, column = np.unique(limit, return_inverse=True)
        self.uses = np.zeros((len(self.values), len(numbers)), np.int64)  # [cells, limits]
        self.uses[which, column] = amount
        self.room: Whole = limits.room[numbers]
        fullness = self.uses.sum(0) / np.maximum(self.room, 1)
        self.scarce = (self.uses / np.maximum(self.room, 1) * np.minimum(fullness, 1.0)).sum(1)
        """[cells]: the part of scarce limits that a cell uses"""

    def best(self, start: Mask) -> Mask:
        """Returns the best plan found, as a mask of the cells. `start` may be empty."""
        if not len(start):
            return start
        rankings = [self.values, self.values / (self.scarce + self.scarce.mean() + 1e-9)]
        starts = [self.filled(start, rankings[0])]
        starts += [self.filled(np.zeros(len(start), bool), ranking) for ranking in rankings]
        plan = max(starts, key=self.value)
        better = True
        while better and self.work > 0:
            better = False
            for cell in np.argsort(-rankings[1], kind="stable").tolist():
                if plan[cell]:
                    continue
                for ranking in rankings:
                    other = self.filled(self.forced(plan, cell, ranking), ranking)
                    if self.value(other) > self.value(plan) * (1 + 1e-9):
                        plan, better = other, True
                        break
                if self.work < 0:
                    break
        return plan

    def value(self, plan: Mask) -> float:
        """Returns the value of a plan."""
        return float(self.values[plan].sum())

    def filled(self, plan: Mask, ranking: Floats) -> Mask:
        """Returns the plan with further cells, the best by `ranking` first, as long as they fit."""
        plan = plan.copy()
        room = self.room - self.uses[plan].sum(0)
        counts = np.bincount(self.users[plan], minlength=int(self.users.max(initial=0)) + 1)
        times = np.bincount(self.bundles[plan], minlength=int(self.bundles.max(initial=0)) + 1)
        waiting = np.flatnonzero(~plan)
        while True:
            self.work -= len(waiting) * (len(room) + 1)
            fits = (self.uses[waiting] <= room).all(1) & (counts[self.users[waiting]] < self.per_user)
            if self.most is not None and (times > 0).sum() >= self.most:
                fits &= times[self.bundles[waiting]] > 0
            waiting = waiting[fits]
            if not len(waiting):
                return plan
            cell = waiting[ranking[waiting].argmax()]
            plan[cell] = True
            room = room - self.uses[cell]
            counts[self.users[cell]] += 1
            times[self.bundles[cell]] += 1
            waiting = waiting[waiting != cell]

    def forced(self, plan: Mask, cell: int, ranking: Floats) -> Mask:
        """Returns the plan with this cell, without the worst cells by `ranking` that it displaces."""
        plan = plan.copy()
        shown = np.flatnonzero(plan)
        plan[cell] = True
        self.work -= len(shown) * (len(self.room) + 1)
        same_user = shown[self.users[shown] == self.users[cell]]
        if len(same_user) >= self.per_user:
            plan[same_user[ranking[same_user].argmin()]] = False
        used = np.unique(self.bundles[plan])
        if self.most is not None and len(used) > self.most:
            worths = np.bincount(self.bundles[plan], self.values[plan], minlength=used[-1] + 1)
            worths[self.bundles[cell]] = np.inf
            plan[self.bundles == used[worths[used].argmin()]] = False
        over = self.uses[plan].sum(0) - self.room
        while (over > 0).any():
            others = np.flatnonzero(plan)
            others = others[others != cell]
            frees = np.minimum(self.uses[others], np.maximum(over, 0)) / np.maximum(self.room, 1)
            loss = np.where(
                (freed := frees.sum(1)) > 0, self.values[others] / np.maximum(freed, 1e-300), np.inf
            )
            place = others[loss.argmin()]
            plan[place] = False
            over = over - self.uses[place]
        return plan
