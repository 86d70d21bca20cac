"""Searches with the CP-SAT solver for one bundle that satisfies the rules, for all, or for the best by pairs.

A solver cannot maximise the likelihood of a whole bundle, because the model computes it anew for each
bundle. It can maximise a sum over pairs: how likely one item is if the other is in the bundle. CP-SAT finds
the bundle of each size with the highest sum, among the model's best few hundred items. The model then values
these bundles and their neighbours. If a request allows so few bundles that all can be listed, the model
values all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bundlemage.designer.constraints import NO_LIMIT, Deadline, Floats, Integers, Items, Limit, Rules, Sum
from bundlemage.designer.objective import Objective
from bundlemage.errors import MissingExtraError, OutOfTimeError
from bundlemage.wire.requests import MOST_ITEMS

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TRIED = 3000
"""If more items than this can be chosen, the first search uses only about this many of them."""
LISTED = 3000
"""`every_bundle` returns None if this many bundles or more satisfy the rules."""
POOL = 200
"""The number of the model's best items that the exact search chooses from; more if the rules need others."""
SECONDS_BETWEEN_TICKS = 0.1
"""How often a running solver is checked for whether it should stop."""
FINE = 20
"""Log-probabilities are multiplied by this number and rounded: CP-SAT computes with whole numbers."""


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


def solve(solver: cp_model.CpSolver, model: Any, deadline: Deadline, callback: Any = None) -> Any:
    """Solves a model and returns the status. If the deadline's `tick` raises an error, the solver stops."""
    if deadline.tick is None:
        return solver.solve(model, callback)
    with ThreadPoolExecutor(1) as pool:
        solving = pool.submit(solver.solve, model, callback)
        try:
            while wait([solving], SECONDS_BETWEEN_TICKS).not_done:
                deadline.tick()
        except BaseException:
            while wait([solving], SECONDS_BETWEEN_TICKS).not_done:
                solver.stop_search()  # again and again: it has no effect before the search has begun
            raise
    return solving.result()


# ── The items to choose from ─────────────────────────────────────────────────────────────────────


def representatives(rules: Rules, scores: Floats) -> Integers:
    """Returns items that are enough: if any bundle satisfies the rules, a bundle of these items does.

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
        kinds[rules.membership[group]] += random[group]
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
        active: Collection[int] | None = None,
        counted: Collection[int] | None = None,
        values: Mapping[int, int] | None = None,
    ) -> None:
        self.rules, self.inside, self.kinds = rules, inside, kinds
        most = np.ones(len(kinds), np.int64) if most is None else most
        self.model: cp_model.CpModel = cp().CpModel()
        self.counts = [self.model.new_int_var(0, count, "") for count in most.tolist()]
        self._members, self._so_far = rules.inside(kinds), rules.counts(inside)
        active_rules = range(len(rules.rules)) if active is None else active
        new = values or {}

        def bounds(limit: Limit) -> tuple[int, int]:
            if limit.rules == (None, None):  # not a rule of the request
                return (limit.least, limit.most) if active is None else (0, NO_LIMIT)
            lower, upper = (rule if rule in active_rules else None for rule in limit.rules)
            return (
                0 if lower is None else new.get(lower, limit.least),
                NO_LIMIT if upper is None else new.get(upper, limit.most),
            )

        least, largest = bounds(rules.size)
        sizes = max(least, len(rules.start) + 1), min(largest, MOST_ITEMS)
        self._limit(self.total(rules.size), *sizes)
        for each in rules.sums:
            self._limit(self.total(each), *bounds(each))
            self._limit_sizes(each, most, *bounds(each))
            self._limit_alike(each, most > 0, *bounds(each))
        group_of_entry = np.repeat(np.arange(len(rules.groups)), np.diff(self._members.edges))
        reach = self._so_far + np.bincount(group_of_entry, most[self._members.values], len(rules.groups))
        binding = np.flatnonzero((rules.least > self._so_far) | (rules.most < reach)).tolist()
        for number in binding if counted is None else sorted(set(binding) & set(counted)):
            limits = bounds(rules.groups[number])
            if limits != (0, NO_LIMIT):
                self._limit(self.in_group(number), *limits)
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

    def _limit(self, total: Any, least: int, most: int) -> None:
        if least > 0 or most < NO_LIMIT:
            self.model.add_linear_constraint(total, least, most)

    def _limit_sizes(self, each: Sum, counts: Integers, least: int, most: int) -> None:
        """Adds how many items a bundle can have, if the limits of a sum allow only some numbers: because of
        the cheapest and the most expensive items, or because all weights are alike, as in `_limit_alike`. For
        example, up to 60 prices ending in .99 never add up to 100.02. `counts` are the numbers of items of
        each kind. The solver sees this only after long search.
        """
        if least <= 0 and most >= NO_LIMIT:
            return
        used = counts > 0
        weights = np.sort(np.repeat(each.weights[self.kinds[used]], np.minimum(counts[used], MOST_ITEMS)))
        there, added = each.of(self.inside), np.arange(min(len(weights), MOST_ITEMS) + 1)
        lowest, highest = (
            there + np.concatenate([[0], np.cumsum(ordered)])[added] for ordered in (weights, weights[::-1])
        )
        lowest, highest = np.maximum(lowest, least), np.minimum(highest, most)
        possible = lowest <= highest
        step = int(np.gcd.reduce(weights - weights[0])) if len(weights) else 0
        if step > 1:
            base = there + int(weights[0]) * added
            possible &= base + (highest - base) // step * step >= lowest
        if not possible.all():
            number = self.weighted(np.ones(len(self.kinds), np.int64))
            domain = cp().Domain.from_values(added[possible].tolist())
            self.model.add_linear_expression_in_domain(number, domain)

    def _limit_alike(self, each: Sum, used: npt.NDArray[np.bool_], least: int, most: int) -> None:
        """Adds what follows from the limits of a sum if all weights are alike, such as prices ending in .99.

        If they differ by multiples of a step, the sum is the first weight times the number of items, plus a
        multiple of the step. So few sums are possible for each number of items. The solver does not see this.
        """
        weights = each.weights[self.kinds[used]]
        step = int(np.gcd.reduce(weights - weights[0])) if len(weights) else 0
        if step < 2 or (least <= 0 and most >= NO_LIMIT):
            return
        first, highest = int(weights[0]), int(((weights - weights[0]) // step).max())
        multiples = np.zeros(len(self.kinds), np.int64)
        multiples[used] = (weights - first) // step
        lowest = int(multiples.min())
        steps = self.model.new_int_var(MOST_ITEMS * lowest, MOST_ITEMS * highest, "")
        added = self.weighted(np.ones(len(self.kinds), np.int64))
        self.model.add(steps == self.weighted(multiples))
        self._limit(first * added + step * steps + each.of(self.inside), least, most)

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
    """Returns the added items of a likely bundle that satisfies the rules, or None if there is none."""
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
    solver.parameters.linearization_level = 2
    status = solve(solver, choice.model, deadline)
    if status == cp().INFEASIBLE:
        return None
    if status not in (cp().OPTIMAL, cp().FEASIBLE):
        raise OutOfTimeError(
            "the search found no bundle that satisfies these rules in time: give a longer time limit, or "
            "fewer rules"
        )
    return choice.items(solver.value)


def sizes(rules: Rules) -> range:
    """Returns the sizes that a bundle may have."""
    return range(max(rules.size.least, len(rules.fixed), len(rules.start) + 1), rules.size.most + 1)


def every_bundle(rules: Rules, deadline: Deadline) -> list[Items] | None:
    """Returns all bundles that satisfy the rules, or None if they are too many or time runs out."""
    free = np.flatnonzero(rules.allowed)
    if sum(comb(len(free), size - len(rules.fixed)) for size in sizes(rules)) > 20 * LISTED:
        return None
    choice = BundleModel(rules, rules.fixed, free)
    collected = _callback()(choice)
    solver = new_solver(rules.request.seed, deadline.left)
    solver.parameters.enumerate_all_solutions = True
    status = solve(solver, choice.model, deadline, collected)
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


# ── The best bundle by pairs of items ────────────────────────────────────────────────────────────


def shortlist(
    fits: Fits, rules: Rules, known: Sequence[Items], deadline: Deadline
) -> tuple[list[Items], bool]:
    """Returns each size's best bundle by pairs, starting from `known`, and whether the search finished."""
    all_sizes = sizes(rules)
    bundles: list[Items] = []
    finished = True
    for number, size in enumerate(all_sizes):
        if deadline.passed:
            return bundles, False
        same = [added for added in known if len(rules.start) + len(added) == size]
        share = deadline.within(deadline.left / (len(all_sizes) - number))
        best, proved = _best_of_size(fits, rules, size, same, share)
        bundles += [best] if best else []
        finished &= proved
    return bundles, finished


@dataclass(frozen=True)
class Fits:
    """How well items fit by themselves and in pairs, for one user and the fixed items of the bundle."""

    places: Integers
    alone: Floats  # [pool]: the log-probability as the first item to be added
    beside: Floats  # [pool, pool]: the log-probability after the other item, summed over both orders
    earns: Floats  # [pool]: the margin, and the value of the user taking the item alone
    apart: Floats  # [pool, pool]: the distance between two items
    from_fixed: Floats  # [pool]: the sum of distances from the fixed items

    @classmethod
    def of(
        cls, objective: Objective, rules: Rules, known: Sequence[Items], deadline: Deadline
    ) -> Fits | None:
        """Returns the fits of the best items and of those in the bundles `known`; None if time runs out."""
        scores = objective.chances_after([rules.fixed])[0]
        chosen = np.array([item for added in known for item in rules.chosen(added)], np.int64)
        pools = (np.flatnonzero(rules.allowed), representatives(rules, scores))
        likely = scores + objective.alone
        best = [pool[np.argsort(-likely[pool], kind="stable")[:POOL]] for pool in pools]
        places = np.unique(np.concatenate([chosen, *best]))
        after = np.zeros((len(places), len(places)))
        for where, rows in objective.log_chances([(*rules.fixed, int(item)) for item in places]):
            after[where] = rows.cpu().numpy()[:, places]
            if deadline.passed:
                return None
        np.fill_diagonal(after, 0)
        apart: Floats = np.zeros_like(after)
        from_fixed = np.zeros(len(places))
        if objective.asks_for_variety:
            apart = objective.apart(places, places)
            from_fixed += objective.apart(rules.fixed, places).sum(0) if rules.fixed else 0.0
        earns = objective.earns[places] + objective.alone[places]
        return cls(places, scores[places], after + after.T, earns, apart, from_fixed)


class TwoByTwo:
    """The values of items and pairs for bundles of one size, as whole numbers. A constant is added to all
    items, and another to all pairs, so that no value is negative. All bundles have the same size, so this
    does not change which one is best.

    The likelihood of an item after all others is approximated by the mean of its likelihoods as the first
    item and after each other item alone.
    """

    def __init__(self, fits: Fits, rules: Rules, size: int) -> None:
        self.places, self.free = fits.places, size - len(rules.fixed)
        counted = self.free + len(rules.must)  # the mean is over all added items
        couples, fine = max(1, comb(size, 2)), FINE * self.free * counted
        self.scale = 2 * fine
        """The whole numbers are the values of bundles times this number, plus a constant."""
        alone = fits.alone / self.free / counted + fits.earns / counted + fits.from_fixed / couples
        together = fits.beside / self.free / counted + fits.apart / couples
        self.alone = np.rint(2 * fine * (alone - alone.min())).astype(np.int64)
        others = ~np.eye(len(alone), dtype=bool)
        lowest = together[others].min() if len(alone) > 1 else 0.0
        self.together = np.where(others, np.rint(fine * (together - lowest)), 0).astype(np.int64)
        # For each sum with a maximum: the items' weights, and how much the chosen items may add.
        self.rooms = [
            (each.weights[self.places], each.most - each.of(rules.fixed))
            for each in rules.sums
            if each.most < NO_LIMIT
        ]
        scores = self.together.astype(np.float64)
        np.fill_diagonal(scores, -np.inf)
        lowest_sums = np.full(len(self.places), np.inf)
        for costs, worth in self._penalties():
            beside = -np.sort(-(scores - costs), axis=1)[:, : self.free - 1].sum(1)
            lowest_sums = np.minimum(lowest_sums, beside + worth - costs)
        self.limits: Integers = np.maximum(np.floor(self.alone + lowest_sums + 1e-6), 0).astype(np.int64)
        """An upper bound of what each item adds: its own value and its pairs with the best allowed others."""

    def value(self, chosen: Items) -> int:
        """Returns the value of a choice as the solver computes it: each item and each pair counts twice."""
        index = np.searchsorted(self.places, chosen)
        return int(self.alone[index].sum() + self.together[np.ix_(index, index)].sum())

    def _penalties(self) -> Iterator[tuple[Floats, float]]:
        """Yields the cost of each item and the constant to add, for each Lagrange multiplier to try."""
        yield np.zeros(len(self.places)), 0.0
        for weights, room in self.rooms:
            gain, cost = self.together.max(initial=1) * self.free, weights.max(initial=1)
            scale = max(1.0, float(gain)) / max(1.0, float(cost))
            for price in (np.geomspace(1e-3, 10, 30) * scale).tolist():
                yield price * weights, price * room

    def promising(self, at_least: int) -> Integers:
        """Returns the items that a bundle of at least this value can contain. The solver needs no others."""
        limits = self.limits.astype(np.float64)
        highest = np.full(len(limits), np.inf)
        for costs, worth in self._penalties():
            reduced = limits - costs
            best = -np.sort(-reduced)[: self.free]
            with_it = np.where(reduced >= best[-1], best.sum(), best[:-1].sum() + reduced)
            highest = np.minimum(highest, with_it + worth)
        return np.asarray(np.flatnonzero(highest >= at_least - 1e-6), np.int64)


def _best_of_size(
    fits: Fits, rules: Rules, size: int, known: Sequence[Items], deadline: Deadline
) -> tuple[Items | None, bool]:
    """Returns the best bundle of one size by pairs of items, and whether that is proven."""
    if size == len(rules.fixed):
        return (rules.must if rules.hold(rules.must) else None), True
    if len(fits.places) < size - len(rules.fixed):
        return None, True
    problem = TwoByTwo(fits, rules, size)
    best = max(map(rules.chosen, known), key=problem.value, default=None)
    index = np.arange(len(fits.places)) if best is None else problem.promising(problem.value(best))
    exactly = {rule: size for rule in rules.size.rules if rule is not None}
    choice = BundleModel(rules, rules.fixed, fits.places[index], values=exactly)
    total = []
    for chosen, item, place in zip(choice.counts, choice.kinds.tolist(), index, strict=True):
        if deadline.tick is not None:
            deadline.tick()
        limit = int(problem.limits[place])
        part = choice.model.new_int_var(0, limit, "")
        pairs = choice.weighted(problem.together[place, index])
        choice.model.add(part <= int(problem.alone[place]) + pairs)
        choice.model.add(part <= limit * chosen)
        choice.model.add_hint(chosen, item in (best or ()))
        total.append(part)
    choice.model.maximize(sum(total))
    solver = new_solver(rules.request.seed, deadline.left)
    solver.parameters.linearization_level = 2
    status = solve(solver, choice.model, deadline)
    if status in (cp().OPTIMAL, cp().FEASIBLE):
        return choice.items(solver.value), status == cp().OPTIMAL
    return None, status == cp().INFEASIBLE


def neighbours(objective: Objective, fits: Fits, rules: Rules, added: Items, most: int) -> list[Items]:
    """Returns at most `most` bundles with one item exchanged. The best are first, by pairs of items and by
    how likely the bundle is taken."""
    chosen = rules.chosen(added)
    if not chosen:
        return []
    problem = TwoByTwo(fits, rules, len(rules.start) + len(added))
    index = np.searchsorted(fits.places, chosen)
    gains = np.full((len(index), len(fits.places)), -np.inf)
    others = [tuple(item for item in (*rules.start, *added) if item != out) for out in chosen]
    taken = objective.matching_with(others, [fits.places] * len(others))
    for number in range(len(index)):
        rest = np.delete(index, number)
        gains[number] = problem.alone + 2 * problem.together[:, rest].sum(1)
        gains[number] += problem.value(tuple(fits.places[rest].tolist()))
        gains[number] /= problem.scale
        gains[number] += taken[number]
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
