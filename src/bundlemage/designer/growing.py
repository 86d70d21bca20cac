"""Greedy and beam search: bundles grow item by item. Items that would break a rule later are skipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bundlemage.core.filters import Mask
from bundlemage.designer.constraints import NO_LIMIT, Integers, Items, Rules
from bundlemage.designer.objective import Floats, Objective
from bundlemage.designer.waiting import Deadline

WIDTH = 8
"""The beam width: the number of unfinished bundles that are kept after each step."""
LIKELIEST = 256
"""The number of likeliest items that are tried first for each bundle. The others are tried only if needed."""


@dataclass(frozen=True)
class _State:
    """An unfinished bundle."""

    added: Items
    value: float
    total: float
    """The sum of the log-probabilities and weighted margins of the chosen items."""
    pairs: float
    """The sum of the distances between its items, if the request asks for variety."""
    counts: Integers
    """The number of items in each group."""
    sums: Integers
    """The value of each sum that the rules limit, such as the price."""

    @property
    def key(self) -> Items:
        return tuple(sorted(self.added))


class Lookahead:
    """Decides which items may be added next, so that the rules can still be kept.

    An item that it refuses leads to no bundle. An item that it allows may still lead to none.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._wanted = [number for number, least in enumerate(rules.least) if least > 0]
        self._members = np.zeros((len(self._wanted), rules.items), bool)  # [wanted, items]
        for row, number in enumerate(self._wanted):
            self._members[row, rules.membership[number]] = True
        inside = self._members[:, rules.allowed]
        self._at_once = max(1, int(inside.sum(0).max(initial=0)))  # most wanted groups of one item
        self._sums = [_Reach.of(each.weights, rules.allowed, self._members) for each in rules.sums]
        self._blocked: dict[bytes, Mask] = {}

    def open(self, state: _State, items: Integers) -> Mask:
        """Returns for each of `items` whether it may be added next."""
        rules = self.rules
        size = len(rules.start) + len(state.added)
        room = rules.size.most - size - 1  # how many more items fit after the next one
        mask = rules.allowed[items] & self._groups_open(state)[items] & ~np.isin(items, state.added)
        missing = rules.least[self._wanted] - state.counts[self._wanted]  # [wanted]
        after = np.maximum(missing[:, None] - self._members[:, items], 0)  # [wanted, items]
        needed = np.maximum(after.max(0, initial=0), -(-after.sum(0) // self._at_once))  # [items]
        mask &= needed <= room
        further = np.maximum(needed, rules.size.least - size - 1)  # minimum after the next one
        for each, reach, so_far in zip(rules.sums, self._sums, state.sums, strict=True):
            total = so_far + each.weights[items]
            if each.most < NO_LIMIT:
                mask &= total + _least(reach.lowest, further) <= each.most
                for number, lowest in enumerate(reach.lowest_of):
                    rest = np.maximum(further - after[number], 0)
                    mask &= total + _least(lowest, after[number]) + _least(reach.lowest, rest) <= each.most
            if each.least > 0:
                mask &= total + reach.highest[min(room, len(reach.highest) - 1)] >= each.least
        chosen = set(rules.chosen(state.added))
        for other in rules.earlier:
            if len(chosen & other) >= rules.most_common(len(other)):
                mask &= ~np.isin(items, list(other))
        return mask

    def _groups_open(self, state: _State) -> Mask:
        """Returns for each item whether all its groups may have one more item."""
        full = np.flatnonzero(state.counts >= self.rules.most)
        key = full.tobytes()
        if key not in self._blocked:
            blocked = np.zeros(self.rules.items, bool)
            blocked[self.rules.membership.all_of(full)] = True
            self._blocked[key] = ~blocked
        return self._blocked[key]


@dataclass(frozen=True)
class _Reach:
    """The lowest and the highest sum of 0, 1, 2, … further items."""

    lowest: Integers
    highest: Integers
    lowest_of: list[Integers]
    """For each wanted group, the lowest sums of only its items."""

    @classmethod
    def of(cls, weights: Integers, allowed: Mask, wanted: Mask) -> _Reach:
        ordered = np.sort(weights[allowed])
        members = [_running(np.sort(weights[row & allowed])) for row in wanted]
        return cls(_running(ordered), _running(ordered[::-1]), members)


def _running(weights: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(weights)])


def _least(sums: Integers, count: Integers) -> Integers:
    """Returns the lowest sum of `count` items; `NO_LIMIT` if there are fewer items."""
    enough = count < len(sums)
    return np.where(enough, sums[np.where(enough, count, 0)], NO_LIMIT)


def grow(objective: Objective, rules: Rules, deadline: Deadline, width: int) -> list[Items]:
    """Returns bundles that keep every rule, as tuples of the added items; the best by estimated value first.

    `width` is the beam width; 1 is greedy search. After the deadline, the first bundle is enough.
    """
    ahead, first = Lookahead(rules), rules.fixed
    sums = np.array([each.of(first) for each in rules.sums], np.int64)
    variety = objective.variety(first)
    states = [_State(rules.must, variety, 0.0, variety * _couples(len(first)), rules.counts(first), sums)]
    whole: dict[Items, _State] = {}
    while True:
        whole |= {each.key: each for each in states if each.key not in whole and rules.hold(each.added)}
        if not states or len(rules.start) + len(states[0].added) >= rules.size.most:
            break
        if deadline.passed:
            if whole:
                break
            width = 1  # the fastest way to a bundle
        states = _step(objective, rules, ahead, states[:width], width)
    return [state.added for state in sorted(whole.values(), key=lambda each: (-each.value, each.added))]


def _step(
    objective: Objective, rules: Rules, ahead: Lookahead, states: list[_State], width: int
) -> list[_State]:
    bundles = [rules.start + state.added for state in states]
    likely = objective.likeliest(bundles, rules.allowed, LIKELIEST)
    options: list[tuple[float, int, int, float]] = []
    for number, state in enumerate(states):
        items, log = likely[number]
        mask = ahead.open(state, items)
        if np.count_nonzero(mask) < width and len(items) < rules.items:
            # Too few of the likeliest items may be added: try all allowed items.
            items = np.flatnonzero(rules.allowed)
            log = objective.chances_after([bundles[number]])[0][items]
            mask = ahead.open(state, items)
        items, log = items[mask], log[mask]
        values = _values(objective, rules, state, items, log)
        best = np.lexsort((items, -values))[:width]
        options += [(float(values[b]), number, int(items[b]), float(log[b])) for b in best]
    options.sort(key=lambda each: (-each[0], each[1], each[2]))
    following: dict[Items, _State] = {}
    for value, number, item, log_chance in options:
        before, inside = states[number], bundles[number]
        apart = objective.apart(inside, [item]).sum() if objective.asks_for_variety else 0.0
        state = _State(
            (*before.added, item),
            value,
            before.total + log_chance + float(objective.earns[item]),
            before.pairs + float(apart),
            before.counts + rules.counts([item]),
            before.sums + np.array([each.weights[item] for each in rules.sums], np.int64),
        )
        following.setdefault(state.key, state)
        if len(following) == width:
            break
    return list(following.values())


def _values(objective: Objective, rules: Rules, state: _State, items: Integers, logs: Floats) -> Floats:
    """Returns for each item the value of the bundle with it."""
    chosen = len(state.added) - len(rules.must) + 1
    values = (state.total + logs + objective.earns[items]) / chosen
    if objective.asks_for_variety:
        inside = rules.start + state.added
        apart = objective.apart(inside, items).sum(0)
        values = values + (state.pairs + apart) / max(1, _couples(len(inside) + 1))
    return np.asarray(values)


def _couples(items: int) -> int:
    return items * (items - 1) // 2
