"""States the rules for the CP-SAT solver. Finds one bundle that keeps them, or all if they are few."""

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
"""If more items can be chosen, a search among about this many comes first."""
LISTED = 3000
"""`every_bundle` returns None for this many bundles or more."""


def cp() -> Any:
    """Returns the module of CP-SAT. It is imported late, because this takes half a second."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError("designer", "designing bundles") from None
    return cp_model


def new_solver(seed: int, seconds: float) -> cp_model.CpSolver:
    """Returns a solver with one thread: it is deterministic for a seed, unless time runs out."""
    solver = cp().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


# ── What there is to choose from ─────────────────────────────────────────────────────────────────


def representatives(rules: Rules, scores: Floats) -> Integers:
    """Returns items that are enough: if any bundle keeps the rules, a bundle of these items does.

    Items are of one kind if all rules treat them alike, except for sums such as the price. Of each kind the
    items with the best scores are kept. If one sum has one limit, the cheapest items (for a minimum, the most
    expensive) are kept, too. If there are more limits, items with different prices are different kinds.
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
    """Returns a number for each item. Items in the same groups and earlier bundles have the same number.

    Only the groups in `counted` are compared; by default all.
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
    """Returns a mask of the first `most` items of each kind, sorted by `order`."""
    by_kind = np.lexsort((order, kinds))
    ordered = kinds[by_kind]
    rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    keep = np.zeros(len(kinds), bool)
    keep[by_kind[rank < most]] = True
    return keep


# ── The rules, for the solver ────────────────────────────────────────────────────────────────────


class BundleModel:
    """A CP-SAT model of the rules. Its variables are the numbers of items that are added from each kind.

    `inside` are the items that are in the bundle already. `kinds` has one item of each kind, and `most` the
    number of items of each kind (by default 1). Only the rules `active` and the limits of the groups
    `counted` are used; by default all. `values` replace the numbers of some rules.
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
        """Returns the expression for a sum over all items of the bundle."""
        return self.weighted(each.weights[self.kinds]) + each.of(self.inside)

    def in_group(self, group: int) -> Any:
        """Returns the expression for the number of items in a group."""
        members = [self.counts[number] for number in self._members[group].tolist()]
        return cp().LinearExpr.sum(members) + int(self._so_far[group])

    def amount(self, rule: int) -> Any:
        """Returns the expression that a rule limits: a sum, or a number of items."""
        for each in (self.rules.size, *self.rules.sums):
            if rule in each.rules:
                return self.total(each)
        (group,) = (number for number, group in enumerate(self.rules.groups) if rule in group.rules)
        return self.in_group(group)

    def weighted(self, weights: Integers) -> Any:
        """Returns the expression for the sum of the added items' weights."""
        return cp().LinearExpr.weighted_sum(self.counts, weights.tolist())

    def _keep(self, total: Any, least: int, most: int) -> None:
        if least > 0 or most < NO_LIMIT:
            self.model.add_linear_constraint(total, least, most)

    def _keep_apart(self, least: int, most: int) -> None:
        """Limits the items shared with earlier bundles. The limit depends on the smaller bundle."""
        added, larger = self.weighted(np.ones(len(self.kinds), np.int64)), dict[int, Any]()
        for other in self.rules.earlier:
            members = np.flatnonzero(np.isin(self.kinds, list(other))).tolist()
            shared = cp().LinearExpr.sum([self.counts[number] for number in members])
            largest = min(most - len(self.inside), len(other))
            self.model.add(shared <= self.rules.most_common(largest))
            for size in range(max(1, least - len(self.inside)), largest):
                if size not in larger:  # true if more than `size` items are added
                    larger[size] = self.model.new_bool_var("")
                    self.model.add(added > size).only_enforce_if(larger[size])
                    self.model.add(added <= size).only_enforce_if(~larger[size])
                self.model.add(shared <= self.rules.most_common(size)).only_enforce_if(~larger[size])

    def items(self, value: Callable[[Any], int]) -> Items:
        """Returns the items that a solution adds to `start`: the items `must`, and the chosen ones."""
        chosen = [int(item) for item, count in zip(self.kinds, self.counts, strict=True) if value(count)]
        return (*self.rules.must, *chosen)


# ── Any bundle, and all of them ──────────────────────────────────────────────────────────────────


def any_bundle(rules: Rules, scores: Floats, deadline: Deadline) -> Items | None:
    """Returns a bundle of likely items that keeps the rules (its added items), or None if none exists."""
    if any(mask[list(rules.fixed)].any() for mask in rules.bans.values()):
        return None
    places = representatives(rules, scores)
    if len(places) > TRIED:  # a few likely, cheap and expensive items are nearly always enough
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
    """Returns the sizes that a bundle may have."""
    return range(max(rules.size.least, len(rules.fixed), len(rules.start) + 1), rules.size.most + 1)


def every_bundle(rules: Rules, deadline: Deadline) -> list[Items] | None:
    """Returns all bundles that keep the rules, or None if they are too many or time runs out."""
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
    """Returns the callback class. It is created once: a class per search would take memory for a while."""

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
