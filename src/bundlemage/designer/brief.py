"""What is asked of the designer, as the user wrote it, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from bundlemage.designer.money import MOST_OFF
from bundlemage.errors import ConfigError

Id: TypeAlias = str | int
Method = Literal["beam", "greedy", "exact"]
Size: TypeAlias = int | Sequence[int]
Budget: TypeAlias = float | Sequence[float | None]
Tags: TypeAlias = Mapping[str, Mapping[str, int]]

MOST_ITEMS = 100
"""In one bundle."""
MOST_BUNDLES = 100
"""In one answer."""


class Wishes(TypedDict, total=False):
    """What may be asked for, as people write it. What is left out is as `Brief` has it."""

    start: Iterable[Id]
    """What is in the bundle already. It counts in size, price and tags."""
    size: Size
    """How many items the bundle has in all: a number, or (least, most)."""
    budget: Budget | None
    """What it costs after the discount: at most a number, or (least, most), each of which may be None."""
    must: Iterable[Id]
    """Items that are in every bundle."""
    forbid: Iterable[Id]
    """Items that are in none. Ids that the shop does not have are passed over."""
    tags: Tags | None
    """{"at least": {tag: number}, "at most": {tag: number}}"""
    one_per: str | Iterable[str]
    """Tags of which at most one item is in a bundle; "brand:*" stands for every tag that begins so."""
    in_stock: bool | None
    """Whether to add only what is in stock; None: if the catalogue tells any stock."""
    not_owned: bool
    """Whether to add only items that the user does not have."""
    discount: float
    """A fraction: 0.2 is 20% off the sum of the items' prices."""
    diversity: float
    """The weight of how different the items of a bundle are."""
    margin: float
    """The weight of what its items earn."""
    costs: Mapping[Id, float] | None
    """What items cost the shop. Without, what they earn is what they are sold for."""
    n: int
    """How many bundles."""
    apart: float
    """Any two bundles differ in at least this share of what was chosen, and in one item."""
    method: Method
    """`greedy`, `beam`, or `exact` (CP-SAT)."""
    seed: int
    time_limit: float
    """Seconds, after which the best that was found is the answer."""
    reasons: bool
    """Whether to say of each added item why."""


@dataclass(frozen=True)
class Brief:
    """A request for bundles, checked: `Wishes` in one form, with ids as the shop writes them."""

    start: tuple[str, ...] = ()
    size: tuple[int, int] = (3, 5)
    budget: tuple[float | None, float | None] = (None, None)
    must: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    one_per: tuple[str, ...] = ()
    in_stock: bool | None = None
    not_owned: bool = True
    discount: float = 0.0
    diversity: float = 0.0
    margin: float = 0.0
    costs: Mapping[str, float] = field(default_factory=dict)
    n: int = 5
    apart: float = 0.5
    method: Method = "beam"
    seed: int = 0
    time_limit: float = 10.0
    reasons: bool = True

    @classmethod
    def of(cls, **wishes: Unpack[Wishes]) -> Brief:
        unknown = set(wishes) - set(Wishes.__annotations__)
        if unknown:
            known = ", ".join(Wishes.__annotations__)
            raise ConfigError(f"there is no {min(unknown)!r} to ask for; there are: {known}")
        given: dict[str, Any] = dict(wishes)
        if "tags" in given:
            given["at_least"], given["at_most"] = _tags(given.pop("tags"))
        checked = {name: _CHECKS[name](name, value) for name, value in given.items()}
        start = checked.get("start", ())
        if "must" in checked:
            checked["must"] = tuple(name for name in checked["must"] if name not in start)
        return cls(**checked)


def _ids(name: str, given: Iterable[Id]) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name!r} is {given!r}; a list of ids is wanted: write [{given!r}]")
    return tuple(dict.fromkeys(map(str, given)))


def _number(name: str, given: Any, least: float, most: float) -> float:
    wrong = isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given)
    if wrong or not least <= given <= most:
        raise ConfigError(f"{name!r} is {given!r}; a number from {least:g} to {most:g} is wanted")
    return float(given)


def _whole(name: str, given: Any, least: int, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ConfigError(f"{name!r} is {given!r}; a whole number from {least} to {most} is wanted")
    return given


def _size(name: str, given: Size) -> tuple[int, int]:
    both = (given, given) if not isinstance(given, Sequence) else tuple(given)
    if len(both) != 2:
        raise ConfigError(f"{name!r} is {given!r}; a number is wanted, or (least, most)")
    least, most = (_whole(name, each, 1, MOST_ITEMS) for each in both)
    if least > most:
        raise ConfigError(f"{name!r} is from {least} to {most}: the least comes first")
    return least, most


def _budget(name: str, given: Budget | None) -> tuple[float | None, float | None]:
    if given is None:
        return None, None
    both: tuple[Any, ...] = (None, given) if not isinstance(given, Sequence) else tuple(given)
    if len(both) != 2:
        raise ConfigError(f"{name!r} is {given!r}; a number is wanted, or (least, most)")
    least, most = (None if each is None else _number(name, each, 0, 1e12) for each in both)
    if least is not None and most is not None and least > most:
        raise ConfigError(f"{name!r} is from {least:g} to {most:g}: the least comes first")
    return least, most


def _tags(given: Tags | None) -> tuple[dict[str, int], dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {"at least": {}, "at most": {}}
    if not isinstance(given or {}, Mapping):
        raise ConfigError(f"'tags' is {given!r}; write {{'at least': {{tag: number}}, 'at most': {{…}}}}")
    for kind, counts in (given or {}).items():
        name = str(kind).replace("_", " ")
        if name not in kinds or not isinstance(counts, Mapping):
            raise ConfigError(
                f"'tags' has the key {kind!r}; it may have 'at least' and 'at most', each {{tag: number}}"
            )
        for tag, count in counts.items():
            kinds[name][str(tag)] = _whole(f"tags {name} {tag}", count, 0, MOST_ITEMS)
    return kinds["at least"], kinds["at most"]


def _list_of_tags(_: str, given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([given] if isinstance(given, str) else map(str, given)))


def _flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ConfigError(f"{name!r} is {given!r}; True or False is wanted")
    return given


def _method(name: str, given: Any) -> str:
    if given not in get_args(Method):
        raise ConfigError(f"{name!r} is {given!r}; it is one of {', '.join(get_args(Method))}")
    return str(given)


def _costs(name: str, given: Mapping[Id, float] | None) -> dict[str, float]:
    if not isinstance(given or {}, Mapping):
        raise ConfigError(f"{name!r} is {given!r}; write {{item: cost}}")
    return {str(item): _number(f"{name} of {item}", cost, 0, 1e12) for item, cost in (given or {}).items()}


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "start": _ids,
    "size": _size,
    "budget": _budget,
    "must": _ids,
    "forbid": _ids,
    "at_least": lambda _, counts: counts,
    "at_most": lambda _, counts: counts,
    "one_per": _list_of_tags,
    "in_stock": lambda name, given: None if given is None else _flag(name, given),
    "not_owned": _flag,
    "discount": lambda name, given: _number(name, given, 0, MOST_OFF),
    "diversity": lambda name, given: _number(name, given, 0, 1000),
    "margin": lambda name, given: _number(name, given, 0, 1000),
    "costs": _costs,
    "n": lambda name, given: _whole(name, given, 1, MOST_BUNDLES),
    "apart": lambda name, given: _number(name, given, 0, 1),
    "method": _method,
    "seed": lambda name, given: _whole(name, given, 0, 2**31 - 1),
    "time_limit": lambda name, given: _number(name, given, 0, 86_400),
    "reasons": _flag,
}
