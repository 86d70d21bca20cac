"""CP-SAT: the rules as a model for the solver; any bundle that keeps them, or all bundles if they are few."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bundlemage.designer.constraints import NO_LIMIT, Integers, Items, Limit, Rules, Sum
from bundlemage.designer.objective import Floats
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import MissingExtraError, OutOfTimeError
from bundlemage.wire.requests import MOST_ITEMS

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


def representatives(rules: Rules, scores: Floats) -> Integers:
    """Items among which there is a bundle that keeps the rules if there is one at all.

    Items are alike if every rule treats them alike, but for sums such as the price. Of those that are alike
    the best by score are enough; with one limit on one sum also the cheapest, or the most expensive; with
    more limits, some of each price.
    """
    places = np.flatnonzero(rules.allowed)
    kinds = signatures(rules, places)
    most = max(1, rules.size.most - len(rules.fixed))
    weights = [each.weights[places] for each in rules.sums]
    ends = [end for each in rules.sums for end in (each.least > 0, each.most < NO_LIMIT)]
    if sum(ends) > 1:
        kinds = np.unique(np.stack([kinds, *weights]), axis=1, return_inverse=True)[1].ravel()
    keep = _first_of_each(kinds, -scores[places], most)
    if sum(ends) == 1:
        keep |= _first_of_each(kinds, -weights[0] if ends[0] else weights[0], most)
    return np.asarray(places[keep], np.int64)


def signatures(rules: Rules, places: Integers, counted: Collection[int] | None = None) -> Integers:
    """A number for each item, the same for those that are in the same groups and earlier bundles.

    Only the groups `counted` matter; by default all.
    """
    random = np.random.default_rng(0).integers(1, 2**62, len(rules.groups) + len(rules.earlier))
    kinds = np.zeros(rules.items, np.int64)
    for group in range(len(rules.groups)) if counted is None else counted:
        kinds[rules.groups[group].members] += random[group]
    kinds = kinds[places]
    for number, other in zip(random[len(rules.groups) :], rules.earlier, strict=True):
        kinds = kinds + np.isin(places, list(other)) * number
    return np.unique(kinds, return_inverse=True)[1].ravel()


def _first_of_each(kinds: Integers, order: npt.NDArray[Any], most: int) -> npt.NDArray[np.bool_]:
    """The first few of each kind."""
    by_kind = np.lexsort((order, kinds))
    ordered = kinds[by_kind]
    rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    keep = np.zeros(len(kinds), bool)
    keep[by_kind[rank < most]] = True
    return keep


# ── The rules, for the solver ────────────────────────────────────────────────────────────────────


class BundleModel:
    """A CP-SAT model of the rules: how many items of each kind a bundle has, besides the items `inside`.

    `kinds` has one item of each kind, and `most` the number of items of that kind (by default 1). Only the
    rules `active` hold, and only the groups `counted` count; by default all. `values` replace the numbers of
    some rules.
    """

    def __init__(
        self,
        rules: Rules,
        inside: Items,
        kinds: Integers,
        most: Integers | None = None,
        *,
        active: Collection[int] | None = None,
        counted: Collection[int] | None = None,
        values: Mapping[int, int] | None = None,
    ) -> None:
        self.rules, self.inside, self.kinds = rules, inside, kinds
        most = np.ones(len(kinds), np.int64) if most is None else most
        self.model: cp_model.CpModel = cp().CpModel()
        self.counts = [self.model.new_int_var(0, count, "") for count in most.tolist()]
        self._members, self._so_far = rules.inside(kinds), rules.counts(inside)
        holding = range(len(rules.rules)) if active is None else active
        new = values or {}

        def bounds(limit: Limit) -> tuple[int, int]:
            lower, upper = (rule if rule in holding else None for rule in limit.rules)
            return (
                0 if lower is None else new.get(lower, limit.least),
                NO_LIMIT if upper is None else new.get(upper, limit.most),
            )

        least, largest = bounds(rules.size)
        sizes = max(least, len(rules.start) + 1), min(largest, MOST_ITEMS)
        self._keep(self.total(rules.size), *sizes)
        for each in rules.sums:
            self._keep(self.total(each), *bounds(each))
        group_of_entry = np.repeat(np.arange(len(rules.groups)), np.diff(self._members.edges))
        reach = self._so_far + np.bincount(group_of_entry, most[self._members.values], len(rules.groups))
        binding = np.flatnonzero((rules.least > self._so_far) | (rules.most < reach)).tolist()
        for number in binding if counted is None else sorted(set(binding) & set(counted)):
            self._keep(self.in_group(number), *bounds(rules.groups[number]))
        if rules.earlier:
            self._keep_apart(*sizes)

    def total(self, each: Sum) -> Any:
        """A sum over the items of the bundle."""
        return self.weighted(each.weights[self.kinds]) + each.of(self.inside)

    def in_group(self, group: int) -> Any:
        """The number of items in a group."""
        members = [self.counts[number] for number in self._members[group].tolist()]
        return cp().LinearExpr.sum(members) + int(self._so_far[group])

    def amount(self, rule: int) -> Any:
        """The sum, or the number of items, that a rule limits."""
        for each in (self.rules.size, *self.rules.sums):
            if rule in each.rules:
                return self.total(each)
        (group,) = (number for number, group in enumerate(self.rules.groups) if rule in group.rules)
        return self.in_group(group)

    def weighted(self, weights: Integers) -> Any:
        """The sum of weights of the items that are added."""
        return cp().LinearExpr.weighted_sum(self.counts, weights.tolist())

    def _keep(self, total: Any, least: int, most: int) -> None:
        if least > 0 or most < NO_LIMIT:
            self.model.add_linear_constraint(total, least, most)

    def _keep_apart(self, least: int, most: int) -> None:
        """Lets the bundle differ from earlier ones: the smaller of two bundles decides how much."""
        added, larger = self.weighted(np.ones(len(self.kinds), np.int64)), dict[int, Any]()
        for other in self.rules.earlier:
            members = np.flatnonzero(np.isin(self.kinds, list(other))).tolist()
            shared = cp().LinearExpr.sum([self.counts[number] for number in members])
            largest = min(most - len(self.inside), len(other))
            self.model.add(shared <= self.rules.most_common(largest))
            for size in range(max(1, least - len(self.inside)), largest):
                if size not in larger:  # whether more items than that are added
                    larger[size] = self.model.new_bool_var("")
                    self.model.add(added > size).only_enforce_if(larger[size])
                    self.model.add(added <= size).only_enforce_if(~larger[size])
                self.model.add(shared <= self.rules.most_common(size)).only_enforce_if(~larger[size])

    def items(self, value: Callable[[Any], int]) -> Items:
        """What a solution adds to `start`: `must`, and what it chose."""
        chosen = [int(item) for item, count in zip(self.kinds, self.counts, strict=True) if value(count)]
        return (*self.rules.must, *chosen)


# ── Any bundle, and all of them ──────────────────────────────────────────────────────────────────


def any_bundle(rules: Rules, scores: Floats, deadline: Deadline) -> Items | None:
    """A bundle that keeps the rules, of likely items; None if there is none."""
    if any(mask[list(rules.fixed)].any() for mask in rules.bans.values()):
        return None
    places = representatives(rules, scores)
    if len(places) > TRIED:  # a few that are likely, or cheap, or expensive, are nearly always enough
        best = [np.argsort(-scores[places], kind="stable")[: TRIED // 2]]
        for each in rules.sums:
            order = np.argsort(each.weights[places], kind="stable")
            best += [order[: TRIED // 4], order[-TRIED // 4 :]]
        with suppress(OutOfTimeError):
            bundle = _any_of(rules, scores, np.unique(places[np.concatenate(best)]), deadline)
            if bundle is not None:
                return bundle
    return _any_of(rules, scores, places, deadline)


def _any_of(rules: Rules, scores: Floats, places: Integers, deadline: Deadline) -> Items | None:
    choice = BundleModel(rules, rules.fixed, places)
    likely = np.rint(100 * np.maximum(scores[places], -50)).astype(np.int64) + 5000
    choice.model.maximize(choice.weighted(likely))
    solver = new_solver(rules.request.seed, max(1.0, deadline.left))
    status = solver.solve(choice.model)
    if status == cp().INFEASIBLE:
        return None
    if status not in (cp().OPTIMAL, cp().FEASIBLE):
        raise OutOfTimeError(
            "the search found no bundle that keeps these rules in time: give a longer time limit, or fewer "
            "rules"
        )
    return choice.items(solver.value)


def sizes(rules: Rules) -> range:
    """The sizes that a bundle may have."""
    return range(max(rules.size.least, len(rules.fixed), len(rules.start) + 1), rules.size.most + 1)


def every_bundle(rules: Rules, deadline: Deadline) -> list[Items] | None:
    """All bundles that keep the rules if they are few; else None."""
    free = np.flatnonzero(rules.allowed)
    if sum(comb(len(free), size - len(rules.fixed)) for size in sizes(rules)) > 20 * LISTED:
        return None
    choice = BundleModel(rules, rules.fixed, free)
    collected = _callback()(choice)
    solver = new_solver(rules.request.seed, deadline.left)
    solver.parameters.enumerate_all_solutions = True
    status = solver.solve(choice.model, collected)
    if len(collected.bundles) >= LISTED or status not in (cp().OPTIMAL, cp().INFEASIBLE):
        return None
    return list(collected.bundles)


@cache
def _callback() -> Any:
    """Created once, because a class for each search would stay in memory until the next collection."""

    class Callback(cp().CpSolverSolutionCallback):  # type: ignore[misc]
        def __init__(self, choice: BundleModel) -> None:
            super().__init__()
            self.choice = choice
            self.bundles: dict[Items, None] = {}

        def on_solution_callback(self) -> None:
            self.bundles[self.choice.items(self.value)] = None
            if len(self.bundles) >= LISTED:
                self.stop_search()

    return Callback
