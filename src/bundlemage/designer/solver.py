"""CP-SAT: any bundle that keeps the rules, and the best one by how items fit two by two.

How likely a whole bundle is cannot be written down for a solver, as the model looks at each bundle anew. What
can is how likely each item is beside each other one. By that sum CP-SAT finds the best bundle of each size,
of the model's best few hundred items; the model then says which of them is best, and looks around it. Where
a request leaves so few bundles that all can be listed, all are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bundlemage.designer.constraints import NO_LIMIT, Integers, Items, Rules
from bundlemage.designer.objective import Floats, Objective
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import MissingExtraError

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

POOL = 200
"""How many of the model's best items the exact search chooses from; more where the rules need others."""
MANY = 3000
"""With more items to choose from, some of them are tried first."""
LISTED = 3000
"""The most bundles that are listed when all are."""
FINE = 20
"""Steps in a logarithm of one: CP-SAT counts in whole numbers."""


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
    found: cp_model.CpSolver = solver
    return found


# ── What there is to choose from ─────────────────────────────────────────────────────────────────


def representatives(rules: Rules, scores: Floats, earlier: Sequence[Items]) -> Integers:
    """Items among which there is a bundle that keeps the rules if there is one at all.

    Items are alike if every rule treats them alike, but for their price. Of those that are alike the best by
    score are enough; with a limit on the price also the cheapest, or priciest; with both, some of each price.
    """
    places = np.flatnonzero(rules.allowed)
    kinds = signatures(rules, places, earlier)
    most = max(1, rules.size[1] - len(rules.fixed))
    units, score = rules.units[places], scores[places]
    below, above = rules.spending[1] < NO_LIMIT, rules.spending[0] > 0
    if below and above:
        kinds = np.unique(np.stack([kinds, units]), axis=1, return_inverse=True)[1].ravel()
    keep = _first_of_each(kinds, -score, most)
    if below and not above:
        keep |= _first_of_each(kinds, units, most)
    if above and not below:
        keep |= _first_of_each(kinds, -units, most)
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


class _Choice:
    """A model in which items are chosen, and every rule holds."""

    def __init__(
        self, rules: Rules, places: Integers, earlier: Sequence[Items], sizes: tuple[int, int]
    ) -> None:
        self.rules, self.places = rules, places
        self.model = cp().CpModel()
        self.chosen = [self.model.new_bool_var("") for _ in places]
        self._sum = cp().LinearExpr.weighted_sum
        least, most = (size - len(rules.fixed) for size in sizes)
        self.within(np.ones(len(places), np.int64), max(least, 0 if rules.must else 1), most)
        fixed = rules.counts(rules.fixed)
        inside = rules.inside(places)
        for number in range(len(rules.groups)):
            low, high = (int(limit[number] - fixed[number]) for limit in (rules.least, rules.most))
            self._some(inside[number].tolist(), low, high)
        if rules.spending != (0, NO_LIMIT):
            spent = rules.spent(rules.fixed)
            self.within(rules.units[places], rules.spending[0] - spent, rules.spending[1] - spent)
        for other in earlier:
            shared = np.flatnonzero(np.isin(places, other)).tolist()
            for size in range(max(1, least), most + 1):
                common = rules.most_common(min(size, len(other)))
                self._some(shared, 0, common, size if least < most else None)

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
            return
        larger = self.model.new_bool_var("")
        count = self._sum(self.chosen, [1] * len(self.chosen))
        self.model.add(count > if_size).only_enforce_if(larger)
        self.model.add(count <= if_size).only_enforce_if(~larger)
        self.model.add(total <= most).only_enforce_if(~larger)

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
    """A bundle that keeps the rules, of likely items; None if there is none, or it was not found in time."""
    if any(mask[list(rules.fixed)].any() for mask in rules.bans.values()):
        return None
    places = representatives(rules, scores, earlier)
    if len(places) > MANY:  # a few that are likely, or cheap, or dear, will do nearly always
        by_score, by_price = np.argsort(-scores[places], kind="stable"), np.argsort(rules.units[places])
        best = np.concatenate([by_score[: MANY // 2], by_price[: MANY // 4], by_price[-MANY // 4 :]])
        found = _any_of(rules, scores, np.unique(places[best]), earlier, seed, deadline)
        if found is not None:
            return found
    return _any_of(rules, scores, places, earlier, seed, deadline)


def _any_of(
    rules: Rules, scores: Floats, places: Integers, earlier: Sequence[Items], seed: int, deadline: Deadline
) -> Items | None:
    choice = _Choice(rules, places, earlier, rules.size)
    weights = np.rint(100 * np.maximum(scores[choice.places], -50)).astype(np.int64) + 5000
    choice.maximise(weights)
    solver = new_solver(seed, max(1.0, deadline.left))
    status = solver.solve(choice.model)
    if status not in (cp().OPTIMAL, cp().FEASIBLE):
        return None
    return choice.items(solver.boolean_value)


# ── The best, two by two ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shortlist:
    """Bundles for the model to look at."""

    bundles: list[Items]
    finished: bool
    """Whether the search came to its end."""
    everything: bool
    """Whether these are all the bundles that there are."""


def shortlist(
    fits: Fits,
    rules: Rules,
    earlier: Sequence[Items],
    known: Sequence[Items],
    seed: int,
    deadline: Deadline,
) -> Shortlist:
    """The bundle of each size that fits best two by two. `known` ones are a start."""
    sizes = _sizes(rules)
    found: list[Items] = []
    finished = True
    for number, size in enumerate(sizes):
        same = [added for added in known if len(rules.start) + len(added) == size]
        seconds = deadline.share(len(sizes) - number)
        best, proved = best_of_size(fits, rules, earlier, size, same, seed, seconds)
        found += [best] if best else []
        finished &= proved
    return Shortlist(found, finished, False)


def _sizes(rules: Rules) -> range:
    return range(max(rules.size[0], len(rules.fixed), len(rules.start) + 1), rules.size[1] + 1)


def every_bundle(rules: Rules, earlier: Sequence[Items], seed: int, deadline: Deadline) -> Shortlist | None:
    """All bundles that keep the rules, where they are few; else None."""
    free = np.flatnonzero(rules.allowed)
    if sum(comb(len(free), size - len(rules.fixed)) for size in _sizes(rules)) > 20 * LISTED:
        return None
    choice = _Choice(rules, free, earlier, rules.size)
    collected = _Collected(choice)
    solver = new_solver(seed, deadline.left)
    solver.parameters.enumerate_all_solutions = True
    status = solver.solve(choice.model, collected.callback)
    if len(collected.found) >= LISTED or status not in (cp().OPTIMAL, cp().INFEASIBLE):
        return None
    return Shortlist(list(collected.found), True, True)


class _Collected:
    """Solutions as they come."""

    def __init__(self, choice: _Choice) -> None:
        self.found: dict[Items, None] = {}
        outer = self

        class Callback(cp().CpSolverSolutionCallback):  # type: ignore[misc]
            def on_solution_callback(self) -> None:
                outer.found[choice.items(self.boolean_value)] = None
                if len(outer.found) >= LISTED:
                    self.stop_search()

        self.callback = Callback()


@dataclass(frozen=True)
class Fits:
    """How good items are by themselves and beside each other, for one person and what is in already."""

    places: Integers
    alone: Floats  # [pool]: the logarithm as the first one to be added
    beside: Floats  # [pool, pool]: as the next one after another, both ways added up
    earns: Floats  # [pool]
    apart: Floats  # [pool, pool]: the distance between two
    from_fixed: Floats  # [pool]: the sum of distances from what is in in any case

    @classmethod
    def of(cls, objective: Objective, rules: Rules, earlier: Sequence[Items], known: Sequence[Items]) -> Fits:
        scores = objective.chances_after([rules.fixed])[0]
        places = _pool(rules, scores, earlier, known)
        after = np.zeros((len(places), len(places)))
        for where, rows in objective.log_chances([(*rules.fixed, int(item)) for item in places]):
            after[where] = rows[:, places]
        np.fill_diagonal(after, 0)
        apart: Floats = np.zeros_like(after)
        from_fixed = np.zeros(len(places))
        if objective.asks_for_variety:
            apart = objective.apart(places, places)
            from_fixed += objective.apart(rules.fixed, places).sum(0) if rules.fixed else 0.0
        return cls(places, scores[places], after + after.T, objective.earns[places], apart, from_fixed)

    def of_size(self, rules: Rules, size: int) -> tuple[Floats, Floats]:
        """What an item, and two items together, add to the value of a bundle of this size.

        An item comes first in one of so many orders, and else after others: how likely it is beside each of
        them, in the mean, stands for how likely it is after all of them.
        """
        free = size - len(rules.fixed)
        counted = free + len(rules.must)  # the mean is over all that is added
        couples = max(1, size * (size - 1) // 2)
        alone = self.alone / free / counted + self.earns / counted + self.from_fixed / couples
        return alone, self.beside / free / counted + self.apart / couples


def _pool(rules: Rules, scores: Floats, earlier: Sequence[Items], known: Sequence[Items]) -> Integers:
    best = np.flatnonzero(rules.allowed)
    best = best[np.argsort(-scores[best], kind="stable")[:POOL]]
    needed = representatives(rules, scores, earlier)
    needed = needed[np.argsort(-scores[needed], kind="stable")[:POOL]]
    chosen = [item for added in known for item in rules.chosen(added)]
    return np.unique(np.concatenate([best, needed, np.array(chosen, np.int64)]))


class TwoByTwo:
    """The problem for one size, in whole numbers that are not negative: with the number of items fixed, a
    constant more for each item, and for each two of them, changes nothing."""

    def __init__(self, fits: Fits, rules: Rules, size: int) -> None:
        self.places, self.free = fits.places, size - len(rules.fixed)
        fine = FINE * self.free * (self.free + len(rules.must))
        alone, together = fits.of_size(rules, size)
        self.alone = np.rint(2 * fine * (alone - alone.min())).astype(np.int64)
        others = ~np.eye(len(alone), dtype=bool)
        lowest = together[others].min() if len(alone) > 1 else 0.0
        self.together = np.where(others, np.rint(fine * (together - lowest)), 0).astype(np.int64)
        self.units = rules.units[self.places]
        self.room = rules.spending[1] - rules.spent(rules.fixed)
        self.limits = self._limits()

    def value(self, chosen: Items) -> int:
        """Every two items are counted twice, as is each item: as the solver adds up."""
        index = np.searchsorted(self.places, chosen)
        return int(self.alone[index].sum() + self.together[np.ix_(index, index)].sum())

    def _prices(self) -> Floats:
        """What a unit of money may be worth: Lagrange multipliers of the budget to try."""
        if self.room >= NO_LIMIT // 2:
            return np.zeros(1)
        gain, cost = self.together.max(initial=1) * self.free, self.units.max(initial=1)
        scale = max(1.0, float(gain)) / max(1.0, float(cost))
        return np.concatenate([[0.0], np.geomspace(1e-3, 10, 30) * scale])

    def _limits(self) -> Integers:
        """What each item can add at most: itself, and the best others beside it that the budget allows."""
        others = self.free - 1
        scores = self.together.astype(np.float64)
        np.fill_diagonal(scores, -np.inf)
        lowest = np.full(len(self.places), np.inf)
        for price in self._prices():
            beside = -np.sort(-(scores - price * self.units), axis=1)[:, :others].sum(1)
            lowest = np.minimum(lowest, beside + price * (self.room - self.units))
        limits: Integers = np.maximum(np.floor(self.alone + lowest + 1e-6), 0).astype(np.int64)
        return limits

    def promising(self, at_least: int) -> Integers:
        """Which items can be in a bundle of such a value: the others are left to no solver."""
        limits = self.limits.astype(np.float64)
        highest = np.full(len(limits), np.inf)
        for price in self._prices():
            reduced = limits - price * self.units
            best = -np.sort(-reduced)[: self.free]
            with_it = np.where(reduced >= best[-1], best.sum(), best[:-1].sum() + reduced)
            highest = np.minimum(highest, with_it + price * self.room)
        return np.asarray(np.flatnonzero(highest >= at_least - 1e-6), np.int64)

    def add_to(self, choice: _Choice, index: Integers) -> None:
        """The sum to be maximised, over the items that `choice` is of."""
        total = []
        for row, place in enumerate(index):
            limit = int(self.limits[place])
            part = choice.model.new_int_var(0, limit, "")
            weights = self.together[place, index].tolist()
            beside = cp().LinearExpr.weighted_sum(choice.chosen, weights)
            choice.model.add(part <= int(self.alone[place]) + beside)
            choice.model.add(part <= limit * choice.chosen[row])
            total.append(part)
        choice.model.maximize(sum(total))


def best_of_size(
    fits: Fits,
    rules: Rules,
    earlier: Sequence[Items],
    size: int,
    known: Sequence[Items],
    seed: int,
    seconds: float,
) -> tuple[Items | None, bool]:
    """The bundle of one size that fits best two by two, and whether it is proved to be it."""
    if size == len(rules.fixed):
        return (rules.must if rules.hold(rules.must, earlier) else None), True
    if len(fits.places) < size - len(rules.fixed):
        return None, True
    problem = TwoByTwo(fits, rules, size)
    ranked = sorted(known, key=lambda added: -problem.value(rules.chosen(added)))
    index = np.arange(len(fits.places))
    if ranked:
        index = problem.promising(problem.value(rules.chosen(ranked[0])))
    choice = _Choice(rules, fits.places[index], earlier, (size, size))
    problem.add_to(choice, index)
    for var, place in zip(choice.chosen, choice.places, strict=True):
        choice.model.add_hint(var, bool(ranked) and int(place) in ranked[0])
    solver = new_solver(seed, seconds)
    solver.parameters.linearization_level = 2
    status = solver.solve(choice.model)
    if status in (cp().OPTIMAL, cp().FEASIBLE):
        return choice.items(solver.boolean_value), status == cp().OPTIMAL
    return None, status == cp().INFEASIBLE


def neighbours(fits: Fits, rules: Rules, earlier: Sequence[Items], added: Items, most: int) -> list[Items]:
    """Bundles with one item exchanged, those that fit best two by two first."""
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
    found = []
    for place in np.argsort(-gains, axis=None, kind="stable")[: 20 * most].tolist():
        out, into = divmod(place, len(fits.places))
        if gains[out, into] == -np.inf:
            break
        other = (*(item for item in added if item != chosen[out]), int(fits.places[into]))
        if rules.hold(other, earlier):
            found.append(other)
            if len(found) == most:
                break
    return found
