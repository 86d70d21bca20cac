"""Whether rules can hold together at all, over the whole catalogue, whatever the model says of its items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bundlemage.designer.constraints import NO_LIMIT, Lists, Rules
from bundlemage.designer.solver import cp, new_solver, signatures
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import OutOfTimeError
from bundlemage.wire.requests import MOST_ITEMS

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MANY = 500
"""With more kinds of items than that, easier questions are asked first."""
LARGEST = 6
"""How many of the largest groups an easier question looks at, besides those that matter in any case."""
SOME = 60
"""How many kinds of each sort another one looks at."""


@dataclass(frozen=True)
class _Kinds:
    """Items that rules treat alike: one of them, how many there are, and what one costs."""

    alike: list[tuple[int, int, int]]
    groups: Lists
    """For each group of the rules the kinds that are in it."""
    counted: frozenset[int]
    """The groups that are looked at: with fewer of them, a question is easier, and more is possible."""

    @classmethod
    def of(cls, rules: Rules, counted: Iterable[int] | None = None) -> _Kinds:
        groups = frozenset(range(len(rules.groups)) if counted is None else counted)
        places = np.flatnonzero(rules.sold)
        banned = np.stack([mask[places] for mask in rules.bans.values()] or [np.zeros(len(places), bool)])
        weights = 1 << np.arange(len(banned), dtype=np.int64)
        must = np.where(np.isin(places, rules.must), places + 1, 0)
        keys = [signatures(rules, places, (), groups), weights @ banned, rules.units[places], must]
        _, first, counts = np.unique(np.stack(keys), axis=1, return_index=True, return_counts=True)
        items = places[first]
        alike = list(zip(items.tolist(), counts.tolist(), rules.units[items].tolist(), strict=True))
        return cls(alike, rules.inside(items), groups)

    def some(self, rules: Rules) -> _Kinds:
        """A few of them, among which there is a bundle in most cases where there is one at all."""
        random = np.random.default_rng(0)
        items, _, units = np.array(self.alike, np.int64).T
        free = rules.allowed[items]
        chosen = set(np.flatnonzero(np.isin(items, rules.must)).tolist())
        wanted = [self.groups[group] for group in np.flatnonzero(rules.least).tolist()]
        for inside in [np.arange(len(self.alike)), *wanted]:
            order = random.permutation(inside[free[inside]])
            by_price = order[np.argsort(units[order], kind="stable")]
            for part in (order[:SOME], by_price[:SOME], by_price[-SOME:]):
                chosen.update(part.tolist())
        kept = np.array(sorted(chosen), np.int64)
        alike = [self.alike[number] for number in kept]
        return _Kinds(alike, rules.inside(np.array([item for item, _, _ in alike], np.int64)), self.counted)


class Possible:
    """Whether some of the rules can hold together, whatever the model says of the items.

    In a large shop there may be nearly as many kinds as items. Then it is first asked whether it is
    possible even with a few kinds alone, and whether it is impossible even if most groups are passed over.
    """

    def __init__(self, rules: Rules, deadline: Deadline) -> None:
        self.rules, self.deadline = rules, deadline
        self._known: dict[frozenset[int], bool] = {}

    @cached_property
    def all(self) -> _Kinds:
        return _Kinds.of(self.rules)

    @cached_property
    def easier(self) -> tuple[_Kinds, _Kinds] | None:
        """With more possible, and with less."""
        if len(self.all.alike) <= MANY:
            return None
        rules = self.rules
        sizes = [(-len(group.members), number) for number, group in enumerate(rules.groups)]
        counted = {number for _, number in sorted(sizes)[:LARGEST]}
        counted |= set(np.flatnonzero((rules.least > 0) | (rules.counts(rules.fixed) > 0)).tolist())
        for number in np.flatnonzero(rules.least).tolist():  # and what has much in common with a wanted one
            members = rules.membership[number]
            common = np.bincount(rules.groups_of.all_of(members.tolist()), minlength=len(rules.groups))
            counted |= set(np.flatnonzero(2 * common > len(members)).tolist())
        return _Kinds.of(rules, counted), self.all.some(rules)

    def together(self, active: frozenset[int]) -> bool:
        """What is known of more rules, or of fewer, need not be asked."""
        if self.deadline.passed:
            raise _out_of_time()
        for known, answer in self._known.items():
            if (answer and active <= known) or (not answer and known <= active):
                return answer
        self._known[active] = self._ask(active)
        return self._known[active]

    def _ask(self, active: frozenset[int]) -> bool:
        if self.easier is not None:
            more, less = self.easier
            if self._problem(less, active).solve() is not None:
                return True
            if self._problem(more, active).solve() is None:
                return False
        return self._problem(self.all, active).solve() is not None

    def extreme(self, number: int, active: frozenset[int], values: Mapping[int, int]) -> int | None:
        """How far a rule's own number must go, for the others to be kept; None where no number will do.

        (Whatever the budget, an item without a price cannot be in it.)
        """
        found = [self._extreme(kinds, number, active | {number}, values) for kinds in self.easier or ()]
        if found and found[0] == found[1]:
            return found[0]
        try:
            return self._extreme(self.all, number, active | {number}, values)
        except OutOfTimeError:
            if found and found[1] is not None:
                return found[1]  # enough, if not proved to be the least
            raise

    def _problem(
        self,
        kinds: _Kinds,
        active: frozenset[int],
        values: Mapping[int, int] | None = None,
        free: int | None = None,
    ) -> _Problem:
        return _Problem(self.rules, kinds, active, self.deadline, values or {}, free)

    def _extreme(
        self, kinds: _Kinds, number: int, active: frozenset[int], values: Mapping[int, int]
    ) -> int | None:
        problem = self._problem(kinds, active, values, free=number)
        downwards = self.rules.rules[number].kind in ("size_max", "budget_max", "at_most")
        return problem.solve(problem.amount(number), downwards=downwards)


class _Problem:
    """How many items of each kind are added: one question to the solver."""

    def __init__(
        self,
        rules: Rules,
        kinds: _Kinds,
        active: frozenset[int],
        deadline: Deadline,
        values: Mapping[int, int],
        free: int | None,
    ) -> None:
        """`values` are other numbers for some rules; the one that is `free` holds with any number."""
        self.rules, self.alike, self.groups = rules, kinds.alike, kinds.groups
        self.deadline, self.values = deadline, values
        bans = [mask for number, mask in rules.bans.items() if number in active]
        self.refused = any(mask[list(rules.start)].any() for mask in bans)  # what is in cannot be taken out
        self.model: cp_model.CpModel = cp().CpModel()
        self.counts = [
            self.model.new_int_var(0, 0 if any(mask[item] for mask in bans) else count, "")
            for item, count, _ in self.alike
        ]
        self._sum = cp().LinearExpr.weighted_sum
        self._of_start = rules.counts(rules.start)
        self.added = self._sum(self.counts, [1] * len(self.counts))
        self.model.add(self.added >= 1)
        self.model.add(self.added <= MOST_ITEMS - len(rules.start))
        places = {item: number for number, (item, _, _) in enumerate(self.alike)}
        for item, number in rules.must_rules.items():
            if number in active:
                self.model.add(self.counts[places[item]] == 1)
        numbered = {
            rules.size_min: (rules.size[0], None),
            rules.size_max: (None, rules.size[1]),
            rules.budget_min: (rules.spending[0], None),
            rules.budget_max: (None, rules.spending[1]),
        }
        for number, (least, most) in numbered.items():
            if number in active and number != free:
                self._between(number, self.amount(number), least, most)
        for group in sorted(kinds.counted):
            number, least, most = rules.groups[group].rule, *rules.limits(group)
            if number in active and number != free:
                self._between(number, self._in_group(group), least or None, most if most < NO_LIMIT else None)

    def _between(self, number: int, total: Any, least: int | None, most: int | None) -> None:
        given = self.values.get(number)
        if least is not None:
            self.model.add(total >= (least if given is None else given))
        if most is not None:
            self.model.add(total <= (most if given is None else given))

    def amount(self, number: int) -> Any:
        """What a rule's number is about: items, money, or items of a group."""
        kind = self.rules.rules[number].kind
        if kind in ("size_min", "size_max"):
            return self.added + len(self.rules.start)
        if kind in ("budget_min", "budget_max"):
            spent = self.rules.spent(self.rules.start)
            return self._sum(self.counts, [units for _, _, units in self.alike]) + spent
        (group,) = (place for place, group in enumerate(self.rules.groups) if group.rule == number)
        return self._in_group(group)

    def _in_group(self, group: int) -> Any:
        inside = self.groups[group].tolist()
        return self._sum([self.counts[i] for i in inside], [1] * len(inside)) + int(self._of_start[group])

    def solve(self, amount: Any = None, *, downwards: bool = True) -> int | None:
        """None: it is impossible. Else the amount, as low or high as can be."""
        if self.refused:
            return None
        if amount is not None:
            self.model.minimize(amount) if downwards else self.model.maximize(amount)
        solver = new_solver(0, self.deadline.left)
        status = solver.solve(self.model)
        if status == cp().INFEASIBLE:
            return None
        if status != cp().OPTIMAL:
            raise _out_of_time()
        return 0 if amount is None else round(solver.value(amount))


def _out_of_time() -> OutOfTimeError:
    return OutOfTimeError(
        "it could not be found out in time which of these rules can hold together: give a longer time limit, "
        "or fewer rules"
    )
