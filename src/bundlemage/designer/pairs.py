"""The best bundle by how well pairs of items fit, found exactly by CP-SAT.

A solver cannot maximise the likelihood of a whole bundle, because the model computes it anew for each
bundle. It can maximise a sum over pairs: how likely each item is next to each other item. CP-SAT finds the
bundle of each size with the highest sum, among the model's best few hundred items. The model then values
these bundles and their neighbours. If a request allows so few bundles that all can be listed, the model
values all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bundlemage.designer.constraints import NO_LIMIT, Integers, Items, Rules
from bundlemage.designer.objective import Floats, Objective
from bundlemage.designer.solver import BundleModel, cp, new_solver, representatives, sizes
from bundlemage.designer.waiting import Deadline

POOL = 200
"""The number of the model's best items that the exact search chooses from; more if the rules need others."""
FINE = 20
"""Whole numbers per unit of log-probability, because CP-SAT counts in whole numbers."""


def shortlist(
    fits: Fits, rules: Rules, known: Sequence[Items], deadline: Deadline
) -> tuple[list[Items], bool]:
    """The best bundle of each size by pairs, starting from `known` ones, and whether the search finished."""
    all_sizes = sizes(rules)
    bundles: list[Items] = []
    finished = True
    for number, size in enumerate(all_sizes):
        if deadline.passed:
            return bundles, False
        same = [added for added in known if len(rules.start) + len(added) == size]
        best, proved = _best_of_size(fits, rules, size, same, deadline.share(len(all_sizes) - number))
        bundles += [best] if best else []
        finished &= proved
    return bundles, finished


@dataclass(frozen=True)
class Fits:
    """How well items fit by themselves and in pairs, for one user and the fixed items of the bundle."""

    places: Integers
    alone: Floats  # [pool]: the log-probability as the first item to be added
    beside: Floats  # [pool, pool]: the log-probability after the other item, summed over both orders
    earns: Floats  # [pool]
    apart: Floats  # [pool, pool]: the distance between two
    from_fixed: Floats  # [pool]: the sum of distances from the fixed items

    @classmethod
    def of(cls, objective: Objective, rules: Rules, known: Sequence[Items]) -> Fits:
        scores = objective.chances_after([rules.fixed])[0]
        places = _pool(rules, scores, known)
        after = np.zeros((len(places), len(places)))
        for where, rows in objective.log_chances([(*rules.fixed, int(item)) for item in places]):
            after[where] = rows.cpu().numpy()[:, places]
        np.fill_diagonal(after, 0)
        apart: Floats = np.zeros_like(after)
        from_fixed = np.zeros(len(places))
        if objective.asks_for_variety:
            apart = objective.apart(places, places)
            from_fixed += objective.apart(rules.fixed, places).sum(0) if rules.fixed else 0.0
        return cls(places, scores[places], after + after.T, objective.earns[places], apart, from_fixed)

    def of_size(self, rules: Rules, size: int) -> tuple[Floats, Floats]:
        """What an item, and two items together, add to the value of a bundle of this size.

        The likelihood of an item after all others is approximated by a mean: of its likelihoods as the first
        item and after each other item alone.
        """
        free = size - len(rules.fixed)
        counted = free + len(rules.must)  # the mean is over all that is added
        couples = max(1, size * (size - 1) // 2)
        alone = self.alone / free / counted + self.earns / counted + self.from_fixed / couples
        return alone, self.beside / free / counted + self.apart / couples


def _pool(rules: Rules, scores: Floats, known: Sequence[Items]) -> Integers:
    chosen = np.array([item for added in known for item in rules.chosen(added)], np.int64)
    pools = (np.flatnonzero(rules.allowed), representatives(rules, scores))
    best = [pool[np.argsort(-scores[pool], kind="stable")[:POOL]] for pool in pools]
    return np.unique(np.concatenate([chosen, *best]))


class TwoByTwo:
    """The problem for one size, in whole numbers from 0 up. A constant is added to all items and to all
    pairs. The number of items is fixed, so this does not change which bundle is best."""

    def __init__(self, fits: Fits, rules: Rules, size: int) -> None:
        self.places, self.free = fits.places, size - len(rules.fixed)
        fine = FINE * self.free * (self.free + len(rules.must))
        alone, together = fits.of_size(rules, size)
        self.alone = np.rint(2 * fine * (alone - alone.min())).astype(np.int64)
        others = ~np.eye(len(alone), dtype=bool)
        lowest = together[others].min() if len(alone) > 1 else 0.0
        self.together = np.where(others, np.rint(fine * (together - lowest)), 0).astype(np.int64)
        self.rooms = [
            (each.weights[self.places], each.most - each.of(rules.fixed))
            for each in rules.sums
            if each.most < NO_LIMIT
        ]
        self.limits = self._limits()

    def value(self, chosen: Items) -> int:
        """The value of a choice as the solver computes it: twice each item, and twice each pair."""
        index = np.searchsorted(self.places, chosen)
        return int(self.alone[index].sum() + self.together[np.ix_(index, index)].sum())

    def _penalties(self) -> Iterator[tuple[Floats, float]]:
        """For each Lagrange multiplier to try: the cost of each item, and the value of the whole room."""
        yield np.zeros(len(self.places)), 0.0
        for weights, room in self.rooms:
            gain, cost = self.together.max(initial=1) * self.free, weights.max(initial=1)
            scale = max(1.0, float(gain)) / max(1.0, float(cost))
            for price in (np.geomspace(1e-3, 10, 30) * scale).tolist():
                yield price * weights, price * room

    def _limits(self) -> Integers:
        """An upper bound of what each item adds: its own value and its pairs with the best allowed others."""
        others = self.free - 1
        scores = self.together.astype(np.float64)
        np.fill_diagonal(scores, -np.inf)
        lowest = np.full(len(self.places), np.inf)
        for costs, worth in self._penalties():
            beside = -np.sort(-(scores - costs), axis=1)[:, :others].sum(1)
            lowest = np.minimum(lowest, beside + worth - costs)
        limits: Integers = np.maximum(np.floor(self.alone + lowest + 1e-6), 0).astype(np.int64)
        return limits

    def promising(self, at_least: int) -> Integers:
        """The items that a bundle of at least this value can contain. The solver does not need the others."""
        limits = self.limits.astype(np.float64)
        highest = np.full(len(limits), np.inf)
        for costs, worth in self._penalties():
            reduced = limits - costs
            best = -np.sort(-reduced)[: self.free]
            with_it = np.where(reduced >= best[-1], best.sum(), best[:-1].sum() + reduced)
            highest = np.minimum(highest, with_it + worth)
        return np.asarray(np.flatnonzero(highest >= at_least - 1e-6), np.int64)

    def add_to(self, choice: BundleModel, index: Integers) -> None:
        """Adds the sum to be maximised to `choice`, over its items."""
        total = []
        for chosen, place in zip(choice.counts, index, strict=True):
            limit = int(self.limits[place])
            part = choice.model.new_int_var(0, limit, "")
            choice.model.add(part <= int(self.alone[place]) + choice.weighted(self.together[place, index]))
            choice.model.add(part <= limit * chosen)
            total.append(part)
        choice.model.maximize(sum(total))


def _best_of_size(
    fits: Fits, rules: Rules, size: int, known: Sequence[Items], seconds: float
) -> tuple[Items | None, bool]:
    """The best bundle of one size by pairs of items, and whether that is proven."""
    if size == len(rules.fixed):
        return (rules.must if rules.hold(rules.must) else None), True
    if len(fits.places) < size - len(rules.fixed):
        return None, True
    problem = TwoByTwo(fits, rules, size)
    best = max(map(rules.chosen, known), key=problem.value, default=None)
    index = np.arange(len(fits.places)) if best is None else problem.promising(problem.value(best))
    exactly = {rule: size for rule in rules.size.rules if rule is not None}
    choice = BundleModel(rules, rules.fixed, fits.places[index], values=exactly)
    problem.add_to(choice, index)
    for var, place in zip(choice.counts, choice.kinds.tolist(), strict=True):
        choice.model.add_hint(var, place in (best or ()))
    solver = new_solver(rules.request.seed, seconds)
    solver.parameters.linearization_level = 2
    status = solver.solve(choice.model)
    if status in (cp().OPTIMAL, cp().FEASIBLE):
        return choice.items(solver.value), status == cp().OPTIMAL
    return None, status == cp().INFEASIBLE


def neighbours(fits: Fits, rules: Rules, added: Items, most: int) -> list[Items]:
    """Bundles with one item exchanged, the best by pairs first."""
    chosen = rules.chosen(added)
    if not chosen:
        return []
    problem = TwoByTwo(fits, rules, len(rules.start) + len(added))
    index = np.searchsorted(fits.places, chosen)
    gains = np.full((len(index), len(fits.places)), -np.inf)
    for number in range(len(index)):
        rest = np.delete(index, number)
        gains[number] = problem.alone + 2 * problem.together[:, rest].sum(1)
        gains[number] += problem.value(tuple(fits.places[rest].tolist()))
        gains[number, index] = -np.inf
    bundles = []
    for place in np.argsort(-gains, axis=None, kind="stable")[: 20 * most].tolist():
        out, into = divmod(place, len(fits.places))
        if gains[out, into] == -np.inf:
            break
        other = (*(item for item in added if item != chosen[out]), int(fits.places[into]))
        if rules.hold(other):
            bundles.append(other)
            if len(bundles) == most:
                break
    return bundles
