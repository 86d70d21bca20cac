"""CP-SAT: any bundle that keeps the rules, or all of them if they are few."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bundlemage.designer.constraints import NO_LIMIT, Integers, Items, Rules
from bundlemage.designer.objective import Floats
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import MissingExtraError, OutOfTimeError

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TRIED = 3000
"""With more items to choose from, some of them are tried first."""
LISTED = 3000
"""The most bundles that are listed."""


def cp() -> Any:
    """OR-Tools, which takes half a second to import."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError("designer", "designing bundles") from None
    return cp_model


def new_solver(seed: int, seconds: float) -> cp_model.CpSolver:
    """One thread and a seed: the same question has the same answer, unless time runs out."""
    solver = cp().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


# ── What there is to choose from ─────────────────────────────────────────────────────────────────


def representatives(rules: Rules, scores: Floats, earlier: Sequence[Items]) -> Integers:
    """Items among which there is a bundle that keeps the rules if there is one at all.

    Items are alike if every rule treats them alike, but for sums such as the price. Of those that are alike
    the best by score are enough; with one limit on one sum also the cheapest, or the most expensive; with
    more limits, some of each price.
    """
    places = np.flatnonzero(rules.allowed)
    kinds = signatures(rules, places, earlier)
    most = max(1, rules.size.most - len(rules.fixed))
    weights = [each.weights[places] for each in rules.sums]
    ends = [end for each in rules.sums for end in (each.least > 0, each.most < NO_LIMIT)]
    if sum(ends) > 1:
        kinds = np.unique(np.stack([kinds, *weights]), axis=1, return_inverse=True)[1].ravel()
    keep = _first_of_each(kinds, -scores[places], most)
    if sum(ends) == 1:
        keep |= _first_of_each(kinds, -weights[0] if ends[0] else weights[0], most)
    return np.asarray(places[keep], np.int64)


def signatures(
    rules: Rules, places: Integers, earlier: Sequence[Items], counted: Collection[int] | None = None
) -> Integers:
    """A number for each item, the same for those that are in the same groups and earlier bundles."""
    random = np.random.default_rng(0).integers(1, 2**62, len(rules.groups) + len(earlier))
    kinds = np.zeros(rules.items, np.int64)
    for group in range(len(rules.groups)) if counted is None else counted:
        kinds[rules.groups[group].members] += random[group]
    kinds = kinds[places]
    for number, other in zip(random[len(rules.groups) :], earlier, strict=True):
        kinds = kinds + np.isin(places, other) * number
    return np.unique(kinds, return_inverse=True)[1].ravel()


def _first_of_each(kinds: Integers, order: npt.NDArray[Any], most: int) -> npt.NDArray[np.bool_]:
    """The first few of each kind."""
    by_kind = np.lexsort((order, kinds))
    ordered = kinds[by_kind]
    rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    keep = np.zeros(len(kinds), bool)
    keep[by_kind[rank < most]] = True
    return keep


# ── Rules for the solver ─────────────────────────────────────────────────────────────────────────


class BundleChoice:
    """A CP-SAT model in which items are chosen and every rule holds."""

    def __init__(
        self, rules: Rules, places: Integers, earlier: Sequence[Items], sizes: tuple[int, int]
    ) -> None:
        self.rules, self.places = rules, places
        self.model = cp().CpModel()
        self.chosen = [self.model.new_bool_var("") for _ in places]
        self._sum = cp().LinearExpr.weighted_sum
        least, most = (size - len(rules.fixed) for size in sizes)
        self._sizes: dict[int, Any] = {}
        self._count = self.model.new_int_var(0, max(0, most), "")
        self.model.add(self._count == self._sum(self.chosen, [1] * len(self.chosen)))
        self.within(np.ones(len(places), np.int64), max(least, 0 if rules.must else 1), most)
        fixed = rules.counts(rules.fixed)
        inside = rules.inside(places)
        for number in range(len(rules.groups)):
            low, high = (int(limit[number] - fixed[number]) for limit in (rules.least, rules.most))
            self._some(inside[number].tolist(), low, high)
        for each in rules.sums:
            so_far = each.of(rules.fixed)
            self.within(each.weights[places], each.least - so_far, each.most - so_far)
        for other in earlier:
            shared = np.flatnonzero(np.isin(places, other)).tolist()
            largest = min(most, len(other))
            self._some(shared, 0, rules.most_common(largest))
            for size in range(max(1, least), largest):
                self._some(shared, 0, rules.most_common(size), if_size=size)

    def maximise(self, weights: Integers) -> None:
        self.model.maximize(self._sum(self.chosen, weights.tolist()))

    def within(self, weights: Integers, least: int, most: int) -> None:
        self._between(self._sum(self.chosen, weights.tolist()), least, most)

    def _some(self, index: Sequence[int], least: int, most: int, if_size: int | None = None) -> None:
        if least <= 0 and most >= len(index):
            return
        total = self._sum([self.chosen[i] for i in index], [1] * len(index))
        if if_size is None:
            self._between(total, least, most)
        else:  # of bundles of different sizes: those of this size, or smaller ones
            self.model.add(total <= most).only_enforce_if(~self._larger(if_size))

    def _larger(self, size: int) -> Any:
        """Whether more items are chosen than that."""
        if size not in self._sizes:
            larger = self._sizes[size] = self.model.new_bool_var("")
            self.model.add(self._count > size).only_enforce_if(larger)
            self.model.add(self._count <= size).only_enforce_if(~larger)
        return self._sizes[size]

    def _between(self, total: Any, least: int, most: int) -> None:
        if most < NO_LIMIT // 2:
            self.model.add(total <= int(most))
        if least > 0:
            self.model.add(total >= int(least))

    def items(self, value: Any) -> Items:
        """What a solution adds: `must`, and what it chose."""
        chosen = [int(place) for place, var in zip(self.places, self.chosen, strict=True) if value(var)]
        return (*self.rules.must, *chosen)


def any_bundle(
    rules: Rules, scores: Floats, earlier: Sequence[Items], seed: int, deadline: Deadline
) -> Items | None:
    """A bundle that keeps the rules, of likely items; None if there is none."""
    if any(mask[list(rules.fixed)].any() for mask in rules.bans.values()):
        return None
    places = representatives(rules, scores, earlier)
    if len(places) > TRIED:  # a few that are likely, or cheap, or expensive, are nearly always enough
        best = [np.argsort(-scores[places], kind="stable")[: TRIED // 2]]
        for each in rules.sums:
            order = np.argsort(each.weights[places], kind="stable")
            best += [order[: TRIED // 4], order[-TRIED // 4 :]]
        with suppress(OutOfTimeError):
            bundle = _any_of(rules, scores, np.unique(places[np.concatenate(best)]), earlier, seed, deadline)
            if bundle is not None:
                return bundle
    return _any_of(rules, scores, places, earlier, seed, deadline)


def _any_of(
    rules: Rules, scores: Floats, places: Integers, earlier: Sequence[Items], seed: int, deadline: Deadline
) -> Items | None:
    choice = BundleChoice(rules, places, earlier, (rules.size.least, rules.size.most))
    weights = np.rint(100 * np.maximum(scores[choice.places], -50)).astype(np.int64) + 5000
    choice.maximise(weights)
    solver = new_solver(seed, max(1.0, deadline.left))
    status = solver.solve(choice.model)
    if status == cp().INFEASIBLE:
        return None
    if status not in (cp().OPTIMAL, cp().FEASIBLE):
        raise OutOfTimeError(
            "the search found no bundle that keeps these rules in time: give a longer time limit, or fewer "
            "rules"
        )
    return choice.items(solver.boolean_value)


# ── All of them ──────────────────────────────────────────────────────────────────────────────────


def sizes(rules: Rules) -> range:
    return range(max(rules.size.least, len(rules.fixed), len(rules.start) + 1), rules.size.most + 1)


def every_bundle(rules: Rules, earlier: Sequence[Items], seed: int, deadline: Deadline) -> list[Items] | None:
    """All bundles that keep the rules if they are few; else None."""
    free = np.flatnonzero(rules.allowed)
    if sum(comb(len(free), size - len(rules.fixed)) for size in sizes(rules)) > 20 * LISTED:
        return None
    choice = BundleChoice(rules, free, earlier, (rules.size.least, rules.size.most))
    collected = _callback()(choice)
    solver = new_solver(seed, deadline.left)
    solver.parameters.enumerate_all_solutions = True
    status = solver.solve(choice.model, collected)
    if len(collected.bundles) >= LISTED or status not in (cp().OPTIMAL, cp().INFEASIBLE):
        return None
    return list(collected.bundles)


@cache
def _callback() -> Any:
    """Created once, because a class for each search would stay in memory until the next collection."""

    class Callback(cp().CpSolverSolutionCallback):  # type: ignore[misc]
        def __init__(self, choice: BundleChoice) -> None:
            super().__init__()
            self.choice = choice
            self.bundles: dict[Items, None] = {}

        def on_solution_callback(self) -> None:
            self.bundles[self.choice.items(self.boolean_value)] = None
            if len(self.bundles) >= LISTED:
                self.stop_search()

    return Callback
