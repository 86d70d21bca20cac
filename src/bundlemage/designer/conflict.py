"""What cannot hold together, and what would have to change: for a request that no bundle meets.

The smallest conflict is found from its other side. Each set of rules that can hold together, made as large
as possible, leaves some rules out; a conflict needs one of every such remainder. So the fewest rules that
touch all remainders found so far are tried: if they cannot hold together, no smaller set is a conflict; if
they can, there is one more remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from bundlemage.designer.constraints import Rules
from bundlemage.designer.possible import Possible
from bundlemage.designer.solver import cp, new_solver
from bundlemage.designer.waiting import Deadline
from bundlemage.errors import ConfigError, OutOfTimeError
from bundlemage.wire.design import Change, ImpossibleDesignError, Rule, Step

SECONDS = 3.0
"""The least time for finding out why nothing is possible."""
MOST_TRIED = 12
"""How many ways out are looked at."""
MOST_CHANGES = 5
"""How many ways out are named."""


def refuse_impossible(rules: Rules, deadline: Deadline) -> None:
    """Raise `ImpossibleDesignError`, and say why, where no bundle keeps all rules.

    It takes the time that is left, and a few seconds in any case: to say what is wrong is worth a wait.
    """
    possible = Possible(rules, Deadline(max(SECONDS, deadline.left)))
    everything = frozenset(range(len(rules.rules)))
    if possible.together(everything):
        return
    if not possible.together(frozenset()):
        raise ConfigError("there is nothing to add: the shop sells no item that is not in the bundle already")
    conflict = _smallest(possible, everything)
    named = [rules.rules[number] for number in sorted(conflict)]
    raise ImpossibleDesignError(named, _changes(possible, conflict))


def _smallest(possible: Possible, everything: frozenset[int]) -> frozenset[int]:
    """The fewest rules that cannot hold together."""
    left_out: list[frozenset[int]] = []
    while True:
        tried = _fewest_that_touch(left_out)
        assert tried is not None
        if not possible.together(tried):
            return tried
        kept = tried
        for number in sorted(everything - tried):
            if possible.together(kept | {number}):
                kept |= {number}
        left_out.append(everything - kept)


def _fewest_that_touch(
    sets: Iterable[frozenset[int]], other_than: Iterable[frozenset[int]] = ()
) -> frozenset[int] | None:
    """The fewest numbers of which one at least is in each set; None where only the others are left."""
    wanted = list(sets)
    numbers = sorted(frozenset().union(*wanted))
    model = cp().CpModel()
    chosen = {number: model.new_bool_var("") for number in numbers}
    for each in wanted:
        model.add_bool_or([chosen[number] for number in sorted(each)])
    for each in other_than:
        model.add_bool_or([~chosen[number] for number in sorted(each)])
    model.minimize(sum(chosen.values()))
    solver = new_solver(0, 10.0)  # a matter of milliseconds: a request has few rules
    status = solver.solve(model)
    if status == cp().INFEASIBLE:
        return None
    if status != cp().OPTIMAL:
        raise OutOfTimeError("what cannot hold together was not found in time: give fewer rules")
    return frozenset(number for number in numbers if solver.boolean_value(chosen[number]))


# ── Ways out ─────────────────────────────────────────────────────────────────────────────────────


def _changes(possible: Possible, conflict: frozenset[int]) -> list[Change]:
    """The fewest rules whose change suffices, each changed no more than needed; the smallest change first.

    Where time runs out, those that were found until then.
    """
    everything = frozenset(range(len(possible.rules.rules)))
    found: list[tuple[float, Change]] = []
    with suppress(OutOfTimeError):
        for numbers in _ways_out(possible, conflict, everything):
            found.append(_change(possible, everything, sorted(numbers)))
            if len(found) == MOST_TRIED:
                break
    return [change for _, change in sorted(found, key=lambda each: each[0])][:MOST_CHANGES]


def _ways_out(
    possible: Possible, conflict: frozenset[int], everything: frozenset[int]
) -> Iterator[frozenset[int]]:
    """Sets of rules without which the others can hold together, as small as can be.

    As above, with the sides changed: whatever is dropped must touch every conflict, so the fewest that touch
    those found so far are tried; if the others cannot hold together, there is one more conflict among them.
    """
    conflicts, found = [conflict], list[frozenset[int]]()
    while (tried := _fewest_that_touch(conflicts, found)) is not None:
        if found and len(tried) > len(found[0]):
            return
        rest = everything - tried
        if possible.together(rest):
            found.append(tried)
            yield tried
            continue
        for number in sorted(rest):
            if not possible.together(rest - {number}):
                rest -= {number}
        conflicts.append(rest)


def _change(possible: Possible, everything: frozenset[int], numbers: Sequence[int]) -> tuple[float, Change]:
    rules, values = possible.rules, dict[int, int]()
    steps, texts, weight = [], [], 0.0
    active = everything - set(numbers)
    for number in numbers:
        rule = rules.rules[number]
        old = _number_of(rules, number)
        value = None if old is None else possible.extreme(number, active, values)
        if old is None or value is None:
            steps.append(Step(rule.kind, rule.key, None))
            texts.append(f"without: {rule.text}")
            weight += 1.0
            continue
        values[number] = value
        active |= {number}
        new = rules.price(value) if rule.kind.startswith("budget") else float(value)
        steps.append(Step(rule.kind, rule.key, new))
        texts.append(_said(rule, old, new))
        weight += abs(new - old) / max(1.0, abs(old))
    return weight, Change(tuple(steps), " and ".join(texts))


def _number_of(rules: Rules, number: int) -> float | None:
    """The number in a rule that has one."""
    rule, request = rules.rules[number], rules.request
    match rule.kind:
        case "size_min" | "size_max":
            return float(rules.size[rule.kind == "size_max"])
        case "budget_min" | "budget_max":
            return rules.budget[rule.kind == "budget_max"]
        case "at_least" | "at_most":
            counts = request.tags.at_least if rule.kind == "at_least" else request.tags.at_most
            return float(counts[rule.key or ""])
    return None


def _said(rule: Rule, old: float, new: float) -> str:
    limit = "at least" if rule.kind in ("size_min", "budget_min", "at_least") else "at most"
    if rule.kind.startswith("budget"):
        return f"with a price of {limit} {new:,.2f} instead of {old:,.2f}"
    tagged = f" with the tag {rule.key!r}" if rule.key else ""
    return f"with {limit} {new:g} instead of {old:g} items{tagged}"
