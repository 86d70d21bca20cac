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

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from bundlemage.designer.constraints import Deadline, Integers, Rules
from bundlemage.designer.relaxation import Relaxation
from bundlemage.designer.solver import BundleModel, cp, new_solver, signatures, solve
from bundlemage.errors import ConfigError, OutOfTimeError
from bundlemage.wire.design import Change, ImpossibleDesignError, Step

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SECONDS = 3.0
"""Minimum time, in seconds, for finding out whether a bundle is possible; then for finding a conflict."""
MORE_SECONDS = 0.3
"""Maximum time, in seconds, for the search for the smallest conflict; then for the smallest changes."""
CHECK_SECONDS = 0.2
"""Maximum time, in seconds, for one check of some rules, before the rules are tried in another order."""
SHUFFLES = 5
"""Irreducible conflicts that are found in a random order of the rules. The smallest of them is kept."""
MOST_TRIED = 12
"""Maximum number of changes that are computed."""
MOST_CHANGES = 5
"""Maximum number of changes in the error, which lists only the smallest ones."""
MANY = 1000
"""If there are more kinds of items than this, two easier problems are solved first."""
KEYED = ("must", "at_least", "at_most", "one_per")
"""The kinds of rules of which a request may have many."""
LARGEST = 6
"""The first easier problem keeps this number of the largest groups, and the groups that rules need."""
SOME = 60
"""The second easier problem has this many random kinds, cheapest kinds and most expensive kinds."""


def refuse_impossible(rules: Rules, deadline: Deadline) -> None:
    """Raises `ImpossibleDesignError`, with a conflict and changes, if no bundle satisfies all rules.

    Finding this out may take the time that is left, or `SECONDS` if less is left. Once a conflict is known,
    it ends soon.
    """
    deadline = deadline.within(max(SECONDS, deadline.left))
    possible = Possible(rules, deadline)
    if possible.kept(possible.everything) is not None:
        return
    if possible.kept(frozenset()) is None:
        raise ConfigError("there is nothing to add: the bundle already has every item that the shop sells")
    searching = possible.deadline = deadline.within(max(SECONDS, deadline.left))
    try:
        conflict = _some_conflict(possible)
    except OutOfTimeError:
        raise OutOfTimeError(
            "no bundle is possible, but the search for the rules that conflict did not finish in time: give "
            "a longer time limit, or fewer rules"
        ) from None
    took = searching.taken
    possible.deadline = deadline.within(MORE_SECONDS)
    conflict, smallest = _smallest_conflict(possible, conflict)
    possible.deadline = deadline.within(MORE_SECONDS)
    changes = list[tuple[float, Change]]()
    with suppress(OutOfTimeError):  # the changes computed so far are reported
        drops = islice(_smallest_drops(possible, conflict), MOST_TRIED)
        changes.extend(_change(possible, drop) for drop in drops)
    if not changes:  # each check takes longer in a large shop, and so did the conflict
        possible.deadline = deadline.within(max(MORE_SECONDS, took / 2))
        changes.append(_change(possible, _some_drop(possible, conflict)))
    ordered = [change for _, change in sorted(changes, key=lambda each: each[0])][:MOST_CHANGES]
    raise ImpossibleDesignError([rules.rules[number] for number in sorted(conflict)], ordered, smallest)


def _some_conflict(possible: Possible) -> frozenset[int]:
    """Returns an irreducible conflict.

    Linear programming often finds it at once, or one with few rules too many. If not, the rules are tried in
    several orders. A check of some rules may take long, although a check of more or fewer rules takes no
    time. So an order is given up at a check that takes long.
    """
    rules = possible.rules
    totals = [rule for each in (rules.size, *rules.sums) for rule in each.rules]
    # The size comes last, because it has a default: other rules say more about what is wrong.
    usual = sorted(possible.everything, key=lambda rule: rule in rules.size.rules)
    totals_first = sorted(possible.everything, key=lambda rule: rule not in totals)
    possible.check_seconds = CHECK_SECONDS
    with suppress(OutOfTimeError):
        if (found := _relaxed_conflict(possible, usual[::-1])) is not None:
            return found
    for order in (usual, totals_first, totals_first[::-1]):
        with suppress(OutOfTimeError):
            return possible.conflict(order)
    possible.check_seconds = math.inf
    return possible.conflict(usual)


def _relaxed_conflict(possible: Possible, order: Sequence[int]) -> frozenset[int] | None:
    """Returns an irreducible conflict that linear programming finds, or None. Rules that come first in
    `order` are left out first."""
    if possible.easier is not None:
        return None  # there are too many kinds of items
    kinds = possible.all
    found = Relaxation(possible.rules, kinds.items, kinds.counts).irreducible(order)
    if found is None or possible.kept(found) is not None:
        return None
    for rule in order:
        if rule in found and possible.kept(found - {rule}) is None:
            found -= {rule}
    return found


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
    """Returns rules without which a bundle is possible: one rule, or else few, but not always the fewest.

    If time runs out, they are more than necessary.
    """
    everything, kinds = possible.everything, [rule.kind for rule in possible.rules.rules]
    with suppress(OutOfTimeError):
        for number in sorted(conflict):
            if possible.kept(everything - {number}) is not None:
                return frozenset([number])
    # Many rules on items and tags are often met by changing the size or another rule that concerns them all.
    specific = sorted(everything, key=lambda number: (kinds[number] not in KEYED, number))
    drops = [everything - possible.extended(frozenset(), order) for order in (specific, sorted(everything))]
    return min(drops, key=len)


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
    """Returns a change of the rules `drop`: new values, or else removal. The float is its size.

    If time runs out, the values are those of a bundle that is known already.
    """
    rules, values = possible.rules, dict[int, int]()
    steps, texts, weight = [], [], 0.0
    active = possible.everything - drop
    bundle = possible.bundle(active)
    assert bundle is not None
    for place in sorted(drop):
        rule, number = rules.rules[place], rules.numbers.get(place)
        if number is None:
            value = None
        else:
            try:
                nearest = possible.nearest(place, active, values)
            except OutOfTimeError:
                nearest = bundle
            bundle = nearest or bundle
            value = None if nearest is None else nearest.amounts.get(place)
        if number is None or value is None:
            steps.append(Step(rule.kind, rule.key, None))
            texts.append(f"without this wish: {rule.text}")
            weight += 1.0
            continue
        active |= {place}
        if place in bundle.kept:
            continue  # this rule need not change: there was no time to find out earlier
        values[place] = value
        new = number.of_sum(value)
        steps.append(Step(rule.kind, rule.key, new))
        texts.append(
            f"with {number.in_words(new)} instead of {number.form(number.value)}"
            if new or number.upper
            else f"without this wish: {rule.text}"
        )
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


@dataclass(frozen=True)
class _Bundle:
    """A bundle that a check found."""

    kept: frozenset[int]
    """All rules that it satisfies."""
    amounts: Mapping[int, int]
    """For each rule with a number: the bundle's own amount, such as its price. A rule is missing if no number
    would be enough, such as a budget if an item has no price."""


class Possible:
    """Decides whether some bundle satisfies a set of rules.

    A large shop may have nearly as many kinds as items. Two easier problems are then solved first. If a
    bundle is possible with a few kinds, the answer is yes. If none is possible without the limits of most
    groups, the answer is no.
    """

    def __init__(self, rules: Rules, deadline: Deadline) -> None:
        self.rules, self.deadline = rules, deadline
        self.check_seconds = math.inf
        """Maximum time of one check, in seconds."""
        self.everything = frozenset(range(len(rules.rules)))
        self._bundles: list[_Bundle] = []
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
        """Returns all rules of a bundle that satisfies at least `active`. None if there is no such bundle."""
        bundle = self.bundle(active)
        return None if bundle is None else bundle.kept

    def bundle(self, active: frozenset[int]) -> _Bundle | None:
        """Returns a bundle that satisfies at least the rules `active`. None if there is no such bundle.

        Earlier answers for more or fewer rules are used.
        """
        if any(known <= active for known in self._conflicts):
            return None
        for known in self._bundles:
            if active <= known.kept:
                return known
        more, less = self.easier or (None, None)
        bundle = None if less is None else self._solve(less, active)
        if bundle is None and (more is None or self._solve(more, active) is not None):
            bundle = self._solve(self.all, active)
        if bundle is None:
            self._conflicts.append(active)
        else:
            self._bundles.append(bundle)
        return bundle

    def extended(self, some: frozenset[int], order: Sequence[int] = ()) -> frozenset[int]:
        """Adds rules to `some`, as long as some bundle satisfies them all, and returns the result.

        Rules that come first in `order` are preferred. If time runs out, fewer rules are added.
        """
        parts = [[number for number in order or sorted(self.everything) if number not in some]]
        with suppress(OutOfTimeError):
            while parts:
                part = parts.pop()
                if self.kept(some.union(part)) is not None:
                    some = some.union(part)
                elif len(part) > 1:
                    parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        return self.kept(some) or some

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

    def nearest(self, number: int, others: frozenset[int], values: Mapping[int, int]) -> _Bundle | None:
        """Returns a bundle that satisfies `others`, and whose amount is nearest to the number of a rule.

        `values` replace the numbers of some rules. Returns None if no number is enough: for example, an item
        without a price fits into no budget.
        """
        active = others | {number}
        if self.easier is None:
            return self._solve(self.all, active, values, free=number)
        more, less = self.easier
        known = self._solve(less, active, values, free=number)
        if known is not None and self._is_counted(number, more):
            bound = self._solve(more, active, values, free=number)
            if bound is not None and bound.amounts[number] == known.amounts[number]:
                return known
        try:
            return self._solve(self.all, active, values, free=number)
        except OutOfTimeError:
            if known is not None:
                return known  # possible, but not proven to be the nearest
            raise

    def _is_counted(self, number: int, kinds: _Kinds) -> bool:
        """Whether items of one kind are alike for a rule with a number."""
        groups = (place for place, group in enumerate(self.rules.groups) if number in group.rules)
        return kinds.counted.issuperset(groups)

    def _bundle_of(self, items: Integers, counts: Integers) -> _Bundle:
        """Returns the bundle with these kinds of items, and the number of items of each kind."""
        rules, amounts = self.rules, dict[int, int]()
        inside = np.concatenate([items, np.array(rules.start, np.int64)])
        broken = {number for number, mask in rules.bans.items() if mask[inside].any()}
        broken |= {number for item, number in rules.must_rules.items() if item not in items}
        of_groups = rules.counts(rules.start)
        for item, count in zip(items.tolist(), counts.tolist(), strict=True):
            of_groups[rules.groups_of[item]] += count
        sums = (rules.size, *rules.sums)
        totals = [int(counts @ each.weights[items]) + each.of(rules.start) for each in sums]
        for limit, amount in zip((*sums, *rules.groups), [*totals, *of_groups.tolist()], strict=True):
            lower, upper = limit.rules
            for rule, holds in ((lower, amount >= limit.least), (upper, amount <= limit.most)):
                if rule is None:
                    continue
                if rule in rules.numbers and rule not in broken:
                    amounts[rule] = amount
                if not holds:
                    broken.add(rule)
        return _Bundle(self.everything - broken, amounts)

    def _solve(
        self,
        kinds: _Kinds,
        active: frozenset[int],
        values: Mapping[int, int] | None = None,
        free: int | None = None,
    ) -> _Bundle | None:
        """Returns a bundle of these kinds that satisfies the active rules, or None if there is none.

        `values` replace some rules' numbers. If `free` is set, the limit of this rule is ignored, and the
        amount of the bundle is the possible one nearest to it, or the nearest one that is found in time.
        """
        if self.deadline.passed:
            raise _out_of_time()
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
        solver = self._solver()
        status = solve(solver, problem.model, self.deadline)
        if status == cp().INFEASIBLE:
            return None
        if status not in (cp().OPTIMAL, cp().FEASIBLE):
            raise _out_of_time()
        counts = np.array([solver.value(count) for count in problem.counts], np.int64)
        return self._bundle_of(kinds.items[counts > 0], counts[counts > 0])

    def _solver(self) -> cp_model.CpSolver:
        """A solver for many small problems. Most are decided by their linear relaxation alone."""
        solver = new_solver(0, min(self.check_seconds, self.deadline.left))
        solver.parameters.linearization_level = 2
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.max_presolve_iterations = 1
        return solver


def _out_of_time() -> OutOfTimeError:
    return OutOfTimeError(
        "the search for conflicting rules did not finish in time: give a longer time limit, or fewer rules"
    )
