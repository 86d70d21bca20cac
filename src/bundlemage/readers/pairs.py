"""How rows become pairs: a row is an event, and several events of a user and a thing make one pair.

Rows of the same pair and the same type of event add up their weights. The pair's weight is the largest of the
type's weight times this sum, and its time is that of its latest event. If the latest event is negative, such
as a return, the pair is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.data.events import Times, Weights
from bundlemage.errors import ConfigError, Problem
from bundlemage.readers.columns import listed
from bundlemage.readers.values import Coded, shown

Keys = npt.NDArray[np.int64]
"""One number for each pair. Pairs in the order of their rows and columns have ascending numbers."""
LARGEST_EVENT = 1e6
_EXACT = 2.0**53
_SHOWN_TYPES = 20


@dataclass(frozen=True)
class Rows:
    """Rows of a table of events, in any order."""

    keys: Keys
    event: npt.NDArray[np.int32] | None = None
    """The type of each row, as a position in `worth`. None: there are no types."""
    worth: npt.NDArray[np.float64] | None = None
    """The weight of each type of event. A negative one rejects."""
    weight: npt.NDArray[np.float64] | None = None
    """The weight of each row. None: rows of the same pair and type count once."""
    at: Times | None = None

    def taken(self, rows: Any) -> Rows:
        """Returns some of the rows, or all in another order."""
        event, weight, at = (
            None if column is None else column[rows] for column in (self.event, self.weight, self.at)
        )
        return Rows(self.keys[rows], event, self.worth, weight, at)

    def counting(self) -> Rows:
        """Returns the rows without those that are no event: those whose weight, or whose type's, is 0."""
        kept = np.ones(len(self.keys), bool)
        if self.weight is not None:
            kept &= self.weight > 0
        if self.event is not None and self.worth is not None:
            kept &= (self.worth != 0)[self.event]
        rows = self if kept.all() else self.taken(kept)
        if rows.weight is not None and bool((rows.weight == 1).all()):
            return Rows(rows.keys, rows.event, rows.worth, None, rows.at)
        return rows

    def purchases(self) -> npt.NDArray[np.int64]:
        """Returns how many rows each pair has whose type has a weight of 1 or more. The rows are in order."""
        keys = self.keys
        if self.event is not None and self.worth is not None:
            keys = keys[(self.worth >= 1)[self.event]]
        return np.diff(np.flatnonzero(np.diff(keys, prepend=-1)), append=len(keys))

    def in_order(self) -> Rows:
        """Returns the rows ordered by pair, type and weight, so that sums do not depend on their order."""
        order = np.argsort(self.keys)
        keys = self.keys[order]
        weight = None if self.weight is None or _is_exact(self.weight) else self.weight
        columns = [column for column in (weight, self.event) if column is not None]
        if columns:  # only pairs of several rows need more order
            is_first = np.diff(keys, prepend=-1) != 0
            places = np.flatnonzero(~(is_first & np.append(is_first[1:], True)))
            rows = order[places]
            order[places] = rows[np.lexsort([*(column[rows] for column in columns), keys[places]])]
        return self.taken(order)


def _is_exact(weights: npt.NDArray[np.float64]) -> bool:
    """Whether sums of these weights are exact in any order: they are whole numbers, and not too large."""
    return bool(weights.sum() < _EXACT and (weights == np.floor(weights)).all())


@dataclass(frozen=True)
class Pairs:
    """Different pairs, in ascending order."""

    keys: Keys
    at: Times | None
    weight: Weights | None
    rejected: Keys
    """The pairs whose latest event is negative. They are not among `keys`."""


def pairs_of_rows(rows: Rows) -> Pairs:
    """Returns the pairs of rows. The rows must be in order, and all must count."""
    keys = rows.keys
    none = np.empty(0, np.int64)
    if not len(keys):
        return Pairs(keys, None if rows.at is None else none, None, none)
    is_first = np.diff(keys, prepend=keys[0] - 1) != 0
    starts = np.flatnonzero(is_first)
    latest = None if rows.at is None else np.maximum.reduceat(rows.at, starts)
    weight = _weights(rows, is_first, starts)
    if rows.event is None or rows.worth is None or not (rows.worth < 0).any():
        return Pairs(keys[starts], latest, weight, none)
    negative = (rows.worth < 0)[rows.event]
    if rows.at is not None and latest is not None:
        negative &= rows.at == np.repeat(latest, np.diff(starts, append=len(keys)))
    rejected = np.logical_or.reduceat(negative, starts)
    kept = ~rejected
    return Pairs(
        keys[starts][kept],
        None if latest is None else latest[kept],
        None if weight is None else weight[kept],
        keys[starts][rejected],
    )


def _weights(rows: Rows, is_first: npt.NDArray[np.bool_], starts: npt.NDArray[np.intp]) -> Weights | None:
    """Returns the weight of each pair; None if all are 1."""
    if rows.weight is None and rows.event is None:
        return None
    begins = is_first
    if rows.event is not None:
        begins = is_first | (np.diff(rows.event, prepend=rows.event[0] - 1) != 0)
    groups = np.flatnonzero(begins)  # rows of the same pair and type
    amounts = np.ones(len(groups)) if rows.weight is None else np.add.reduceat(rows.weight, groups)
    if rows.event is not None and rows.worth is not None:
        amounts = amounts * rows.worth[rows.event[groups]]
    largest = np.maximum.reduceat(amounts, np.searchsorted(groups, starts))
    smallest = np.finfo(np.float32).tiny
    weights: Weights = largest.clip(min=smallest).astype(np.float32)
    return weights


# Types of events


def check_events(events: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Returns the weights of the types of events as numbers; raises `ConfigError` if one is no number."""
    if events is None:
        return None
    checked = {}
    for name, value in events.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or abs(value) > LARGEST_EVENT:
            raise ConfigError(
                f"the event {name!r} has the weight {value!r}; expected a number such as 0.2 for a view, 1 "
                "for a purchase or -1 for a return"
            )
        checked[str(name)] = float(value)
    if checked and not any(value > 0 for value in checked.values()):
        raise ConfigError("no event has a weight above 0, so there would be nothing to learn from")
    return checked or None


def written(events: Mapping[str, float]) -> str:
    """Returns the weights of types of events as the option `--events` takes them."""
    return ",".join(f"{name}={value:g}" for name, value in events.items())


@dataclass(frozen=True)
class Types:
    """The types of events that a table has."""

    names: Sequence[str | None]
    """None stands for rows without a type."""
    counts: Sequence[int]
    """The number of rows of each type."""

    @classmethod
    def of(cls, column: Coded) -> tuple[Types, npt.NDArray[np.int32]]:
        """Returns the types in a column, and the position of each row's type."""
        named = [*column.values, None]  # the code -1 is the last
        names = sorted(set(named), key=lambda name: (name is None, name or ""))
        places = {name: place for place, name in enumerate(names)}
        codes = np.array([places[name] for name in named], np.int32)[column.codes]
        counts = np.bincount(codes, minlength=len(names)).tolist()
        if not counts[-1]:  # every row has a type
            names, counts = names[:-1], counts[:-1]
        return cls(names, counts), codes

    @property
    def by_name(self) -> dict[str, int]:
        """The number of rows of each type, the most frequent first."""
        return {name or "": count for name, count in self._by_count}

    @property
    def _by_count(self) -> list[tuple[str | None, int]]:
        both = zip(self.names, self.counts, strict=True)
        return sorted(both, key=lambda each: (-each[1], each[0] or ""))

    def worth(self, events: Mapping[str, float] | None) -> npt.NDArray[np.float64]:
        """Returns the weight of each type."""
        if events is None:
            return np.ones(len(self.names))
        return np.array([events[name or ""] for name in self.names])

    def problems(self, events: Mapping[str, float] | None, where: str, in_words: str) -> list[Problem]:
        """Returns an error for types without a weight, or a warning if no type has one."""
        if events is None:
            return [_all_alike(self._by_count, where, in_words)] if len(self.names) > 1 else []
        unknown = [(name, count) for name, count in self._by_count if name not in events]
        if not unknown:
            return []
        name = unknown[0][0]
        found = _counted(unknown)
        fix = f"Add {'it' if len(unknown) == 1 else 'each'} to --events {written(events)}, with the weight 0 "
        fix += "to leave such rows out"
        if unknown[-1][0] is None or name is None:
            fix += "; fill in the type of rows that have none"
        message = f"{in_words} holds types of events that --events does not name: {found}"
        return [Problem("unknown-event", where, message, fix, value=name or "")]


def _all_alike(by_count: Sequence[tuple[str | None, int]], where: str, in_words: str) -> Problem:
    named = [name for name, _ in by_count if name is not None][:_SHOWN_TYPES]
    example = ",".join(f"{name}={_usual(name):g}" for name in named)
    message = f"{in_words} holds several types of events, and each counts as 1: {_counted(by_count)}"
    fix = f"Say what each is worth, as in --events {example}"
    return Problem("events-alike", where, message, fix, value=named[0] if named else "", severity="warning")


def _counted(types: Sequence[tuple[str | None, int]]) -> str:
    return listed(f"{_type(name)} ({count:,} row{'s' * (count != 1)})" for name, count in types)


def _type(name: str | None) -> str:
    return "none" if name is None else shown(name)


_USUAL = {
    **dict.fromkeys(("view", "click", "pv", "impression", "detail", "open"), 0.2),
    **dict.fromkeys(("cart", "addtocart", "wish", "fav", "save", "like"), 0.5),
    **dict.fromkeys(("return", "refund", "dislike", "cancel", "remove", "hide", "downvote"), -1.0),
}
"""Parts of the names of events, and a weight to begin with."""


def _usual(name: str) -> float:
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    negative_first = sorted(_USUAL.items(), key=lambda each: each[1])
    return next((weight for part, weight in negative_first if part in plain), 1.0)


def no_event_column(events: Mapping[str, float], tables: Sequence[str]) -> Problem:
    """Returns the problem that types of events have weights, but no table says the type of a row. `tables`
    are the names of the tables of events."""
    have = "has" if len(tables) == 1 else "have"
    message = f"--events {written(events)} is given, but {listed(tables)} {have} no column 'event'"
    fix = "Leave --events out, or add a column 'event' with the type of each row"
    return Problem("no-event-column", tables[0], message, fix)
