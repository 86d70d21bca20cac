"""Decides whether any bundle satisfies all rules. If none does, finds the smallest conflict, and
changes of the rules that make a bundle possible.

A conflict is a set of rules that no bundle satisfies. The search uses the whole catalogue, and no scores.

The smallest conflict is a minimum hitting set. Take a set of rules that some bundle satisfies, and add rules
as long as some bundle satisfies them all. Every conflict contains at least one of the rules left out. The
search tries the smallest set that contains a rule of each known left-out set. If no bundle satisfies these
rules, they are the smallest conflict. Otherwise they are extended, which gives another left-out set. The
smallest sets of rules to drop, so that some bundle satisfies the others, are computed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from bundlemage.designer.constraints import Deadline, Integers, Rules
from bundlemage.designer.solver import BundleModel, cp, new_solver, signatures, solve
from bundlemage.errors import ConfigError, OutOfTimeError
from bundlemage.wire.design import Change, ImpossibleDesignError, Step

SECONDS = 3.0
"""Minimum time, in seconds, for explaining why no bundle is possible."""
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
    """Raises `ImpossibleDesignError`, with the conflict and changes, if no bundle satisfies all rules.

    It may take the time that is left, or `SECONDS` if less is left.
    """
    possible = Possible(rules, deadline.within(max(SECONDS, deadline.left)))
    everything = frozenset(range(len(rules.rules)))
    if possible.together(everything):
        return
    if not possible.together(frozenset()):
        raise ConfigError("there is nothing to add: the bundle already has every item that the shop sells")
    conflict = next(_smallest_sets(everything, lambda some: not possible.together(some)))
    changes: list[tuple[float, Change]] = []
    with suppress(OutOfTimeError):  # the changes computed so far are reported
        # The dropped rules must include a rule of each conflict.
        ways = _smallest_sets(everything, lambda drop: possible.together(everything - drop), [conflict])
        changes.extend(_change(possible, everything, sorted(drop)) for drop in islice(ways, MOST_TRIED))
    smallest = [change for _, change in sorted(changes, key=lambda each: each[0])][:MOST_CHANGES]
    raise ImpossibleDesignError([rules.rules[number] for number in sorted(conflict)], smallest)


def _smallest_sets(
    everything: frozenset[int],
    enough: Callable[[frozenset[int]], bool],
    left_out: Iterable[frozenset[int]] = (),
) -> Iterator[frozenset[int]]:
    """Yields all smallest sets of rules that are `enough`.

    If a set is enough, every set that contains it must be enough, too. A set that is not enough is extended
    until any further rule would make it enough. Every set that is enough contains at least one of the rules
    left out. `left_out` are such sets of rules that are already known.
    """
    to_hit, smallest = list(left_out), list[frozenset[int]]()
    while (tried := _minimum_hitting_set(to_hit, smallest)) is not None:
        if smallest and len(tried) > len(smallest[0]):
            return
        if enough(tried):
            smallest.append(tried)
            yield tried
            continue
        for number in sorted(everything - tried):
            if not enough(tried | {number}):
                tried |= {number}
        to_hit.append(everything - tried)


def _minimum_hitting_set(
    sets: Iterable[frozenset[int]], other_than: Iterable[frozenset[int]] = ()
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
    solver = new_solver(0, 10.0)  # this takes milliseconds, because a request has few rules
    status = solver.solve(model)
    if status == cp().INFEASIBLE:
        return None
    if status != cp().OPTIMAL:
        raise OutOfTimeError("the search for conflicting rules did not finish in time: give fewer rules")
    return frozenset(number for number in numbers if solver.boolean_value(chosen[number]))


# ── Changes that make a request possible ─────────────────────────────────────────────────────────


def _change(possible: Possible, everything: frozenset[int], numbers: Sequence[int]) -> tuple[float, Change]:
    """Returns a change of the rules `numbers`: new values, or else removal. The float is its size."""
    rules, values = possible.rules, dict[int, int]()
    steps, texts, weight = [], [], 0.0
    active = everything - set(numbers)
    for place in numbers:
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
        self._known: dict[frozenset[int], bool] = {}

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

    def together(self, active: frozenset[int]) -> bool:
        """Whether some bundle satisfies these rules. Earlier answers for more or fewer rules are used."""
        if self.deadline.passed:
            raise _out_of_time()
        for known, answer in self._known.items():
            if (answer and active <= known) or (not answer and known <= active):
                return answer
        more, less = self.easier or (None, None)
        possible = less is not None and self._solve(less, active) is not None
        if not possible and (more is None or self._solve(more, active) is not None):
            possible = self._solve(self.all, active) is not None
        self._known[active] = possible
        return possible

    def extreme(self, number: int, others: frozenset[int], values: Mapping[int, int]) -> int | None:
        """Returns the value nearest to the rule's own value that lets a bundle satisfy the rule and `others`.

        Returns None if no value is enough: for example, an item without a price fits into no budget.
        """
        active = others | {number}
        nearest = [self._solve(kinds, active, values, free=number) for kinds in self.easier or ()]
        if nearest and nearest[0] == nearest[1]:
            return nearest[0]
        try:
            return self._solve(self.all, active, values, free=number)
        except OutOfTimeError:
            if nearest and nearest[1] is not None:
                return nearest[1]  # a possible value, but not proven to be the nearest
            raise

    def _solve(
        self,
        kinds: _Kinds,
        active: frozenset[int],
        values: Mapping[int, int] | None = None,
        free: int | None = None,
    ) -> int | None:
        """Returns None if no bundle satisfies the active rules, else 0. `values` replace some rules' numbers.

        If `free` is set, ignores the limit of this rule, and returns the possible amount nearest to it.
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
        amount = None if free is None else problem.amount(free)
        if free is not None:
            upper = rules.numbers[free].upper
            problem.model.minimize(amount) if upper else problem.model.maximize(amount)
        solver = new_solver(0, self.deadline.left)
        status = solve(solver, problem.model, self.deadline)
        if status == cp().INFEASIBLE:
            return None
        if status != cp().OPTIMAL:
            raise _out_of_time()
        return 0 if amount is None else round(solver.value(amount))


def _out_of_time() -> OutOfTimeError:
    return OutOfTimeError(
        "the search for conflicting rules did not finish in time: give a longer time limit, or fewer rules"
    )
