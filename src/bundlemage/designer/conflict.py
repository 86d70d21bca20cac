"""Decides whether any bundle satisfies all rules. If none does, finds a conflict, and changes of the rules
that make a bundle possible.

A conflict is a set of rules that no bundle satisfies. The search uses the whole catalogue, and no scores. It
first finds an irreducible conflict: without any one of its rules, a bundle is possible. This takes few
checks. Then it looks for the smallest conflict, for a short time only.

The smallest conflict is a minimum hitting set. Take a set of rules that some bundle satisfies, and add rules
as long as some bundle satisfies them all. Every conflict contains at least one of the rules left out. The
search tries the smallest set that contains a rule of each known left-out set. If no bundle satisfies these
rules, they are the smallest conflict. Otherwise they are extended, which gives another left-out set. The
smallest sets of rules to drop, so that some bundle satisfies the others, are computed in the same way: they
contain a rule of each conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from bundlemage.designer.constraints import Deadline, Integers, Rules
from bundlemage.designer.solver import BundleModel, cp, new_solver, signatures, solve
from bundlemage.errors import ConfigError, OutOfTimeError
from bundlemage.wire.design import Change, ImpossibleDesignError, Step

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SECONDS = 3.0
"""Minimum time, in seconds, for finding out whether a bundle is possible, and which rules conflict."""
MORE_SECONDS = 0.3
"""Maximum time, in seconds, for the search for the smallest conflict; then for the smallest changes."""
VALUE_SECONDS = 1.0
"""Maximum time, in seconds, for a new value of one rule. Then the nearest value found so far is used."""
SHUFFLES = 5
"""Irreducible conflicts that are found in a random order of the rules. The smallest of them is kept."""
MOST_TRIED = 12
"""Maximum number of changes that are computed."""
MOST_CHANGES = 5
"""Maximum number of changes in the error, which lists only the smallest ones."""
MANY = 500
"""If there are more kinds of items than this, two easier problems are solved first."""
LARGEST = 6
"""The first easier problem keeps this number of the largest groups, and the groups that rules need."""
SOME = 60
"""The second easier problem has this many random kinds, cheapest kinds and most expensive kinds."""


def refuse_impossible(rules: Rules, deadline: Deadline) -> None:
    """Raises `ImpossibleDesignError`, with a conflict and changes, if no bundle satisfies all rules.

    It may take the time that is left, or `SECONDS` if less is left. Once a conflict is known, it ends soon.
    """
    deadline = deadline.within(max(SECONDS, deadline.left))
    possible = Possible(rules, deadline)
    if possible.kept(possible.everything) is not None:
        return
    if possible.kept(frozenset()) is None:
        raise ConfigError("there is nothing to add: the bundle already has every item that the shop sells")
    # The size comes last, because it has a default: other rules say more about what is wrong.
    conflict = possible.conflict(sorted(possible.everything, key=lambda number: number in rules.size.rules))
    possible.deadline = deadline.within(min(MORE_SECONDS, deadline.left))
    conflict, smallest = _smallest_conflict(possible, conflict)
    possible.deadline = deadline.within(min(MORE_SECONDS, deadline.left))
    changes = list[tuple[float, Change]]()
    with suppress(OutOfTimeError):  # the changes computed so far are reported
        drops = islice(_smallest_drops(possible, conflict), MOST_TRIED)
        changes.extend(_change(possible, drop) for drop in drops)
    possible.deadline = deadline
    if not changes:
        with suppress(OutOfTimeError):
            changes.append(_change(possible, _some_drop(possible, conflict)))
    ordered = [change for _, change in sorted(changes, key=lambda each: each[0])][:MOST_CHANGES]
    raise ImpossibleDesignError([rules.rules[number] for number in sorted(conflict)], ordered, smallest)


def _smallest_conflict(possible: Possible, known: frozenset[int]) -> tuple[frozenset[int], bool]:
    """Returns the smallest conflict that is found in time, and whether no conflict is smaller."""
    random, best = np.random.default_rng(0), known
    with suppress(OutOfTimeError):
        if len(best) == 1:
            return best, True
        for number in sorted(possible.everything):
            if possible.kept(frozenset([number])) is None:
                return frozenset([number]), True
        if len(best) == 2:
            return best, True
        for _ in range(SHUFFLES):
            order = random.permutation(len(possible.everything)).tolist()
            best = min(best, possible.conflict(order), key=len)
        found = next(
            _smallest_sets(
                lambda some: len(some) >= len(best) or possible.kept(some) is None,
                lambda some: possible.everything - possible.extended(some),
                possible,
            )
        )
        return min(best, found, key=len), True
    return best, False


def _smallest_drops(possible: Possible, conflict: frozenset[int]) -> Iterator[frozenset[int]]:
    """Yields the smallest sets of rules without which a bundle is possible."""
    return _smallest_sets(
        lambda drop: possible.kept(possible.everything - drop) is not None,
        lambda drop: possible.conflict(sorted(possible.everything - drop)),
        possible,
        [conflict],
    )


def _some_drop(possible: Possible, conflict: frozenset[int]) -> frozenset[int]:
    """Returns rules without which a bundle is possible: one rule, or else not always the smallest set."""
    for number in sorted(conflict):
        if possible.kept(possible.everything - {number}) is not None:
            return frozenset([number])
    return possible.everything - possible.extended(frozenset())


def _smallest_sets(
    enough: Callable[[frozenset[int]], bool],
    must_hit: Callable[[frozenset[int]], frozenset[int]],
    possible: Possible,
    known: Iterable[frozenset[int]] = (),
) -> Iterator[frozenset[int]]:
    """Yields all smallest sets of rules that are `enough`.

    If a set is not enough, `must_hit` returns rules outside of it, of which every set that is enough contains
    at least one. `known` are such rules that are known already.
    """
    to_hit, smallest = list(known), list[frozenset[int]]()
    while (tried := _minimum_hitting_set(to_hit, smallest, possible.deadline)) is not None:
        if smallest and len(tried) > len(smallest[0]):
            return
        if enough(tried):
            smallest.append(tried)
            yield tried
        else:
            to_hit.append(must_hit(tried))


def _minimum_hitting_set(
    sets: Iterable[frozenset[int]], other_than: Iterable[frozenset[int]], deadline: Deadline
) -> frozenset[int] | None:
    """Returns the smallest set that shares a number with each of `sets` and contains no set of `other_than`.

    Returns None if no such set exists.
    """
    to_hit = list(sets)
    numbers = sorted(frozenset().union(*to_hit))
    model = cp().CpModel()
    chosen = {number: model.new_bool_var("") for number in numbers}
    for each in to_hit:
        model.add_bool_or([chosen[number] for number in sorted(each)])
    for each in other_than:
        model.add_bool_or([~chosen[number] for number in sorted(each)])
    model.minimize(sum(chosen.values()))
    solver = new_solver(0, deadline.left)
    status = solve(solver, model, deadline)
    if status == cp().INFEASIBLE:
        return None
    if status != cp().OPTIMAL:
        raise _out_of_time()
    return frozenset(number for number in numbers if solver.boolean_value(chosen[number]))


# ── Changes that make a request possible ─────────────────────────────────────────────────────────


def _change(possible: Possible, drop: frozenset[int]) -> tuple[float, Change]:
    """Returns a change of the rules `drop`: new values, or else removal. The float is its size."""
    rules, values = possible.rules, dict[int, int]()
    steps, texts, weight = [], [], 0.0
    active = possible.everything - drop
    for place in sorted(drop):
        rule, number = rules.rules[place], rules.numbers.get(place)
        value = None if number is None else possible.extreme(place, active, values)
        if number is None or value is None:
            steps.append(Step(rule.kind, rule.key, None))
            texts.append(f"without: {rule.text}")
            weight += 1.0
            continue
        values[place] = value
        active |= {place}
        new = number.of_sum(value)
        steps.append(Step(rule.kind, rule.key, new))
        texts.append(f"with {number.in_words(new)} instead of {number.form(number.value)}")
        weight += abs(new - number.value) / max(1.0, abs(number.value))
    return weight, Change(tuple(steps), " and ".join(texts))


# ── Whether some bundle satisfies rules ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Kinds:
    """For each kind of items, one item and the number of items. All rules treat items of a kind alike."""

    items: Integers
    counts: Integers
    counted: frozenset[int]
    """The groups whose limits are checked. With fewer groups the problem is easier, and more is possible."""

    @classmethod
    def of(cls, rules: Rules, counted: Iterable[int]) -> _Kinds:
        groups, places = frozenset(counted), np.flatnonzero(rules.sold)
        banned = np.stack([mask[places] for mask in rules.bans.values()] or [np.zeros(len(places), bool)])
        weights = 1 << np.arange(len(banned), dtype=np.int64)
        must = np.where(np.isin(places, rules.must), places + 1, 0)
        sums = [each.weights[places] for each in rules.sums]
        keys = [signatures(rules, places, groups), weights @ banned, *sums, must]
        _, first, counts = np.unique(np.stack(keys), axis=1, return_index=True, return_counts=True)
        return cls(places[first], counts, groups)

    def some(self, rules: Rules) -> _Kinds:
        """Returns a few kinds. If a bundle is possible at all, it is nearly always possible with these."""
        random, items = np.random.default_rng(0), self.items
        free, members = rules.allowed[items], rules.inside(items)
        chosen = [np.flatnonzero(np.isin(items, rules.must))]
        required = (members[group] for group in np.flatnonzero(rules.least).tolist())
        for inside in (np.arange(len(items)), *required):
            order = random.permutation(inside[free[inside]])
            chosen.append(order[:SOME])
            for each in rules.sums:
                ordered = order[np.argsort(each.weights[items[order]], kind="stable")]
                chosen += [ordered[:SOME], ordered[-SOME:]]
        some = np.unique(np.concatenate(chosen))
        return _Kinds(items[some], self.counts[some], self.counted)


class Possible:
    """Decides whether some bundle satisfies a set of rules.

    A large shop may have nearly as many kinds as items. Two easier problems are then solved first. If a
    bundle is possible with a few kinds, the answer is yes. If none is possible without the limits of most
    groups, the answer is no.
    """

    def __init__(self, rules: Rules, deadline: Deadline) -> None:
        self.rules, self.deadline = rules, deadline
        self.everything = frozenset(range(len(rules.rules)))
        self._kept: list[frozenset[int]] = []
        self._conflicts: list[frozenset[int]] = []

    @cached_property
    def all(self) -> _Kinds:
        return _Kinds.of(self.rules, range(len(self.rules.groups)))

    @cached_property
    def easier(self) -> tuple[_Kinds, _Kinds] | None:
        """The kinds for a problem in which more is possible, and for one in which less is possible."""
        if len(self.all.items) <= MANY:
            return None
        rules = self.rules
        sizes = np.diff(rules.membership.edges)
        counted = set(np.argsort(-sizes, kind="stable")[:LARGEST].tolist())
        counted |= set(np.flatnonzero((rules.least > 0) | (rules.counts(rules.fixed) > 0)).tolist())
        # Groups that have over half of the items of a group with a minimum are kept, too.
        for number in np.flatnonzero(rules.least).tolist():
            members = rules.membership[number]
            counted |= set(np.flatnonzero(2 * rules.counts(members.tolist()) > len(members)).tolist())
        return _Kinds.of(rules, counted), self.all.some(rules)

    def kept(self, active: frozenset[int]) -> frozenset[int] | None:
        """Returns all rules of a bundle that satisfies at least `active`. None if there is no such bundle.

        Earlier answers for more or fewer rules are used.
        """
        if self.deadline.passed:
            raise _out_of_time()
        if any(known <= active for known in self._conflicts):
            return None
        for known in self._kept:
            if active <= known:
                return known
        more, less = self.easier or (None, None)
        kept = None if less is None else self._solve_kept(less, active)
        if kept is None and (more is None or self._solve(more, active) is not None):
            kept = self._solve_kept(self.all, active)
        if kept is None:
            self._conflicts.append(active)
        else:
            self._kept.append(kept)
        return kept

    def extended(self, some: frozenset[int]) -> frozenset[int]:
        """Adds rules to `some`, as long as some bundle satisfies them all, and returns the result."""
        kept = self.kept(some) or some
        for number in sorted(self.everything - some):
            if number not in kept:
                kept = self.kept(kept | {number}) or kept
        return kept

    def conflict(self, order: Sequence[int]) -> frozenset[int]:
        """Returns an irreducible conflict of these rules, which no bundle satisfies together.

        This is QuickXplain: if few rules conflict, few checks are needed. Rules that come first are
        preferred.
        """

        def needed(rules: Sequence[int], others: frozenset[int], changed: bool) -> frozenset[int]:
            """Returns the rules that are needed for a conflict with `others`."""
            if changed and self.kept(others) is None:
                return frozenset()
            if len(rules) == 1:
                return frozenset(rules)
            first, second = rules[: len(rules) // 2], rules[len(rules) // 2 :]
            of_second = needed(second, others | frozenset(first), True)
            return of_second | needed(first, others | of_second, bool(of_second))

        return needed(order, frozenset(), False)

    def extreme(self, number: int, others: frozenset[int], values: Mapping[int, int]) -> int | None:
        """Returns the value nearest to the rule's own value that lets a bundle satisfy the rule and `others`.

        Returns None if no value is enough: for example, an item without a price fits into no budget.
        """
        active = others | {number}
        nearest = [self._nearest(kinds, active, values, number) for kinds in self.easier or ()]
        if nearest and nearest[0] == nearest[1]:
            return nearest[0]
        try:
            return self._nearest(self.all, active, values, number)
        except OutOfTimeError:
            if nearest and nearest[1] is not None:
                return nearest[1]  # a possible value, but not proven to be the nearest
            raise

    def _nearest(
        self, kinds: _Kinds, active: frozenset[int], values: Mapping[int, int], number: int
    ) -> int | None:
        solved = self._solve(kinds, active, values, free=number)
        return None if solved is None else round(solved[0].value(solved[1].amount(number)))

    def _solve_kept(self, kinds: _Kinds, active: frozenset[int]) -> frozenset[int] | None:
        """Returns all rules that a bundle satisfies that satisfies `active`. All groups must be counted."""
        solved = self._solve(kinds, active)
        if solved is None:
            return None
        rules, (solver, problem) = self.rules, solved
        counts = np.array([solver.value(count) for count in problem.counts], np.int64)
        items = kinds.items[counts > 0]
        inside = np.concatenate([items, np.array(rules.start, np.int64)])
        broken = {number for number, mask in rules.bans.items() if mask[inside].any()}
        broken |= {number for item, number in rules.must_rules.items() if item not in items}
        sums = (rules.size, *rules.sums)
        amounts = [int(counts @ each.weights[kinds.items]) + each.of(rules.start) for each in sums]
        of_groups = rules.counts(rules.start)
        for item, count in zip(items.tolist(), counts[counts > 0].tolist(), strict=True):
            of_groups[rules.groups_of[item]] += count
        limits = (*sums, *rules.groups)
        for limit, amount in zip(limits, [*amounts, *of_groups.tolist()], strict=True):
            lower, upper = limit.rules
            if lower is not None and amount < limit.least:
                broken.add(lower)
            if upper is not None and amount > limit.most:
                broken.add(upper)
        return self.everything - broken

    def _solve(
        self,
        kinds: _Kinds,
        active: frozenset[int],
        values: Mapping[int, int] | None = None,
        free: int | None = None,
    ) -> tuple[cp_model.CpSolver, BundleModel] | None:
        """Returns the solver with a solution of the model, or None if no bundle satisfies the active rules.

        `values` replace some rules' numbers. If `free` is set, the limit of this rule is ignored, and the
        amount in the solution is the possible one nearest to it, or the nearest one that is found in time.
        """
        rules = self.rules
        banned = np.zeros(rules.items, bool)
        for number, mask in rules.bans.items():
            if number in active:
                banned |= mask
        if banned[list(rules.start)].any():
            return None  # the items in `start` cannot be removed
        most = np.where(banned[kinds.items], 0, kinds.counts)
        required = active - {free}
        problem = BundleModel(rules, rules.start, kinds.items, most, required, kinds.counted, values)
        for item, number in rules.must_rules.items():
            if number in active:
                (place,) = np.flatnonzero(kinds.items == item)
                problem.model.add(problem.counts[place] == 1)
        if free is not None:
            amount, upper = problem.amount(free), rules.numbers[free].upper
            problem.model.minimize(amount) if upper else problem.model.maximize(amount)
        solver = new_solver(0, self.deadline.left if free is None else min(VALUE_SECONDS, self.deadline.left))
        status = solve(solver, problem.model, self.deadline)
        if status == cp().UNKNOWN and free is not None:
            problem.model.clear_objective()  # any possible amount is better than none
            solver = new_solver(0, self.deadline.left)
            status = solve(solver, problem.model, self.deadline)
        if status == cp().INFEASIBLE:
            return None
        if status == cp().OPTIMAL or (status == cp().FEASIBLE and free is not None):
            return solver, problem
        raise _out_of_time()


def _out_of_time() -> OutOfTimeError:
    return OutOfTimeError(
        "the search for conflicting rules did not finish in time: give a longer time limit, or fewer rules"
    )
